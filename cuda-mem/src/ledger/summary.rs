//! Reports of the ledger: live objects, grouped by origin.

use std::fmt;
use std::panic::Location;
use std::time::{Duration, Instant};

use super::book::{Record, Sum};
use super::{LedgerKind, LedgerLevel};
use crate::base::error::{Bytes, Error, ErrorKind, Result};
use crate::driver::device::Device;

/// The live objects, from [`Ledger::report`](crate::ledger::Ledger::report). Displayed as a short table.
///
/// Not a consistent snapshot while other threads are running.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LedgerReport {
    /// How much was recorded.
    pub level: LedgerLevel,
    /// Sorted by bytes, largest first; ties by file, line and kind.
    pub groups: Vec<LedgerGroup>,
}

/// Objects of one kind, device and origin.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerGroup {
    /// Their kind.
    pub kind: LedgerKind,
    /// The device whose memory or object it is; `None` if there is no single device, or it is not known.
    pub device: Option<Device>,
    /// The line of the program that made them; `None` at [`LedgerLevel::Bytes`].
    pub origin: Option<&'static Location<'static>>,
    /// Their number. At [`LedgerLevel::Bytes`], negative if more objects ended than were made.
    pub count: i64,
    /// Their bytes, as requested; an object that shows another object's memory counts none. Negative as for `count`.
    pub bytes: i64,
    /// The age of the oldest; `None` at [`LedgerLevel::Bytes`].
    pub oldest: Option<Duration>,
}

impl LedgerReport {
    pub(super) fn empty() -> Self {
        Self {
            level: LedgerLevel::Off,
            groups: Vec::new(),
        }
    }

    pub(super) fn of_sums(sums: impl IntoIterator<Item = Sum>) -> Self {
        let kinds = LedgerKind::ALL.iter().zip(sums);
        let groups = kinds
            .filter(|(_, sum)| *sum != Sum::default())
            .map(|(kind, sum)| LedgerGroup {
                kind: *kind,
                device: None,
                origin: None,
                count: sum.count,
                bytes: sum.bytes,
                oldest: None,
            })
            .collect();
        Self::sorted(LedgerLevel::Bytes, groups)
    }

    pub(super) fn of_records(mut records: Vec<(LedgerKind, Record)>) -> Self {
        let now = Instant::now();
        records.sort_unstable_by_key(|(kind, record)| {
            (place(Some(record.origin)), *kind, ordinal(record.device))
        });
        let mut groups: Vec<LedgerGroup> = Vec::new();
        for (kind, record) in records {
            let bytes = i64::try_from(record.bytes).unwrap_or(i64::MAX);
            let age = Some(now.saturating_duration_since(record.created));
            let (device, origin) = (record.device, Some(record.origin));
            match groups.last_mut() {
                // By content: one line may have several locations.
                Some(last) if (last.kind, last.device, last.origin) == (kind, device, origin) => {
                    last.count += 1;
                    last.bytes = last.bytes.saturating_add(bytes);
                    last.oldest = last.oldest.max(age);
                }
                _ => groups.push(LedgerGroup {
                    kind,
                    device,
                    origin,
                    count: 1,
                    bytes,
                    oldest: age,
                }),
            }
        }
        Self::sorted(LedgerLevel::Origins, groups)
    }

    fn sorted(level: LedgerLevel, mut groups: Vec<LedgerGroup>) -> Self {
        groups.sort_by_key(|group| {
            let largest_first = std::cmp::Reverse(group.bytes);
            let device = ordinal(group.device);
            (largest_first, place(group.origin), group.kind, device)
        });
        Self { level, groups }
    }

    /// Whether nothing is alive, as far as was recorded: at [`LedgerLevel::Off`] always true.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The number of objects.
    #[must_use]
    pub fn count(&self) -> i64 {
        self.groups.iter().map(|group| group.count).sum()
    }

    /// Their total bytes: the memory that they hold, each byte counted once.
    #[must_use]
    pub fn bytes(&self) -> i64 {
        let bytes = self.groups.iter().map(|group| group.bytes);
        bytes.fold(0, i64::saturating_add)
    }

    /// The groups of one kind.
    pub fn of(&self, kind: LedgerKind) -> impl Iterator<Item = &LedgerGroup> {
        self.groups.iter().filter(move |group| group.kind == kind)
    }

    /// For tests: an error if anything is alive.
    ///
    /// # Errors
    ///
    /// [`StillAllocated`](ErrorKind::StillAllocated) with the table in its text;
    /// [`InvalidValue`](ErrorKind::InvalidValue) if the ledger was off, because nothing is known then.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::ledger::{Ledger, LedgerLevel};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// Ledger::enable(LedgerLevel::Origins);
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// println!("{}", Ledger::report().require_empty().unwrap_err()); // stream and context, with their lines
    /// drop(stream);
    /// Ledger::report().require_empty()?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn require_empty(&self) -> Result<()> {
        if self.level == LedgerLevel::Off {
            let text = "the ledger is off, so nobody knows what is alive; call `Ledger::enable` or set \
                        CUDA_MEM_LEDGER first";
            return Err(Error::invalid(text.to_owned()));
        }
        if self.is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::StillAllocated, self.to_string()))
    }
}

