//! How the arena grows, and what it does when it cannot.

use std::sync::atomic::Ordering;

use super::backing::Chunk;
use super::last_use::LastUse;
use super::moves::Place;
use super::page_map::CacheId;
use super::refill::STEPS_WITHOUT_GROWTH;
use super::slow_path::count;
use super::tlsf::FreePages;
use super::trim::Search;
use super::{GRANULE, GRANULE_UNITS, Inner, UNIT, thread};
use crate::base::error::{Error, OutOfMemory, Result};
use crate::base::telemetry::{event, span};
use crate::stream::Stream;
use crate::stream::epoch;

/// The first growth, in granules.
const FIRST_GROWN: u64 = 4;
/// Later the arena grows by a sixteenth of what it holds, up to this many granules.
const MOST_GROWN: u64 = 16;

/// Bytes up to which an arena of several streams grows before it queries them.
const SMALL_ARENA: u64 = 32 << 20;

impl Inner {
    /// Whether to grow before streams are queried or made to wait: while the arena is small or within its initial
    /// bytes, because the driver's pool takes as much for its first block. For a stream that keeps medium blocks, also
    /// while the arena holds little more than what is live or would be kept, because taking pages out of the caches
    /// would disturb all streams.
    pub(super) fn grows_first(&self, id: CacheId, size: u32) -> bool {
        let caches = self.caches.count() as u64;
        let mut limit = self.small();
        if self.slot(id).keeping.is_on() {
            let wanted = self.wanted();
            // Free memory is fragmented, and pages are in transit between caches.
            limit = limit.max(wanted + wanted / 8);
        }
        let held = self.backing.reserved().current();
        caches > 1 && held + u64::from(size) * UNIT <= limit.min(self.backing.reserved().max())
    }

    /// Bytes up to which growing comes first.
    pub(super) fn small(&self) -> u64 {
        SMALL_ARENA.max(self.initial.load(Ordering::Relaxed))
    }

    /// Free bytes that all caches would keep, plus the live bytes. Caches of ended and idle streams do not count: their
    /// memory is to be used instead.
    fn wanted(&self) -> u64 {
        let left = self.slow_state().left_caches().to_vec();
        let caches = self.caches.iter().filter(|(id, _)| !left.contains(id));
        let caches = caches.filter(|(_, slot)| !slot.is_idle());
        let units = caches.map(|(_, slot)| {
            let held = slot.counters.held();
            let used = slot.counters.of_pages();
            let used = used.wrapping_add(slot.of_pages_elsewhere()).min(held);
            // Memory that a cache holds beyond that is for others: counting it would make the arena grow because it has
            // grown.
            let kept = slot.counters.kept_limit();
            if slot.keeping.is_on() {
                kept.max(used) - used
            } else {
                0
            }
        });
        units.sum::<u64>() * UNIT + self.stats().live
    }

    /// As [`grow`](Self::grow), one thread at a time: memory that the last one got, or that was freed meanwhile, may
    /// suffice for the next.
    pub(super) fn grow_once(&self, id: CacheId, size: u32, stream: &Stream) -> Result<Option<u64>> {
        self.grow_in_turn(id, size, stream, || true)
    }

    /// As [`grow_once`](Self::grow_once), if growing still [comes first](Self::grows_first) when this thread gets its
    /// turn. Otherwise `None` too: each thread that waited would exceed the limit.
    pub(super) fn grow_first(
        &self,
        id: CacheId,
        size: u32,
        stream: &Stream,
    ) -> Result<Option<u64>> {
        self.grow_in_turn(id, size, stream, || self.grows_first(id, size))
    }

    fn grow_in_turn(
        &self,
        id: CacheId,
        size: u32,
        stream: &Stream,
        may_grow: impl FnOnce() -> bool,
    ) -> Result<Option<u64>> {
        let _turn = self.backing.growing();
        if let Some(start) = self.try_allocate(id, size).or_else(|| self.take(id, size)) {
            return Ok(Some(start));
        }
        if !may_grow() {
            return Ok(None);
        }
        self.grow(id, size, stream)
    }

    /// Takes memory from the backing, and allocates a block of it. `None` if another thread took the free memory that
    /// the new memory was to extend.
    fn grow(&self, id: CacheId, size: u32, stream: &Stream) -> Result<Option<u64>> {
        let bytes = u64::from(size) * UNIT;
        if self.caches.cuts(self.slot(id), size) {
            self.note_demand(bytes);
            return self.grow_cache(id, size, stream);
        }
        let room = Self::granules(bytes) * GRANULE;
        let (frontier, tail) = self.frontier_and_tail(room, id);
        let mut rest = bytes.saturating_sub(tail);
        let mut place = frontier;
        let is_beyond = self.is_beyond_slack(bytes, rest);
        if is_beyond {
            self.wait_to_move(bytes);
        }
        if is_beyond && self.move_back(bytes, rest, id, stream.context()) {
            let mut central = self.central.lock(thread::number());
            return Ok(central.allocate(size, id, &self.central.counters));
        }
        if is_beyond && let Some(address) = frontier.or_else(|| self.backing.reserve(room)) {
            let from = Place {
                address,
                usable_from: address - tail,
            };
            let moved = self.move_to(from, rest, stream.context());
            if let Some(background) = self.background.get() {
                background.was_short(size);
            }
            rest = rest.saturating_sub(moved);
            place = Some(address + moved);
        }
        if rest > 0 {
            let granules = Self::granules(rest);
            let is_exact =
                is_beyond && self.backing.can_move() && self.may_query() && self.moves.are_likely();
            let grown = self.more(place, granules, is_exact, stream)?;
            let (start, units) = (grown.address / UNIT, grown.bytes / UNIT);
            self.add_to_central(start, units, self.last_use_of_new(id));
        }
        let mut central = self.central.lock(thread::number());
        Ok(central.allocate(size, id, &self.central.counters))
    }

