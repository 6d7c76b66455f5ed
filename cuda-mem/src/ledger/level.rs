//! How much the ledger records.

use std::fmt;
use std::io::Write as _;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::base::error::Error;
use crate::base::report;

/// How much the [`Ledger`](crate::ledger::Ledger) records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LedgerLevel {
    /// Nothing. Costs one read of a number when an object is made and one when it ends.
    #[default]
    Off,
    /// The number of objects of each kind, and their bytes: additions to two numbers.
    Bytes,
    /// Every object, with the line of the program that made it: a lock, a clock read and a table entry.
    Origins,
}

impl LedgerLevel {
    const NAMES: [(&str, Self); 3] = [
        ("off", Self::Off),
        ("bytes", Self::Bytes),
        ("origins", Self::Origins),
    ];
}

impl fmt::Display for LedgerLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Off => "off",
            Self::Bytes => "bytes",
            Self::Origins => "origins",
        })
    }
}

/// From `off`, `bytes` or `origins`.
impl FromStr for LedgerLevel {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, level)| *level).ok_or_else(|| {
            Error::invalid(format!(
                "no level of the ledger is called {name:?}; it is off, bytes or origins"
            ))
        })
    }
}

/// The level before the program sets one.
const VARIABLE: &str = "CUDA_MEM_LEDGER";

/// The variable has not been read yet.
const UNREAD: u8 = u8::MAX;
const OFF: u8 = LedgerLevel::Off as u8;

static LEVEL: AtomicU8 = AtomicU8::new(UNREAD);

/// Whether there may be something to record. This is the only cost on the usual path of an allocation.
#[inline]
pub(super) fn is_on() -> bool {
    LEVEL.load(Ordering::Relaxed) != OFF
}

/// [`Off`](LedgerLevel::Off) in a fork, where the objects are the parent's.
pub(super) fn level() -> LedgerLevel {
    if report::is_forked() {
        return LedgerLevel::Off;
    }
    match LEVEL.load(Ordering::Relaxed) {
        UNREAD => read(),
        known => decode(known),
    }
}

pub(super) fn set_level(level: LedgerLevel) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

fn decode(level: u8) -> LedgerLevel {
    const BYTES: u8 = LedgerLevel::Bytes as u8;
    const ORIGINS: u8 = LedgerLevel::Origins as u8;
    match level {
        BYTES => LedgerLevel::Bytes,
        ORIGINS => LedgerLevel::Origins,
        _ => LedgerLevel::Off,
    }
}

#[cold]
fn read() -> LedgerLevel {
    let text = std::env::var_os(VARIABLE).unwrap_or_default();
    let text = text.to_string_lossy();
    let (level, wrong) = match text.trim() {
        "" => (LedgerLevel::Off, None),
        text => match text.parse() {
            Ok(level) => (level, None),
            Err(error) => (LedgerLevel::Off, Some(error)),
        },
    };
    let order = Ordering::Relaxed;
    match LEVEL.compare_exchange(UNREAD, level as u8, order, order) {
        Ok(_) => {
            if let Some(error) = wrong {
                // Once, by the thread that read it. A variable that has no effect should not go unnoticed.
                let _ = writeln!(std::io::stderr(), "{VARIABLE} is ignored: {error}");
            }
            level
        }
        // Another thread has read it too, or set another level meanwhile.
        Err(now) => decode(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_known_by_their_names() {
        for (name, level) in LedgerLevel::NAMES {
            assert_eq!(level.to_string(), name);
            assert_eq!(name.parse::<LedgerLevel>().ok(), Some(level));
            assert_eq!(decode(level as u8), level);
        }
        let error = "all".parse::<LedgerLevel>().map(drop).err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(
            text.contains("\"all\"") && text.contains("origins"),
            "{text}"
        );
    }
}
