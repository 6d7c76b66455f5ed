//! The bookkeeping of one pool: one growing range, its live blocks, when its freed memory was freed, and which chunks
//! are backed by memory. No driver, no memory, no unsafe.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::fit::Plan;
use super::runs::Runs;
use crate::buffer_id::BufferId;
use crate::clock::{Clocks, Point, StreamId};
use crate::queue::Mark;

/// A live block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) id: BufferId,
    /// Requested bytes.
    pub(crate) size: u64,
    /// Occupied bytes: `size` rounded up to the granule.
    pub(super) len: u64,
    pub(crate) allocated: Point,
    /// Whether the program asked for synchronous copies.
    pub(crate) is_sync: bool,
    /// The last access of each stream, for the sanitizer.
    pub(crate) accesses: Vec<Point>,
}

impl Block {
    /// A block of another process. No stream here allocated it, so its allocation counts as done.
    pub(crate) fn imported(size: u64) -> Self {
        Self {
            id: BufferId::next(),
            size,
            len: size,
            allocated: Point { stream: 0, time: 0 },
            accesses: Vec::new(),
            is_sync: true,
        }
    }

    /// A block outside any pool.
    pub(crate) fn new(size: u64, allocated: Point) -> Self {
        Self {
            id: BufferId::next(),
            size,
            len: size,
            allocated,
            accesses: Vec::new(),
            is_sync: false,
        }
    }
}

/// A range freed in stream order that the host has not synchronised with.
#[derive(Clone, Debug)]
pub(crate) struct Freed {
    pub(super) len: u64,
    pub(crate) point: Point,
    /// Reached when the free has been executed.
    pub(super) mark: Mark,
}

/// Ranges that a stream freed and may reuse unconditionally.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) runs: Runs,
    /// By time and address.
    pub(super) by_time: BTreeSet<(u64, u64)>,
}

/// Current value of a counter, and its maximum since the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) current: u64,
    pub(crate) high: u64,
}

impl Level {
    fn add(&mut self, bytes: u64) {
        self.current += bytes;
        self.high = self.high.max(self.current);
    }

    fn sub(&mut self, bytes: u64) {
        self.current -= bytes;
    }
}

/// The address range of a pool.
#[derive(Debug)]
pub(crate) struct Space {
    pub(super) granule: u64,
    pub(super) chunk: u64,
    /// Size of the address space.
    pub(super) capacity: u64,
    /// Maximum reserved bytes.
    pub(super) limit: u64,
    /// End of the range; a multiple of the chunk.
    pub(super) end: u64,
    pub(super) backed: Vec<bool>,
    live: BTreeMap<u64, Block>,
    pub(super) pending: BTreeMap<u64, Freed>,
    pub(super) own: FxHashMap<StreamId, Own>,
    pub(super) idle: Runs,
    settled: u64,
    pub(crate) reserved: Level,
    /// The driver's count of used bytes: `cuMemFree` does not reduce it.
    pub(crate) used: Level,
    /// Requested bytes of the live blocks.
    live_bytes: u64,
}

impl Space {
    pub(crate) fn new(granule: u64, chunk: u64, capacity: u64, limit: u64) -> Self {
        Self {
            granule,
            chunk,
            capacity: capacity.next_multiple_of(chunk),
            limit: limit.checked_next_multiple_of(chunk).unwrap_or(u64::MAX),
            end: 0,
            backed: Vec::new(),
            live: BTreeMap::new(),
            pending: BTreeMap::new(),
            own: FxHashMap::default(),
            idle: Runs::default(),
            settled: 0,
            reserved: Level::default(),
            used: Level::default(),
            live_bytes: 0,
        }
    }

    pub(crate) fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Maximum reserved bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// The largest request that the driver attempts: twice the pool's limit.
    pub(crate) fn address_space(&self) -> u64 {
        self.capacity.min(self.limit.saturating_mul(2))
    }

