//! What happens when a lane has no block that fits, and when a block comes back in the order of another
//! stream than its lane's.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::course::Seen;
use super::lane::{Freed, Pending};
use super::lanes::Centre;
use super::owners::LaneId;
use super::survey::Run;
use super::{Inner, PAGE, PAGE_UNITS, UNIT, count, thread, units};
use crate::error::{Error, ErrorKind, OutOfMemory, Result};
use crate::pool::ReusePolicy;
use crate::report;
use crate::stream::Stream;

/// A lane grows by an eighth of what it has, at least and at most so many pages.
const LEAST_GROWN: u64 = 4;
const MOST_GROWN: u64 = 16;

/// So many blocks that wait for other streams are looked through when the number has doubled.
const MANY: usize = 64;

/// So often a request is tried that other threads of the same stream may snatch the memory from.
const TRIES: u32 = 8;

impl Inner {
    #[cold]
    #[track_caller]
    pub(super) fn allocate_slowly(
        this: &Arc<Self>,
        layout: Layout,
        stream: &Stream,
    ) -> Result<u64> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        let id = this.lane_of(stream)?;
        if layout.size() == 0 {
            return Ok(0);
        }
        let bytes = layout.size() as u64;
        let Some(size) = units(layout.size()) else {
            let error = Error::new(
                ErrorKind::OutOfMemory,
                "a block of an arena has less than 1 TiB",
            );
            return Err(error.with_asked(bytes));
        };
        for _ in 0..TRIES {
            if let Some(start) = this.from_lane(id, size) {
                return Ok(start * UNIT);
            }
            count(&this.seldom.refills);
            if let Some(start) = this.from_others(id, size, stream) {
                return Ok(start * UNIT);
            }
            match this.grow(id, size, stream) {
                Ok(Some(start)) => return Ok(start * UNIT),
                Ok(None) => {}
                Err(error) => return this.last_resort(id, size, stream, error),
            }
        }
        Err(Error::new(
            ErrorKind::OutOfMemory,
            "other threads took all that was got for this stream",
        )
        .with_asked(bytes))
    }

    /// From the lane as it is; if need be, with what stands in front put back.
    fn from_lane(&self, id: LaneId, size: u32) -> Option<u64> {
        let slot = self.slot(id);
        let mut lane = slot.lock.lock(thread::number());
        if let Some(start) = lane.allocate(size, &slot.counters) {
            return Some(start);
        }
        if lane.flush() == 0 {
            return None;
        }
        lane.allocate(size, &slot.counters)
    }

    /// From blocks of this lane that wait for other streams, or from what other lanes have to spare.
    fn from_others(&self, id: LaneId, size: u32, stream: &Stream) -> Option<u64> {
        let mut centre = self.centre();
        let may_wait = self
            .reuse
            .contains(ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES);
        let opportunistic = self.reuse.contains(ReusePolicy::ALLOW_OPPORTUNISTIC);
        if self.recover(&mut centre, id, None)
            && let Some(start) = self.from_lane(id, size)
        {
            return Some(start);
        }
        let pages = u64::from(size).div_ceil(PAGE_UNITS);
        if opportunistic && let Some(start) = self.take_over(&mut centre, id, size, pages, None) {
            return Some(start);
        }
        if !may_wait {
            return None;
        }
        if self.recover(&mut centre, id, Some(stream))
            && let Some(start) = self.from_lane(id, size)
        {
            return Some(start);
        }
        self.take_over(&mut centre, id, size, pages, Some(stream))
    }

    /// Takes free pages of other lanes, together with those of this one that lie beside them. With `stream`,
    /// which must be the lane's, it is made to wait where they are not known to be done.
    fn take_over(
        &self,
        centre: &mut Centre,
        id: LaneId,
        size: u32,
        pages: u64,
        stream: Option<&Stream>,
    ) -> Option<u64> {
        let lanes = self.by_free();
        let waits = stream.is_some();
        // One lane is nearly always enough, and to look at all takes long if there are many.
        let first = lanes.iter().find(|lane| **lane != id)?;
        let fitting = |runs: Vec<Run>| {
            let runs = runs.into_iter().filter(|run| run.pages() >= pages);
            runs.min_by_key(|run| (run.pages(), run.start))
        };
        let run = match fitting(self.survey(centre, &[*first], Some(id), waits)) {
            Some(run) => run,
            None => fitting(self.survey(centre, &lanes, Some(id), waits))?,
        };
        let held = self.slot(id).counters.held() / PAGE_UNITS;
        let run = run.first(run.pages().min(pages + held / 4));
        self.take_run(centre, id, &run, stream, Some(size))
    }

    fn take_run(
        &self,
        centre: &mut Centre,
        id: LaneId,
        run: &Run,
        stream: Option<&Stream>,
        size: Option<u32>,
    ) -> Option<u64> {
        if !self.withdraw(run) {
            return None;
        }
        if let Some(stream) = stream {
            for (lane, epoch) in run.debts(id) {
                count(&self.seldom.waits);
                if centre.courses[lane as usize]
                    .hold_back(stream, epoch)
                    .is_err()
                {
                    self.return_run(run);
                    return None;
                }
            }
        }
        count(&self.seldom.taken_over);
        let units = run.end - run.start;
        self.owners.note(run.start * UNIT, units * UNIT, Some(id));
        self.add(id, run.start, units, run.is_known(), size)
    }

    /// Ends the epoch of a lane, and finds out how far its stream is.
    pub(super) fn advance(&self, centre: &mut Centre, id: LaneId) -> Seen {
        let course = &mut centre.courses[id as usize];
        if !course.serves() {
            return course.settle();
        }
        let ended = self.slot(id).lock.lock(thread::number()).end_epoch();
        course.ended(ended)
    }

    /// Adds memory to a lane and takes a block, before anybody else can.
    pub(super) fn add(
        &self,
        id: LaneId,
        start: u64,
        units: u64,
        known: bool,
        size: Option<u32>,
    ) -> Option<u64> {
        let slot = self.slot(id);
        let mut lane = slot.lock.lock(thread::number());
        lane.add(start, units, known);
        slot.counters.holds(lane.fit().total_units());
        lane.allocate(size?, &slot.counters)
    }

    /// So many pages a lane should grow by at least, so that it need not come back soon.
    fn extra(&self, id: LaneId) -> u64 {
        let held = self.slot(id).counters.held();
        (held / PAGE_UNITS / 8).clamp(LEAST_GROWN, MOST_GROWN)
    }

    /// More memory from the ground. `None` if another thread of the stream took it.
    fn grow(&self, id: LaneId, size: u32, stream: &Stream) -> Result<Option<u64>> {
        let frontier = self
            .take_tail(id, stream)
            .or_else(|| self.ground.frontier(id));
        let tail = frontier.map_or(0, |frontier| {
            let lane = self.slot(id).lock.lock(thread::number());
            let end = frontier / UNIT;
            let tail = lane.fit().tails().find(|tail| tail.0 == end);
            tail.map_or(0, |tail| tail.1)
        });
        let needed = u64::from(size).saturating_sub(tail).max(1);
        let needed = needed.div_ceil(PAGE_UNITS);
        let wanted = needed.max(self.extra(id));
        let grown = self.ground.grow(id, frontier, wanted * PAGE, stream);
        let grown = match grown {
            Err(error) if wanted > needed && error.is_out_of_memory() => {
                self.ground.grow(id, frontier, needed * PAGE, stream)
            }
            grown => grown,
        }?;
        count(&self.seldom.grown);
        self.owners.note(grown.address, grown.bytes, Some(id));
        let (start, units) = (grown.address / UNIT, grown.bytes / UNIT);
        // Over an upstream the memory is the stream's, and nobody else's yet.
        let known = frontier.is_some();
        Ok(self.add(id, start, units, known, Some(size)))
    }

    /// The longest run of free pages that ends where the arena can grow becomes this lane's, so that it
    /// need only grow by the rest.
    fn take_tail(&self, id: LaneId, stream: &Stream) -> Option<u64> {
        let frontiers = self.ground.frontiers();
        let wait = self
            .reuse
            .contains(ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES)
            .then_some(stream);
        if wait.is_none() && !self.reuse.contains(ReusePolicy::ALLOW_OPPORTUNISTIC) {
            return None;
        }
        let mut centre = self.centre();
        let runs = self.survey(&mut centre, &self.by_free(), Some(id), wait.is_some());
        let tails = runs
            .iter()
            .filter(|run| frontiers.contains(&(run.end * UNIT)));
        let tail = tails.max_by_key(|run| run.pages())?;
        self.take_run(&mut centre, id, tail, wait, None);
        Some(tail.end * UNIT)
    }

    /// The device has no more: what all lanes have to spare and is done goes back to it, so that it can
    /// come again where it is needed.
    #[cold]
    fn last_resort(&self, id: LaneId, size: u32, stream: &Stream, error: Error) -> Result<u64> {
        if !error.is_out_of_memory() {
            return Err(error);
        }
        let before = self.ground.reserved().current();
        self.trim_to(0)?;
        let error = if self.ground.reserved().current() < before {
            match self.grow(id, size, stream) {
                Ok(Some(start)) => return Ok(start * UNIT),
                Ok(None) => error,
                Err(error) => error,
            }
        } else {
            error
        };
        let device = stream.context().memory_info().ok();
        let (stats, bytes) = (self.stats(), u64::from(size) * UNIT);
        Err(error
            .asked(|| format!("{bytes} bytes from {self:?}"))
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

    /// Looks through the blocks of a lane that were given back in other streams. With `stream`, which must be
    /// the lane's, it is made to wait for those. Says whether any came free.
    fn recover(&self, centre: &mut Centre, id: LaneId, stream: Option<&Stream>) -> bool {
        let me = thread::number();
        let pending = self.slot(id).lock.lock(me).take_pending();
        if pending.is_empty() {
            return false;
        }
        let mut last: BTreeMap<LaneId, u32> = BTreeMap::new();
        for block in &pending {
            let epoch = last.entry(block.lane).or_default();
            *epoch = (*epoch).max(block.epoch);
        }
        let mut seen: BTreeMap<LaneId, Seen> = BTreeMap::new();
        let mut waited: BTreeMap<LaneId, bool> = BTreeMap::new();
        for (other, epoch) in last {
            let mut now = centre.courses[other as usize].settle();
            if now.marked <= epoch {
                now = self.advance(centre, other);
            }
            seen.insert(other, now);
            if let Some(stream) = stream
                && now.done <= epoch
                && now.marked > epoch
            {
                count(&self.seldom.waits);
                let course = &mut centre.courses[other as usize];
                waited.insert(other, course.hold_back(stream, epoch).is_ok());
            }
        }
        let mut lane = self.slot(id).lock.lock(me);
        let mut any = false;
        for block in pending {
            let known = seen
                .get(&block.lane)
                .is_some_and(|seen| block.epoch < seen.done);
            if known || waited.get(&block.lane) == Some(&true) {
                lane.is_over(block, known);
                any = true;
            } else {
                lane.wait_again(block);
            }
        }
        any
    }

    #[cold]
    pub(super) fn deallocate_slowly(this: &Arc<Self>, address: u64, stream: &Stream) -> Result<()> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        let unknown = || {
            Error::invalid(format!(
                "{address:#x} was not allocated from {this:?}, or was given back already"
            ))
        };
        let owner = this.owners.of(address).ok_or_else(unknown)?;
        let id = this.lane_of(stream)?;
        let me = thread::number();
        let epoch = this.slot(id).lock.lock(me).epoch();
        let pending = Pending {
            start: address / UNIT,
            lane: id,
            epoch,
        };
        let slot = this.slot(owner);
        let mut lane = slot.lock.lock(me);
        if owner == id {
            let Some(size) = lane.fit().size_of(pending.start) else {
                return Err(unknown());
            };
            lane.free(pending.start, size, &slot.counters);
            return Ok(());
        }
        if lane.free_elsewhere(pending, &slot.counters) != Freed::Kept {
            return Err(unknown());
        }
        let waiting = lane.pending();
        drop(lane);
        if waiting >= MANY && waiting.is_power_of_two() {
            this.recover(&mut this.centre(), owner, None);
        }
        Ok(())
    }
}
