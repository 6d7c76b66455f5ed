//! The end of the process, for threads of this crate: they make no driver call once it exits, because the driver shuts
//! down then.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::base::report;

/// Set when the process exits.
static IS_EXITING: AtomicBool = AtomicBool::new(false);
/// Threads that may be in a driver call.
static WORKING: AtomicUsize = AtomicUsize::new(0);

/// While it lives, a thread of this crate may make driver calls.
pub(crate) struct Working;

impl Working {
    /// `None` when the process exits.
    pub(crate) fn begin() -> Option<Self> {
        WORKING.fetch_add(1, Ordering::SeqCst);
        let working = Self;
        (!IS_EXITING.load(Ordering::SeqCst)).then_some(working)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        WORKING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for calls in progress, because the driver shuts down after this.
extern "C" fn at_exit() {
    IS_EXITING.store(true, Ordering::SeqCst);
    // A fork does not have its parent's threads.
    for _ in 0..20_000 {
        if report::is_forked() || WORKING.load(Ordering::SeqCst) == 0 {
            return;
        }
        thread::sleep(Duration::from_micros(100));
    }
}

/// Watches for the exit from now on. Called before a thread starts.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[cfg(unix)]
        // SAFETY: `at_exit` lives as long as the program, and never unwinds. If registering fails for lack of memory,
        // calls at exit get the driver's error.
        unsafe {
            libc::atexit(at_exit);
        }
        #[cfg(not(unix))]
        let _ = at_exit;
    });
}
