//! A report when the process ends.

#[cfg(unix)]
use std::panic::catch_unwind;
#[cfg(unix)]
use std::sync::OnceLock;

#[cfg(unix)]
use super::{Ledger, scope};

/// Whether it will be made.
#[cfg(unix)]
pub(super) fn report_once() -> bool {
    static TAKEN: OnceLock<bool> = OnceLock::new();
    // In a fork nobody may be left to finish what the parent began.
    if crate::report::is_forked() {
        return false;
    }
    // SAFETY: `report` may be called at any time, also while other threads run, and never unwinds. If this crate
    // is in a library that is closed, the system calls it then and not later.
    *TAKEN.get_or_init(|| unsafe { libc::atexit(report) } == 0)
}

/// Where there is no such thing.
#[cfg(not(unix))]
pub(super) fn report_once() -> bool {
    false
}

/// Asks the ledger's own tables only: the driver may be at its end too.
#[cfg(unix)]
extern "C" fn report() {
    // A panic must not leave this function.
    let _ = catch_unwind(|| {
        // Empty in a fork, which ends with its parent's tables.
        let report = Ledger::report();
        if !report.is_empty() {
            scope::write(&report);
        }
    });
}
