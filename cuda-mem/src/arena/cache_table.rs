//! The table of stream caches. None is dropped before the arena, so all may be read without a lock.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::counters::Counters;
use super::last_freed::{MEDIUM, MEDIUM_AT_LEAST, SMALL, is_small};
use super::page_map::{CacheId, PageMap};
use super::remote_queue::RemoteQueue;
use super::stream_cache::StreamCache;
use super::thread_cache::ThreadCaches;
use super::tlsf::{FreePages, Joins};
use super::{PAGE_UNITS, UNIT, thread};
use crate::base::biased::lock::BiasedLock;

/// A stream cache, on its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct CacheSlot {
    pub(super) lock: BiasedLock<StreamCache>,
    pub(super) counters: Counters,
    /// Caches of threads that share the stream.
    pub(super) threads: Arc<ThreadCaches>,
    /// What other streams need of this one.
    pub(super) requested: Requested,
    /// Whether the stream keeps medium blocks.
    pub(super) keeping: Keeping,
    /// Blocks of its pages that were freed on other streams and have not reached it yet.
    pub(super) remote_queue: RemoteQueue,
    /// The number of its blocks that wait for other streams.
    waiting: AtomicU32,
    /// What [`is_idle`](Self::is_idle) saw last time, and how often in a row.
    answered: AtomicU64,
    unchanged: AtomicU32,
    /// Units of blocks of other caches' pages that were freed on this one's stream since its last event, counted while
    /// others request events.
    unrecorded: AtomicU32,
}

/// How often a stream is still to be queried and to record events for others, after one of them was short of memory.
#[derive(Debug, Default)]
pub(super) struct Requested {
    queries: AtomicU32,
    events: AtomicU32,
}

/// Queries after one stream was short of memory.
const QUERIES: u32 = 16;
/// Events after one stream was short of memory.
const EVENTS: u32 = 64;

impl Requested {
    /// A request found no memory that was known to be done.
    pub(super) fn queries(&self) {
        self.queries.store(QUERIES, Ordering::Relaxed);
    }

    /// A request needs memory of this stream, and queries do not help while the stream is busy.
    pub(super) fn events(&self) {
        self.events.store(EVENTS, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn has_queries(&self) -> bool {
        self.queries.load(Ordering::Relaxed) > 0
    }

    #[inline]
    pub(super) fn has_events(&self) -> bool {
        self.events.load(Ordering::Relaxed) > 0
    }
}

/// Subtracts one. Concurrent calls may count as one.
fn less(counter: &AtomicU32) {
    let value = counter.load(Ordering::Relaxed);
    counter.store(value.saturating_sub(1), Ordering::Relaxed);
}

/// Whether a stream cuts medium blocks from its own pages. This helps threads that would contend for the central heap.
/// Otherwise the central heap is as fast and holds less. A thread with several streams would keep pages in each. Blocks
/// that are freed on other streams do not benefit either: they return to a cache only when its stream is known to be
/// ordered after the free, while in the central heap they belong to the stream that freed them.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    keeps: AtomicBool,
    /// The thread that last came to the central heap for a medium block of this stream.
    thread: AtomicU64,
    /// How often it came in a row. Like the next fields, changed without locked instructions: concurrent changes count
    /// as one.
    came: AtomicU32,
    /// How many of these times another thread waited for the central heap.
    contended: AtomicU32,
    /// Grows by [`REMOTE`] with each medium block that is freed on another stream, and falls by one with each that is
    /// freed on its own.
    remote: AtomicU32,
}

/// Requests for medium blocks that come to the central heap before it is decided whether a stream keeps them.
const DECISION: u32 = 512;
/// A stream keeps medium blocks if another thread waited for the lock in at least one of this many requests. Programs
/// that do more work between requests rarely contend, and the pages kept for them would be wasted.
const CONTENDED: u32 = 8;

thread_local! {
    /// The stream for which this thread last came to a central heap, by arena and cache.
    static LAST_CAME: Cell<(u32, CacheId)> = const { Cell::new((0, 0)) };
}
/// A stream keeps no medium blocks if more than one in this many is freed on another stream.
const REMOTE: u32 = 16;

impl Keeping {
    /// Whether the stream cuts medium blocks from its own pages.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    /// A request of this stream, by arena and cache, for a medium block came to the central heap. `is_contended` if
    /// another thread waited meanwhile. Only consecutive requests of one thread count: threads that share the stream
    /// would contend for its cache instead. `freed_elsewhere` counts the stream's blocks that other streams have freed
    /// since the last decision; it is `None` if no stream may keep any.
    pub(super) fn came(
        &self,
        stream: (u32, CacheId),
        is_contended: bool,
        freed_elsewhere: impl FnOnce() -> Option<u32>,
    ) {
        let thread = thread::number();
        let is_same = LAST_CAME.replace(stream) == stream;
        let (came, contended) = if is_same && self.thread.load(Ordering::Relaxed) == thread {
            let contended = self.contended.load(Ordering::Relaxed);
            (
                self.came.load(Ordering::Relaxed) + 1,
                contended + u32::from(is_contended),
            )
        } else {
            self.thread.store(thread, Ordering::Relaxed);
            (1, u32::from(is_contended))
        };
        let is_due = came >= DECISION;
        let (next, next_contended) = if is_due { (0, 0) } else { (came, contended) };
        self.came.store(next, Ordering::Relaxed);
        self.contended.store(next_contended, Ordering::Relaxed);
        let few_elsewhere =
            is_due && freed_elsewhere().is_some_and(|blocks| blocks.saturating_mul(REMOTE) < came);
        if few_elsewhere && contended * CONTENDED >= came {
            self.remote.store(0, Ordering::Relaxed);
            self.keeps.store(true, Ordering::Relaxed);
        }
    }

