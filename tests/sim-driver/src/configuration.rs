//! Settings from the environment. Read once, when the library is loaded.

mod features;

use std::sync::OnceLock;

use cuda_sim_support::settings::setting;

use crate::logs;
use crate::system::SHARED_HANDLE;

/// The settings of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Configuration {
    /// Number of devices in the machine, before `CUDA_VISIBLE_DEVICES`.
    pub(crate) devices: usize,
    /// Bytes of memory of each device.
    pub(crate) memory: u64,
    /// In the notation of `cuDriverGetVersion`: 13000 is CUDA 13.0.
    pub(crate) version: u32,
    /// The driver model: on Windows, Linux-only features are absent.
    pub(crate) model: DriverModel,
    /// Whether the devices use the page tables of the host, as those of a Grace Hopper.
    pub(crate) coherent: bool,
    /// Whether to simulate a guest with a virtual GPU.
    pub(crate) vgpu: bool,
    /// Whether the devices have memory pools, unless something else prevents them.
    pub(crate) pools: bool,
    /// Devices of the machine without pools.
    pub(crate) no_pools: Vec<usize>,
    /// Whether pool creation fails on devices that report pools.
    pub(crate) broken_pools: bool,
    /// The bit mask of device attribute 119.
    pub(crate) handle_types: u32,
    /// Those of them that no pool can be created with.
    pub(crate) broken_handle_types: u32,
    /// Whether there are pools of host memory.
    pub(crate) host_pools: bool,
    /// Whether there are pools of NUMA node memory.
    pub(crate) numa_pools: bool,
    /// Whether there are pools of managed memory.
    pub(crate) managed_pools: bool,
    /// Whether there is virtual memory management.
    pub(crate) vmm: bool,
    /// Whether device memory can be exported as dma-bufs.
    pub(crate) dma_buf: bool,
    /// Whether the host can map these, if the version supports that.
    pub(crate) dma_buf_mmap: bool,
    /// Whether that claim is false.
    pub(crate) broken_dma_buf_mmap: bool,
    /// Whether they can be exported for access over PCIe.
    pub(crate) dma_buf_pcie: bool,
    /// Whether devices have peer access.
    pub(crate) peers: bool,
    /// Pairs of devices of the machine without it.
    pub(crate) no_peers: Vec<(usize, usize)>,
    /// Devices of the machine with MIG on, and their number of instances.
    pub(crate) mig: Vec<(usize, usize)>,
    /// The error that `cuInit` returns.
    pub(crate) init_error: Option<u32>,
    /// Whether to simulate the toolkit's link-time stub, whose only answer is that it is one.
    pub(crate) stub: bool,
    /// Pool blocks are rounded up to a multiple of this.
    pub(crate) granule: u64,
    /// Pools take memory from the device in steps of this.
    pub(crate) chunk: u64,
    /// Physical memory comes in multiples of this.
    pub(crate) granularity: u64,
    /// Where the numbers of handles start, so that several machines in a process have different ones.
    pub(crate) first_handle: u64,
}

/// The driver model of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverModel {
    Linux,
    /// Windows, with the device for compute only.
    Tcc,
    /// Windows, with the device also driving a display.
    Wddm,
}

/// The model of the machine that is simulated without settings.
const OWN_MODEL: DriverModel = if cfg!(windows) {
    DriverModel::Wddm
} else {
    DriverModel::Linux
};

impl Default for Configuration {
    /// As measured with one H200 and driver 580.159.04. On Windows what is known of there: WDDM, handles of its own, no
    /// dma-bufs, no NUMA nodes; nothing of it is measured.
    fn default() -> Self {
        Self {
            devices: 1,
            memory: 150_109_880_320,
            version: 13000,
            model: OWN_MODEL,
            coherent: false,
            vgpu: false,
            pools: true,
            no_pools: Vec::new(),
            broken_pools: false,
            handle_types: if cfg!(windows) { SHARED_HANDLE } else { 9 },
            broken_handle_types: 0,
            host_pools: true,
            numa_pools: !cfg!(windows),
            managed_pools: true,
            vmm: true,
            dma_buf: !cfg!(windows),
            dma_buf_mmap: true,
            broken_dma_buf_mmap: false,
            dma_buf_pcie: false,
            peers: true,
            no_peers: Vec::new(),
            mig: Vec::new(),
            init_error: None,
            stub: false,
            granule: 512,
            chunk: 32 << 20,
            // Measured: both the minimum and the recommended granularity.
            granularity: 2 << 20,
            first_handle: 0,
        }
    }
}

