//! What happens to a block that cannot simply go in front of its stream's lane.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::front::{self, Block, is_small};
use super::lane::Pending;
use super::lanes::Centre;
use super::owners::LaneId;
use super::stamp::Stamp;
use super::{Inner, UNIT, Unknown, thread};
use crate::error::{Error, Result};
use crate::stream::Stream;
use crate::{progress, report};

/// So many blocks that wait for other streams are looked through, and again whenever the number has doubled.
const MANY: usize = 64;

/// What stands in front of all lanes is at most one part in so many of what the arena holds.
const FRONTED: u64 = 128;

impl Inner {
    /// Decides anew which blocks may stand in front, because there are more lanes or more memory. With one lane
    /// all may: nobody else could use them.
    pub(super) fn limit_fronts(&self) {
        let lanes = self.lanes.count() as u64;
        let limit = if lanes <= 1 {
            u32::MAX
        } else {
            let held = self.ground.reserved().current() / UNIT;
            u32::try_from(held / (lanes * FRONTED)).unwrap_or(u32::MAX)
        };
        let limit = limit.max(front::SMALL);
        self.front_limit.store(limit, Ordering::Relaxed);
    }

    /// A large block made room in front of this lane for another one.
    #[inline]
    fn settle(&self, id: LaneId, block: Block, ticket: u64) -> Result<(), Unknown> {
        let stamp = Stamp::new(id, ticket);
        self.commons.lock(thread::number()).free(block.start, stamp)
    }

    /// A free by a stream that has no lane yet, or of a small block of another stream's lane. As of
    /// `allocate_slowly`, the attribute does not say that it is rare: where one stream frees what another one
    /// allocates, every small block comes here.
    #[cold]
    pub(super) fn deallocate_slowly(&self, address: u64, size: u32, stream: &Stream) -> Result<()> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        let id = self.lane_of(stream)?;
        let start = address / UNIT;
        if !is_small(size) {
            return self.free_at_hand(id, start, size);
        }
        let Some(owner) = self.owners.of(address) else {
            return Err(self.unknown(Unknown { start }));
        };
        if owner == id {
            return self.free_at_hand(id, start, size);
        }
        let pending = Pending {
            start,
            lane: id,
            ticket: progress::now(),
        };
        let slot = self.slot(owner);
        let mut lane = slot.lock.lock(thread::number());
        let freed = lane.free_elsewhere(pending, &slot.counters);
        let waiting = lane.pending();
        drop(lane);
        freed.map_err(|unknown| self.unknown(unknown))?;
        if self.slot(id).gave_elsewhere(size) {
            self.mark_batch(id);
        }
        if waiting >= MANY && waiting.is_power_of_two() {
            self.recover(&mut self.centre(), owner, None, false);
        }
        Ok(())
    }

    /// Puts a block in front of the lane.
    #[inline]
    pub(super) fn free_at_hand(&self, id: LaneId, start: u64, size: u32) -> Result<()> {
        let (me, slot) = (thread::number(), self.slot(id));
        if size > self.front_limit.load(Ordering::Relaxed) {
            let stamp = Stamp::new(id, progress::now());
            let mut commons = self.commons.lock(me);
            let freed = commons.free(start, stamp);
            if freed.is_ok() {
                self.counters.came_back(size);
            }
            let unmarked = commons.unmarked(id);
            drop(commons);
            if slot.wanted.has_marks() && unmarked.is_worth_a_mark() {
                self.mark_batch(id);
            } else if self.may_look() && unmarked.is_worth_a_look(slot.wanted.has_looks()) {
                self.look_at(id);
            }
            return freed.map_err(|unknown| self.unknown(unknown));
        }
        let mut lane = slot.lock.lock(me);
        let settled = if is_small(size) {
            let old = lane.free_small(start, size, &slot.counters);
            let settled = old.map_or(Ok(()), |old| lane.settle(old.start));
            // The hook of reports may come back here.
            drop(lane);
            settled
        } else {
            let old = lane.free_large(start, size, progress::now(), &slot.counters);
            drop(lane);
            old.map_or(Ok(()), |(old, ticket)| self.settle(id, old, ticket))
        };
        if let Err(unknown) = settled {
            self.report_unknown(unknown);
        }
        Ok(())
    }

    /// Marks the place where a lane's stream is: much was given back there, and other streams have been short of memory.
    #[cold]
    fn mark_batch(&self, id: LaneId) {
        let mut centre = self.centre();
        let course = &mut centre.courses[id as usize];
        course.mark_batch();
        self.slot(id).marked();
        self.note_done(course, id);
    }

    /// Looks how far a lane's stream is, on which much was given back.
    #[cold]
    fn look_at(&self, id: LaneId) {
        let mut centre = self.centre();
        let newest = self.commons.lock(thread::number()).newest(id);
        let course = &mut centre.courses[id as usize];
        if course.look(newest) {
            self.slot(id).looked_at();
            self.note_done(course, id);
        }
    }

    /// A block that was given back earlier turns out to be none. Whoever comes by now has nothing to do with
    /// that, so it goes to the hook.
    #[cold]
    fn report_unknown(&self, unknown: Unknown) {
        report::failed("arena", &self.unknown(unknown));
    }

    #[cold]
    pub(super) fn unknown(&self, unknown: Unknown) -> Error {
        Error::invalid(format!(
            "{:#x} was not allocated from {self}, or was given back already",
            unknown.start * UNIT
        ))
    }

    /// Looks through the blocks of a lane that were given back in other streams. With `stream`, which must be
    /// the lane's, it is made to wait for those. Streams that were busy the last time are asked only by force. Says
    /// whether any came free.
    pub(super) fn recover(
        &self,
        centre: &mut Centre,
        id: LaneId,
        stream: Option<&Stream>,
        force: bool,
    ) -> bool {
        let me = thread::number();
        let pending = self.slot(id).lock.lock(me).take_pending();
        if pending.is_empty() {
            return false;
        }
        let mut last: BTreeMap<LaneId, u64> = BTreeMap::new();
        for block in &pending {
            let ticket = last.entry(block.lane).or_default();
            *ticket = block.ticket.max(*ticket);
        }
        // What was given back there with this ticket or an earlier one is over.
        let over: BTreeMap<LaneId, u64> = last
            .into_iter()
            .map(|(other, ticket)| {
                let course = &mut centre.courses[other as usize];
                if course.done() < ticket && force {
                    course.look_now(ticket);
                    self.note_done(course, other);
                } else if course.done() < ticket && self.may_look() {
                    if course.look(ticket) {
                        self.note_done(course, other);
                    }
                    self.want_marks(other);
                }
                let mut over = course.done();
                if let Some(stream) = stream
                    && self.wait_for(centre, id, Stamp::new(other, ticket), stream)
                {
                    over = over.max(ticket);
                }
                (other, over)
            })
            .collect();
        let mut lane = self.slot(id).lock.lock(me);
        let mut any = false;
        for block in pending {
            if over
                .get(&block.lane)
                .is_some_and(|over| block.ticket <= *over)
            {
                // It was known when it was given back.
                let _ = lane.settle(block.start);
                any = true;
            } else {
                lane.wait_again(block);
            }
        }
        any
    }
}
