//! Waits of the program that return while another thread gives memory back.

#![forbid(unsafe_code)]

use super::sync::{AtomicU64, Ordering, fence};

/// Every wait is counted before its thread tries to get the turn to give back. At the end of its turn, a thread checks
/// that all waits were served, so that memory shown to be done by a late wait is given back too.
#[derive(Debug, Default)]
pub(super) struct LateWaits {
    counted: AtomicU64,
    served: AtomicU64,
}

impl LateWaits {
    /// Counts a wait that has returned. Called once per wait, before the turn is tried.
    pub(super) fn count(&self) {
        self.counted.fetch_add(1, Ordering::AcqRel);
        // Either this thread then sees that the turn is free, or `is_late` sees the count.
        fence(Ordering::SeqCst);
    }

    /// Called by the holder of the turn, before it searches for completed memory.
    pub(super) fn serve(&self) {
        // A read-modify-write, even one that adds 0, sees the latest count.
        let counted = self.counted.fetch_add(0, Ordering::AcqRel);
        self.served.store(counted, Ordering::Relaxed);
    }

    /// Whether a wait is not yet served. Called when the turn has ended; its next holder serves the wait.
    pub(super) fn is_late(&self) -> bool {
        fence(Ordering::SeqCst);
        self.counted.load(Ordering::Relaxed) != self.served.load(Ordering::Relaxed)
    }
}