impl Configuration {
    /// The configuration of this process.
    pub(crate) fn get() -> &'static Self {
        static CONFIGURATION: OnceLock<Configuration> = OnceLock::new();
        CONFIGURATION.get_or_init(|| {
            let (configuration, complaints) = Self::read(setting);
            for complaint in complaints {
                logs::say(complaint);
            }
            configuration
        })
    }

    /// The version of a library opened now. Reports no complaints, which the library does itself.
    pub(crate) fn version_to_come() -> u32 {
        Self::read(setting).0.version
    }

    /// Reads the settings through `look_up`, with a complaint for each invalid value.
    pub(crate) fn read(look_up: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut complaints = Vec::new();
        let mut read = |name: &str, default: u64, allowed: std::ops::RangeInclusive<u64>| {
            let Some(text) = look_up(name) else {
                return default;
            };
            match size(&text).filter(|value| allowed.contains(value)) {
                Some(value) => value,
                None => {
                    complaints.push(format!(
                        "{name}={text:?} is not a number from {} to {} (K, M, G allowed); \
                         using {default}",
                        allowed.start(),
                        allowed.end()
                    ));
                    default
                }
            }
        };
        let default = Self::default();
        // WDDM has pools or not, by the version of the driver. This library's own machine has them.
        let model = look_up("CUDA_SIM_DRIVER_MODEL");
        let has_usual_pools = model.is_none_or(|model| model.trim() != "wddm");
        let step = 64 << 10..=1 << 40;
        let mut configuration = Self {
            devices: read("CUDA_SIM_DEVICES", 1, 0..=64) as usize,
            memory: read("CUDA_SIM_MEMORY", default.memory, 1 << 20..=1 << 42),
            version: read(
                "CUDA_SIM_DRIVER_VERSION",
                default.version.into(),
                11000..=99990,
            ) as u32,
            model: OWN_MODEL,
            coherent: read("CUDA_SIM_COHERENT", 0, 0..=1) == 1,
            vgpu: read("CUDA_SIM_VGPU", 0, 0..=1) == 1,
            pools: read("CUDA_SIM_POOLS", has_usual_pools.into(), 0..=1) == 1,
            no_pools: Vec::new(),
            broken_pools: read("CUDA_SIM_BROKEN_POOLS", 0, 0..=1) == 1,
            handle_types: read("CUDA_SIM_HANDLE_TYPES", default.handle_types.into(), 0..=15) as u32,
            broken_handle_types: read("CUDA_SIM_BROKEN_HANDLE_TYPES", 0, 0..=15) as u32,
            host_pools: read("CUDA_SIM_HOST_POOLS", 1, 0..=1) == 1,
            numa_pools: read("CUDA_SIM_NUMA_POOLS", default.numa_pools.into(), 0..=1) == 1,
            managed_pools: read("CUDA_SIM_MANAGED_POOLS", 1, 0..=1) == 1,
            vmm: read("CUDA_SIM_VMM", 1, 0..=1) == 1,
            dma_buf: read("CUDA_SIM_DMA_BUF", default.dma_buf.into(), 0..=1) == 1,
            dma_buf_mmap: read("CUDA_SIM_DMA_BUF_MMAP", 1, 0..=1) == 1,
            broken_dma_buf_mmap: read("CUDA_SIM_BROKEN_DMA_BUF_MMAP", 0, 0..=1) == 1,
            dma_buf_pcie: read("CUDA_SIM_DMA_BUF_PCIE", 0, 0..=1) == 1,
            peers: read("CUDA_SIM_PEERS", 1, 0..=1) == 1,
            no_peers: Vec::new(),
            mig: Vec::new(),
            init_error: Some(read("CUDA_SIM_INIT_ERROR", 0, 0..=u64::from(u32::MAX)) as u32)
                .filter(|code| *code != 0),
            stub: read("CUDA_SIM_STUB", 0, 0..=1) == 1,
            granule: read("CUDA_SIM_POOL_GRANULE", default.granule, 1..=1 << 30),
            chunk: read("CUDA_SIM_POOL_CHUNK", default.chunk, step),
            granularity: read(
                "CUDA_SIM_GRANULARITY",
                default.granularity,
                64 << 10..=1 << 30,
            ),
            first_handle: read("CUDA_SIM_HANDLES", 0, 0..=1 << 35),
        };
        if let Some(text) = look_up("CUDA_SIM_NO_PEERS") {
            match pairs(&text, '-') {
                Some(pairs) => configuration.no_peers = pairs,
                None => complaints.push(format!(
                    "CUDA_SIM_NO_PEERS={text:?} is no list of pairs such as 0-1,2-3; ignored"
                )),
            }
        }
        if let Some(text) = look_up("CUDA_SIM_MIG") {
            let pairs = pairs(&text, ':');
            match pairs.filter(|pairs| pairs.iter().all(|(_, count)| *count <= MIG_AT_MOST)) {
                Some(pairs) => configuration.mig = pairs,
                None => complaints.push(format!(
                    "CUDA_SIM_MIG={text:?} is no list of devices and their instances, at most {MIG_AT_MOST}, such as 0:2,1:7; ignored"
                )),
            }
        }
        if let Some(text) = look_up("CUDA_SIM_NO_POOLS") {
            match numbers(&text) {
                Some(numbers) => configuration.no_pools = numbers,
                None => complaints.push(format!(
                    "CUDA_SIM_NO_POOLS={text:?} is no list of devices such as 1,3; ignored"
                )),
            }
        }
        if let Some(text) = look_up("CUDA_SIM_DRIVER_MODEL") {
            match text.trim() {
                "linux" => configuration.model = DriverModel::Linux,
                "tcc" => configuration.model = DriverModel::Tcc,
                "wddm" => configuration.model = DriverModel::Wddm,
                _ => complaints.push(format!(
                    "CUDA_SIM_DRIVER_MODEL={text:?} is none of linux, tcc, wddm; ignored"
                )),
            }
        }
        if configuration.coherent && !configuration.is_coherent() {
            complaints.push(
                "CUDA_SIM_COHERENT=1 needs Linux and concurrent managed access; ignored".into(),
            );
        }
        let is_asked = |name| look_up(name).and_then(|text| size(&text)) == Some(1);
        if is_asked("CUDA_SIM_POOLS") && !configuration.may_have_pools() {
            complaints.push(
                "CUDA_SIM_POOLS=1 needs another driver model than tcc, and no virtual GPU; ignored"
                    .into(),
            );
        }
        if is_asked("CUDA_SIM_DMA_BUF") && !configuration.has_dma_buf() {
            complaints.push("CUDA_SIM_DMA_BUF=1 needs the driver model linux; ignored".into());
        }
        let unknown = configuration.handle_types & !configuration.shared_handle_types();
        if unknown != 0 && look_up("CUDA_SIM_HANDLE_TYPES").is_some() {
            complaints.push(format!(
                "CUDA_SIM_HANDLE_TYPES has kinds that need the driver model linux: {unknown}; ignored"
            ));
        }
        for (name, value, default) in [
            (
                "CUDA_SIM_POOL_GRANULE",
                &mut configuration.granule,
                default.granule,
            ),
            (
                "CUDA_SIM_POOL_CHUNK",
                &mut configuration.chunk,
                default.chunk,
            ),
            (
                "CUDA_SIM_GRANULARITY",
                &mut configuration.granularity,
                default.granularity,
            ),
        ] {
            if !value.is_power_of_two() {
                complaints.push(format!(
                    "{name}={value} is not a power of two; using {default}"
                ));
                *value = default;
            }
        }
        if configuration.granule > configuration.chunk {
            complaints.push("the granule is larger than the chunk; using 512 and 32 MiB".into());
            (configuration.granule, configuration.chunk) = (default.granule, default.chunk);
        }
        (configuration, complaints)
    }
}

