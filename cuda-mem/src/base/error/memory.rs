//! The numbers of an out-of-memory error, and byte counts for display.

use std::fmt;

use cuda_driver_sys::CUresult;

use super::ErrorKind;

/// The state of memory when it ran out, and the remedies that were tried. Sizes are in bytes; `None` means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// Bytes of the request that failed.
    pub asked: u64,
    /// Bytes allocated from the pool.
    pub pool_used: Option<u64>,
    /// Peak of the bytes allocated from the pool since the last reset.
    pub pool_used_high: Option<u64>,
    /// Bytes of device memory that the pool holds.
    pub pool_reserved: Option<u64>,
    /// Peak of the bytes held by the pool since the last reset.
    pub pool_reserved_high: Option<u64>,
    /// Bytes free on the device, across all processes.
    pub device_free: Option<u64>,
    /// Total bytes of device memory.
    pub device_total: Option<u64>,
    /// The remedies tried before giving up, in order. Empty unless a [`RecoveryPolicy`](crate::memory::RecoveryPolicy)
    /// was consulted.
    pub tried: Vec<Attempt>,
}

/// A remedy that was tried when memory ran out, before the request was repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The remedy.
    pub remedy: Remedy,
    /// Its error, if it failed. The request was repeated all the same.
    pub error: Option<ErrorKind>,
}

impl Attempt {
    pub(crate) fn new(remedy: Remedy, error: Option<ErrorKind>) -> Self {
        Self { remedy, error }
    }
}

/// A remedy for running out of memory: a step of a [`RecoveryPolicy`](crate::memory::RecoveryPolicy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Remedy {
    /// Only repeats the request.
    Retry,
    /// Caches of the resource, and of its upstreams, gave back what they do not use.
    FlushCaches,
    /// The host waited for the stream of the request.
    WaitForStream,
    /// The host waited for everything in the stream's context.
    WaitForDevice,
    /// A pool gave back the memory that it kept unused.
    TrimPool,
    /// The device took back unused memory of graphs.
    TrimGraphMemory,
    /// A callback of the program was called.
    Callback,
    /// The thread paused and retried several times, so that other threads could give memory back.
    WaitForOthers,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retry => "again",
            Self::FlushCaches => "flushing caches",
            Self::WaitForStream => "waiting for the stream",
            Self::WaitForDevice => "waiting for the device",
            Self::TrimPool => "trimming a pool",
            Self::TrimGraphMemory => "trimming graph memory",
            Self::Callback => "a callback",
            Self::WaitForOthers => "waiting for other threads",
        })
    }
}

/// The source of an out-of-memory error.
#[derive(Debug)]
pub(super) enum Refusal {
    Driver {
        function: &'static str,
        code: CUresult,
    },
    Told(String),
    /// The request is larger than all of it.
    TooLarge(String),
}

impl Refusal {
    pub(super) fn code(&self) -> Option<CUresult> {
        match self {
            Self::Driver { code, .. } => Some(*code),
            Self::Told(_) | Self::TooLarge(_) => None,
        }
    }

    pub(super) fn advice(&self, memory: &OutOfMemory) -> &'static str {
        match self {
            // A pool's numbers, or none if the driver is too old to report them.
            Self::Driver { .. }
                if memory.pool_reserved.is_some() || memory.device_free.is_none() =>
            {
                "Free memory, synchronise the streams that still hold frees, or trim the pool"
            }
            Self::Driver { .. } => "Free memory, or trim the pools of the device",
            Self::Told(_) => "Free memory of it",
            Self::TooLarge(_) => "Ask for less, or raise the limit",
        }
    }

    pub(super) fn function(&self) -> Option<&'static str> {
        match self {
            Self::Driver { function, .. } => Some(function),
            Self::Told(_) | Self::TooLarge(_) => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver { function, code } => write!(f, "{function} answered {code}"),
            Self::Told(text) | Self::TooLarge(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "asked for {}", Bytes(self.asked))?;
        let known = [
            ("pool used", self.pool_used),
            ("pool used high", self.pool_used_high),
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
        for (index, tried) in self.tried.iter().enumerate() {
            let before = if index == 0 { "; tried " } else { ", then " };
            write!(f, "{before}{}", tried.remedy)?;
            if let Some(error) = tried.error {
                write!(f, " (which failed: {error})")?;
            }
        }
        Ok(())
    }
}

/// A byte count for display: `40.0 MiB`, exact below one KiB.
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
    fn what_was_tried_is_told_in_order() {
        let memory = OutOfMemory {
            asked: 2048,
            tried: vec![
                Attempt::new(Remedy::Retry, None),
                Attempt::new(Remedy::WaitForStream, Some(ErrorKind::Capturing)),
            ],
            ..OutOfMemory::default()
        };
        assert_eq!(
            memory.to_string(),
            "asked for 2.0 KiB; tried again, then waiting for the stream (which failed: stream being captured)"
        );
    }

    #[test]
    fn bytes_are_readable() {
        let text = |bytes| Bytes(bytes).to_string();
        assert_eq!(text(0), "0 B");
        assert_eq!(text(1023), "1023 B");
        assert_eq!(text(32 << 20), "32.0 MiB");
        assert_eq!(text(u64::MAX), "16.0 EiB");
    }
}
