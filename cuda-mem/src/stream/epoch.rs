//! What the host has seen done, in epochs of one process-wide clock.
//!
//! A wait takes an epoch before it calls the driver. When it returns, everything that was submitted before the epoch
//! was taken is done; allocators and the queue of deferred releases compare their own epochs with it and need not ask
//! the driver again (R38). Contexts are identified by the driver's handle, because several handles of this crate may
//! refer to one primary context.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

static CLOCK: AtomicU64 = AtomicU64::new(0);

/// The current epoch. Work submitted to a stream before this was read precedes each wait, and each event, that takes
/// this epoch or a later one.
#[inline]
pub(crate) fn now() -> u64 {
    CLOCK.load(Ordering::SeqCst) + 1
}

/// A new epoch, for a wait or an event that comes after this call.
pub(crate) fn take() -> u64 {
    CLOCK.fetch_add(1, Ordering::SeqCst) + 1
}

/// How far the host has seen a stream, or all streams of a context, progress.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU64);

impl Progress {
    /// The wait that took this epoch has returned.
    pub(crate) fn advance(&self, epoch: u64) {
        self.0.fetch_max(epoch, Ordering::SeqCst);
    }

    /// Work that was submitted with this epoch or an earlier one is done.
    pub(crate) fn done(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// By driver and handle.
type Contexts = Vec<((usize, usize), Weak<Progress>)>;

static CONTEXTS: Mutex<Contexts> = Mutex::new(Vec::new());

/// The progress of the context that a driver knows by this handle. All callers share one value while any of them keeps
/// it. Not for a fork, where the list may be locked permanently.
pub(crate) fn of_context(driver: usize, handle: usize) -> Arc<Progress> {
    let key = (driver, handle);
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = contexts.iter().find(|(known, _)| *known == key);
    if let Some(progress) = known.and_then(|(_, progress)| progress.upgrade()) {
        return progress;
    }
    let progress = Arc::default();
    contexts.retain(|(_, progress)| progress.strong_count() > 0);
    contexts.push((key, Arc::downgrade(&progress)));
    progress
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_covers_what_came_before_it() {
        let progress = Progress::default();
        let before = now();
        let wait = take();
        let after = now();
        progress.advance(wait);
        assert!(before <= progress.done());
        assert!(after > progress.done());
        // A wait that began earlier and ends later does not move it back.
        progress.advance(wait - 1);
        assert_eq!(progress.done(), wait);
    }

    #[test]
    fn handles_of_one_context_share_it() {
        let (first, second) = (of_context(1, 2), of_context(1, 2));
        first.advance(7);
        assert_eq!(second.done(), 7);
        assert_eq!(of_context(2, 2).done(), 0, "another driver's");
        drop((first, second));
        assert_eq!(of_context(1, 2).done(), 0, "a later context");
    }

    /// A context that has ended stays in the list until the next one comes.
    #[test]
    fn contexts_that_come_and_go_part_no_handles_of_others() {
        let lasting = of_context(3, 1);
        drop(of_context(3, 2));
        let again = of_context(3, 2);
        again.advance(7);
        assert_eq!(of_context(3, 2).done(), 7, "the one that has ended is gone");
        lasting.advance(5);
        assert_eq!(of_context(3, 1).done(), 5, "it was there all the time");
    }
}
