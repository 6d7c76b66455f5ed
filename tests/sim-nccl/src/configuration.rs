//! Settings from the environment.

use std::sync::OnceLock;

use cuda_driver_sys::nccl::NCCL_VERSION;
use cuda_sim_support::settings::setting;

/// The settings of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Configuration {
    /// In the notation of `ncclGetVersion`.
    pub(crate) version: i32,
    /// Symbols that are hidden.
    pub(crate) missing: Vec<String>,
    /// Whether failures and faults are printed.
    pub(crate) warns: bool,
}

impl Configuration {
    /// The settings of this process.
    pub(crate) fn get() -> &'static Self {
        static CONFIGURATION: OnceLock<Configuration> = OnceLock::new();
        CONFIGURATION.get_or_init(|| {
            // A machine has nothing from the environment, but what is printed does not change what happens.
            let (configuration, complaint) = Self::read(|name| match name {
                "NCCL_DEBUG" => std::env::var(name).ok(),
                _ => setting(name),
            });
            if let Some(complaint) = complaint {
                eprintln!("cuda-sim-nccl: {complaint}");
            }
            configuration
        })
    }

    /// Reads the settings through `look_up`, with a complaint about an invalid value.
    fn read(look_up: impl Fn(&str) -> Option<String>) -> (Self, Option<String>) {
        let mut complaint = None;
        let version = look_up("NCCL_SIM_VERSION").and_then(|text| {
            let version = text.trim().parse().ok().filter(|version| *version > 0);
            if version.is_none() {
                complaint = Some(format!(
                    "NCCL_SIM_VERSION={text:?} makes no sense; using the default"
                ));
            }
            version
        });
        let missing = look_up("NCCL_SIM_MISSING").unwrap_or_default();
        let names = missing.split(',').map(str::trim);
        let debug = look_up("NCCL_DEBUG").unwrap_or_default().to_uppercase();
        let configuration = Self {
            version: version.unwrap_or(NCCL_VERSION(2, 28, 9).cast_signed()),
            missing: names
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            warns: ["WARN", "INFO", "TRACE"].contains(&debug.as_str()),
        };
        (configuration, complaint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_nonsense_is_named() {
        let read = |version: &'static str| {
            Configuration::read(move |name| match name {
                "NCCL_SIM_VERSION" => Some(version.to_owned()),
                "NCCL_SIM_MISSING" => Some("ncclMemAlloc, ncclMemFree,".to_owned()),
                "NCCL_DEBUG" => Some("warn".to_owned()),
                _ => None,
            })
        };
        let (configuration, complaint) = read("22304");
        assert_eq!(
            (configuration.version, configuration.warns, complaint),
            (22304, true, None)
        );
        assert_eq!(configuration.missing, ["ncclMemAlloc", "ncclMemFree"]);
        let (configuration, complaint) = read("two");
        assert_eq!(configuration.version, 22809);
        assert!(complaint.is_some_and(|text| text.contains("NCCL_SIM_VERSION")));
    }
}