    /// A medium block of the cache was freed, on its own stream.
    #[inline]
    pub(super) fn freed(&self) {
        let remote = self.remote.load(Ordering::Relaxed);
        if remote > 0 {
            self.remote.store(remote - 1, Ordering::Relaxed);
        }
    }

    /// A medium block of the cache was freed on another stream.
    pub(super) fn freed_remote(&self) {
        let remote = self.remote.load(Ordering::Relaxed) + REMOTE;
        self.remote.store(remote, Ordering::Relaxed);
        if remote > FEW_REMOTE * REMOTE {
            self.keeps.store(false, Ordering::Relaxed);
        }
    }
}

/// This many in a row may be freed on other streams.
const FEW_REMOTE: u32 = 16;

/// Growths of the arena after which a stream without requests counts as idle.
const IDLE: u32 = 16;

impl CacheSlot {
    /// A block of another cache's pages was freed on this one's stream. Returns whether it is time for an event.
    pub(super) fn freed_remote(&self, units: u32) -> bool {
        if !self.requested.has_events() {
            return false;
        }
        let before = self.unrecorded.fetch_add(units, Ordering::Relaxed);
        u64::from(before.saturating_add(units)) >= PAGE_UNITS / 4
    }

    /// Sets the number of blocks that wait for other streams, under the lock.
    pub(super) fn set_waiting(&self, blocks: usize) {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        self.waiting.store(blocks, Ordering::Relaxed);
    }

    /// Whether blocks wait for other streams.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 || !self.remote_queue.is_empty()
    }

    /// Whether the stream has made no request for more than [`IDLE`] calls of this. Called by growths.
    pub(super) fn is_idle(&self) -> bool {
        let (hits, fits) = self.counters.answered();
        let answered = hits.wrapping_add(fits);
        if self.answered.swap(answered, Ordering::Relaxed) != answered {
            self.unchanged.store(0, Ordering::Relaxed);
            return false;
        }
        self.unchanged.fetch_add(1, Ordering::Relaxed) >= IDLE
    }

    /// Units of blocks from its pages that are counted by the thread caches and the remote queue, not by the slot's own
    /// counters.
    pub(super) fn of_pages_elsewhere(&self) -> u64 {
        let units = self.threads.iter().map(|cache| cache.counters.of_pages());
        units.fold(self.remote_queue.counters.of_pages(), u64::wrapping_add)
    }

    /// An event was recorded.
    pub(super) fn recorded(&self) {
        self.unrecorded.store(0, Ordering::Relaxed);
        less(&self.requested.events);
    }

    /// The stream was queried.
    pub(super) fn queried(&self) {
        less(&self.requested.queries);
    }
}

/// Slots found in one step; few programs have more streams.
const FIRST: usize = 64;

/// A block that a stream keeps is at most one part in this many of the stream's even share of what the arena holds.
/// Pages for larger blocks would lie idle in many streams.
const LARGEST_KEPT: u64 = 8;

