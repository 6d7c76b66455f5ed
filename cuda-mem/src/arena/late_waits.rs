//! Waits of the program that return while another thread gives memory back.

#![forbid(unsafe_code)]

use super::sync::{AtomicU64, Ordering, fence};

/// Every wait is counted before the turn to give back is tried. Whoever has the turn looks when it is through whether all
/// were served, so that what a late wait has shown is given back too.
#[derive(Debug, Default)]
pub(super) struct LateWaits {
    counted: AtomicU64,
    served: AtomicU64,
}

impl LateWaits {
    /// A wait has returned. To be called once for it, before the turn is tried.
    pub(super) fn count(&self) {
        self.counted.fetch_add(1, Ordering::AcqRel);
        // Either the turn is seen to be free after this, or `is_late` sees the count.
        fence(Ordering::SeqCst);
    }

    /// To be called by the thread that has the turn, before it looks for what is done.
    pub(super) fn serve(&self) {
        // A change, if by nothing, sees the latest count.
        let counted = self.counted.fetch_add(0, Ordering::AcqRel);
        self.served.store(counted, Ordering::Relaxed);
    }

    /// Whether a wait has come that nobody served yet. To be called when the turn has ended; whoever has it then serves.
    pub(super) fn is_late(&self) -> bool {
        fence(Ordering::SeqCst);
        self.counted.load(Ordering::Relaxed) != self.served.load(Ordering::Relaxed)
    }
}
