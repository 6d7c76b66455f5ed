//! Memory of the program: what is mapped in this process, and not by the simulator.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Start and end of each range that the simulator has mapped.
static OWN: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn own() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The simulator has mapped a range.
pub(super) fn add_own(start: u64, len: u64) {
    own().insert(start, start + len);
}

/// It is about to unmap it.
pub(super) fn remove_own(start: u64) {
    own().remove(&start);
}

/// Whether any of a range is what the simulator has mapped.
pub(crate) fn is_own_memory(start: u64, len: u64) -> bool {
    let before = own()
        .range(..start.saturating_add(len))
        .next_back()
        .map(|(_, end)| *end);
    before.is_some_and(|end| end > start)
}

/// Whether all of a range is memory of the program that may be read, and written if asked for.
pub(crate) fn is_program_memory(start: u64, len: u64, writes: bool) -> bool {
    let Some(end) = start.checked_add(len) else {
        return false;
    };
    // Mappings that lie next to each other may have been made one by one, so a range may need several.
    !is_own_memory(start, len)
        && std::fs::read_to_string("/proc/self/maps")
            .is_ok_and(|maps| covers(&maps, (start, end), writes))
}

/// Whether the mappings that the system lists, in the order of their addresses, cover a range.
fn covers(maps: &str, (start, end): (u64, u64), writes: bool) -> bool {
    let needed = if writes { "rw" } else { "r" };
    let mut at = start;
    for line in maps.lines() {
        let Some(((from, to), access)) = mapping(line) else {
            continue;
        };
        if to <= at {
            continue;
        }
        if from > at || !access.starts_with(needed) {
            return false;
        }
        at = to;
        if at >= end {
            return true;
        }
    }
    false
}

/// A line such as `7f00-8f00 rw-p 00000000 …`: start and end, and the access.
fn mapping(line: &str) -> Option<((u64, u64), &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(((number(from)?, number(to)?), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapping;

    #[test]
    fn a_range_may_need_several_mappings_and_no_gap() {
        let maps =
            "1000-2000 rw-p 0 00:00 0\n2000-3000 r--p 0 00:00 0 /a file\n4000-5000 ---p 0 0 0\n";
        for (range, writes, expected) in [
            ((0x1000, 0x2000), true, true),
            ((0x1800, 0x2800), false, true),
            ((0x1800, 0x2800), true, false),
            ((0x2fff, 0x3000), false, true),
            ((0x2fff, 0x3001), false, false),
            ((0x800, 0x1001), false, false),
            ((0x4000, 0x4001), false, false),
            ((0x5000, 0x5001), false, false),
        ] {
            assert_eq!(covers(maps, range, writes), expected, "{range:x?}");
        }
    }

    #[test]
    fn the_heap_the_stack_and_constants_are_the_program_s_and_simulated_memory_is_not() {
        static CONSTANT: [u8; 100] = [1; 100];
        let (heap, stack) = (vec![0_u8; 1 << 20], [0_u8; 100]);
        let is_program = |bytes: &[u8], writes| {
            is_program_memory(
                bytes.as_ptr().expose_provenance() as u64,
                bytes.len() as u64,
                writes,
            )
        };
        assert!(is_program(&heap, true) && is_program(&stack, true));
        assert!(is_program(&CONSTANT, false) && !is_program(&CONSTANT, true));
        assert!(!is_program_memory(0, 1, false) && !is_program_memory(u64::MAX, 2, false));
        let (mapping, start) = Mapping::allocate_aligned(1 << 20, 2 << 20).expect("memory");
        assert!(!is_program_memory(start, 1, false));
        assert!(!is_program_memory(start - 1, 2, false));
        drop(mapping);
        assert!(!own().contains_key(&start));
    }
}
