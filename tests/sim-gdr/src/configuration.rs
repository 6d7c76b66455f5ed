//! Settings from the environment.

use std::ffi::c_int;
use std::sync::OnceLock;

use cuda_driver_sys::gdr::gdr_mapping_type_t;
use cuda_sim_support::settings::setting;

/// Major and minor.
pub(crate) type Version = (c_int, c_int);

/// The settings of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Configuration {
    pub(crate) version: Version,
    pub(crate) driver_version: Version,
    /// The error of opening the module's device.
    pub(crate) open_error: Option<c_int>,
    pub(crate) is_persistent: bool,
    /// The platform's default kind of mapping.
    pub(crate) mapping: gdr_mapping_type_t,
    pub(crate) missing: Vec<String>,
    /// Whether dma-bufs are used even if the module is present.
    pub(crate) wants_dma_buf: bool,
}

impl Configuration {
    /// The settings of this process.
    pub(crate) fn get() -> &'static Self {
        static CONFIGURATION: OnceLock<Configuration> = OnceLock::new();
        CONFIGURATION.get_or_init(|| {
            let (configuration, complaints) = Self::read(setting);
            for complaint in complaints {
                eprintln!("cuda-sim-gdr: {complaint}");
            }
            configuration
        })
    }

    /// Reads the settings through `look_up`, with a complaint for each invalid value.
    fn read(look_up: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut complaints = Vec::new();
        let read = |name: &str| look_up(name).map(|text| (name.to_owned(), text));
        let mut parse = |found: Option<(String, String)>, wanted: &str| {
            let (name, text) = found?;
            let value = wanted_value(wanted, text.trim());
            if value.is_none() {
                complaints.push(format!("{name}={text:?} is no {wanted}; ignored"));
            }
            value
        };
        let version = parse(read("CUDA_SIM_GDR_VERSION"), VERSION).unwrap_or((2, 5));
        let driver = parse(read("CUDA_SIM_GDR_DRIVER_VERSION"), VERSION);
        let open_error = parse(read("CUDA_SIM_GDR_OPEN_ERROR"), ERRNO);
        let persistent = parse(read("CUDA_SIM_GDR_PERSISTENT"), SWITCH);
        let mapping = parse(read("CUDA_SIM_GDR_MAPPING"), MAPPING).unwrap_or((1, 0));
        let missing = look_up("CUDA_SIM_GDR_MISSING").unwrap_or_default();
        let configuration = Self {
            version,
            driver_version: driver.unwrap_or(version),
            open_error: open_error.map(|(code, _)| code),
            is_persistent: persistent == Some((1, 0)),
            mapping: gdr_mapping_type_t(mapping.0.cast_unsigned()),
            missing: missing
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect(),
            wants_dma_buf: look_up("GDRCOPY_USE_DMABUF_MMAP").as_deref() == Some("1"),
        };
        (configuration, complaints)
    }

    /// Whether the library supports an alternative to the module.
    pub(crate) fn knows_dma_buf(&self) -> bool {
        self.version >= (2, 6)
    }
}

const VERSION: &str = "version such as 2.5";
const ERRNO: &str = "number of an error";
const SWITCH: &str = "0 or 1";
const MAPPING: &str = "mapping: wc, cached or device";

/// Parses one of these kinds of values: a version, or a number, which is paired with 0.
fn wanted_value(wanted: &str, text: &str) -> Option<Version> {
    let number = |text: &str| text.parse::<u16>().ok().map(c_int::from);
    match wanted {
        VERSION => {
            let (major, minor) = text.split_once('.')?;
            Some((number(major)?, number(minor)?))
        }
        ERRNO => Some((number(text).filter(|code| *code > 0)?, 0)),
        SWITCH => Some((number(text).filter(|value| *value <= 1)?, 0)),
        _ => {
            let names = ["wc", "cached", "device"];
            let found = names.iter().position(|name| *name == text)?;
            Some((found as c_int + 1, 0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let (configuration, complaints) = Configuration::read(|name| {
            let value = match name {
                "CUDA_SIM_GDR_VERSION" => "2.6",
                "CUDA_SIM_GDR_DRIVER_VERSION" => "2.4",
                "CUDA_SIM_GDR_OPEN_ERROR" => "13",
                "CUDA_SIM_GDR_PERSISTENT" => "1",
                "CUDA_SIM_GDR_MAPPING" => "cached",
                "CUDA_SIM_GDR_MISSING" => "gdr_map_v2, gdr_get_info",
                _ => return None,
            };
            Some(value.to_owned())
        });
        assert_eq!(complaints, [""; 0]);
        assert_eq!(
            (configuration.version, configuration.driver_version),
            ((2, 6), (2, 4))
        );
        assert_eq!(
            (configuration.open_error, configuration.is_persistent),
            (Some(13), true)
        );
        assert_eq!(
            configuration.mapping,
            gdr_mapping_type_t::GDR_MAPPING_TYPE_CACHING
        );
        assert_eq!(configuration.missing, ["gdr_map_v2", "gdr_get_info"]);
        assert!(configuration.knows_dma_buf() && !configuration.wants_dma_buf);
    }

    #[test]
    fn nothing_set_is_a_library_and_a_module_of_2_5() {
        let (configuration, complaints) = Configuration::read(|_| None);
        assert_eq!(complaints, [""; 0]);
        assert_eq!(
            (configuration.version, configuration.driver_version),
            ((2, 5), (2, 5))
        );
        assert_eq!(
            configuration.mapping,
            gdr_mapping_type_t::GDR_MAPPING_TYPE_WC
        );
        assert!(!configuration.is_persistent && configuration.open_error.is_none());
    }

    #[test]
    fn nonsense_is_named_and_ignored() {
        for (variable, value) in [
            ("CUDA_SIM_GDR_VERSION", "two"),
            ("CUDA_SIM_GDR_OPEN_ERROR", "0"),
            ("CUDA_SIM_GDR_PERSISTENT", "2"),
            ("CUDA_SIM_GDR_MAPPING", "WC"),
        ] {
            let (_, complaints) =
                Configuration::read(|name| (name == variable).then(|| value.to_owned()));
            assert_eq!(complaints.len(), 1, "{variable}");
            assert!(complaints[0].contains(variable), "{complaints:?}");
        }
    }
}