/// Cached large blocks together are at most one part in this many of what the arena holds.
const CACHED: u64 = 128;

#[derive(Debug)]
pub(super) struct CacheTable {
    pub(super) page_map: PageMap,
    /// The largest medium block, in units.
    pub(super) medium_limit: AtomicU32,
    /// The largest block that is cached, in units.
    pub(super) cached_limit: AtomicU32,
    first: [OnceLock<Box<CacheSlot>>; FIRST],
    rest: boxcar::Vec<Box<CacheSlot>>,
}

impl Default for CacheTable {
    fn default() -> Self {
        Self {
            page_map: PageMap::default(),
            medium_limit: AtomicU32::new(MEDIUM_AT_LEAST),
            cached_limit: AtomicU32::new(u32::MAX),
            first: [const { OnceLock::new() }; FIRST],
            rest: boxcar::Vec::new(),
        }
    }
}

impl CacheTable {
    /// Adds the next slot. Called by one thread at a time.
    pub(super) fn push(&self, thread: u64) -> CacheId {
        let slot = Box::new(CacheSlot {
            lock: BiasedLock::new(thread, StreamCache::default()),
            counters: Counters::default(),
            threads: Arc::default(),
            requested: Requested::default(),
            keeping: Keeping::default(),
            remote_queue: RemoteQueue::default(),
            waiting: AtomicU32::new(0),
            answered: AtomicU64::new(0),
            unchanged: AtomicU32::new(0),
            unrecorded: AtomicU32::new(0),
        });
        let id = self.count();
        match self.first.get(id) {
            Some(place) => {
                let place = place.set(slot);
                debug_assert!(place.is_ok(), "two threads at a time");
            }
            None => {
                self.rest.push(slot);
            }
        }
        id as CacheId
    }

    /// Adjusts the sizes up to which blocks are cached and kept to the number of caches and the bytes that the arena
    /// holds. With one cache, blocks of any size are cached: no other stream could use them.
    pub(super) fn update_limits(&self, held: u64) {
        let caches = self.count() as u64;
        let limit = if caches <= 1 {
            u32::MAX
        } else {
            u32::try_from(held / UNIT / (caches * CACHED)).unwrap_or(u32::MAX)
        };
        self.cached_limit.store(limit.max(SMALL), Ordering::Relaxed);
        let limit = u32::try_from(held / UNIT / (caches * LARGEST_KEPT)).unwrap_or(u32::MAX);
        let limit = limit.clamp(MEDIUM_AT_LEAST, MEDIUM);
        self.medium_limit.store(limit, Ordering::Relaxed);
    }

    /// Adds pages to a cache and takes a block of them, before another thread can.
    pub(super) fn add_pages(
        &self,
        id: CacheId,
        pages: FreePages,
        joins: Joins,
        size: u32,
    ) -> Option<u64> {
        let (start, units) = (pages.start, pages.units);
        self.page_map.set(start * UNIT, units * UNIT, Some(id));
        let slot = self.get(id);
        let mut cache = slot.lock.lock(thread::number());
        cache.add(start, units, joins, &slot.counters);
        cache.allocate(size, &slot.counters)
    }

    /// Whether blocks of this size are cut from pages of the cache.
    #[inline]
    pub(super) fn cuts(&self, slot: &CacheSlot, size: u32) -> bool {
        is_small(size) || slot.keeping.is_on() && self.is_medium(size)
    }

    /// Whether streams may keep blocks of this size, which is not small.
    #[inline]
    pub(super) fn is_medium(&self, size: u32) -> bool {
        size <= self.medium_limit.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn get(&self, id: CacheId) -> &CacheSlot {
        let id = id as usize;
        match self.first.get(id).and_then(OnceLock::get) {
            Some(slot) => slot,
            None => &self.rest[id - FIRST],
        }
    }

    pub(super) fn count(&self) -> usize {
        let first = self.first.iter().take_while(|place| place.get().is_some());
        first.count() + self.rest.count()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (CacheId, &CacheSlot)> {
        let first = self.first.iter().filter_map(|place| place.get());
        let all = first.chain(self.rest.iter().map(|(_, slot)| slot));
        all.enumerate().map(|(id, slot)| (id as CacheId, &**slot))
    }
}
