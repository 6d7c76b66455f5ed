//! Statistics of an arena.

use std::fmt;
use std::sync::atomic::Ordering;

use super::backing;
use super::thread_cache::ThreadCache;
use super::{Arena, Inner, UNIT, thread};
use crate::base::error::Bytes;
use crate::base::report;
use crate::memory::resource::Resource;

/// Where an arena gets its memory from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArenaBacking {
    /// Pages that it maps into its own address ranges.
    VirtualMemory,
    /// Blocks of another resource.
    Upstream(Resource),
}

impl fmt::Display for ArenaBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VirtualMemory => f.write_str("virtual memory"),
            Self::Upstream(resource) => write!(f, "blocks of {resource:?}"),
        }
    }
}

/// Statistics of an arena, in bytes unless stated otherwise. Reading them takes no lock and slows no other thread, so
/// they are not a consistent snapshot while other threads are active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaStats {
    /// Bytes that the arena holds.
    pub reserved: u64,
    /// The most that it has held since the last [`Arena::reset_peak`].
    pub reserved_peak: u64,
    /// Bytes that are allocated, each block rounded up to 256.
    pub live: u64,
    /// Blocks that are allocated.
    pub live_blocks: u64,
    /// Requests that one of the blocks freed last answered.
    pub hits: u64,
    /// Requests that other free memory of the stream answered.
    pub fits: u64,
    /// Misses: how often a request searched the spare memory of all streams.
    pub refills: u64,
    /// Bytes of addresses whose memory [sleeps](super::Arena::sleep).
    pub asleep: u64,
    /// How often memory that was freed on other streams was taken over after a query of them, or a wait for them.
    pub taken_over: u64,
    /// How often a stream was made to wait for another one for that.
    pub waits: u64,
    /// How often the arena grew.
    pub grown: u64,
    /// How many pieces of memory it has freed.
    pub released: u64,
    /// How many pieces of physical memory it has moved to another address.
    pub moved: u64,
    /// The most bytes that were allocated, asked for, or freed and not known to be done when the arena grew; its
    /// [slack](super::ArenaBuilder::slack) is a multiple of this.
    pub demand_peak: u64,
    /// How often it made physical memory beyond its [slack](super::ArenaBuilder::slack), because what was free could not
    /// move: it was in use still, or no piece was free as a whole.
    pub beyond_slack: u64,
    /// Bytes that were free and could not move when it did so last.
    pub stranded: u64,
    /// How often its [own thread](super::ArenaBuilder::background_thread) made a place for a large block ahead of need.
    pub prepared: u64,
    /// Driver calls that the arena has made; without those of a resource that it takes blocks of.
    pub driver_calls: u64,
    /// Streams that it has or had memory for.
    pub streams: u64,
}

impl ArenaStats {
    /// Bytes held and not allocated.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.reserved.saturating_sub(self.live)
    }
}

impl fmt::Display for ArenaStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "reserved {} (peak {}), live {} in {} blocks; {} hits, {} fits, {} misses, {} taken over, \
             {} driver calls",
            Bytes(self.reserved),
            Bytes(self.reserved_peak),
            Bytes(self.live),
            self.live_blocks,
            self.hits,
            self.fits,
            self.refills,
            self.taken_over,
            self.driver_calls
        )
    }
}

/// The layout of an arena's free memory. From [`Arena::free_space`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FreeSpace {
    /// Bytes held and not allocated.
    pub bytes: u64,
    /// Of these, bytes of blocks that were freed last and wait for requests of their size.
    pub cached: u64,
    /// Of these, bytes that wait for streams: of blocks from a stream's pages that were freed on another stream, and of
    /// blocks that [several streams](crate::DeviceBuffer::free_after) used.
    pub pending: u64,
    /// Bytes of pages that streams keep for their own blocks, in use and free. Blocks of up to 16 KiB are cut from these,
    /// and where threads with streams of their own meet, larger ones too.
    pub kept: u64,
    /// Bytes of the largest free block.
    pub largest: u64,
    /// Bytes of host memory that the bookkeeping of all blocks takes.
    pub bookkeeping: u64,
}

impl FreeSpace {
    /// The largest free block over all free bytes: 1 if the free memory lies in one place, near 0 if it is
    /// in fragments.
    #[must_use]
    pub fn wholeness(&self) -> f64 {
        if self.bytes == 0 {
            return 1.0;
        }
        self.largest as f64 / self.bytes as f64
    }
}

