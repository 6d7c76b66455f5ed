//! How much memory a pool holds and hands out.

use std::fmt;

use crate::base::error::Bytes;

/// A current number of bytes, and its maximum since the pool was created or the high mark was reset.
///
/// `high` is counted by the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The current number of bytes.
    pub current: u64,
    /// The maximum number of bytes.
    pub high: u64,
}

/// The memory usage of a pool. The values are read one by one, so they are not a consistent snapshot while other
/// threads allocate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Device memory that the pool holds, allocated or unused.
    pub reserved: Usage,
    /// Memory allocated and not freed: the requested bytes (on an H200 without any rounding).
    pub used: Usage,
}

/// One line: `reserved 32.0 MiB (high 32.0 MiB), used 4.0 MiB (high 4.0 MiB)`.
impl fmt::Display for PoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, self.reserved, self.used)
    }
}

/// All four numbers in one line.
pub(crate) fn write_line(f: &mut fmt::Formatter<'_>, reserved: Usage, used: Usage) -> fmt::Result {
    write!(
        f,
        "reserved {} (high {}), used {} (high {})",
        Bytes(reserved.current),
        Bytes(reserved.high),
        Bytes(used.current),
        Bytes(used.high),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_all_four() {
        let usage = |current, high| Usage { current, high };
        let stats = PoolStats {
            reserved: usage(32 << 20, 64 << 20),
            used: usage(1, 4 << 20),
        };
        assert_eq!(
            stats.to_string(),
            "reserved 32.0 MiB (high 64.0 MiB), used 1 B (high 4.0 MiB)"
        );
    }
}
