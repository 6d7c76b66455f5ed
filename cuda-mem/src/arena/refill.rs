//! What happens when neither the lane nor the commons has a block to use at once.

use std::alloc::Layout;

use super::commons::{Lack, Place};
use super::course::Course;
use super::fit::Joins;
use super::front::is_small;
use super::ground::Chunk;
use super::lanes::Centre;
use super::owners::LaneId;
use super::stamp::Stamp;
use super::{GRANULE, GRANULE_UNITS, Inner, PAGE_UNITS, UNIT, count, thread, units};
use crate::error::{Error, ErrorKind, OutOfMemory, Result};
use crate::pool::ReusePolicy;
use crate::stream::Stream;
use crate::{progress, report};

/// The arena grows by a sixteenth of what it holds, at least and at most so many granules.
const LEAST_GROWN: u64 = 4;
const MOST_GROWN: u64 = 16;

/// A lane takes an eighth of the pages that it has, at least one and at most so many.
const MOST_TAKEN: u64 = 64;

/// So often a request is tried that other threads may snatch the memory from.
const TRIES: u32 = 16;

/// What can be done for a request, what disturbs least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// To look whether the best place, which is busy, is done now.
    Look,
    /// To take in what lanes have to spare, and to take another place than the best one.
    Gather,
    /// To make the stream wait.
    Wait,
}

const MEANS: [Means; 3] = [Means::Look, Means::Gather, Means::Wait];

impl Inner {
    pub(super) fn may_wait(&self) -> bool {
        self.reuse
            .contains(ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES)
    }

    pub(super) fn may_look(&self) -> bool {
        self.reuse.contains(ReusePolicy::ALLOW_OPPORTUNISTIC)
    }

    /// Tells the commons how far a lane's stream is.
    pub(super) fn note_done(&self, course: &Course, id: LaneId) {
        let mut commons = self.commons.lock(thread::number());
        commons.note_done(id, course.done());
    }

