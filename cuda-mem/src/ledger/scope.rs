//! What was made in a part of the program and is still there at its end.

use std::fmt;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::book::{self, Sum};
use super::{LedgerLevel, LedgerReport, edition, level};

/// Says, when it is dropped, what was made since it was made and is still alive. From
/// [`Ledger::scope`](crate::ledger::Ledger::scope).
///
/// Of all threads: what others have made meanwhile and still use is listed too.
#[must_use = "it tells at its end"]
pub struct LedgerScope {
    /// Objects with smaller numbers are older.
    since: u64,
    /// What there was, if only sums are kept.
    before: Vec<Sum>,
    /// Which ledger that was.
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

    /// Calls `tell` at the end in place of writing to the standard error stream, also if nothing is left.
    /// If it panics, the panic is swallowed.
    pub fn tell(mut self, tell: impl FnOnce(&LedgerReport) + Send + 'static) -> Self {
        self.tell = Some(Box::new(tell));
        self
    }

    /// What was made since the scope began and is alive now.
    #[must_use]
    pub fn report(&self) -> LedgerReport {
        match level() {
            LedgerLevel::Off => LedgerReport::empty(),
            LedgerLevel::Bytes => {
                let mut sums = book::sums();
                // Another level in between has begun a new ledger.
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

/// To the standard error stream.
pub(super) fn write(report: &LedgerReport) {
    // Whoever has closed the stream does not want to know.
    let _ = writeln!(std::io::stderr(), "cuda-mem: still {report}");
}

impl Drop for LedgerScope {
    fn drop(&mut self) {
        // What is listed is the parent's.
        if crate::base::report::is_forked() {
            return;
        }
        let report = self.report();
        match self.tell.take() {
            Some(tell) => {
                // A panic out of `Drop` may abort the process.
                let _ = catch_unwind(AssertUnwindSafe(|| tell(&report)));
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
