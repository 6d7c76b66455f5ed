//! Caches of threads that share a stream: each thread keeps the small blocks it freed last, so that it need not lock
//! the stream's cache for the next request of the same size.
//!
//! A thread can reuse a block that it freed on a stream at once on that stream. The blocks are still cut from pages of
//! the stream's cache, and go back there. A thread gets its own cache once it has often used a stream whose lock is not
//! biased to it; the thread to which the lock is biased needs none.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::counters::{Counters, Home};
use super::last_freed::{Block, LastFreed};
use super::page_map::CacheId;
use crate::base::biased::lock::BiasedLock;

/// How often a thread finds a stream's lock not biased to it before it gets a cache: more often than the lock's initial
/// streak.
const TRIES: u32 = 1024;

/// Streams whose caches a thread finds in one step.
const RECENT: usize = 16;

/// The number of no thread; thread numbers start at 1.
const NOBODY: u64 = 0;

/// The caches of the threads that share one stream.
#[derive(Debug, Default)]
pub(super) struct ThreadCaches {
    all: boxcar::Vec<ThreadCache>,
    /// Held while a thread looks for a place.
    joining: Mutex<()>,
}

/// On its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ThreadCache {
    /// The number of its thread; [`NOBODY`] after that thread has ended.
    thread: AtomicU64,
    lock: BiasedLock<LastFreed>,
    pub(super) counters: Counters,
}

/// Where a thread finds its cache of a stream.
#[derive(Clone, Copy)]
struct Recent {
    /// The arena's number and the stream cache's.
    key: u64,
    /// Place in [`ThreadCaches::all`].
    place: Option<u32>,
    tries: u32,
}

/// A cache that this thread has.
struct Joined {
    caches: Weak<ThreadCaches>,
    place: u32,
    thread: u64,
}

impl Drop for Joined {
    /// Runs at the end of the thread. The blocks stay for the next one.
    fn drop(&mut self) {
        if let Some(caches) = self.caches.upgrade()
            && let Some(cache) = caches.all.get(self.place as usize)
        {
            let left = cache.thread.compare_exchange(
                self.thread,
                NOBODY,
                Ordering::Release,
                Ordering::Relaxed,
            );
            debug_assert!(left.is_ok(), "another thread had it");
        }
    }
}

thread_local! {
    static RECENTS: [Cell<Recent>; RECENT] = const {
        [const { Cell::new(Recent { key: 0, place: None, tries: 0 }) }; RECENT]
    };
    static JOINED: RefCell<Vec<Joined>> = const { RefCell::new(Vec::new()) };
}

impl ThreadCaches {
    /// The cache of the calling thread, whose number is `thread`, for a stream cache of an arena. `None` until it has
    /// asked often enough.
    #[inline]
    pub(super) fn of_thread(
        self: &Arc<Self>,
        arena: u32,
        stream: CacheId,
        thread: u64,
    ) -> Option<&ThreadCache> {
        let key = u64::from(arena) << 32 | u64::from(stream);
        let recent = RECENTS.with(|all| all[(arena ^ stream) as usize % RECENT].get());
        if recent.key == key
            && let Some(place) = recent.place
        {
            return self.all.get(place as usize);
        }
        self.find_or_join(key, thread)
    }

    #[cold]
    fn find_or_join(self: &Arc<Self>, key: u64, thread: u64) -> Option<&ThreadCache> {
        RECENTS.with(|all| {
            let (arena, stream) = ((key >> 32) as u32, key as u32);
            let recent = &all[(arena ^ stream) as usize % RECENT];
            let tries = match recent.get() {
                known if known.key == key => known.tries + 1,
                _ => 1,
            };
            let place = if tries == 1 {
                self.place_of(thread)
            } else if tries >= TRIES {
                self.join(thread)
            } else {
                None
            };
            recent.set(Recent { key, place, tries });
            self.all.get(place? as usize)
        })
    }

    /// The place of the thread's cache, if it has one.
    fn place_of(&self, thread: u64) -> Option<u32> {
        let mut all = self.all.iter();
        let found = all.find(|(_, cache)| cache.thread.load(Ordering::Relaxed) == thread);
        found.map(|(place, _)| place as u32)
    }

    /// Gives the thread a cache: one whose thread has ended, or a new one.
    fn join(self: &Arc<Self>, thread: u64) -> Option<u32> {
        let _joining = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
        let place = self.place_of(NOBODY).unwrap_or_else(|| {
            self.all.push(ThreadCache {
                thread: AtomicU64::new(NOBODY),
                lock: BiasedLock::new(thread, LastFreed::default()),
                counters: Counters::default(),
            }) as u32
        });
        let caches = Arc::downgrade(self);
        let joined = JOINED.try_with(|all| {
            let mut all = all.borrow_mut();
            // Removes those of arenas that have ended.
            all.retain(|joined| joined.caches.strong_count() > 0);
            all.push(Joined {
                caches,
                place,
                thread,
            });
        });
        // A thread that is ending gets none.
        joined.ok()?;
        let cache = self.all.get(place as usize)?;
        cache.thread.store(thread, Ordering::Relaxed);
        Some(place)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ThreadCache> {
        self.all.iter().map(|(_, cache)| cache)
    }
}

impl ThreadCache {
    /// A block of exactly this size that the thread freed.
    #[inline]
    pub(super) fn allocate(&self, size: u32, thread: u64) -> Option<u64> {
        let mut cache = self.lock.lock(thread);
        let start = cache.take(size)?;
        self.counters.count_hit(size, Home::Pages);
        Some(start)
    }

    /// Caches a small block. Returns the one that it replaces.
    #[inline]
    pub(super) fn free(&self, start: u64, size: u32, thread: u64) -> Option<Block> {
        let mut cache = self.lock.lock(thread);
        self.counters.count_free(size, Home::Pages);
        cache.put(Block { start, size })
    }

    /// Whether its thread has ended.
    pub(super) fn is_left(&self) -> bool {
        self.thread.load(Ordering::Acquire) == NOBODY
    }

    /// Removes all blocks.
    pub(super) fn flush(&self, thread: u64) -> Vec<Block> {
        self.lock.lock(thread).drain().collect()
    }

    pub(super) fn lock(&self) -> &BiasedLock<LastFreed> {
        &self.lock
    }

    /// Units in all blocks.
    pub(super) fn units(&self, thread: u64) -> u64 {
        self.lock.lock(thread).units()
    }
}

#[cfg(test)]
mod tests;
