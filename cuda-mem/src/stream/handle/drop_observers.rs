//! Notes that resources keep about a stream, and how they learn of its end.

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Stream;
use crate::base::lock::Lock;

/// Keeps something for a stream that has to go when the stream goes.
pub(crate) trait DropObserver: Send + Sync {
    /// Called when the last handle is gone; the queue itself still exists. `number` is the stream's
    /// ([`Stream::number`]).
    fn stream_ends(&self, number: u64);
}

/// The number of notes that a resource can find without a search.
const SLOTS: usize = 4;

pub(super) struct DropObservers {
    /// Never reused for another stream of this process.
    pub(super) number: u64,
    slots: [AtomicU64; SLOTS],
    list: Lock<Vec<Weak<dyn DropObserver>>>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Default for DropObservers {
    fn default() -> Self {
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            slots: Default::default(),
            list: Lock::default(),
        }
    }
}

impl DropObservers {
    pub(super) fn any(&self) -> bool {
        self.list.lock_unless_forked().is_some_and(|list| {
            list.iter()
                .any(|drop_observer| drop_observer.strong_count() > 0)
        })
    }

    pub(super) fn tell(&self) {
        let list = self.list.lock_unless_forked();
        // The lock is free again when they are told.
        let list = list.map(|mut list| std::mem::take(&mut *list));
        for drop_observer in list.into_iter().flatten() {
            if let Some(drop_observer) = drop_observer.upgrade() {
                drop_observer.stream_ends(self.number);
            }
        }
    }
}

impl Stream {
    /// A number that is unique among all past, present and future streams of this process. Clones share it.
    pub(crate) fn number(&self) -> u64 {
        self.0.drop_observers.number
    }

    /// The slot for a note of the resource with this number. Other resources may share it, so the note must say whose
    /// it is. Initially 0.
    #[inline]
    pub(crate) fn slot(&self, resource: u32) -> &AtomicU64 {
        &self.0.drop_observers.slots[resource as usize % SLOTS]
    }

    /// Registers an observer of the stream's end.
    pub(crate) fn follow(&self, drop_observer: Weak<dyn DropObserver>) {
        if let Some(mut list) = self.0.drop_observers.list.lock_unless_forked() {
            list.retain(|other| other.strong_count() > 0);
            list.push(drop_observer);
        }
    }
}
