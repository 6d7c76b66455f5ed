//! The numbers of an out-of-memory error, and bytes for people.

use std::fmt;

/// What was there when memory ran out. Bytes throughout; `None` where the driver did not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Bytes of the request that failed.
    pub asked: u64,
    /// Bytes that the pool has handed out.
    pub pool_used: Option<u64>,
    /// Bytes of device memory that the pool holds.
    pub pool_reserved: Option<u64>,
    /// The most that the pool has held since the last reset.
    pub pool_reserved_high: Option<u64>,
    /// Bytes free on the device, for every process.
    pub device_free: Option<u64>,
    /// Bytes of the device.
    pub device_total: Option<u64>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "asked for {}", Bytes(self.asked))?;
        let known = [
            ("pool used", self.pool_used),
            ("pool reserved", self.pool_reserved),
            ("pool reserved high", self.pool_reserved_high),
            ("device free", self.device_free),
            ("device total", self.device_total),
        ];
        for (what, bytes) in known {
            if let Some(bytes) = bytes {
                write!(f, ", {what} {}", Bytes(bytes))?;
            }
        }
        Ok(())
    }
}

/// Bytes for people: `40.0 MiB`, and exact below one KiB.
#[derive(Clone, Copy)]
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_readable() {
        let text = |bytes| Bytes(bytes).to_string();
        assert_eq!(text(0), "0 B");
        assert_eq!(text(1023), "1023 B");
        assert_eq!(text(32 << 20), "32.0 MiB");
        assert_eq!(text(u64::MAX), "16.0 EiB");
    }
}
