//! The cache of one stream: the blocks that were freed last, and pages that small blocks are cut from.

#![forbid(unsafe_code)]

use super::UnknownBlock;
use super::counters::Counters;
use super::last_freed::{Block, LastFreed, is_small};
use super::last_use::LastUse;
use super::page_map::CacheId;
use super::tlsf::{FreePages, Joins, Tlsf};

/// A small block of this cache that was freed in the order of another stream. It waits here until this
/// cache's stream is known to come after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteFree {
    pub(super) start: u64,
    /// The cache of the other stream, and the epoch then.
    pub(super) cache: CacheId,
    pub(super) epoch: u64,
}

/// Sizes and places are in units. What is free here was last used by the cache's own stream, or its last use is done.
#[derive(Debug, Default)]
pub(super) struct StreamCache {
    last_freed: LastFreed,
    /// The epoch in which the cached large block was freed.
    large_epoch: u64,
    /// Small blocks only.
    heap: Tlsf,
    remote_frees: Vec<RemoteFree>,
}

impl StreamCache {
    /// A block that the cache's stream can use at once. A large one only if it is cached in exactly this size.
    #[inline]
    pub(super) fn allocate(&mut self, size: u32, counters: &Counters) -> Option<u64> {
        if let Some(start) = self.last_freed.take(size) {
            counters.count_hit(size);
            return Some(start);
        }
        if !is_small(size) {
            return None;
        }
        let start = self.heap.allocate(size)?;
        counters.count_fit(size);
        Some(start)
    }

    /// Caches a small block of this cache that its own stream freed. Returns the block that it replaces.
    #[inline]
    pub(super) fn free_small(
        &mut self,
        start: u64,
        size: u32,
        counters: &Counters,
    ) -> Option<Block> {
        counters.count_free(size);
        self.last_freed.put(Block { start, size })
    }

    /// As [`free_small`](Self::free_small), for a large block, with the present epoch. Returns the block that it
    /// replaces with its own epoch.
    #[inline]
    pub(super) fn free_large(
        &mut self,
        start: u64,
        size: u32,
        epoch: u64,
        counters: &Counters,
    ) -> Option<(Block, u64)> {
        counters.count_free(size);
        counters.set_cached_large(size);
        let before = std::mem::replace(&mut self.large_epoch, epoch);
        let old = self.last_freed.put(Block { start, size })?;
        Some((old, before))
    }

    /// Frees a small block to the heap, where it merges with its neighbours.
    #[inline]
    pub(super) fn free_to_heap(&mut self, start: u64) -> Result<(), UnknownBlock> {
        match self.heap.free(start, LastUse::FREE) {
            Some(_) => Ok(()),
            None => Err(UnknownBlock { start }),
        }
    }

    /// Counts a block as freed that stays where it is.
    pub(super) fn note_free(&self, start: u64, counters: &Counters) -> Result<(), UnknownBlock> {
        let size = self.heap.size_of(start).ok_or(UnknownBlock { start })?;
        counters.count_free(size);
        Ok(())
    }

    /// Frees a small block of this cache in the order of another stream.
    pub(super) fn free_remote(
        &mut self,
        pending: RemoteFree,
        counters: &Counters,
    ) -> Result<(), UnknownBlock> {
        self.note_free(pending.start, counters)?;
        self.remote_frees.push(pending);
        Ok(())
    }

    /// The blocks that wait for other streams.
    pub(super) fn take_remote_frees(&mut self) -> Vec<RemoteFree> {
        std::mem::take(&mut self.remote_frees)
    }

    pub(super) fn remote_frees(&self) -> usize {
        self.remote_frees.len()
    }

    pub(super) fn push_remote_free(&mut self, pending: RemoteFree) {
        self.remote_frees.push(pending);
    }

    /// Frees all cached small blocks to the heap, and returns the large one with its epoch.
    pub(super) fn flush(&mut self, counters: &Counters) -> Option<(Block, u64)> {
        counters.set_cached_large(0);
        let mut large = None;
        for block in self.last_freed.drain() {
            if is_small(block.size) {
                // One that is unknown was freed twice, and is nobody's.
                let _ = self.heap.free(block.start, LastUse::FREE);
            } else {
                large = Some((block, self.large_epoch));
            }
        }
        large
    }

    /// Adds pages.
    pub(super) fn add(&mut self, start: u64, units: u64, joins: Joins, counters: &Counters) {
        self.heap.add(start, units, LastUse::FREE, 0, joins);
        counters.set_held(self.heap.total_units());
    }

    /// Removes all pages that are free, and returns them.
    pub(super) fn give_away(&mut self, counters: &Counters) -> Vec<FreePages> {
        let pages: Vec<FreePages> = self.heap.free_pages(1).collect();
        for place in &pages {
            self.heap.cut(place.start, place.units);
        }
        counters.set_held(self.heap.total_units());
        pages
    }

    pub(super) fn heap(&self) -> &Tlsf {
        &self.heap
    }

    /// Units in cached blocks.
    pub(super) fn last_freed_units(&self) -> u64 {
        self.last_freed.units()
    }

    /// Units of the blocks that wait for other streams.
    pub(super) fn remote_units(&self) -> u64 {
        let sizes = self
            .remote_frees
            .iter()
            .map(|block| self.heap.size_of(block.start));
        sizes.flatten().map(u64::from).sum()
    }

    /// Bytes of the host that the bookkeeping takes.
    pub(super) fn bytes(&self) -> usize {
        self.heap.bytes()
            + size_of::<Self>()
            + self.remote_frees.capacity() * size_of::<RemoteFree>()
    }
}
