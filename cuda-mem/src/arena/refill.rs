//! What happens when neither the lane nor the commons has a block to use at once.

use std::alloc::Layout;

use super::course::Course;
use super::fit::Joins;
use super::front::is_small;
use super::lanes::Centre;
use super::owners::LaneId;
use super::stamp::Stamp;
use super::{Inner, PAGE_UNITS, UNIT, count, thread, units};
use crate::error::{Error, ErrorKind, Result};
use crate::pool::ReusePolicy;
use crate::stream::Stream;
use crate::{progress, report};

/// A lane takes an eighth of the pages that it has, at least one and at most so many.
const MOST_TAKEN: u64 = 64;

/// So often a request is tried for which the arena grew, and other threads took what it got.
const TRIES: u32 = 16;

/// So often a request is tried that loses what it found to other threads, each of which is served by that.
const LOST: u32 = 10_000;

/// What was found for a request.
enum Found {
    /// A block.
    Block(u64),
    /// Memory, and another thread took it. It is tried again from the beginning.
    Lost,
    Nothing,
}

impl From<Option<u64>> for Found {
    fn from(block: Option<u64>) -> Self {
        block.map_or(Self::Nothing, Self::Block)
    }
}

/// What can be done for a request, what disturbs least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// To take what waits of the program have shown to be done.
    Hear,
    /// To grow, while the arena is small.
    Grow,
    /// To look whether what other streams used is done now.
    Look,
    /// To take in what lanes have to spare.
    Gather,
    /// To make the stream wait for another one.
    Wait,
    /// To look at all streams, also those that were busy the last time: what comes next is to grow.
    LookAtAll,
    /// To make the stream wait for several others.
    WaitForAll,
}

const MEANS: [Means; 7] = [
    Means::Hear,
    Means::Grow,
    Means::Look,
    Means::Gather,
    Means::Wait,
    Means::LookAtAll,
    Means::WaitForAll,
];

/// For a thread whose turn to grow it is.
pub(super) const MEANS_WITHOUT_GROWTH: [Means; 6] = [
    Means::Hear,
    Means::Look,
    Means::Gather,
    Means::Wait,
    Means::LookAtAll,
    Means::WaitForAll,
];

impl Inner {
    pub(super) fn may_wait(&self) -> bool {
        self.reuse
            .contains(ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES)
    }

    pub(super) fn may_look(&self) -> bool {
        self.reuse.contains(ReusePolicy::ALLOW_OPPORTUNISTIC)
    }

