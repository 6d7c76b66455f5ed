//! A report when the process ends.

#[cfg(unix)]
#[cfg(unix)]
use super::{Ledger, scope};
#[cfg(unix)]
use crate::base::lock::LockedOnce;
use crate::base::report::caught;

/// Whether the report will be made.
#[cfg(unix)]
pub(super) fn report_once() -> bool {
    static TAKEN: LockedOnce<bool> = LockedOnce::new();
    // SAFETY: `report` may be called at any time, also while other threads run, and never unwinds. If this crate
    // is in a library that is closed, the system calls it then and not later.
    let taken = TAKEN.get_or_try_init(|| Ok(unsafe { libc::atexit(report) } == 0));
    taken.is_ok_and(|taken| *taken)
}

/// Where the system has no `atexit`.
#[cfg(not(unix))]
pub(super) fn report_once() -> bool {
    false
}

/// Reads the ledger's own tables only: the driver may be shutting down too.
#[cfg(unix)]
extern "C" fn report() {
    // A panic must not leave this function.
    caught(|| {
        // Empty in a fork, which ends with its parent's tables.
        let report = Ledger::report();
        if !report.is_empty() {
            scope::write(&report);
        }
    });
}
