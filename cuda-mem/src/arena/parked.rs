//! Frees of blocks that several streams used: they are parked until all streams but the freeing one are done.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::counters::Home;
use super::last_use::LastUse;
use super::page_map::CacheId;
use super::slow_path::{For, SlowState};
use super::stream_cache::RemoteFree;
use super::{Inner, UNIT, UnknownBlock, thread, units};
use crate::base::error::{Error, Result};
use crate::base::report;
use crate::stream::Stream;
use crate::stream::epoch;

/// A freed block that is parked.
#[derive(Debug)]
pub(super) struct ParkedFree {
    start: u64,
    size: u32,
    /// What was asked for.
    bytes: u64,
    /// The handle of the stream that freed it, for the recorder.
    stream: u64,
    /// The stream that freed it, and when.
    last_use: LastUse,
    /// The other streams that used it before that, and are not known to be done.
    others: Vec<CacheId>,
}

impl ParkedFree {
    /// Where it starts, and the cache of the stream that freed it.
    pub(super) fn place(&self) -> (u64, Option<CacheId>) {
        (self.start, self.last_use.cache())
    }
}

/// Units in parked blocks.
#[derive(Debug, Default)]
pub(super) struct ParkedUnits(AtomicU64);

impl ParkedUnits {
    fn add(&self, units: u32) {
        self.0.fetch_add(units.into(), Ordering::Relaxed);
    }

    fn subtract(&self, units: u32) {
        self.0.fetch_sub(units.into(), Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// Frees a block on a stream, and after all work that is now in the other streams. No stream is made to wait.
    pub(super) fn deallocate_after(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
        others: &[&Stream],
    ) -> Result<()> {
        let start = address / UNIT;
        let Some(size) = units(layout.size()) else {
            return Err(self.unknown(UnknownBlock { start }));
        };
        if report::is_forked() {
            return Err(Error::forked());
        }
        let id = self.cache_of(stream, For::Free)?;
        // All streams are checked before anything changes.
        let others = others.iter().map(|other| self.cache_of(other, For::Free));
        let mut others: Vec<CacheId> = others.collect::<Result<_>>()?;
        others.sort_unstable();
        others.dedup();
        others.retain(|other| *other != id);
        if others.is_empty() {
            if self.backing.observer.is_on() {
                return self.deallocate_observed(address, layout, size, stream);
            }
            return self.deallocate_slowly(address, size, stream);
        }
        let epoch = epoch::now();
        let mut state = self.slow_state();
        if let Err(unknown) = self.note_free(start) {
            // The text may come from a resource of the program.
            drop(state);
            return Err(self.unknown(unknown));
        }
        for other in &others {
            // Later work on that stream then does not delay this block. If no event can be recorded now, the next query
            // or wait records one.
            let progress = &mut state.streams[*other as usize];
            if progress.recorded() < epoch {
                progress.record_batch();
                self.note_done(progress, *other);
            }
        }
        self.slow_path.parked.add(size);
        let observer = &self.backing.observer;
        observer.parked(address, layout.size() as u64, stream);
        state.parked.push(ParkedFree {
            start,
            size,
            bytes: layout.size() as u64,
            stream: stream.raw_number(),
            last_use: LastUse::new(id, epoch),
            others,
        });
        Ok(())
    }

    /// Counts a block as freed, but leaves it where it is.
    fn note_free(&self, start: u64) -> Result<(), UnknownBlock> {
        let me = thread::number();
        if let Some(owner) = self.caches.page_map.cache_of(start * UNIT) {
            let slot = self.slot(owner);
            return slot.lock.lock(me).note_free(start, &slot.counters);
        }
        let central = self.central.lock(me);
        let size = central
            .heap()
            .size_of(start)
            .ok_or(UnknownBlock { start })?;
        self.central.counters.count_free(size, Home::Central);
        Ok(())
    }

    /// Frees the parked blocks that are known to be done. Returns whether there were any.
    pub(super) fn release_parked(&self, state: &mut SlowState) -> bool {
        let SlowState {
            parked, streams, ..
        } = state;
        let mut done = Vec::new();
        for block in parked.iter_mut() {
            let until = block.last_use.epoch;
            let others = &mut block.others;
            others.retain(|other| streams[*other as usize].done() < until);
        }
        parked.retain_mut(|block| {
            let is_done = block.others.is_empty();
            if is_done {
                let observer = &self.backing.observer;
                observer.released_parked(block.start * UNIT, block.bytes, block.stream);
                done.push((block.start, block.size, block.last_use));
            }
            !is_done
        });
        let any = !done.is_empty();
        for (start, size, last_use) in done {
            self.free_parked(start, size, last_use);
        }
        any
    }

    fn free_parked(&self, start: u64, size: u32, last_use: LastUse) {
        let me = thread::number();
        let owner = self.caches.page_map.cache_of(start * UNIT);
        let freed = if let (Some(owner), Some(cache)) = (owner, last_use.cache()) {
            let mut lock = self.slot(owner).lock.lock(me);
            if owner == cache {
                lock.free_to_heap(start)
            } else {
                lock.push_remote_free(RemoteFree {
                    start,
                    cache,
                    epoch: last_use.epoch,
                });
                self.slot(owner).set_waiting(lock.remote_frees());
                Ok(())
            }
        } else {
            self.central.lock(me).free(start, last_use)
        };
        self.slow_path.parked.subtract(size);
        if let Err(unknown) = freed {
            self.slow_path.unknown().push(unknown);
        }
    }

    /// Queries the streams that parked blocks wait for, and frees what is done. Streams that were busy last time are
    /// queried only with `force`.
    pub(super) fn query_parked(&self, state: &mut SlowState, force: bool) -> bool {
        let mut until: BTreeMap<CacheId, u64> = BTreeMap::new();
        for block in &state.parked {
            for other in &block.others {
                let epoch = until.entry(*other).or_default();
                *epoch = block.last_use.epoch.max(*epoch);
            }
        }
        for (other, epoch) in until {
            let progress = &mut state.streams[other as usize];
            if force {
                progress.query_now(epoch);
            } else if !progress.query(epoch) {
                continue;
            }
            self.note_done(progress, other);
        }
        self.release_parked(state)
    }

    /// Makes the stream wait for the other users of blocks that it freed. These blocks are then its own.
    pub(super) fn wait_for_parked(
        &self,
        state: &mut SlowState,
        id: CacheId,
        stream: &Stream,
    ) -> bool {
        let mut parked = std::mem::take(&mut state.parked);
        for block in &mut parked {
            if block.last_use.cache() != Some(id) {
                continue;
            }
            let until = block.last_use.epoch;
            let before = block.others.len();
            block.others.retain(|other| {
                let of_other = LastUse::new(*other, until);
                !self.wait_for(state, id, of_other, stream)
            });
            if block.others.len() < before {
                // The wait precedes the stream's next allocation, not that earlier free.
                block.last_use = LastUse::new(id, epoch::now());
            }
        }
        state.parked = parked;
        self.release_parked(state)
    }
}
