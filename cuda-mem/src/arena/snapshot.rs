//! Snapshots of an arena: its layout at one moment.

use std::collections::HashMap;

use super::page_map::CacheId;
use super::{Arena, Inner, UNIT, thread};
use crate::arena::header::{Header, State};
use crate::base::biased::lock::{BiasedLock, Guard};
use crate::base::report;
use crate::ledger::{
    BlockState, LiveBlocks, MemoryBlock, MemoryRange, MemorySnapshot, Recorder, lay_out,
};

/// What is known about a block that its heap has as used.
#[derive(Clone, Copy, Debug)]
struct Freed {
    state: BlockState,
    cache: Option<CacheId>,
}

/// As seen at one moment.
struct Seen {
    ranges: Vec<MemoryRange>,
    blocks: Vec<MemoryBlock>,
    /// By the recorder's clock.
    time: Option<u64>,
}

/// Locks without taking the lock's bias away from the thread that uses it most.
fn visit<T>(lock: &BiasedLock<T>) -> Guard<'_, T> {
    let own = lock.lock_by_owner(thread::number());
    own.unwrap_or_else(|| lock.lock(thread::guest()))
}

impl Arena {
    /// The arena's memory as it is now: segments, and in each the blocks. Makes no driver call. With a
    /// [recorder](super::ArenaBuilder::record) that keeps events in memory, blocks have the bytes that were asked for and
    /// the origin.
    ///
    /// | memory | its blocks |
    /// |---|---|
    /// | allocated | [`Allocated`](BlockState::Allocated); also the whole memory of a [capture pool](super::CapturePool) |
    /// | freed by [`free_after`](crate::DeviceBuffer::free_after), while a stream uses it | [`PendingFree`](BlockState::PendingFree) |
    /// | all other, in heaps and caches of streams and threads | [`Free`](BlockState::Free), each as it can be allocated |
    /// | [asleep](Arena::sleep) | as the rest; the segment says how many bytes sleep |
    ///
    /// **Blocks** all requests to the arena for as long as it takes to list its blocks, and waits before that for a thread
    /// that makes the arena grow or release memory. With a recorder it then reads all events, as
    /// [`Recorder::recording`] does, but blocks no request for that. Must not be called by an upstream resource, or by
    /// what a recorder calls.
    ///
    /// **While other threads are active**, blocks neither overlap nor leave gaps, but what a thread is about to move is
    /// where it was or free: a block on its way from a cache to a heap counts as allocated, pages on their way from one
    /// heap to another as free. So sums may differ from [`stats`](Arena::stats) until the threads pause.
    ///
    /// In a fork the snapshot is empty.
    #[must_use]
    pub fn snapshot(&self) -> MemorySnapshot {
        let inner = &*self.0;
        // In a fork, a lock may be held by a thread that does not exist there.
        if report::is_forked() {
            return MemorySnapshot::default();
        }
        let Seen {
            ranges,
            blocks,
            time,
        } = inner.see();
        let mut snapshot = MemorySnapshot {
            device: inner.device,
            segments: lay_out(ranges, blocks, inner.backing.can_move(), inner.device),
            unlisted_bytes: 0,
            time,
        };
        if let Some(recorder) = inner.backing.observer.recorder() {
            let mut live = LiveBlocks::of(&recorder.recording());
            snapshot.describe(&mut live, |bytes| bytes.next_multiple_of(UNIT));
        }
        snapshot
    }
}

impl Inner {
    /// Takes all locks of the arena, in the order in which it takes them itself: the turn to grow, the slow path's state,
    /// the caches, the central heap, the backing. It never has two caches locked, so their order is free.
    fn see(&self) -> Seen {
        let _turn = self.backing.growing();
        let state = self.slow_state();
        let mut freed = HashMap::new();
        let caches: Vec<_> = self
            .caches
            .iter()
            .map(|(id, slot)| {
                let threads = slot.threads.iter();
                let threads: Vec<_> = threads.map(|own| visit(own.lock())).collect();
                (id, visit(&slot.lock), threads, &slot.remote_queue)
            })
            .collect();
        let central = visit(&self.central.heap);
        let ranges = self.backing.ranges();
        for (id, cache, threads, queue) in &caches {
            let of_threads = threads.iter().flat_map(|own| own.blocks());
            for block in cache.cached().chain(of_threads) {
                freed.insert(block.start, Freed::by(Some(*id)));
            }
            let queued = queue.blocks();
            for block in cache.waiting().iter().chain(&queued) {
                freed.insert(block.start, Freed::by(Some(block.cache)));
            }
        }
        for parked in &state.parked {
            let (start, cache) = parked.place();
            let state = BlockState::PendingFree;
            freed.insert(start, Freed { state, cache });
        }
        let handles = state.streams.iter().map(|progress| progress.handle());
        let handles: Vec<Option<u64>> = handles.collect();
        let block = |header: &Header, owner: Option<CacheId>| {
            let of_heap = match header.state() {
                State::Free => Freed::by(owner.or(header.last_use().cache())),
                _ => Freed {
                    state: BlockState::Allocated,
                    cache: Some(owner.unwrap_or(header.asker())),
                },
            };
            let Freed { state, cache } = *freed.get(&header.start()).unwrap_or(&of_heap);
            let stream = cache.and_then(|cache| *handles.get(cache as usize)?);
            let (start, bytes) = (header.start() * UNIT, u64::from(header.size) * UNIT);
            MemoryBlock::new(start, bytes, state, stream)
        };
        let of_central = central.heap().blocks().map(|header| block(header, None));
        let mut blocks: Vec<MemoryBlock> = of_central.collect();
        for (id, cache, ..) in &caches {
            let of_pages = cache.heap().blocks().map(|header| block(header, Some(*id)));
            blocks.extend(of_pages);
        }
        let time = self.backing.observer.recorder().map(Recorder::now);
        Seen {
            ranges,
            blocks,
            time,
        }
    }
}

impl Freed {
    /// Freed by the stream of a cache.
    fn by(cache: Option<CacheId>) -> Self {
        let state = BlockState::Free;
        Self { state, cache }
    }
}
