//! Device attributes, as reported by an H200 with driver 580. Those of a coherent machine are documented.

use crate::configuration::{Configuration, DriverModel};

/// Attributes up to this one predate memory pools, and every version knows them.
const OLDEST: u32 = 114;

/// The CUDA version that introduced an attribute; 0 if this simulator does not know it.
fn since(id: u32) -> u32 {
    match id {
        1..=OLDEST => 11000,
        115 => 11020,
        116..=119 => 11030,
        120..=124 => 11070,
        125..=127 => 12000,
        129 | 132 => 12010,
        130 | 131 | 134 => 12020,
        128 | 133 => 12030,
        135 => 12050,
        136..=140 | 143 => 12080,
        141 | 142 => 12090,
        144..=147 => 13000,
        148 | 150 | 151 => 13010,
        152 => 13030,
        149 | 153..=161 => 13040,
        _ => 0,
    }
}

/// The value of attribute `id` of a device of the machine; `None` if the simulated version does not know the attribute.
/// All values are measured unless said otherwise. Known attributes not listed are 0.
pub(crate) fn value(configuration: &Configuration, index: usize, id: u32) -> Option<i32> {
    let known = (1..=configuration.version).contains(&since(id));
    let pools = configuration.claims_pools(index);
    let flag = i32::from;
    known.then(|| match id {
        35 => flag(configuration.model == DriverModel::Tcc),
        83 => flag(configuration.has_managed_memory()),
        89 => flag(configuration.has_concurrent_managed_access()),
        // Documented of hardware-coherent machines: pageable memory is accessed, through the page tables of the host, the
        // host accesses managed memory on the device in place, and atomics work across the link.
        86 | 88 | 100 | 101 => flag(configuration.is_coherent()),
        // The memory of the device is a NUMA node. Its number is a guess: that of the host's only node is 0.
        130 => flag(configuration.is_coherent()),
        131 if configuration.is_coherent() => i32::try_from(index).map_or(-1, |index| index + 1),
        // What builds on virtual memory management needs it: shareable handles of physical memory, DMA to it, and such
        // memory on the host.
        124 => flag(configuration.has_dma_buf()),
        152 => flag(configuration.claims_dma_buf_mmap()),
        102..=104 | 110 | 128 | 141 | 145 if !configuration.has_vmm() => 0,
        103 => flag(configuration.has_shared_handles() && !cfg!(windows)),
        104 => flag(cfg!(windows)),
        // Documented: Windows has no GPUDirect RDMA. A guess: nor fabrics.
        110 | 116 | 128 if !configuration.has_rdma() => 0,
        // Documented: -1 where the system has no NUMA nodes.
        134 => flag(configuration.has_nodes()) - 1,
        141 if !configuration.has_nodes() => 0,
        115 => flag(pools),
        119 if pools => configuration.shared_handle_types().cast_signed(),
        125 => flag(configuration.has_legacy_sharing()),
        142 => flag(pools && configuration.has_numa_pools()),
        144 => flag(pools && configuration.host_pools),
        1..=3 | 111 => 1024,
        4 => 64,
        5 | 11 => i32::MAX,
        6 | 7 => 65_535,
        8 => 49_152,
        9 | 12 | 23 | 57 | 82 => 65_536,
        10 | 51 | 106 => 32,
        13 => 1_980_000,
        14 | 30 => 512,
        15
        | 19
        | 31
        | 32
        | 41
        | 44
        | 78..=80
        | 90
        | 91
        | 95
        | 96
        | 99
        | 102
        | 107
        | 110
        | 112..=114
        | 116
        | 117
        | 120..=123
        | 127..=129
        | 141
        | 145 => 1,
        16 => 132,
        21 | 22 | 56 | 70 => 131_072,
        24..=26 | 58..=60 => 16_384,
        27 | 28 | 42 | 45 | 46 | 49 | 52 | 53 | 55 | 61 | 63 | 64 | 66 | 67 | 73 | 74 | 77 => {
            32_768
        }
        29 | 39 | 43 | 62 | 65 => 2048,
        33 | 85 => pci_bus(index),
        36 => 3_201_000,
        37 => 6016,
        38 => 62_914_560,
        40 => 3,
        47 | 48 => 8192,
        54 | 68 => 2046,
        69 => 268_435_456,
        71 => 65_000,
        72 => 2_097_120,
        75 => 9,
        81 => 233_472,
        87 => 2,
        97 => 232_448,
        108 => 39_321_600,
        109 => 134_217_728,
        118 => 100,
        126 => 4,
        131 => -1,
        139 => 0x2335_10de,
        140 => 415_174_878,
        _ => 0,
    })
}