    /// Tells the commons how far a lane's stream is, and its marks.
    pub(super) fn note_done(&self, course: &Course, id: LaneId) {
        let mut commons = self.commons.lock(thread::number());
        commons.note_done(id, course.done());
        commons.note_mark(id, course.marked());
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
            if let Some(start) = self.find_for(id, size, stream, &MEANS) {
                return Ok(start * UNIT);
            }
            match self.grow_once(id, size, stream) {
                Ok(Some(start)) => return Ok(start * UNIT),
                Ok(None) => {}
                Err(error) => return self.last_resort(id, size, stream, error),
            }
        }
        let text = "other threads took all that was got for this request";
        let error = Error::new(ErrorKind::OutOfMemory, text).with_asked(bytes);
        self.last_resort(id, size, stream, error)
    }

    /// From the memory that there is.
    pub(super) fn find_for(
        &self,
        id: LaneId,
        size: u32,
        stream: &Stream,
        means: &[Means],
    ) -> Option<u64> {
        for _ in 0..LOST {
            if let Some(start) = self.at_hand(id, size) {
                return Some(start);
            }
            match self.find_by_any(id, size, stream, means) {
                Found::Block(start) => return Some(start),
                Found::Lost => {}
                Found::Nothing => return None,
            }
        }
        None
    }

    /// By the first of the means that gets anything.
    fn find_by_any(&self, id: LaneId, size: u32, stream: &Stream, means: &[Means]) -> Found {
        let tried = means
            .iter()
            .map(|means| self.find(id, size, stream, *means));
        let mut got = tried.filter(|found| !matches!(found, Found::Nothing));
        got.next().unwrap_or(Found::Nothing)
    }

    /// What each of the means can get.
    fn find(&self, id: LaneId, size: u32, stream: &Stream, means: Means) -> Found {
        let is_allowed = match means {
            Means::Look | Means::LookAtAll => self.may_look(),
            Means::Wait => self.may_wait(),
            Means::WaitForAll => self.may_wait() && !is_small(size),
            Means::Grow => self.grows_first(size),
            Means::Hear | Means::Gather => true,
        };
        if !is_allowed {
            return Found::Nothing;
        }
        if means == Means::Grow {
            return match self.grow_once(id, size, stream) {
                Ok(Some(start)) => Found::Block(start),
                Ok(None) => Found::Lost,
                // There may be enough in other ways, and if not, that is found out again.
                Err(_) => Found::Nothing,
            };
        }
        let mut centre = self.centre();
        match means {
            Means::Hear => self.hear(&mut centre),
            Means::Gather => {
                count(&self.seldom.refills);
                self.gather(false);
            }
            Means::LookAtAll => {
                self.look_at_all(&mut centre);
                // What comes back from now on is looked at before the next one needs it: until it is known to be done
                // it lies in pieces between that of other streams.
                for (lane, slot) in self.lanes.iter() {
                    slot.wanted.looks();
                    self.want_marks(lane);
                }
            }
            Means::Grow | Means::Look | Means::Wait | Means::WaitForAll => {}
        }
        if is_small(size) {
            let wait = (means == Means::Wait).then_some(stream);
            let force = means == Means::LookAtAll;
            if self.recover(&mut centre, id, wait, force)
                && let Some(start) = self.at_hand(id, size)
            {
                return Found::Block(start);
            }
        }
        match means {
            Means::Hear | Means::LookAtAll => self.take(id, size).into(),
            Means::Grow => Found::Nothing,
            Means::Look => self.look(&mut centre, id, size).into(),
            Means::Gather => {
                let taken = self.take(id, size);
                // What lanes had to spare may be done too.
                let look = || self.look(&mut centre, id, size);
                taken
                    .or_else(|| self.may_look().then(look).flatten())
                    .into()
            }
            Means::Wait => self.wait(&mut centre, id, size, stream),
            Means::WaitForAll => self.wait_for_all(&mut centre, id, size, stream),
        }
    }

    /// A block of the commons as they are, or pages of them for a small one.
    pub(super) fn take(&self, id: LaneId, size: u32) -> Option<u64> {
        let mut commons = self.commons.lock(thread::number());
        if !is_small(size) {
            return commons.allocate(size, id, &self.counters);
        }
        let pages = commons.take_pages(id, self.lane_share(id))?;
        drop(commons);
        self.add_to_lane(id, pages.start, pages.units, size)
    }

    /// Notes what is known without asking anybody.
    fn hear(&self, centre: &mut Centre) {
        // What is reached lets go of events, which is not for the commons' lock.
        centre.courses.iter_mut().for_each(Course::hear);
        let mut commons = self.commons.lock(thread::number());
        for (id, course) in centre.courses.iter().enumerate() {
            commons.note_done(id as LaneId, course.done());
        }
    }

    /// Has a lane's stream mark its frees, from which others can see what is done. Where they may wait for it instead,
    /// a mark is set when one is needed.
    pub(super) fn want_marks(&self, lane: LaneId) {
        if !self.may_wait() {
            self.slot(lane).wanted.marks();
        }
    }

    /// Looks how far other streams are that used free memory last, one after the other.
    fn look(&self, centre: &mut Centre, id: LaneId, size: u32) -> Option<u64> {
        let me = thread::number();
        let others = self.commons.lock(me).others(id);
        for other in others {
            self.want_marks(other);
            let newest = self.commons.lock(me).newest(other);
            let course = &mut centre.courses[other as usize];
            let before = course.done();
            if !course.look(newest) {
                continue;
            }
            self.note_done(course, other);
            if course.done() == before {
                continue;
            }
            if let Some(start) = self.take(id, size) {
                count(&self.seldom.taken_over);
                return Some(start);
            }
        }
        None
    }

    /// Makes the stream wait for all that used neighbouring blocks last.
    fn wait_for_all(&self, centre: &mut Centre, id: LaneId, size: u32, stream: &Stream) -> Found {
        let me = thread::number();
        let Some(places) = self.commons.lock(me).run_of_all(size) else {
            return Found::Nothing;
        };
        let stamps = places.iter().map(|place| place.stamp);
        let mut stamps = stamps.filter(|stamp| !stamp.is_usable_by(id));
        if !stamps.all(|stamp| self.wait_for(centre, id, stamp, stream)) {
            return Found::Nothing;
        }
        let mut commons = self.commons.lock(me);
        let start = commons.allocate_run_at(&places, size, &self.counters);
        drop(commons);
        self.taken_over(start)
    }

    /// What was taken over, after it was known to be there.
    fn taken_over(&self, start: Option<u64>) -> Found {
        let Some(start) = start else {
            return Found::Lost;
        };
        count(&self.seldom.taken_over);
        Found::Block(start)
    }

    /// Makes the stream wait for the one that used a block last.
    pub(super) fn wait_for(
        &self,
        centre: &mut Centre,
        id: LaneId,
        stamp: Stamp,
        stream: &Stream,
    ) -> bool {
        let Some(user) = stamp.lane() else {
            return true;
        };
        let is_after = centre.courses[id as usize].is_after(user, stamp.ticket);
        let course = &mut centre.courses[user as usize];
        if is_after || course.done() >= stamp.ticket {
            return true;
        }
        let until = course.hold_back(stream, stamp.ticket).unwrap_or(None);
        self.note_done(course, user);
        if let Some(until) = until {
            centre.courses[id as usize].comes_after(user, until);
        }
        until.is_some()
    }

    fn wait(&self, centre: &mut Centre, id: LaneId, size: u32, stream: &Stream) -> Found {
        let me = thread::number();
        let found = {
            let commons = self.commons.lock(me);
            if is_small(size) {
                commons.pages_of_others(id)
            } else {
                let course = &centre.courses[id as usize];
                let is_after = |stamp: Stamp| {
                    stamp
                        .lane()
                        .is_none_or(|user| course.is_after(user, stamp.ticket))
                };
                commons.best_of_others(size, id, is_after)
            }
        };
        let Some(place) = found else {
            return Found::Nothing;
        };
        if !self.wait_for(centre, id, place.stamp, stream) {
            return Found::Nothing;
        }
        let mut commons = self.commons.lock(me);
        if is_small(size) {
            // What was found done meanwhile is nobody's, and may be part of a larger block.
            let share = self.lane_share(id);
            let pages = commons.take_pages_at(place, share);
            let pages = pages.or_else(|| commons.take_pages(id, share));
            drop(commons);
            let start =
                pages.and_then(|pages| self.add_to_lane(id, pages.start, pages.units, size));
            return self.taken_over(start);
        }
        // What was found done meanwhile is nobody's, and may be part of a larger block.
        let taken = commons.allocate_at(place, size, &self.counters);
        let start = if taken {
            Some(place.start)
        } else {
            commons.allocate(size, id, &self.counters)
        };
        drop(commons);
        self.taken_over(start)
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
            // The lane's stream may use its pages until now.
            let stamp = Stamp::new(id, progress::now());
            let mut commons = self.commons.lock(me);
            if let Some((block, ticket)) = large {
                // One that is unknown was given back twice, and is nobody's.
                let _ = commons.free(block.start, Stamp::new(id, ticket));
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
    pub(super) fn joins(&self, start: u64, units: u64) -> Joins {
        Joins {
            left: !self.ground.is_wall(start * UNIT),
            right: !self.ground.is_wall((start + units) * UNIT),
        }
    }

    /// So many units of pages a lane takes at a time.
    pub(super) fn lane_share(&self, id: LaneId) -> u64 {
        let has = self.slot(id).counters.held() / PAGE_UNITS;
        (has / 8).clamp(1, MOST_TAKEN) * PAGE_UNITS
    }

    /// Adds pages to a lane and takes a block, before anybody else can.
    pub(super) fn add_to_lane(&self, id: LaneId, start: u64, units: u64, size: u32) -> Option<u64> {
        self.owners.note(start * UNIT, units * UNIT, Some(id));
        let slot = self.slot(id);
        let joins = self.joins(start, units);
        let mut lane = slot.lock.lock(thread::number());
        lane.add(start, units, joins, &slot.counters);
        lane.allocate(size, &slot.counters)
    }
}
