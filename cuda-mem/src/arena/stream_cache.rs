//! The cache of one stream: its last-freed blocks, and pages from which blocks are cut: small ones, and medium ones if
//! the stream keeps them ([`Keeping`](super::cache_table::Keeping)).

#![forbid(unsafe_code)]

use super::PAGE_UNITS;
use super::UnknownBlock;
use super::counters::{Counters, Home};
use super::last_freed::{Block, LastFreed};
use super::last_use::LastUse;
use super::page_map::CacheId;
use super::tlsf::{FreePages, Joins, Tlsf};

/// A block of this cache's pages that was freed on another stream. It waits here until this cache's stream is known to
/// be ordered after that free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteFree {
    pub(super) start: u64,
    /// The cache of the other stream, and the epoch of the free.
    pub(super) cache: CacheId,
    pub(super) epoch: u64,
}

/// Free units that a cache may have beyond its recent need: 512 KiB.
const MOST_SPARE: u64 = 2 * PAGE_UNITS;
/// Cached medium blocks take at most this fraction of the cache's pages: one in eight.
const CACHED: u64 = 8;
/// Frees of medium blocks after which the recent peak moves an eighth of the way to what is in use.
const DECAY: u32 = 1024;

/// Sizes and places are in units. Free memory here was last used by the cache's own stream, or its last use is done.
#[derive(Debug, Default)]
pub(super) struct StreamCache {
    /// Blocks of the cache's own pages.
    last_freed: LastFreed,
    /// A block of the central heap, and the epoch in which it was freed. Size 0 means none.
    large: (Block, u64),
    heap: Tlsf,
    remote_frees: Vec<RemoteFree>,
    /// The recent peak of units in use, if medium blocks are kept.
    recent_peak: u64,
    /// Frees of medium blocks until the recent peak decays.
    until_decay: u32,
}

impl StreamCache {
    /// A block of the cache's pages that its stream can use at once.
    #[inline(always)]
    pub(super) fn allocate(&mut self, size: u32, counters: &Counters) -> Option<u64> {
        if let Some(start) = self.last_freed.take(size) {
            counters.count_hit(size, Home::Pages);
            return Some(start);
        }
        let start = match self.heap.allocate(size) {
            Some(start) => start,
            None => self.allocate_of_last_freed(size)?,
        };
        counters.count_fit(size, Home::Pages);
        Some(start)
    }

    /// Frees the cached blocks to the heap, where they merge with their neighbours, and allocates again.
    #[cold]
    #[inline(never)]
    fn allocate_of_last_freed(&mut self, size: u32) -> Option<u64> {
        if self.last_freed.units() == 0 {
            return None;
        }
        self.flush_to_heap();
        self.heap.allocate(size)
    }

    /// Frees all cached blocks of this cache's pages to the heap.
    fn flush_to_heap(&mut self) {
        for block in self.last_freed.drain() {
            // An unknown block was freed twice, so it has no owner.
            let _ = self.heap.free(block.start, LastUse::FREE);
        }
    }

    /// The cached block of the central heap, if it has exactly this size.
    #[inline]
    pub(super) fn allocate_large(&mut self, size: u32, counters: &Counters) -> Option<u64> {
        if self.large.0.size != size {
            return None;
        }
        self.large.0.size = 0;
        counters.count_hit(size, Home::Central);
        Some(self.large.0.start)
    }

    /// Caches a block of this cache's pages that its own stream freed. Returns the block that it replaces.
    #[inline]
    pub(super) fn free(&mut self, start: u64, size: u32, counters: &Counters) -> Option<Block> {
        counters.count_free(size, Home::Pages);
        self.last_freed.put(Block { start, size })
    }

    /// Whether a medium block can be cached: cached ones take only a small part of the cache's pages.
    #[inline]
    pub(super) fn has_room_for(&self, size: u32) -> bool {
        let cached = self.last_freed.larger_units() + u64::from(size);
        cached <= self.heap.total_units() / CACHED
    }

    /// As [`free`](Self::free), for a block of the central heap, with the current epoch. Returns the replaced block and
    /// its own epoch.
    #[inline]
    pub(super) fn free_large(
        &mut self,
        start: u64,
        size: u32,
        epoch: u64,
        counters: &Counters,
    ) -> Option<(Block, u64)> {
        counters.count_free(size, Home::Central);
        counters.set_cached_large(size);
        let old = std::mem::replace(&mut self.large, (Block { start, size }, epoch));
        (old.0.size != 0).then_some(old)
    }

    /// Frees a block of this cache's pages to the heap, where it merges with its neighbours.
    #[inline]
    pub(super) fn free_to_heap(&mut self, start: u64) -> Result<(), UnknownBlock> {
        match self.heap.free(start, LastUse::FREE) {
            Some(_) => Ok(()),
            None => Err(UnknownBlock { start }),
        }
    }

    /// Counts a block as freed, but leaves it where it is.
    pub(super) fn note_free(&self, start: u64, counters: &Counters) -> Result<(), UnknownBlock> {
        let size = self.heap.size_of(start).ok_or(UnknownBlock { start })?;
        counters.count_free(size, Home::Pages);
        Ok(())
    }

