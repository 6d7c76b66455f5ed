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
/// does not know the attribute. Known ones that are not listed are 0.
pub(crate) fn value(knobs: &Knobs, ordinal: usize, id: u32) -> Option<i32> {
    let known = (1..=knobs.version).contains(&since(id));
    let flag = i32::from;
    known.then(|| match id {
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        8 => 49_152,
        9 => 65_536,
        10 => 32,
        11 => i32::MAX,
        12 => 65_536,
        13 => 1_980_000,
        14 => 512,
        15 => 1,
        16 => 132,
        19 => 1,
        30 => 512,
        31 | 32 => 1,
        33 => pci_bus(ordinal),
        36 => 3_201_000,
        37 => 6144,
        38 => 60 << 20,
        39 => 2048,
        40 => 3,
        41 => 1,
        51 => 32,
        75 => 9,
        76 => 0,
        78..=80 => 1,
        81 => 233_472,
        82 => 65_536,
        83 => 1,
        85 => pci_bus(ordinal),
        86 => 1,
        87 => 2,
        89..=91 => 1,
        92..=94 => 1,
        95 => 1,
        97 => 232_448,
        98..=99 => 1,
        101..=103 => 1,
        106 => 32,
        107 => 1,
        108 => 37_748_736,
        109 => 134_213_632,
        110 => 1,
        111 => 1024,
        112..=114 => 1,
        115 => flag(knobs.pools),
        116 => 1,
        117 => 1,
        118 => 100,
        119 if knobs.pools => knobs.handle_types.cast_signed(),
        120..=125 => 1,
        126 => 4,
        127..=129 => 1,
        131 => -1,
        139 => 0x2335_10de,
        141 | 142 => 1,
        144 | 145 => 1,
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
