//! What an arena has for one stream: the blocks that were freed last, and pages that small blocks are cut
//! from.

#![forbid(unsafe_code)]

use super::Unknown;
use super::counters::Counters;
use super::fit::{Fit, FreePages, Joins};
use super::front::{Block, Front, is_small};
use super::owners::LaneId;
use super::stamp::Stamp;

/// A small block of this lane that was given back in the order of another stream. It waits here until this
/// lane's stream is known to come after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) start: u64,
    /// The lane of the other stream, and the ticket then.
    pub(super) lane: LaneId,
    pub(super) ticket: u64,
}

/// The bookkeeping of one lane. Sizes and places are in units. All that is free here was last used by the
/// lane's own stream, or is done.
#[derive(Debug, Default)]
pub(super) struct Lane {
    front: Front,
    /// The ticket with which the large block in front was given back.
    large_ticket: u64,
    /// Small blocks only.
    fit: Fit,
    pending: Vec<Pending>,
}

impl Lane {
    /// A block of so many units that the lane's stream can use at once. Large ones only if one stands in
    /// front.
    #[inline]
    pub(super) fn allocate(&mut self, size: u32, counters: &Counters) -> Option<u64> {
        if let Some(start) = self.front.take(size) {
            counters.took_front(size);
            return Some(start);
        }
        if !is_small(size) {
            return None;
        }
        let start = self.fit.allocate(size)?;
        counters.took_fit(size);
        Some(start)
    }

    /// Puts a small block of this lane in front, in the order of its own stream. Hands out the one that it takes the
    /// place of.
    #[inline]
    pub(super) fn free_small(
        &mut self,
        start: u64,
        size: u32,
        counters: &Counters,
    ) -> Option<Block> {
        counters.came_back(size);
        self.front.put(Block { start, size })
    }

    /// As [`free_small`](Self::free_small), for a large block, which comes with the present ticket. The other one is
    /// handed out with its own.
    #[inline]
    pub(super) fn free_large(
        &mut self,
        start: u64,
        size: u32,
        ticket: u64,
        counters: &Counters,
    ) -> Option<(Block, u64)> {
        counters.came_back(size);
        counters.fronts(size);
        let before = std::mem::replace(&mut self.large_ticket, ticket);
        let old = self.front.put(Block { start, size })?;
        Some((old, before))
    }

    /// Puts a small block back among its neighbours.
    #[inline]
    pub(super) fn settle(&mut self, start: u64) -> Result<(), Unknown> {
        match self.fit.free(start, Stamp::FREE) {
            Some(_) => Ok(()),
            None => Err(Unknown { start }),
        }
    }

    /// Takes back a small block of this lane in the order of another one's stream.
    pub(super) fn free_elsewhere(
        &mut self,
        pending: Pending,
        counters: &Counters,
    ) -> Result<(), Unknown> {
        let Some(size) = self.fit.size_of(pending.start) else {
            return Err(Unknown {
                start: pending.start,
            });
        };
        counters.came_back(size);
        self.pending.push(pending);
        Ok(())
    }

    /// The blocks that wait for other streams.
    pub(super) fn take_pending(&mut self) -> Vec<Pending> {
        std::mem::take(&mut self.pending)
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn wait_again(&mut self, pending: Pending) {
        self.pending.push(pending);
    }

    /// Puts all small blocks in front back among their neighbours, and hands out the large one with its ticket.
    pub(super) fn flush(&mut self, counters: &Counters) -> Option<(Block, u64)> {
        counters.fronts(0);
        let mut large = None;
        for block in self.front.drain() {
            if is_small(block.size) {
                // One that is unknown was given back twice, and is nobody's.
                let _ = self.fit.free(block.start, Stamp::FREE);
            } else {
                large = Some((block, self.large_ticket));
            }
        }
        large
    }

    /// Takes pages in.
    pub(super) fn add(&mut self, start: u64, units: u64, joins: Joins, counters: &Counters) {
        self.fit.add(start, units, Stamp::FREE, 0, joins);
        counters.holds(self.fit.total_units());
    }

    /// Gives all pages away that are free.
    pub(super) fn give_away(&mut self, counters: &Counters) -> Vec<FreePages> {
        let pages: Vec<FreePages> = self.fit.free_pages(1).collect();
        for place in &pages {
            self.fit.cut(place.start, place.units);
        }
        counters.holds(self.fit.total_units());
        pages
    }

    pub(super) fn fit(&self) -> &Fit {
        &self.fit
    }

    /// Units that stand in front.
    pub(super) fn front_units(&self) -> u64 {
        self.front.units()
    }

    /// Units of the blocks that wait for other streams.
    pub(super) fn pending_units(&self) -> u64 {
        let sizes = self
            .pending
            .iter()
            .map(|block| self.fit.size_of(block.start));
        sizes.flatten().map(u64::from).sum()
    }

    /// Bytes of the host that the bookkeeping takes.
    pub(super) fn bytes(&self) -> usize {
        self.fit.bytes() + size_of::<Self>() + self.pending.capacity() * size_of::<Pending>()
    }
}
