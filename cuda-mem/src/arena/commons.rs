//! The memory that no lane has: large blocks come from here, and pages for the small ones of each lane.

#![forbid(unsafe_code)]

use super::counters::Counters;
use super::fit::{Fit, FreePages, Joins};
use super::owners::LaneId;
use super::stamp::Stamp;
use super::{PAGE_UNITS, Unknown};

#[derive(Debug, Default)]
pub(super) struct Commons {
    fit: Fit,
    /// By lane: what was given back with this ticket or an earlier one is done, and free for every stream.
    done: Vec<u64>,
}

/// Why there is no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// The block that fits best may still be in use by other streams.
    Busy(Stamp),
    /// None is large enough.
    Nothing,
}

/// A free block, or the whole pages of one, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) start: u64,
    pub(super) stamp: Stamp,
}

impl Commons {
    /// A block for this lane's stream to use at once.
    #[inline]
    pub(super) fn allocate(
        &mut self,
        size: u32,
        own: LaneId,
        counters: &Counters,
    ) -> Result<u64, Lack> {
        let done = &self.done;
        let found = self
            .fit
            .allocate_if(size, |stamp| is_usable(done, stamp, own));
        match found {
            Some(Ok(start)) => {
                counters.took_fit(size);
                Ok(start)
            }
            Some(Err(stamp)) => Err(Lack::Busy(stamp)),
            None => Err(Lack::Nothing),
        }
    }

    /// As [`allocate`](Self::allocate); a larger block will do where the best one is busy.
    pub(super) fn allocate_any(
        &mut self,
        size: u32,
        own: LaneId,
        counters: &Counters,
    ) -> Option<u64> {
        let done = &self.done;
        let start = self
            .fit
            .allocate_where(size, |stamp| is_usable(done, stamp, own))?;
        counters.took_fit(size);
        Some(start)
    }

    /// The block that fits best, busy or not.
    pub(super) fn best(&self, size: u32) -> Option<Place> {
        let (start, stamp) = self.fit.best(size)?;
        Some(Place { start, stamp })
    }

    /// A block from the beginning of one that was seen, if nothing has happened to that since.
    pub(super) fn allocate_at(&mut self, place: Place, size: u32, counters: &Counters) -> bool {
        let taken = self.fit.allocate_at(place.start, place.stamp, size);
        if taken {
            counters.took_fit(size);
        }
        taken
    }

    /// Takes back a block.
    #[inline]
    pub(super) fn free(&mut self, start: u64, stamp: Stamp) -> Result<(), Unknown> {
        match self.fit.free(start, stamp) {
            Some(_) => Ok(()),
            None => Err(Unknown { start }),
        }
    }

    /// Takes memory in.
    pub(super) fn add(&mut self, start: u64, units: u64, stamp: Stamp, joins: Joins) {
        self.fit.add(start, units, stamp, 0, joins);
    }

    /// Takes memory in and hands out a block at its beginning.
    pub(super) fn add_and_take(
        &mut self,
        start: u64,
        units: u64,
        stamp: Stamp,
        joins: Joins,
        size: u32,
        counters: &Counters,
    ) {
        self.fit.add(start, units, stamp, size, joins);
        counters.took_fit(size);
    }

    /// A small place with a free page. Busy ones only if `busy`.
    pub(super) fn pages(&self, own: LaneId, busy: bool) -> Option<FreePages> {
        let usable = |place: &FreePages| busy || self.is_usable(place.stamp, own);
        self.fit.free_pages(1).find(usable)
    }

    /// All free pages that are done.
    pub(super) fn done_pages(&self) -> Vec<FreePages> {
        let pages = self.fit.free_pages(1);
        let done = pages.filter(|place| is_done(&self.done, place.stamp, LaneId::MAX));
        done.collect()
    }

    /// Gives away a part of a free block that was seen, if nothing has happened to that since.
    pub(super) fn give_away(&mut self, start: u64, units: u64, stamp: Stamp) -> bool {
        debug_assert_eq!(units % PAGE_UNITS, 0);
        self.fit.cut(start, units, stamp)
    }

    /// The free block that ends here, where more memory could follow.
    pub(super) fn tail(&self, end: u64) -> Option<Place> {
        let (start, stamp) = self.fit.tail(end)?;
        Some(Place { start, stamp })
    }

    /// Notes how far a lane's stream has come.
    pub(super) fn note_done(&mut self, lane: LaneId, ticket: u64) {
        let lane = lane as usize;
        if self.done.len() <= lane {
            self.done.resize(lane + 1, 0);
        }
        self.done[lane] = ticket;
    }

    /// Whether what has this stamp is free for the stream of `own`.
    pub(super) fn is_usable(&self, stamp: Stamp, own: LaneId) -> bool {
        is_usable(&self.done, stamp, own)
    }

    pub(super) fn fit(&self) -> &Fit {
        &self.fit
    }
}

/// Whether what has this stamp is free for the stream of `own`; nearly always because nobody else used it.
#[inline]
fn is_usable(done: &[u64], stamp: Stamp, own: LaneId) -> bool {
    stamp.is_of(own) || is_done(done, stamp, own)
}

fn is_done(done: &[u64], stamp: Stamp, own: LaneId) -> bool {
    let mut users = stamp.lanes(done.len(), own);
    users.all(|lane| {
        let done = done.get(lane as usize);
        done.is_some_and(|done| *done >= stamp.ticket)
    })
}

#[cfg(test)]
mod tests;