    /// The live blocks, by address.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, &Block)> {
        self.live.iter().map(|(start, block)| (*start, block))
    }

    /// Number of live blocks.
    pub(crate) fn live_blocks(&self) -> usize {
        self.live.len()
    }

    /// Their requested bytes.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The block that contains `address`, and its start.
    pub(crate) fn block(&mut self, address: u64) -> Option<(u64, &mut Block)> {
        let (&start, block) = self.live.range_mut(..=address).next_back()?;
        (address < start + block.size.max(1)).then_some((start, block))
    }

    /// Whether `address` lies in freed memory, and the free's point unless the host has synchronised with it.
    pub(crate) fn freed(&self, address: u64) -> Option<Option<Point>> {
        if let Some((start, freed)) = self.pending.range(..=address).next_back()
            && address < start + freed.len
        {
            return Some(Some(freed.point));
        }
        self.idle.contains(address).then_some(None)
    }

    /// Makes ranges whose free the host has synchronised with available to every stream.
    pub(crate) fn settle(&mut self, clocks: &Clocks) {
        if self.settled == clocks.epoch() {
            return;
        }
        self.settled = clocks.epoch();
        let streams: Vec<StreamId> = self.own.keys().copied().collect();
        for stream in streams {
            while let Some(own) = self.own.get(&stream)
                && let Some(&(time, start)) = own.by_time.first()
                && clocks.is_synchronised(Point { stream, time })
            {
                if let Some(freed) = self.forget(start) {
                    self.idle.add(start, freed.len);
                }
            }
        }
    }

    /// Makes ranges whose free was executed available to every stream, synchronised or not.
    pub(super) fn settle_finished(&mut self) {
        let finished = self.pending.iter();
        let finished: Vec<u64> = finished
            .filter(|(_, freed)| freed.mark.is_reached())
            .map(|(start, _)| *start)
            .collect();
        for start in finished {
            if let Some(freed) = self.forget(start) {
                self.idle.add(start, freed.len);
            }
        }
    }

    /// Number of live blocks and of frees not yet executed.
    pub(crate) fn outstanding(&self) -> usize {
        let pending = self.pending.values();
        self.live.len() + pending.filter(|freed| !freed.mark.is_reached()).count()
    }

    /// Whether any memory freed by a stream awaits synchronisation.
    pub(crate) fn has_pending_of(&self, stream: StreamId) -> bool {
        self.own.contains_key(&stream)
    }

    /// Removes a freed range from all indexes.
    fn forget(&mut self, start: u64) -> Option<Freed> {
        let freed = self.pending.remove(&start)?;
        if let Some(own) = self.own.get_mut(&freed.point.stream) {
            own.by_time.remove(&(freed.point.time, start));
            own.runs.remove(start, freed.len);
            if own.by_time.is_empty() {
                self.own.remove(&freed.point.stream);
            }
        }
        Some(freed)
    }

    fn remember(&mut self, start: u64, freed: Freed) {
        let own = self.own.entry(freed.point.stream).or_default();
        own.by_time.insert((freed.point.time, start));
        own.runs.add(start, freed.len);
        self.pending.insert(start, freed);
    }

    /// Executes a plan: the block is live from `allocated` on.
    pub(crate) fn commit(&mut self, plan: &Plan, size: u64, allocated: Point) {
        let (start, len) = (plan.start, plan.len);
        let end = (start + len).next_multiple_of(self.chunk);
        if end > self.end {
            self.idle.add(self.end, end - self.end);
            self.end = end;
            self.backed.resize((end / self.chunk) as usize, false);
        }
        for chunk in &plan.chunks {
            self.backed[*chunk as usize] = true;
        }
        self.reserved.add(plan.chunks.len() as u64 * self.chunk);
        self.idle.remove(start, len);
        for at in self.pending_in(start, len) {
            let Some(freed) = self.forget(at) else {
                continue;
            };
            let (freed_end, end) = (at + freed.len, start + len);
            if at < start {
                let len = start - at;
                self.remember(
                    at,
                    Freed {
                        len,
                        ..freed.clone()
                    },
                );
            }
            if freed_end > end {
                let len = freed_end - end;
                self.remember(end, Freed { len, ..freed });
            }
        }
        let block = Block {
            id: BufferId::next(),
            size,
            len,
            allocated,
            is_sync: false,
            accesses: Vec::new(),
        };
        self.live.insert(start, block);
        self.used.add(size);
        self.live_bytes += size;
    }

    /// Frees the block that starts there, if any. `freed` is the point in stream order; with `None` the memory is free
    /// for every stream at once.
    pub(crate) fn free(&mut self, start: u64, freed: Option<(Point, Mark)>) -> Option<Block> {
        let block = self.live.remove(&start)?;
        self.live_bytes -= block.size;
        let len = block.len;
        match freed {
            Some((point, mark)) => {
                self.used.sub(block.size);
                self.remember(start, Freed { len, point, mark });
            }
            // Measured: a free by the host never reduces the used bytes.
            None => self.idle.add(start, len),
        }
        Some(block)
    }

    /// Adds as many new chunks at the end as `available` allows, and returns them. Measured: a pool is left like this
    /// when the device cannot satisfy a request.
    pub(crate) fn grow_in_vain(&mut self, available: u64) -> Vec<u64> {
        let room = (self.capacity - self.end).min(self.limit - self.reserved.current);
        let count = available.min(room) / self.chunk;
        let first = self.end / self.chunk;
        let chunks: Vec<u64> = (first..first + count).collect();
        let bytes = count * self.chunk;
        self.idle.add(self.end, bytes);
        self.end += bytes;
        self.backed.resize((first + count) as usize, true);
        self.reserved.add(bytes);
        chunks
    }

    /// Releases chunks, the highest first, as long as `may_fall_to` allows the new level. Returns the released chunks.
    pub(crate) fn give_back(&mut self, may_fall_to: impl Fn(u64, u64) -> bool) -> Vec<u64> {
        let mut gone = Vec::new();
        let chunk = self.chunk;
        'all: for (start, len) in self.idle.iter().rev() {
            let (first, end) = (start.div_ceil(chunk), (start + len) / chunk);
            for index in (first..end).rev() {
                if !self.is_backed(index) {
                    continue;
                }
                let now = self.reserved.current - gone.len() as u64 * chunk;
                if !may_fall_to(now, now - chunk) {
                    break 'all;
                }
                gone.push(index);
            }
        }
        for index in &gone {
            self.backed[*index as usize] = false;
        }
        self.reserved.sub(gone.len() as u64 * chunk);
        self.shorten();
        gone
    }

    /// Moves the end down to the last backed chunk, if nothing after it is live.
    fn shorten(&mut self) {
        while let Some(false) = self.backed.last() {
            self.backed.pop();
        }
        let end = self.backed.len() as u64 * self.chunk;
        self.idle.remove(end, self.end - end);
        self.end = end;
    }

    pub(crate) fn reset_reserved_high(&mut self) {
        self.reserved.high = self.reserved.current;
    }

    pub(crate) fn reset_used_high(&mut self) {
        self.used.high = self.used.current;
    }

    /// Checks that every byte of the range is exactly one of live, freed and idle.
    #[cfg(test)]
    pub(super) fn check_cover(&self) {
        let live = self.live.iter().map(|(start, block)| (*start, block.len));
        let pending = self
            .pending
            .iter()
            .map(|(start, freed)| (*start, freed.len));
        let mut all: Vec<(u64, u64)> = live.chain(pending).chain(self.idle.iter()).collect();
        all.sort_unstable();
        let end = all.iter().fold(0, |end, (start, len)| {
            assert_eq!(*start, end, "a hole or an overlap");
            start + len
        });
        assert_eq!(end, self.end);
        let own = self.own.values().map(|own| own.by_time.len());
        assert_eq!(own.sum::<usize>(), self.pending.len());
    }
}
