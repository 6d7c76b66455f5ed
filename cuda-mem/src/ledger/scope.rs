//! Objects that were made in a part of the program and are still alive at its end.

use std::fmt;
use std::io::Write as _;

use super::book::{self, Sum};
use super::{LedgerLevel, LedgerReport, edition, level};

/// When dropped, reports the objects that were made during its lifetime and are still alive. From
/// [`Ledger::scope`](crate::ledger::Ledger::scope).
///
/// Covers all threads: objects that other threads made meanwhile and still use are listed too.
#[must_use = "it tells at its end"]
pub struct LedgerScope {
    /// Objects with smaller numbers are older.
    since: u64,
    /// The sums at the start, if only sums are kept.
    before: Vec<Sum>,
    /// The edition of the ledger at the start.
    edition: u64,
    tell: Option<Tell>,
}

type Tell = Box<dyn FnOnce(&LedgerReport) + Send>;

impl LedgerScope {
    pub(super) fn new() -> Self {
        Self {
            since: book::next_serial(),
            before: book::sums().to_vec(),
            edition: edition(),
            tell: None,
        }
    }

    /// Calls `tell` at the end instead of writing to the standard error stream, even if nothing is left. If it panics,
    /// the panic is swallowed.
    pub fn tell(mut self, tell: impl FnOnce(&LedgerReport) + Send + 'static) -> Self {
        self.tell = Some(Box::new(tell));
        self
    }

    /// The objects that were made since the scope began and are alive now.
    #[must_use]
    pub fn report(&self) -> LedgerReport {
        match level() {
            LedgerLevel::Off => LedgerReport::empty(),
            LedgerLevel::Bytes => {
                let mut sums = book::sums();
                // Another level in between has started a new ledger.
                if edition() == self.edition {
                    for (sum, before) in sums.iter_mut().zip(&self.before) {
                        sum.count -= before.count;
                        sum.bytes -= before.bytes;
                    }
                }
                LedgerReport::of_sums(sums)
            }
            LedgerLevel::Origins => {
                let mut listed = book::listed();
                listed.retain(|(_, record)| record.serial >= self.since);
                LedgerReport::of_records(listed)
            }
        }
    }
}

/// Writes to the standard error stream.
pub(super) fn write(report: &LedgerReport) {
    // If the stream is closed, the report is not wanted.
    let _ = writeln!(std::io::stderr(), "cuda-mem: still {report}");
}

impl Drop for LedgerScope {
    fn drop(&mut self) {
        // The objects are the parent's.
        if crate::base::report::is_forked() {
            return;
        }
        let report = self.report();
        match self.tell.take() {
            Some(tell) => {
                // A panic out of `Drop` may abort the process.
                crate::base::report::caught(|| tell(&report));
            }
            None if report.is_empty() => {}
            None => write(&report),
        }
    }
}

impl fmt::Debug for LedgerScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerScope")
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn sent<T: Send>() {}
    sent::<LedgerScope>();
};
