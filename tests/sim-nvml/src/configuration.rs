//! Settings from the environment.

use std::sync::OnceLock;

use cuda_sim_support::settings::setting;

/// A GPU, or one of its MIG instances.
pub(crate) type Unit = (usize, Option<usize>);

/// Size of each GPU's BAR1.
pub(crate) const BAR1: u64 = 256 << 30;

/// The settings of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Configuration {
    pub(crate) devices: usize,
    /// Allocatable bytes of a GPU.
    pub(crate) memory: u64,
    /// Bytes that it reserves in addition.
    pub(crate) reserved: u64,
    /// In the notation of `cuDriverGetVersion`.
    pub(crate) version: u32,
    pub(crate) used: Vec<(Unit, u64)>,
    /// Free bytes of each GPU's BAR1.
    pub(crate) bar1_free: u64,
    /// GPUs with MIG, and their number of instances.
    pub(crate) mig: Vec<(usize, usize)>,
    /// GPU or instance, process, and its bytes if known.
    pub(crate) processes: Vec<(Unit, u32, Option<u64>)>,
    pub(crate) compute_mode: Vec<(usize, u32)>,
    pub(crate) lost: Vec<usize>,
    pub(crate) missing: Vec<String>,
    /// The error that initialisation returns.
    pub(crate) error: Option<u32>,
}

impl Configuration {
    /// The settings of this process.
    pub(crate) fn get() -> &'static Self {
        static CONFIGURATION: OnceLock<Configuration> = OnceLock::new();
        CONFIGURATION.get_or_init(|| {
            let (configuration, complaints) = Self::read(setting);
            for complaint in complaints {
                eprintln!("cuda-sim-nvml: {complaint}");
            }
            configuration
        })
    }

    /// Reads the settings through `look_up`, with a complaint for each invalid value.
    fn read(look_up: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut reader = Reader {
            look_up,
            complaints: Vec::new(),
        };
        let configuration = Self {
            devices: reader.one("CUDA_SIM_DEVICES", number).unwrap_or(1).min(64),
            // The default of the simulated driver, which is an H200's.
            memory: reader
                .one("CUDA_SIM_MEMORY", size)
                .unwrap_or(150_109_880_320),
            reserved: reader.one("NVML_SIM_RESERVED", size).unwrap_or(512 << 20),
            version: reader
                .one("CUDA_SIM_DRIVER_VERSION", number)
                .unwrap_or(13000),
            used: reader.list("NVML_SIM_USED", |item| {
                let (at, bytes) = item.split_once(':')?;
                Some((unit(at)?, size(bytes)?))
            }),
            bar1_free: reader
                .one("NVML_SIM_BAR1_FREE", size)
                .unwrap_or(BAR1 - (2 << 20))
                .min(BAR1),
            // Described once for both libraries, unless they are to differ.
            mig: match (reader.look_up)("NVML_SIM_MIG") {
                Some(_) => reader.list("NVML_SIM_MIG", pair),
                None => reader.list("CUDA_SIM_MIG", pair),
            },
            processes: reader.list("NVML_SIM_PROCESSES", |item| {
                let mut parts = item.splitn(3, ':');
                let (at, pid) = (unit(parts.next()?)?, number(parts.next()?)?);
                let bytes = match parts.next() {
                    Some(bytes) => Some(size(bytes)?),
                    None => None,
                };
                Some((at, pid, bytes))
            }),
            compute_mode: reader.list("NVML_SIM_COMPUTE_MODE", pair),
            lost: reader.list("NVML_SIM_LOST", number),
            missing: reader.list("NVML_SIM_MISSING", |item| Some(item.to_owned())),
            error: reader
                .one("NVML_SIM_ERROR", number)
                .filter(|code| *code != 0),
        };
        (configuration, reader.complaints)
    }

    /// Number of MIG instances of a GPU; `None` without MIG.
    pub(crate) fn instances(&self, gpu: usize) -> Option<usize> {
        let found = self.mig.iter().find(|(index, _)| *index == gpu);
        found.map(|(_, count)| *count)
    }
}

struct Reader<F> {
    look_up: F,
    complaints: Vec<String>,
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    fn one<T>(&mut self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = (self.look_up)(name)?;
        let value = parse(text.trim());
        if value.is_none() {
            self.complaints
                .push(format!("{name}={text:?} makes no sense; using the default"));
        }
        value
    }

    fn list<T>(&mut self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Vec<T> {
        self.one(name, |text| {
            let items = text.split(',').map(str::trim);
            items.filter(|item| !item.is_empty()).map(&parse).collect()
        })
        .unwrap_or_default()
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.trim().parse().ok()
}

/// `1:3`
fn pair<A: std::str::FromStr, B: std::str::FromStr>(text: &str) -> Option<(A, B)> {
    let (a, b) = text.split_once(':')?;
    Some((number(a)?, number(b)?))
}

/// `3`, or `1.0` for a MIG instance.
fn unit(text: &str) -> Option<Unit> {
    match text.split_once('.') {
        Some((gpu, instance)) => Some((number(gpu)?, Some(number(instance)?))),
        None => Some((number(text)?, None)),
    }
}

/// Bytes, with K, M or G.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number::<u64>(digits)?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mig_is_described_once_for_both_libraries() {
        let mig = |own: Option<&str>| {
            let (configuration, complaints) = Configuration::read(|name| match name {
                "CUDA_SIM_MIG" => Some("0:2".to_owned()),
                "NVML_SIM_MIG" => own.map(str::to_owned),
                _ => None,
            });
            assert!(complaints.is_empty(), "{complaints:?}");
            configuration.mig
        };
        assert_eq!(mig(None), [(0, 2)]);
        assert_eq!(mig(Some("1:3")), [(1, 3)]);
        assert_eq!(mig(Some("")), []);
    }

    #[test]
    fn lists_are_read() {
        let (configuration, complaints) = Configuration::read(|name| {
            let value = match name {
                "CUDA_SIM_DEVICES" => "8",
                "NVML_SIM_USED" => "0:10G, 3:70G,1.1:5",
                "NVML_SIM_MIG" => "1:3",
                "NVML_SIM_PROCESSES" => "0:4711:1K,2:12",
                "NVML_SIM_ERROR" => "9",
                "NVML_SIM_BAR1_FREE" => "64K",
                _ => return None,
            };
            Some(value.to_owned())
        });
        assert_eq!(complaints, [""; 0]);
        assert_eq!(configuration.devices, 8);
        assert_eq!(
            configuration.used,
            [
                ((0, None), 10 << 30),
                ((3, None), 70 << 30),
                ((1, Some(1)), 5)
            ]
        );
        assert_eq!(
            (configuration.instances(1), configuration.instances(0)),
            (Some(3), None)
        );
        assert_eq!(
            configuration.processes,
            [((0, None), 4711, Some(1024)), ((2, None), 12, None)]
        );
        assert_eq!(
            (configuration.error, configuration.bar1_free),
            (Some(9), 64 << 10)
        );
    }

    #[test]
    fn nonsense_is_named_and_ignored() {
        let (configuration, complaints) =
            Configuration::read(|name| (name == "NVML_SIM_USED").then(|| "0=10G".to_owned()));
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].contains("NVML_SIM_USED"), "{complaints:?}");
        assert_eq!(configuration.used, []);
    }
}