    /// Frees a block of this cache's pages on another stream.
    pub(super) fn free_remote(
        &mut self,
        pending: RemoteFree,
        counters: &Counters,
    ) -> Result<(), UnknownBlock> {
        self.note_free(pending.start, counters)?;
        self.remote_frees.push(pending);
        Ok(())
    }

    /// Removes the blocks that wait for other streams.
    pub(super) fn take_remote_frees(&mut self) -> Vec<RemoteFree> {
        std::mem::take(&mut self.remote_frees)
    }

    pub(super) fn remote_frees(&self) -> usize {
        self.remote_frees.len()
    }

    pub(super) fn push_remote_free(&mut self, pending: RemoteFree) {
        self.remote_frees.push(pending);
    }

    /// Frees all cached blocks of this cache's pages to the heap, and returns the one of the central heap with its
    /// epoch.
    pub(super) fn flush(&mut self, counters: &Counters) -> Option<(Block, u64)> {
        counters.set_cached_large(0);
        self.flush_to_heap();
        let large = std::mem::take(&mut self.large);
        (large.0.size != 0).then_some(large)
    }

    /// Adds pages.
    pub(super) fn add(&mut self, start: u64, units: u64, joins: Joins, counters: &Counters) {
        self.heap.add(start, units, LastUse::FREE, 0, joins);
        counters.set_held(self.heap.total_units());
    }

    /// Removes and returns all free pages.
    pub(super) fn give_away(&mut self, counters: &Counters) -> Vec<FreePages> {
        let pages: Vec<FreePages> = self.heap.free_pages(1).collect();
        for place in &pages {
            self.heap.cut(place.start, place.units);
        }
        counters.set_held(self.heap.total_units());
        pages
    }

    /// Called before a medium block is freed, when more is in use than afterwards.
    #[inline]
    pub(super) fn note_peak(&mut self) {
        let used = self.heap.total_units() - self.heap.free_units();
        self.recent_peak = self.recent_peak.max(used);
    }

    /// Called after a medium block was freed. Removes free pages beyond the cache's recent need. Pages that it may need
    /// again stay, so that pages do not go back and forth.
    #[inline]
    pub(super) fn take_surplus(&mut self, counters: &Counters) -> Vec<FreePages> {
        let used = self.heap.total_units() - self.heap.free_units();
        self.until_decay = match self.until_decay.checked_sub(1) {
            Some(frees) => frees,
            None => {
                self.recent_peak -= self.recent_peak.saturating_sub(used) / 8;
                DECAY
            }
        };
        let limit = self.recent_peak + self.recent_peak / 4 + MOST_SPARE;
        counters.set_kept_limit(limit);
        // Remove several pages at a time.
        if self.heap.total_units() <= limit + MOST_SPARE {
            return Vec::new();
        }
        self.take_free_pages(self.heap.total_units() - limit, counters)
    }

    /// Removes free pages of about `units`.
    #[cold]
    fn take_free_pages(&mut self, units: u64, counters: &Counters) -> Vec<FreePages> {
        let mut rest = units / PAGE_UNITS * PAGE_UNITS;
        let mut pages: Vec<FreePages> = self.heap.free_pages(1).collect();
        // The longest runs first: short ones suffice for most requests.
        pages.sort_unstable_by_key(|place| std::cmp::Reverse((place.units, place.start)));
        pages.retain_mut(|place| {
            place.units = place.units.min(rest);
            rest -= place.units;
            place.units > 0
        });
        for place in &pages {
            self.heap.cut(place.start, place.units);
        }
        counters.set_held(self.heap.total_units());
        pages
    }

    pub(super) fn heap(&self) -> &Tlsf {
        &self.heap
    }

    /// The cached blocks, of this cache's pages and of the central heap.
    pub(super) fn cached(&self) -> impl Iterator<Item = Block> {
        let large = Some(self.large.0).filter(|block| block.size != 0);
        self.last_freed.blocks().chain(large)
    }

    /// The blocks that wait for other streams.
    pub(super) fn waiting(&self) -> &[RemoteFree] {
        &self.remote_frees
    }

    /// Units in cached blocks.
    pub(super) fn last_freed_units(&self) -> u64 {
        self.last_freed.units() + u64::from(self.large.0.size)
    }

    /// Units of the blocks that wait for other streams.
    pub(super) fn remote_units(&self) -> u64 {
        let sizes = self
            .remote_frees
            .iter()
            .map(|block| self.heap.size_of(block.start));
        sizes.flatten().map(u64::from).sum()
    }

    /// Host bytes that the bookkeeping takes.
    pub(super) fn bytes(&self) -> usize {
        // The heap counts itself.
        size_of::<Self>() - size_of_val(&self.heap)
            + self.heap.bytes()
            + self.remote_frees.capacity() * size_of::<RemoteFree>()
    }
}

#[cfg(test)]
mod tests;
