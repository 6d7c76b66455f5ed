//! The attributes of a device, as an H200 with driver 580 answers them.

use crate::knobs::Knobs;

/// Attributes up to this one are older than memory pools, and known to every version.
const OLDEST: u32 = 114;

/// From which CUDA version on an attribute exists; 0 if this simulator does not know it.
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

/// The value of attribute `id` of the device with this ordinal; `None` if the simulated version
/// does not know the attribute. All as measured; known ones that are not listed are 0.
pub(crate) fn value(knobs: &Knobs, ordinal: usize, id: u32) -> Option<i32> {
    let known = (1..=knobs.version).contains(&since(id));
    let flag = i32::from;
    known.then(|| match id {
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
        | 83
        | 90
        | 91
        | 95
        | 96
        | 99
        | 102
        | 103
        | 107
        | 110
        | 112..=114
        | 116
        | 117
        | 120..=125
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
        33 | 85 => pci_bus(ordinal),
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
        // Concurrent managed access, without which no device of the machine has managed pools.
        89 => flag(knobs.managed_pools),
        115 => flag(knobs.pools),
        118 => 100,
        119 if knobs.pools => knobs.handle_types.cast_signed(),
        126 => 4,
        142 => flag(knobs.pools && knobs.numa_pools),
        144 => flag(knobs.pools && knobs.host_pools),
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
    fn measured_values() {
        let knobs = Knobs::default();
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
            assert_eq!(value(&knobs, 0, id), Some(expected), "attribute {id}");
        }
    }

    #[test]
    fn unknown_attributes_and_those_of_newer_versions_are_refused() {
        let knobs = Knobs::default();
        for id in [0, 148, 149, 152, 162, 9999] {
            assert_eq!(value(&knobs, 0, id), None, "attribute {id}");
        }
        let old = Knobs {
            version: 12020,
            ..Knobs::default()
        };
        assert_eq!(value(&old, 0, 134), Some(0));
        assert_eq!(value(&old, 0, 128), None);
        assert_eq!(value(&old, 0, 142), None);
    }

    #[test]
    fn a_device_without_pools_has_no_handle_types() {
        let knobs = Knobs {
            pools: false,
            ..Knobs::default()
        };
        assert_eq!(value(&knobs, 0, 115), Some(0));
        assert_eq!(value(&knobs, 0, 119), Some(0));
    }
}
