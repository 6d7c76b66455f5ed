//! What was moved on request, counted.

use std::fmt;
use std::ops::AddAssign;

use crate::error::Bytes;

/// What a program asked to be moved, since the object was made. Counted when the driver takes the request:
/// nothing is said of how many pages had to move, nor of what the driver moves by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Prefetches of managed memory.
    pub prefetches: u64,
    /// Bytes of these.
    pub prefetched_bytes: u64,
}

impl Traffic {
    /// One prefetch.
    pub(crate) fn of_prefetch(bytes: usize) -> Self {
        Self {
            prefetches: 1,
            prefetched_bytes: bytes as u64,
        }
    }
}

/// Counts both.
impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.prefetches += other.prefetches;
        self.prefetched_bytes += other.prefetched_bytes;
    }
}

/// One line: `3 prefetches of 12.0 MiB`.
impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Bytes(self.prefetched_bytes);
        write!(f, "{} prefetches of {bytes}", self.prefetches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_add_up() {
        let mut traffic = Traffic::default();
        for bytes in [1 << 20, 2 << 20] {
            traffic += Traffic::of_prefetch(bytes);
        }
        assert_eq!((traffic.prefetches, traffic.prefetched_bytes), (2, 3 << 20));
        assert_eq!(traffic.to_string(), "2 prefetches of 3.0 MiB");
    }
}
