//! A report when the process ends.

#[cfg(unix)]
mod system {
    use crate::base::lock::LockedOnce;
    use crate::base::report::caught;
    use crate::ledger::{Ledger, scope};

    /// Whether the report will be made.
    pub(crate) fn report_once() -> bool {
        static TAKEN: LockedOnce<bool> = LockedOnce::new();
        // SAFETY: `report` may be called at any time, also while other threads run, and never unwinds. If this crate
        // is in a library that is closed, the system calls it then and not later.
        let taken = TAKEN.get_or_try_init(|| Ok(unsafe { libc::atexit(report) } == 0));
        taken.is_ok_and(|taken| *taken)
    }

    /// Reads the ledger's own tables only: the driver may be shutting down too.
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
}

/// Windows has `atexit` too, but a Rust program that calls `std::process::exit` does not run it.
#[cfg(not(unix))]
mod system {
    pub(crate) fn report_once() -> bool {
        false
    }
}

pub(super) use system::report_once;