/// MIG instances of one device, as on every GPU that supports them.
const MIG_AT_MOST: usize = 7;

/// A number with an optional suffix K, M or G (powers of 1024).
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'K' | 'k') => (&text[..at], 10),
        (at, 'M' | 'm') => (&text[..at], 20),
        (at, 'G' | 'g') => (&text[..at], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Pairs of numbers: `0-1,2-3`.
fn pairs(text: &str, between: char) -> Option<Vec<(usize, usize)>> {
    let pair = |text: &str| {
        let (one, other) = text.split_once(between)?;
        Some((one.trim().parse().ok()?, other.trim().parse().ok()?))
    };
    text.split(',').map(pair).collect()
}

/// A list of numbers: `1,3`.
fn numbers(text: &str) -> Option<Vec<usize>> {
    let number = |text: &str| text.trim().parse().ok();
    text.split(',').map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> (Configuration, Vec<String>) {
        Configuration::read(|name| {
            let found = pairs.iter().find(|(key, _)| *key == name)?;
            Some(found.1.to_owned())
        })
    }

    #[test]
    fn nothing_set_is_the_measured_device() {
        assert_eq!(read(&[]), (Configuration::default(), Vec::new()));
    }

    #[test]
    fn sizes_take_suffixes() {
        assert_eq!(size("64"), Some(64));
        assert_eq!(size("2K"), Some(2048));
        assert_eq!(size("3m"), Some(3 << 20));
        assert_eq!(size(" 4G "), Some(4 << 30));
        for wrong in ["", "G", "1T", "-1", "1.5G", "99999999999999G"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_setting_that_makes_no_sense_is_named_and_the_default_stays() {
        let (configuration, complaints) =
            read(&[("CUDA_SIM_DEVICES", "many"), ("CUDA_SIM_MEMORY", "8G")]);
        assert_eq!(configuration.devices, 1);
        assert_eq!(configuration.memory, 8 << 30);
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].contains("CUDA_SIM_DEVICES=\"many\""));
    }

    #[test]
    fn pairs_without_access_are_a_list() {
        let (configuration, complaints) = read(&[("CUDA_SIM_NO_PEERS", "0-1, 2-3")]);
        assert_eq!(configuration.no_peers, [(0, 1), (2, 3)]);
        assert!(complaints.is_empty());
        for wrong in ["", "0", "0-1,", "a-b", "0-1-2"] {
            let (configuration, complaints) = read(&[("CUDA_SIM_NO_PEERS", wrong)]);
            assert!(configuration.no_peers.is_empty());
            assert_eq!(complaints.len(), 1, "{wrong}");
        }
    }

    #[test]
    fn instances_are_a_list() {
        let (configuration, complaints) = read(&[("CUDA_SIM_MIG", "0:2, 3:0")]);
        assert_eq!(configuration.mig, [(0, 2), (3, 0)]);
        assert!(complaints.is_empty());
        for wrong in ["0-2", "0:8", "0:99999999999999"] {
            let (configuration, complaints) = read(&[("CUDA_SIM_MIG", wrong)]);
            assert_eq!(
                (configuration.mig.len(), complaints.len()),
                (0, 1),
                "{wrong}"
            );
        }
    }

    #[test]
    fn devices_without_pools_are_a_list() {
        let (configuration, complaints) = read(&[("CUDA_SIM_NO_POOLS", "1, 3")]);
        assert!(complaints.is_empty());
        let have: Vec<bool> = (0..5).map(|index| configuration.has_pools(index)).collect();
        assert_eq!(have, [true, false, true, false, true]);
        for wrong in ["", "1,", "a", "1-3", "-1"] {
            let (configuration, complaints) = read(&[("CUDA_SIM_NO_POOLS", wrong)]);
            assert!(configuration.no_pools.is_empty());
            assert_eq!(complaints.len(), 1, "{wrong}");
        }
    }

    #[test]
    fn windows_and_virtual_gpus_have_no_pools() {
        for (name, value, managed, concurrent) in [
            ("CUDA_SIM_DRIVER_MODEL", "tcc", true, false),
            ("CUDA_SIM_DRIVER_MODEL", "wddm", true, false),
            ("CUDA_SIM_VGPU", "1", false, false),
            ("CUDA_SIM_POOLS", "0", true, !cfg!(windows)),
        ] {
            let (configuration, complaints) = read(&[(name, value)]);
            assert!(complaints.is_empty());
            assert!(
                !configuration.claims_pools(0) && !configuration.has_pools(0),
                "{value}"
            );
            assert_eq!(configuration.has_managed_memory(), managed, "{value}");
            assert_eq!(
                configuration.has_concurrent_managed_access(),
                concurrent,
                "{value}"
            );
        }
        let newer = [("CUDA_SIM_DRIVER_MODEL", "wddm"), ("CUDA_SIM_POOLS", "1")];
        assert!(read(&newer).0.claims_pools(0));
        let (configuration, complaints) = read(&[("CUDA_SIM_DRIVER_MODEL", "linux")]);
        let expected = Configuration {
            model: DriverModel::Linux,
            ..Configuration::default()
        };
        assert_eq!((configuration, complaints), (expected, Vec::new()));
        let (configuration, complaints) = read(&[("CUDA_SIM_DRIVER_MODEL", "TCC")]);
        assert_eq!((configuration.model, complaints.len()), (OWN_MODEL, 1));
    }

    #[test]
    fn what_a_driver_model_lacks_is_not_asked_for_in_silence() {
        for (model, other, complaint) in [
            ("tcc", ("CUDA_SIM_POOLS", "1"), 1),
            ("tcc", ("CUDA_SIM_POOLS", "0"), 0),
            ("wddm", ("CUDA_SIM_POOLS", "1"), 0),
            ("wddm", ("CUDA_SIM_DMA_BUF", "1"), 1),
            ("tcc", ("CUDA_SIM_DMA_BUF", "0"), 0),
            ("linux", ("CUDA_SIM_DMA_BUF", "1"), 0),
            ("wddm", ("CUDA_SIM_HANDLE_TYPES", "11"), 1),
            ("wddm", ("CUDA_SIM_HANDLE_TYPES", "2"), 0),
            ("linux", ("CUDA_SIM_HANDLE_TYPES", "11"), 0),
        ] {
            let (configuration, complaints) = read(&[("CUDA_SIM_DRIVER_MODEL", model), other]);
            assert_eq!(complaints.len(), complaint, "{model}, {other:?}");
            assert!(model == "linux" || !configuration.has_dma_buf(), "{model}");
        }
        let (_, complaints) = read(&[("CUDA_SIM_VGPU", "1"), ("CUDA_SIM_POOLS", "1")]);
        assert_eq!(complaints.len(), 1);
    }

    #[test]
    fn only_linux_with_managed_memory_is_coherent() {
        let coherent = ("CUDA_SIM_COHERENT", "1");
        let linux = ("CUDA_SIM_DRIVER_MODEL", "linux");
        let (configuration, complaints) = read(&[coherent, linux]);
        assert_eq!(
            (configuration.is_coherent(), complaints.len()),
            (cfg!(target_os = "linux"), usize::from(cfg!(windows)))
        );
        for other in [
            ("CUDA_SIM_DRIVER_MODEL", "tcc"),
            ("CUDA_SIM_VGPU", "1"),
            ("CUDA_SIM_MANAGED_POOLS", "0"),
        ] {
            let (configuration, complaints) = read(&[coherent, other]);
            assert_eq!((configuration.is_coherent(), complaints.len()), (false, 1));
        }
    }

    #[test]
    fn broken_pools_are_promised_and_not_there() {
        let (configuration, _) = read(&[("CUDA_SIM_BROKEN_POOLS", "1")]);
        assert!(configuration.claims_pools(0) && !configuration.has_pools(0));
        let (configuration, _) = read(&[("CUDA_SIM_BROKEN_POOLS", "1"), ("CUDA_SIM_POOLS", "0")]);
        assert!(!configuration.claims_pools(0));
    }

    #[test]
    fn chunks_are_powers_of_two() {
        let (configuration, complaints) = read(&[("CUDA_SIM_POOL_CHUNK", "3M")]);
        assert_eq!(configuration.chunk, 32 << 20);
        assert_eq!(complaints.len(), 1);
    }

    #[test]
    fn pieces_of_memory_are_powers_of_two_from_64_kib_on() {
        for (text, granularity, complaint) in [
            ("64K", 64 << 10, 0),
            ("96K", 2 << 20, 1),
            ("32K", 2 << 20, 1),
        ] {
            let (configuration, complaints) = read(&[("CUDA_SIM_GRANULARITY", text)]);
            let found = (configuration.granularity, complaints.len());
            assert_eq!(found, (granularity, complaint), "{text}");
        }
    }
}
