//! Attributes of a kernel, and which of them can be set.

use super::code::{DEVICE_TARGET, Entry};
use crate::export::{Answer, INVALID_VALUE, Out};

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub(super) const DYNAMIC_SHARED: u32 = 8;
/// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`.
const CARVEOUT: u32 = 9;

/// Maximum threads per block.
pub(super) const MAX_THREADS: u32 = 1024;
/// Shared memory per block, and its maximum if the program requests more.
const SHARED: u32 = 48 << 10;
pub(super) const SHARED_AT_MOST: u32 = 227 << 10;

/// The CUDA version that introduced an attribute. A guess for those of clusters and later ones.
fn since(id: u32) -> Option<u32> {
    match id {
        0..=9 => Some(11000),
        10..=15 => Some(11080),
        // Measured: absent from CUDA 13.0.
        16 | 17 => Some(13040),
        _ => None,
    }
}

/// The value of attribute `id`, where `set` is the program's own value; `None` if the simulated version does not know
/// the attribute.
pub(super) fn value(id: u32, entry: &Entry, set: Option<i32>, version: u32) -> Option<i32> {
    if since(id)? > version {
        return None;
    }
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let given = match id {
        0 => number(entry.max_threads.unwrap_or(MAX_THREADS).min(MAX_THREADS)),
        1 => number(entry.shared),
        3 => number(entry.local),
        // Nothing is compiled here, so no registers are used.
        4 => 16,
        // A guess: the PTX target, not the PTX version.
        5 => number(entry.target),
        6 => number(DEVICE_TARGET),
        DYNAMIC_SHARED => number(SHARED.saturating_sub(entry.shared)),
        CARVEOUT => -1,
        _ => 0,
    };
    Some(set.unwrap_or(given))
}

/// Whether the program may set an attribute to this value.
pub(super) fn check(id: u32, value: i32, entry: &Entry, version: u32) -> Answer {
    let allowed = match id {
        DYNAMIC_SHARED => {
            let most = SHARED_AT_MOST.saturating_sub(entry.shared);
            u32::try_from(value).is_ok_and(|value| value <= most)
        }
        CARVEOUT => (-1..=100).contains(&value),
        // A guess: cluster attributes accept any non-negative value, which has no effect.
        11..=15 => value >= 0,
        _ => false,
    };
    let is_known = since(id).is_some_and(|since| since <= version);
    if allowed && is_known {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

/// Offset and size of a parameter. Documented: the size is optional.
pub(super) fn write_parameter(
    entry: &Entry,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> Answer {
    offset.required()?;
    let place = entry.parameters.get(index).ok_or(INVALID_VALUE)?;
    size.write_if_wanted(place.size);
    offset.write(place.offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_may_have_what_its_own_memory_leaves() {
        let entry = Entry {
            shared: 1024,
            ..Entry::default()
        };
        assert_eq!(value(DYNAMIC_SHARED, &entry, None, 13000), Some(47 << 10));
        assert_eq!(value(DYNAMIC_SHARED, &entry, Some(5), 13000), Some(5));
        assert!(check(DYNAMIC_SHARED, 226 << 10, &entry, 13000).is_ok());
        assert!(check(DYNAMIC_SHARED, (226 << 10) + 1, &entry, 13000).is_err());
        assert!(check(DYNAMIC_SHARED, -1, &entry, 13000).is_err());
    }

    #[test]
    fn attributes_have_versions_and_most_are_fixed() {
        let entry = Entry {
            max_threads: Some(128),
            target: 70,
            ..Entry::default()
        };
        let of = |id| value(id, &entry, None, 11070);
        assert_eq!(
            [0, 5, 6, 9, 10, 18].map(of),
            [Some(128), Some(70), Some(90), Some(-1), None, None]
        );
        assert!(check(0, 64, &entry, 13000).is_err());
        assert!(check(9, 100, &entry, 13000).is_ok() && check(9, 101, &entry, 13000).is_err());
        assert!(check(14, 1, &entry, 13000).is_ok() && check(14, 1, &entry, 11070).is_err());
    }
}