    /// Where `room` bytes can be added, and how many free bytes usable by the stream end there.
    pub(super) fn frontier_and_tail(&self, room: u64, id: CacheId) -> (Option<u64>, u64) {
        let frontier = self.backing.frontier(room);
        let tail = frontier.and_then(|end| {
            let central = self.central.lock(thread::number());
            Some(end / UNIT - central.usable_tail(end / UNIT, id)?)
        });
        (frontier, tail.unwrap_or(0) * UNIT)
    }

    /// Takes memory for the pages of a cache. The rest goes to the central heap.
    fn grow_cache(&self, id: CacheId, size: u32, stream: &Stream) -> Result<Option<u64>> {
        let pages = self.pages_for(id, size);
        let granules = pages.least.div_ceil(GRANULE_UNITS);
        let grown = self.more(None, granules, false, stream)?;
        let (start, units) = (grown.address / UNIT, grown.bytes / UNIT);
        let taken = units.min(pages.most);
        if units > taken {
            self.add_to_central(start + taken, units - taken, self.last_use_of_new(id));
        }
        let pages = FreePages {
            start,
            units: taken,
        };
        Ok(self.add_pages(id, pages, size))
    }

    /// Memory from the backing: this many granules, and if possible more, so that the next growth is far off. Not more
    /// if `is_exact`, when memory is likely to move.
    fn more(
        &self,
        frontier: Option<u64>,
        granules: u64,
        is_exact: bool,
        stream: &Stream,
    ) -> Result<Chunk> {
        let held = self.backing.reserved().current() / GRANULE;
        let share = if held == 0 {
            (self.initial_of(stream) / GRANULE).max(FIRST_GROWN)
        } else {
            (held / 16).clamp(1, MOST_GROWN)
        };
        let wanted = if is_exact {
            granules
        } else {
            granules.max(share)
        };
        span!(DEBUG, "grow", arena = %self, bytes = wanted * GRANULE);
        let grown = match self.backing.grow(frontier, wanted * GRANULE, stream) {
            Err(error) if wanted > granules && error.is_out_of_memory() => {
                self.backing.grow(frontier, granules * GRANULE, stream)
            }
            grown => grown,
        }?;
        count(&self.slow_path.counters.grown);
        let reserved = self.backing.reserved().current();
        event!(
            DEBUG,
            address = grown.address,
            bytes = grown.bytes,
            reserved,
            "the arena grew"
        );
        self.caches.update_limits(reserved);
        Ok(grown)
    }

    /// The initial bytes, if the device has them. Otherwise 0, from then on.
    fn initial_of(&self, stream: &Stream) -> u64 {
        let initial = self.initial.load(Ordering::Relaxed);
        if initial == 0 {
            return 0;
        }
        let free = stream.context().memory_info().map(|memory| memory.free);
        if free.is_ok_and(|free| free < initial) {
            self.initial.store(0, Ordering::Relaxed);
            return 0;
        }
        initial
    }

    fn last_use_of_new(&self, id: CacheId) -> LastUse {
        if self.backing.is_ordered() {
            LastUse::new(id, epoch::now())
        } else {
            LastUse::FREE
        }
    }

    /// The device is out of memory: gives free and completed memory back to it, and tries the request once more.
    #[cold]
    pub(super) fn last_resort(
        &self,
        id: CacheId,
        size: u32,
        stream: &Stream,
        error: Error,
    ) -> Result<u64> {
        if !error.is_out_of_memory() {
            return Err(error);
        }
        let mut last = error;
        // No other thread takes what is released here, or is in the middle of releasing.
        let turn = self.backing.growing();
        // Its errors matter less than the original one.
        let _ = self.trim(0, Search::Thorough);
        // Busy memory may be done by now, and the device may now provide what was released.
        if let Some(start) = self.find_for(id, size, stream, &STEPS_WITHOUT_GROWTH) {
            return Ok(start * UNIT);
        }
        match self.grow(id, size, stream) {
            Ok(Some(start)) => return Ok(start * UNIT),
            Ok(None) => {}
            Err(error) => last = error,
        }
        drop(turn);
        let device = stream.context().memory_info().ok();
        let (stats, bytes) = (self.stats(), u64::from(size) * UNIT);
        let error = last
            .asked(|| format!("{bytes} bytes from {self}"))
            .with_memory(OutOfMemory::default)
            .and_memory(|memory| {
                memory.asked = bytes;
                memory.pool_used = Some(stats.live);
                memory.pool_reserved = Some(stats.reserved);
                memory.pool_reserved_high = Some(stats.reserved_peak);
                memory.device_free = device.map(|device| device.free);
                memory.device_total = device.map(|device| device.total);
            });
        event!(WARN, error = %error, "out of memory");
        Err(error)
    }
}