impl Inner {
    pub(super) fn source(&self) -> ArenaBacking {
        match &self.backing.kind {
            backing::Kind::Vmm(_) => ArenaBacking::VirtualMemory,
            backing::Kind::Upstream(upstream) => {
                ArenaBacking::Upstream(upstream.resource().clone())
            }
        }
    }

    /// Bytes held and not allocated. Sleeping blocks take no held memory.
    pub(super) fn free_bytes(&self) -> u64 {
        let stats = self.stats();
        let awake = stats.live.saturating_sub(stats.asleep);
        stats.reserved.saturating_sub(awake)
    }

    pub(super) fn driver_calls(&self) -> u64 {
        self.backing.calls() + self.slow_path.calls.calls.load(Ordering::Relaxed)
    }

    pub(super) fn stats(&self) -> ArenaStats {
        let slow_counters =
            |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let reserved = self.backing.reserved().current();
        let mut stats = ArenaStats {
            reserved,
            // Another thread may have raised the first and not yet the second.
            reserved_peak: self.backing.reserved().peak().max(reserved),
            asleep: self.backing.reserved().asleep(),
            refills: slow_counters(&self.slow_path.counters.refills),
            taken_over: slow_counters(&self.slow_path.counters.taken_over),
            waits: slow_counters(&self.slow_path.calls.waits),
            grown: slow_counters(&self.slow_path.counters.grown),
            released: slow_counters(&self.slow_path.counters.released),
            moved: slow_counters(&self.slow_path.counters.moved),
            demand_peak: self.mark.load(Ordering::Relaxed),
            beyond_slack: slow_counters(&self.slow_path.counters.beyond_slack),
            stranded: slow_counters(&self.slow_path.counters.stranded),
            prepared: slow_counters(&self.slow_path.counters.prepared),
            driver_calls: self.driver_calls(),
            streams: self.caches.count() as u64,
            ..ArenaStats::default()
        };
        let caches = self.caches.iter().flat_map(|(_, slot)| {
            let threads = slot.threads.iter().map(|cache| &cache.counters);
            threads.chain([&slot.counters, &slot.remote_queue.counters])
        });
        let (mut units, mut blocks) = (0_u64, 0_u64);
        for counters in caches.chain([&self.central.counters]) {
            let live = counters.live();
            units = units.wrapping_add(live.0);
            blocks = blocks.wrapping_add(live.1);
            let answered = counters.answered();
            stats.hits += answered.0;
            stats.fits += answered.1;
        }
        // If other threads are active, the parts may be inconsistent.
        stats.live = (units.cast_signed().max(0) as u64) * UNIT;
        stats.live_blocks = blocks.cast_signed().max(0) as u64;
        stats
    }
}

impl Arena {
    /// The statistics of this arena. Makes no driver call and takes no lock.
    #[must_use]
    pub fn stats(&self) -> ArenaStats {
        self.0.stats()
    }

    /// Resets the peak to the bytes held now.
    pub fn reset_peak(&self) {
        self.0.backing.reserved().reset_peak();
    }

    /// The layout of the free memory. Briefly blocks the users of each stream in turn.
    #[must_use]
    pub fn free_space(&self) -> FreeSpace {
        let mut space = FreeSpace::default();
        // In a fork, a lock may be held by a thread that does not exist there.
        if report::is_forked() {
            return space;
        }
        let me = thread::number();
        for (_, slot) in self.0.caches.iter() {
            let cache = slot.lock.lock(me);
            let waiting = cache.remote_units() + slot.remote_queue.units();
            space.cached += cache.last_freed_units() * UNIT;
            space.pending += waiting * UNIT;
            space.kept += cache.heap().total_units() * UNIT;
            space.bytes += (cache.heap().free_units() + cache.last_freed_units() + waiting) * UNIT;
            space.largest = space.largest.max(cache.heap().largest_free() * UNIT);
            space.bookkeeping += cache.bytes() as u64;
            drop(cache);
            for cache in slot.threads.iter() {
                let cached = cache.units(me) * UNIT;
                space.cached += cached;
                space.bytes += cached;
                space.bookkeeping += size_of::<ThreadCache>() as u64;
            }
        }
        let parked = self.0.slow_path.parked.now() * UNIT;
        space.pending += parked;
        space.bytes += parked;
        let central = self.0.central.lock(me);
        space.bytes += central.heap().free_units() * UNIT;
        space.largest = space.largest.max(central.heap().largest_free() * UNIT);
        space.bookkeeping += central.heap().bytes() as u64;
        space
    }

    /// Where the memory comes from.
    #[must_use]
    pub fn backing(&self) -> ArenaBacking {
        self.0.source()
    }
}