/// The PCI bus of a device.
pub(crate) fn pci_bus(ordinal: usize) -> i32 {
    0x10 + i32::try_from(ordinal).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(windows, ignore = "measured with a driver of Linux")]
    fn measured_values() {
        let configuration = Configuration::default();
        for (id, expected) in [
            (35, 0),
            (41, 1),
            (88, 0),
            (89, 1),
            (91, 1),
            (102, 1),
            (103, 1),
            (110, 1),
            (115, 1),
            (116, 1),
            (119, 9),
            (124, 1),
            (125, 1),
            (128, 1),
            (132, 0),
            (134, 0),
            (141, 1),
            (142, 1),
            (144, 1),
            (145, 1),
            (146, 0),
            (75, 9),
            (76, 0),
            (16, 132),
        ] {
            assert_eq!(
                value(&configuration, 0, id),
                Some(expected),
                "attribute {id}"
            );
        }
    }

    #[test]
    fn unknown_attributes_and_those_of_newer_versions_are_refused() {
        let configuration = Configuration::default();
        for id in [0, 148, 149, 152, 162, 9999] {
            assert_eq!(value(&configuration, 0, id), None, "attribute {id}");
        }
        let old = Configuration {
            version: 12020,
            model: DriverModel::Linux,
            ..Configuration::default()
        };
        assert_eq!(value(&old, 0, 134), Some(0));
        assert_eq!(value(&old, 0, 128), None);
        assert_eq!(value(&old, 0, 142), None);
    }

    #[test]
    fn a_device_without_pools_has_no_handle_types() {
        let configuration = Configuration {
            pools: false,
            ..Configuration::default()
        };
        assert_eq!(value(&configuration, 0, 115), Some(0));
        assert_eq!(value(&configuration, 0, 119), Some(0));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_coherent_machines_have() {
        let configuration = |coherent| Configuration {
            coherent,
            ..Configuration::default()
        };
        let of = |coherent, index| {
            [18, 75, 86, 88, 89, 100, 101, 130, 131, 134]
                .map(|id| value(&configuration(coherent), index, id).unwrap_or(i32::MIN))
        };
        assert_eq!(of(false, 1), [0, 9, 0, 0, 1, 0, 0, 0, -1, 0]);
        assert_eq!(of(true, 0), [0, 9, 1, 1, 1, 1, 1, 1, 1, 0]);
        assert_eq!(of(true, 1), [0, 9, 1, 1, 1, 1, 1, 1, 2, 0]);
    }

    #[test]
    fn devices_of_one_machine_may_differ() {
        let configuration = Configuration {
            no_pools: vec![1],
            model: DriverModel::Linux,
            numa_pools: true,
            ..Configuration::default()
        };
        for id in [115, 119, 142, 144] {
            assert_ne!(value(&configuration, 0, id), Some(0), "attribute {id}");
            assert_eq!(value(&configuration, 1, id), Some(0), "attribute {id}");
        }
    }

    #[test]
    fn drivers_of_windows_have_neither_descriptors_nor_dma_bufs() {
        for model in [DriverModel::Tcc, DriverModel::Wddm] {
            let configuration = Configuration {
                model,
                version: 13030,
                dma_buf: true,
                handle_types: 9,
                ..Configuration::default()
            };
            for id in [103, 110, 116, 119, 124, 128, 152] {
                assert_eq!(
                    value(&configuration, 0, id),
                    Some(0),
                    "{model:?}, attribute {id}"
                );
            }
            assert_eq!(value(&configuration, 0, 104), Some(cfg!(windows).into()));
        }
        // What works on Windows with a driver of its own works with another one.
        let linux = Configuration {
            model: DriverModel::Linux,
            ..Configuration::default()
        };
        let types = if cfg!(windows) { 2 } else { 9 };
        assert_eq!(value(&linux, 0, 119), Some(types));
        assert_eq!(value(&linux, 0, 104), Some(cfg!(windows).into()));
    }

    #[test]
    fn what_windows_and_virtual_gpus_lack() {
        let of = |configuration: &Configuration| {
            [35, 83, 89, 102, 115, 125].map(|id| value(configuration, 0, id))
        };
        let nodes =
            |configuration: &Configuration| [134, 141, 142].map(|id| value(configuration, 0, id));
        let on = |model| Configuration {
            model,
            ..Configuration::default()
        };
        let (tcc, wddm) = (on(DriverModel::Tcc), on(DriverModel::Wddm));
        assert_eq!(of(&tcc), [1, 1, 0, 1, 0, 1].map(Some));
        assert_eq!(of(&wddm), [0, 1, 0, 1, 1, 1].map(Some));
        let newer = |model| Configuration {
            version: 13000,
            ..on(model)
        };
        for model in [DriverModel::Tcc, DriverModel::Wddm] {
            assert_eq!(nodes(&newer(model)), [-1, 0, 0].map(Some), "{model:?}");
        }
        let older = Configuration {
            pools: false,
            ..wddm
        };
        assert_eq!(of(&older), [0, 1, 0, 1, 0, 1].map(Some));
        let guest = Configuration {
            vgpu: true,
            ..Configuration::default()
        };
        assert_eq!(of(&guest), [0; 6].map(Some));
    }
}
