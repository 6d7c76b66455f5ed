//! How the arena grows, and what it does when it cannot.

use super::front::is_small;
use super::ground::Chunk;
use super::owners::LaneId;
use super::refill::MEANS_WITHOUT_GROWTH;
use super::stamp::Stamp;
use super::{GRANULE, GRANULE_UNITS, Inner, UNIT, count, thread};
use crate::error::{Error, OutOfMemory, Result};
use crate::progress;
use crate::stream::Stream;

/// The arena grows by a sixteenth of what it holds, at least and at most so many granules.
const LEAST_GROWN: u64 = 4;
const MOST_GROWN: u64 = 16;

/// Bytes up to which an arena of several streams grows rather than that they ask each other.
const SMALL_ARENA: u64 = 32 << 20;

impl Inner {
    /// While the arena is small, it grows rather than that its streams ask and wait for each other: the driver's pool
    /// takes as much for its first block.
    pub(super) fn grows_first(&self, size: u32) -> bool {
        let held = self.ground.reserved().current();
        self.lanes.count() > 1
            && held + u64::from(size) * UNIT <= SMALL_ARENA.min(self.ground.max())
    }

    /// As [`grow`](Self::grow), by one thread at a time: what the last one got, and what came back meanwhile, may be
    /// enough for the next.
    pub(super) fn grow_once(&self, id: LaneId, size: u32, stream: &Stream) -> Result<Option<u64>> {
        let _turn = self.ground.growing();
        if let Some(start) = self.at_hand(id, size).or_else(|| self.take(id, size)) {
            return Ok(Some(start));
        }
        self.grow(id, size, stream)
    }

    /// More memory from the ground, and a block of it. `None` if other threads took what it was to be one
    /// with.
    fn grow(&self, id: LaneId, size: u32, stream: &Stream) -> Result<Option<u64>> {
        if is_small(size) {
            return self.grow_lane(id, size, stream);
        }
        let needed = u64::from(size).div_ceil(GRANULE_UNITS);
        let frontier = self.ground.frontier(needed * GRANULE);
        let tail = frontier.and_then(|end| {
            let commons = self.commons.lock(thread::number());
            Some(end / UNIT - commons.usable_tail(end / UNIT, id)?)
        });
        let rest = u64::from(size).saturating_sub(tail.unwrap_or(0));
        let grown = self.more(frontier, rest.div_ceil(GRANULE_UNITS).max(1), stream)?;
        let (start, units) = (grown.address / UNIT, grown.bytes / UNIT);
        let stamp = self.stamp_of_new(id);
        let joins = self.joins(start, units);
        let mut commons = self.commons.lock(thread::number());
        commons.add(start, units, stamp, joins);
        Ok(commons.allocate(size, id, &self.counters))
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

    /// The device has no more: what is spare and done goes back to it, so that it can come again where it is
    /// needed. Only where memory has run out.
    #[cold]
    pub(super) fn last_resort(
        &self,
        id: LaneId,
        size: u32,
        stream: &Stream,
        error: Error,
    ) -> Result<u64> {
        if !error.is_out_of_memory() {
            return Err(error);
        }
        let mut last = error;
        // What goes back is for this request, and what another thread gives back has come to its end.
        let turn = self.ground.growing();
        // Its own errors are no news here.
        let _ = self.trim(0);
        // What was looked at may be done after all, and what went back may come again elsewhere.
        if let Some(start) = self.find_for(id, size, stream, &MEANS_WITHOUT_GROWTH) {
            return Ok(start * UNIT);
        }
        match self.grow(id, size, stream) {
            Ok(Some(start)) => return Ok(start * UNIT),
            Ok(None) => {}
            Err(error) => last = error,
        }
        drop(turn);
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