/// The sort key of an origin.
fn place(origin: Option<&'static Location<'static>>) -> (&'static str, u32, u32) {
    origin.map_or(("", 0, 0), |origin| {
        (origin.file(), origin.line(), origin.column())
    })
}

fn ordinal(device: Option<Device>) -> Option<(u32, usize)> {
    // Devices of two drivers may have the same number.
    device.map(|device| {
        let table = std::ptr::from_ref(device.driver().table());
        (device.ordinal(), table.addr())
    })
}

/// A heading, and a line for each group.
impl fmt::Display for LedgerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.level == LedgerLevel::Off {
            return f.write_str("the ledger is off");
        }
        write!(
            f,
            "{} alive, {}",
            objects(self.count()),
            Signed(self.bytes())
        )?;
        if self.is_empty() {
            return Ok(());
        }
        write!(f, "\n{:>10} {:>8}  ", "bytes", "objects")?;
        if self.level == LedgerLevel::Origins {
            write!(f, "{:<17} {:>6} {:>8}  origin", "kind", "device", "oldest")?;
        } else {
            f.write_str("kind")?;
        }
        for group in &self.groups {
            write!(f, "\n{group}")?;
        }
        Ok(())
    }
}

/// A line of the table.
impl fmt::Display for LedgerGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Signed(self.bytes).to_string();
        write!(f, "{bytes:>10} {:>8}  ", self.count)?;
        let Some(origin) = self.origin else {
            return self.kind.fmt(f);
        };
        let device = self.device.map(|device| device.ordinal().to_string());
        let device = device.as_deref().unwrap_or("-");
        let age = Age(self.oldest.unwrap_or_default()).to_string();
        write!(f, "{:<17} {device:>6} {age:>8}  {origin}", self.kind)
    }
}

fn objects(count: i64) -> String {
    match count {
        1 => "1 object".to_owned(),
        count => format!("{count} objects"),
    }
}

struct Signed(i64);

impl fmt::Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 {
            f.write_str("-")?;
        }
        Bytes(self.0.unsigned_abs()).fmt(f)
    }
}

/// A duration for display: short, and in one unit.
struct Age(Duration);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0 => write!(f, "{} ms", self.0.as_millis()),
            1..=119 => write!(f, "{:.1} s", self.0.as_secs_f64()),
            120..=7199 => write!(f, "{} min", seconds / 60),
            _ => write!(f, "{} h", seconds / 3600),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bytes: usize, origin: &'static Location<'static>) -> (LedgerKind, Record) {
        let created = Instant::now();
        let record = Record {
            bytes,
            device: None,
            origin,
            created,
            serial: 0,
        };
        (LedgerKind::Buffer, record)
    }

    #[test]
    fn the_order_is_by_bytes_then_by_place() {
        let (first, second) = (Location::caller(), Location::caller());
        let small = || vec![record(10, second), record(10, first)];
        let report = LedgerReport::of_records(small());
        assert_eq!(report.groups[0].origin, Some(first));
        let mut records = small();
        records.push(record(1, second));
        let report = LedgerReport::of_records(records);
        let groups: Vec<_> = report
            .groups
            .iter()
            .map(|group| (group.origin, group.count, group.bytes))
            .collect();
        assert_eq!(groups, [(Some(second), 2, 11), (Some(first), 1, 10)]);
        let text = report.to_string();
        assert!(text.starts_with("3 objects alive, 21 B\n"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
    }

    #[test]
    fn sums_say_what_came_less_what_went() {
        let mut sums = vec![Sum::default(); LedgerKind::ALL.len()];
        assert!(LedgerReport::of_sums(sums.clone()).is_empty());
        sums[LedgerKind::Stream as usize].count = 1;
        sums[LedgerKind::Buffer as usize] = Sum {
            count: -1,
            bytes: -2048,
        };
        let report = LedgerReport::of_sums(sums);
        assert_eq!((report.count(), report.bytes()), (0, -2048));
        assert_eq!(report.groups[0].kind, LedgerKind::Stream);
        assert!(report.to_string().contains("-2.0 KiB       -1  buffer"));
        assert!(report.require_empty().is_err());
    }

    #[test]
    fn ages_are_short() {
        let text = |seconds| Age(Duration::from_secs_f64(seconds)).to_string();
        assert_eq!(text(0.25), "250 ms");
        assert_eq!(text(1.25), "1.2 s");
        assert_eq!(text(300.0), "5 min");
        assert_eq!(text(7200.0), "2 h");
    }
}
