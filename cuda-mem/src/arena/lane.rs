//! What an arena has for one stream: its blocks, and the few that were freed last.

#![forbid(unsafe_code)]

use super::counters::Counters;
use super::fit::Fit;
use super::front::{Block, Front};
use super::owners::LaneId;

/// A block that was given back in the order of another stream. It waits here until this lane's stream is
/// known to come after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) start: u64,
    /// The lane of the other stream, and the epoch in which it was given back there.
    pub(super) lane: LaneId,
    pub(super) epoch: u32,
}

/// The bookkeeping of one lane. Sizes and places are in units.
///
/// Time is counted in epochs of the lane's stream: a new one begins with each mark that is set in
/// the stream. A free block knows the last epoch in which it was in use.
#[derive(Debug)]
pub(super) struct Lane {
    fit: Fit,
    front: Front,
    epoch: u32,
    pending: Vec<Pending>,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            fit: Fit::default(),
            front: Front::default(),
            // 0 is before everything.
            epoch: 1,
            pending: Vec::new(),
        }
    }
}

/// What became of a block that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    Kept,
    /// The block, or the one that it took the place of, was never handed out.
    Unknown {
        start: u64,
    },
}

impl Lane {
    /// A block of so many units that the lane's stream can use at once.
    #[inline]
    pub(super) fn allocate(&mut self, size: u32, counters: &Counters) -> Option<u64> {
        if let Some(start) = self.front.take(size) {
            counters.took_front(size);
            return Some(start);
        }
        let start = self.fit.allocate(size)?;
        counters.took_fit(size);
        Some(start)
    }

    /// Takes back a block of this lane, in the order of its own stream.
    #[inline]
    pub(super) fn free(&mut self, start: u64, size: u32, counters: &Counters) -> Freed {
        counters.came_back(size);
        match self.front.put(Block { start, size }) {
            Some(old) => self.settle(old.start),
            None => Freed::Kept,
        }
    }

    /// Puts a block back among its neighbours.
    #[inline]
    fn settle(&mut self, start: u64) -> Freed {
        match self.fit.free(start, self.epoch) {
            Some(_) => Freed::Kept,
            None => Freed::Unknown { start },
        }
    }

    /// Takes back a block of this lane in the order of another one's stream.
    pub(super) fn free_elsewhere(&mut self, pending: Pending, counters: &Counters) -> Freed {
        let Some(size) = self.fit.size_of(pending.start) else {
            return Freed::Unknown {
                start: pending.start,
            };
        };
        counters.came_back(size);
        self.pending.push(pending);
        Freed::Kept
    }

    /// The blocks that wait for other streams.
    pub(super) fn take_pending(&mut self) -> Vec<Pending> {
        std::mem::take(&mut self.pending)
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Units of the blocks that wait for other streams.
    pub(super) fn pending_units(&self) -> u64 {
        let sizes = self
            .pending
            .iter()
            .map(|block| self.fit.size_of(block.start));
        sizes.flatten().map(u64::from).sum()
    }

    pub(super) fn wait_again(&mut self, pending: Pending) {
        self.pending.push(pending);
    }

    /// The lane's stream comes after the end of this block now. `known` says that the host has seen the end,
    /// so that every stream comes after it.
    pub(super) fn is_over(&mut self, pending: Pending, known: bool) -> Freed {
        let epoch = if known { 0 } else { self.epoch };
        match self.fit.free(pending.start, epoch) {
            Some(_) => Freed::Kept,
            None => Freed::Unknown {
                start: pending.start,
            },
        }
    }

    /// Puts all blocks in front back among their neighbours, and says how many there were.
    pub(super) fn flush(&mut self) -> usize {
        let mut count = 0;
        for block in self.front.drain() {
            self.fit.free(block.start, self.epoch);
            count += 1;
        }
        count
    }

    /// Takes memory in. `known` as in [`is_over`](Self::is_over); else only this lane's stream comes after
    /// what used it.
    pub(super) fn add(&mut self, start: u64, units: u64, known: bool) {
        let epoch = if known { 0 } else { self.epoch };
        self.fit.add_run(start, units, epoch);
    }

    /// Gives memory away that is free and was in use before the epoch `until` only, so that it is not this
    /// lane's any more.
    pub(super) fn give_away(&mut self, start: u64, units: u64, until: u32) -> bool {
        self.fit.cut(start, units, until)
    }

    /// Ends the epoch, and says which it was.
    pub(super) fn end_epoch(&mut self) -> u32 {
        let ended = self.epoch;
        self.epoch += 1;
        ended
    }

    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(super) fn fit(&self) -> &Fit {
        &self.fit
    }

    /// Units that stand in front.
    pub(super) fn front_units(&self) -> u64 {
        self.front.units()
    }

    /// Bytes of the host that the bookkeeping takes.
    pub(super) fn bytes(&self) -> usize {
        self.fit.bytes() + size_of::<Self>() + self.pending.capacity() * size_of::<Pending>()
    }
}
