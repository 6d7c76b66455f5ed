//! What resources keep about a stream, and how they hear of its end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, Weak};

use super::Stream;

/// Somebody who keeps something for a stream that has to go when the stream goes.
pub(crate) trait Follower: Send + Sync {
    /// The last handle is gone; the queue itself is still there. `number` is the stream's
    /// ([`Stream::number`]).
    fn stream_ends(&self, number: u64);
}

/// Notes that a resource can find without a search.
const SLOTS: usize = 4;

pub(super) struct Followers {
    /// Never given to another stream of this process.
    pub(super) number: u64,
    slots: [AtomicU64; SLOTS],
    list: Mutex<Vec<Weak<dyn Follower>>>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Default for Followers {
    fn default() -> Self {
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            slots: Default::default(),
            list: Mutex::default(),
        }
    }
}

impl Followers {
    pub(super) fn any(&self) -> bool {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().any(|follower| follower.strong_count() > 0)
    }

    pub(super) fn tell(&self) {
        let list = std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner));
        for follower in list {
            if let Some(follower) = follower.upgrade() {
                follower.stream_ends(self.number);
            }
        }
    }
}

impl Stream {
    /// A number that no other stream of this process has, had or will have. Clones have the same.
    pub(crate) fn number(&self) -> u64 {
        self.0.followers.number
    }

    /// A place for a note of the resource with this number. It may be shared with others, so the note must
    /// say whose it is. 0 at first.
    #[inline]
    pub(crate) fn slot(&self, resource: u32) -> &AtomicU64 {
        &self.0.followers.slots[resource as usize % SLOTS]
    }

    /// Lets somebody hear of the end.
    pub(crate) fn follow(&self, follower: Weak<dyn Follower>) {
        let mut list = self
            .0
            .followers
            .list
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        list.retain(|other| other.strong_count() > 0);
        list.push(follower);
    }
}