    /// A request that neither the stream's lane nor the commons answers at once. A stream that uses memory of its own
    /// only comes here while the arena grows; streams that take over memory from each other come here often. So the
    /// attribute is no promise that this is rare: it keeps the code out of line, and the usual way straight.
    #[cold]
    #[track_caller]
    pub(super) fn allocate_slowly(&self, layout: Layout, stream: &Stream) -> Result<u64> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        if layout.size() == 0 {
            return Ok(0);
        }
        let id = self.lane_of(stream)?;
        let bytes = layout.size() as u64;
        let Some(size) = units(layout.size()) else {
            let text = "a block of an arena has less than 1 TiB";
            return Err(Error::new(ErrorKind::OutOfMemory, text).with_asked(bytes));
        };
        for _ in 0..TRIES {
            if let Some(start) = self.at_hand(id, size) {
                return Ok(start * UNIT);
            }
            if let Some(start) = self.find_by_any(id, size, stream) {
                return Ok(start * UNIT);
            }
            match self.grow(id, size, stream) {
                Ok(Some(start)) => return Ok(start * UNIT),
                Ok(None) => {}
                Err(error) => return self.last_resort(id, size, stream, error),
            }
        }
        let text = "other threads took all that was got for this request";
        Err(Error::new(ErrorKind::OutOfMemory, text).with_asked(bytes))
    }

    /// By the first of the means that gets anything.
    fn find_by_any(&self, id: LaneId, size: u32, stream: &Stream) -> Option<u64> {
        let mut means = MEANS.into_iter();
        means.find_map(|means| self.find(id, size, stream, means))
    }

    /// What each of the means can get.
    fn find(&self, id: LaneId, size: u32, stream: &Stream, means: Means) -> Option<u64> {
        if means == Means::Wait && !self.may_wait() {
            return None;
        }
        let mut centre = self.centre();
        if means == Means::Gather {
            count(&self.seldom.refills);
            self.gather(false);
        }
        if is_small(size) {
            let wait = (means == Means::Wait).then_some(stream);
            if self.recover(&mut centre, id, wait)
                && let Some(start) = self.at_hand(id, size)
            {
                return Some(start);
            }
            return self.take_pages(&mut centre, id, size, stream, means);
        }
        if means == Means::Wait {
            return self.wait(&mut centre, id, size, stream);
        }
        if self.may_look()
            && let Some(start) = self.look(&mut centre, id, size)
        {
            return Some(start);
        }
        if means == Means::Look {
            return None;
        }
        let mut commons = self.commons.lock(thread::number());
        commons.allocate_any(size, id, &self.counters)
    }

    /// If the best block is busy, looks whether it still is.
    fn look(&self, centre: &mut Centre, id: LaneId, size: u32) -> Option<u64> {
        let me = thread::number();
        // Each round either finds the block done, or gives up.
        loop {
            let lack = self.commons.lock(me).allocate(size, id, &self.counters);
            let stamp = match lack {
                Ok(start) => {
                    count(&self.seldom.taken_over);
                    return Some(start);
                }
                Err(Lack::Nothing) => return None,
                Err(Lack::Busy(stamp)) => stamp,
            };
            if !self.is_done_now(centre, stamp, id) {
                return None;
            }
        }
    }

    /// Looks how far the streams are that may use a block.
    fn is_done_now(&self, centre: &mut Centre, stamp: Stamp, own: LaneId) -> bool {
        stamp.lanes(centre.courses.len(), own).all(|user| {
            let course = &mut centre.courses[user as usize];
            if course.done() < stamp.ticket {
                course.look();
            }
            self.note_done(course, user);
            course.done() >= stamp.ticket
        })
    }

    /// Makes the stream wait for those that may use a block.
    fn wait_for(&self, centre: &mut Centre, stamp: Stamp, own: LaneId, stream: &Stream) -> bool {
        stamp.lanes(centre.courses.len(), own).all(|user| {
            let course = &mut centre.courses[user as usize];
            if course.done() >= stamp.ticket {
                return true;
            }
            let waits = course.hold_back(stream, stamp.ticket).unwrap_or(false);
            self.note_done(course, user);
            waits
        })
    }

    fn wait(&self, centre: &mut Centre, id: LaneId, size: u32, stream: &Stream) -> Option<u64> {
        let place = self.commons.lock(thread::number()).best(size)?;
        if !self.wait_for(centre, place.stamp, id, stream) {
            return None;
        }
        let mut commons = self.commons.lock(thread::number());
        let taken = commons.allocate_at(place, size, &self.counters);
        taken.then(|| {
            count(&self.seldom.taken_over);
            place.start
        })
    }

    /// What stands in front of lanes, and their free pages, become the commons' again. Lanes that had none the last
    /// time are left alone, unless it is to be thorough: the lane of a thread is dear to take away.
    pub(super) fn gather(&self, thorough: bool) {
        let me = thread::number();
        for (id, slot) in self.lanes.iter() {
            if !slot.counters.has_spare(thorough) {
                continue;
            }
            let mut lane = slot.lock.lock(me);
            let large = lane.flush(&slot.counters);
            let pages = lane.give_away(&slot.counters);
            slot.counters.gave(pages.len());
            drop(lane);
            // The lane's stream may use all that until now.
            let stamp = Stamp::new(id, progress::now());
            let mut commons = self.commons.lock(me);
            if let Some(block) = large {
                // One that is unknown was given back twice, and is nobody's.
                let _ = commons.free(block.start, stamp);
            }
            drop(commons);
            for place in pages {
                self.owners
                    .note(place.start * UNIT, place.units * UNIT, None);
                self.add_to_commons(place.start, place.units, stamp);
            }
        }
    }

    /// Takes memory into the commons.
    pub(super) fn add_to_commons(&self, start: u64, units: u64, stamp: Stamp) {
        let joins = self.joins(start, units);
        let mut commons = self.commons.lock(thread::number());
        commons.add(start, units, stamp, joins);
    }

    /// Whether a block may go on before and behind this memory: not from one block of an upstream to another.
    fn joins(&self, start: u64, units: u64) -> Joins {
        Joins {
            left: !self.ground.is_wall(start * UNIT),
            right: !self.ground.is_wall((start + units) * UNIT),
        }
    }

    /// Pages of the commons for the small blocks of a lane.
    fn take_pages(
        &self,
        centre: &mut Centre,
        id: LaneId,
        size: u32,
        stream: &Stream,
        means: Means,
    ) -> Option<u64> {
        let me = thread::number();
        let free = self.commons.lock(me).pages(id, false);
        let place = match free {
            Some(place) => place,
            None => {
                let busy = self.commons.lock(me).pages(id, true)?;
                let ready = match means {
                    Means::Wait => self.wait_for(centre, busy.stamp, id, stream),
                    _ => self.may_look() && self.is_done_now(centre, busy.stamp, id),
                };
                ready.then_some(busy)?
            }
        };
        let taken = place.units.min(self.lane_share(id));
        let mut commons = self.commons.lock(me);
        if !commons.give_away(place.start, taken, place.stamp) {
            return None;
        }
        drop(commons);
        self.add_to_lane(id, place.start, taken, size)
    }

    /// More memory from the ground, and a block of it. `None` if other threads took what it was to be one
    /// with.
    fn grow(&self, id: LaneId, size: u32, stream: &Stream) -> Result<Option<u64>> {
        if is_small(size) {
            return self.grow_lane(id, size, stream);
        }
        let needed = u64::from(size).div_ceil(GRANULE_UNITS);
        let frontier = self.ground.frontier(needed * GRANULE);
        let tail = frontier.and_then(|end| self.usable_tail(id, end / UNIT, stream));
        let rest = match (tail, frontier) {
            (Some(tail), Some(end)) => u64::from(size).saturating_sub(end / UNIT - tail.start),
            _ => u64::from(size),
        };
        let grown = self.more(frontier, rest.div_ceil(GRANULE_UNITS).max(1), stream)?;
        let (start, units) = (grown.address / UNIT, grown.bytes / UNIT);
        let stamp = self.stamp_of_new(id);
        let joins = self.joins(start, units);
        let mut commons = self.commons.lock(thread::number());
        match tail {
            Some(tail) => {
                commons.add(start, units, stamp, joins);
                let taken = commons.allocate_at(tail, size, &self.counters);
                Ok(taken.then_some(tail.start))
            }
            None => {
                commons.add_and_take(start, units, stamp, joins, size, &self.counters);
                Ok(Some(start))
            }
        }
    }

    /// More pages for the small blocks of a lane; the rest goes to the commons.
    fn grow_lane(&self, id: LaneId, size: u32, stream: &Stream) -> Result<Option<u64>> {
        let grown = self.more(self.ground.frontier(GRANULE), 1, stream)?;
        let (start, units) = (grown.address / UNIT, grown.bytes / UNIT);
        let taken = units.min(self.lane_share(id));
        if units > taken {
            self.add_to_commons(start + taken, units - taken, self.stamp_of_new(id));
        }
        Ok(self.add_to_lane(id, start, taken, size))
    }

    /// Memory from the ground: so many granules, and some more so that it need not be asked soon again.
    fn more(&self, frontier: Option<u64>, granules: u64, stream: &Stream) -> Result<Chunk> {
        let held = self.ground.reserved().current() / GRANULE;
        let wanted = granules.max((held / 16).clamp(LEAST_GROWN, MOST_GROWN));
        let grown = match self.ground.grow(frontier, wanted * GRANULE, stream) {
            Err(error) if wanted > granules && error.is_out_of_memory() => {
                self.ground.grow(frontier, granules * GRANULE, stream)
            }
            grown => grown,
        }?;
        count(&self.seldom.grown);
        self.limit_fronts();
        Ok(grown)
    }

    fn stamp_of_new(&self, id: LaneId) -> Stamp {
        if self.ground.is_ordered() {
            Stamp::new(id, progress::now())
        } else {
            Stamp::FREE
        }
    }

    /// The free block before the place where the arena grows, if the stream may use it; it was made to wait
    /// if need be.
    fn usable_tail(&self, id: LaneId, end: u64, stream: &Stream) -> Option<Place> {
        let commons = self.commons.lock(thread::number());
        let tail = commons.tail(end)?;
        let usable = commons.is_usable(tail.stamp, id);
        drop(commons);
        if usable {
            return Some(tail);
        }
        let mut centre = self.centre();
        let usable = self.may_look() && self.is_done_now(&mut centre, tail.stamp, id)
            || self.may_wait() && self.wait_for(&mut centre, tail.stamp, id, stream);
        usable.then_some(tail)
    }

    /// So many units of pages a lane takes at a time.
    fn lane_share(&self, id: LaneId) -> u64 {
        let has = self.slot(id).counters.held() / PAGE_UNITS;
        (has / 8).clamp(1, MOST_TAKEN) * PAGE_UNITS
    }

    /// Adds pages to a lane and takes a block, before anybody else can.
    fn add_to_lane(&self, id: LaneId, start: u64, units: u64, size: u32) -> Option<u64> {
        self.owners.note(start * UNIT, units * UNIT, Some(id));
        let slot = self.slot(id);
        let joins = self.joins(start, units);
        let mut lane = slot.lock.lock(thread::number());
        lane.add(start, units, joins, &slot.counters);
        lane.allocate(size, &slot.counters)
    }

    /// The device has no more: what is spare and done goes back to it, so that it can come again where it is
    /// needed. Only where memory has run out.
    #[cold]
    fn last_resort(&self, id: LaneId, size: u32, stream: &Stream, error: Error) -> Result<u64> {
        if !error.is_out_of_memory() {
            return Err(error);
        }
        // Its own errors are no news here.
        let _ = self.trim_to(0);
        let mut last = error;
        // What was looked at may be done after all, and what went back may come again elsewhere.
        if let Some(start) = self.find_by_any(id, size, stream) {
            return Ok(start * UNIT);
        }
        match self.grow(id, size, stream) {
            Ok(Some(start)) => return Ok(start * UNIT),
            Ok(None) => {}
            Err(error) => last = error,
        }
        let device = stream.context().memory_info().ok();
        let (stats, bytes) = (self.stats(), u64::from(size) * UNIT);
        Err(last
            .asked(|| format!("{bytes} bytes from {self}"))
            .with_memory(OutOfMemory::default)
            .and_memory(|memory| {
                memory.asked = bytes;
                memory.pool_used = Some(stats.live);
                memory.pool_reserved = Some(stats.reserved);
                memory.pool_reserved_high = Some(stats.reserved_peak);
                memory.device_free = device.map(|device| device.free);
                memory.device_total = device.map(|device| device.total);
            }))
    }
}
