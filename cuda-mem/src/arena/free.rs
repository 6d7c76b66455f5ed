//! Frees: into the stream's cache, the central heap, or the cache of another stream.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::cache_table::CacheSlot;
use super::counters::Home;
use super::last_freed::{Block, is_small};
use super::last_use::LastUse;
use super::page_map::CacheId;
use super::slow_path::{For, SlowState};
use super::stream_cache::{RemoteFree, StreamCache};
use super::{Inner, UNIT, UnknownBlock, thread};
use crate::base::error::{Error, Result};
use crate::base::report;
use crate::stream::Stream;
use crate::stream::epoch;

/// Remote frees that are moved to their cache together.
const MANY: usize = 64;

impl Inner {
    /// Frees a large block that another one replaced in the cache.
    #[inline]
    fn free_evicted(&self, id: CacheId, block: Block, epoch: u64) -> Result<(), UnknownBlock> {
        let last_use = LastUse::new(id, epoch);
        let freed = self
            .central
            .lock(thread::number())
            .free(block.start, last_use);
        if let Some(background) = self.background.get() {
            background.freed(block.size);
        }
        freed
    }

    /// A free on a stream that has no cache yet, or of a block of another cache's pages. Not always rare, like
    /// [`allocate_slowly`](Self::allocate_slowly).
    #[cold]
    pub(super) fn deallocate_slowly(&self, address: u64, size: u32, stream: &Stream) -> Result<()> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        let id = self.cache_of(stream, For::Free)?;
        let start = address / UNIT;
        let Some(owner) = self.owner_of(address, size) else {
            if is_small(size) {
                return Err(self.unknown(UnknownBlock { start }));
            }
            return self.free_large(id, start, size);
        };
        if owner == id {
            return self.free_to_pages(id, start, size);
        }
        self.free_remote(owner, id, start, size);
        Ok(())
    }

    /// Frees a block of another cache's pages on this one's stream.
    #[cold]
    #[inline(never)]
    pub(super) fn free_remote(&self, owner: CacheId, id: CacheId, start: u64, size: u32) {
        let block = RemoteFree {
            start,
            cache: id,
            epoch: epoch::now(),
        };
        let slot = self.slot(owner);
        let waiting = slot.remote_queue.push(block, size);
        if !is_small(size) {
            slot.keeping.freed_remote();
        }
        if self.slot(id).freed_remote(size) {
            self.record_batch(id);
        }
        if waiting >= MANY {
            self.receive_remote_frees(owner);
        }
    }

    /// Moves the blocks that were freed on other streams to their cache, many at a time.
    fn receive_remote_frees(&self, owner: CacheId) {
        let slot = self.slot(owner);
        let mut cache = slot.lock.lock(thread::number());
        let before = cache.remote_frees();
        self.receive_into(&mut cache, slot);
        let waiting = cache.remote_frees();
        slot.set_waiting(waiting);
        drop(cache);
        // Whenever their number has doubled.
        if waiting >= 2 * MANY && waiting.ilog2() > before.max(1).ilog2() {
            self.reclaim_remote_frees(&mut self.slow_state(), owner, None, false);
        }
        self.report_unknown_blocks();
    }

    /// Moves all remote frees to their caches.
    pub(super) fn receive_all_remote_frees(&self) {
        for (_, slot) in self.caches.iter() {
            let mut cache = slot.lock.lock(thread::number());
            self.receive_into(&mut cache, slot);
        }
    }

    fn receive_into(&self, cache: &mut StreamCache, slot: &CacheSlot) {
        for block in slot.remote_queue.take() {
            if let Err(unknown) = cache.free_remote(block, &slot.counters) {
                // Its caller is gone; the next request reports it.
                self.slow_path.unknown().push(unknown);
            }
        }
    }

    /// Caches a block of the central heap, or frees it there if it is too large for that.
    #[inline]
    pub(super) fn free_large(&self, id: CacheId, start: u64, size: u32) -> Result<()> {
        let (me, slot) = (thread::number(), self.slot(id));
        if size > self.caches.cached_limit.load(Ordering::Relaxed) {
            let last_use = LastUse::new(id, epoch::now());
            let mut central = self.central.lock(me);
            let freed = central.free(start, last_use);
            if freed.is_ok() {
                self.central.counters.count_free(size, Home::Central);
            }
            let unrecorded = central.unrecorded(id);
            let is_worth_an_event = slot.requested.has_events() && unrecorded.is_worth_an_event();
            if !is_worth_an_event
                && self.may_query()
                && unrecorded.is_worth_a_query(
                    slot.requested.has_queries(),
                    self.central.heap.is_biased_to(me),
                )
            {
                central.query_later(id);
            }
            drop(central);
            if let Some(background) = self.background.get() {
                background.freed(size);
            }
            if is_worth_an_event {
                self.record_batch(id);
            }
            return freed.map_err(|unknown| self.unknown(unknown));
        }
        let mut cache = slot.lock.lock(me);
        let old = cache.free_large(start, size, epoch::now(), &slot.counters);
        drop(cache);
        let settled = old.map_or(Ok(()), |(old, epoch)| self.free_evicted(id, old, epoch));
        if let Err(unknown) = settled {
            self.report_unknown(unknown);
        }
        Ok(())
    }

    /// Frees a block of the cache's own pages.
    #[inline(always)]
    pub(super) fn free_to_pages(&self, id: CacheId, start: u64, size: u32) -> Result<()> {
        if !is_small(size) {
            return self.free_medium(id, start, size);
        }
        let slot = self.slot(id);
        let Some(mut cache) = slot.lock.lock_by_owner(thread::number()) else {
            return self.free_shared(id, start, size);
        };
        let old = cache.free(start, size, &slot.counters);
        let settled = old.map_or(Ok(()), |old| cache.free_to_heap(old.start));
        // The report hook may call into the arena.
        drop(cache);
        if let Err(unknown) = settled {
            self.report_unknown(unknown);
        }
        Ok(())
    }

    /// Frees a medium block of the cache's own pages.
    fn free_medium(&self, id: CacheId, start: u64, size: u32) -> Result<()> {
        let slot = self.slot(id);
        let mut cache = slot.lock.lock(thread::number());
        cache.note_peak();
        let settled = if cache.has_room_for(size) {
            let old = cache.free(start, size, &slot.counters);
            old.map_or(Ok(()), |old| cache.free_to_heap(old.start))
        } else {
            slot.counters.count_free(size, Home::Pages);
            cache.free_to_heap(start)
        };
        slot.keeping.freed();
        let surplus = cache.take_surplus(&slot.counters);
        drop(cache);
        if !surplus.is_empty() {
            self.pages_to_central(id, surplus);
        }
        if let Err(unknown) = settled {
            self.report_unknown(unknown);
        }
        Ok(())
    }

    /// Frees a small block of the stream's cache, on a thread to which the cache's lock is not biased.
    fn free_shared(&self, id: CacheId, start: u64, size: u32) -> Result<()> {
        let (me, slot) = (thread::number(), self.slot(id));
        let own = slot.threads.of_thread(self.number, id, me);
        let (old, mut cache) = match own {
            Some(own) => match own.free(start, size, me) {
                Some(old) => (Some(old), slot.lock.lock(me)),
                None => return Ok(()),
            },
            None => {
                let mut cache = slot.lock.lock(me);
                (cache.free(start, size, &slot.counters), cache)
            }
        };
        let settled = old.map_or(Ok(()), |old| cache.free_to_heap(old.start));
        // The report hook may call into the arena.
        drop(cache);
        if let Err(unknown) = settled {
            self.report_unknown(unknown);
        }
        Ok(())
    }

    /// Records an event in a stream on which much was freed, while other streams are short of memory.
    #[cold]
    fn record_batch(&self, id: CacheId) {
        let mut state = self.slow_state();
        let progress = &mut state.streams[id as usize];
        progress.record_batch();
        self.slot(id).recorded();
        self.note_done(progress, id);
    }

    /// Queries the streams on which much was freed, before the next allocation.
    #[cold]
    #[inline(never)]
    pub(super) fn query_freed(&self, state: &mut SlowState) {
        let to_query = self.central.lock(thread::number()).take_to_query();
        for id in to_query {
            let newest = self.central.lock(thread::number()).newest(id);
            let progress = &mut state.streams[id as usize];
            if progress.query(newest) {
                self.slot(id).queried();
                self.note_done(progress, id);
            }
        }
    }

    /// A block that was freed earlier turns out to be unknown. The current caller is not to blame, so the report hook
    /// gets it.
    #[cold]
    pub(super) fn report_unknown(&self, unknown: UnknownBlock) {
        report::release("arena", || Err(self.unknown(unknown)));
    }

    /// As [`report_unknown`](Self::report_unknown), for blocks that the slow path found. No lock may be held.
    pub(super) fn report_unknown_blocks(&self) {
        let unknown = std::mem::take(&mut *self.slow_path.unknown());
        for block in unknown {
            self.report_unknown(block);
        }
    }

    #[cold]
    pub(super) fn unknown(&self, unknown: UnknownBlock) -> Error {
        Error::invalid(format!(
            "{:#x} was not allocated from {self}, or was given back already",
            unknown.start * UNIT
        ))
    }

    /// Frees the completed remote frees of a cache to its heap. `stream`, if given, must be the cache's, and is made to
    /// wait for the others. Streams that were busy last time are queried only with `force`. Returns whether any block
    /// was freed.
    pub(super) fn reclaim_remote_frees(
        &self,
        state: &mut SlowState,
        id: CacheId,
        stream: Option<&Stream>,
        force: bool,
    ) -> bool {
        let me = thread::number();
        let slot = self.slot(id);
        let mut cache = slot.lock.lock(me);
        self.receive_into(&mut cache, slot);
        let pending = cache.take_remote_frees();
        drop(cache);
        if pending.is_empty() {
            return false;
        }
        let mut last: BTreeMap<CacheId, u64> = BTreeMap::new();
        for block in &pending {
            let epoch = last.entry(block.cache).or_default();
            *epoch = block.epoch.max(*epoch);
        }
        // By other stream: its frees up to this epoch precede everything that this cache's stream gets from now on.
        let over: BTreeMap<CacheId, u64> = last
            .into_iter()
            .map(|(other, epoch)| {
                let progress = &mut state.streams[other as usize];
                if progress.done() < epoch && force {
                    progress.query_now(epoch);
                    self.note_done(progress, other);
                } else if progress.done() < epoch && self.may_query() {
                    if progress.query(epoch) {
                        self.note_done(progress, other);
                    }
                    self.request_events(other);
                }
                let mut over = progress.done();
                if let Some(stream) = stream
                    && self.wait_for(state, id, LastUse::new(other, epoch), stream)
                {
                    over = over.max(epoch);
                }
                (other, over)
            })
            .collect();
        let mut cache = slot.lock.lock(me);
        let mut any = false;
        for block in pending {
            if over
                .get(&block.cache)
                .is_some_and(|over| block.epoch <= *over)
            {
                // The block was known when it was freed.
                let _ = cache.free_to_heap(block.start);
                any = true;
            } else {
                cache.push_remote_free(block);
            }
        }
        slot.set_waiting(cache.remote_frees());
        drop(cache);
        if any {
            slot.counters.expect_pages();
        }
        any
    }
}
