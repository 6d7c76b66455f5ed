//! Where a new block goes: which freed ranges its stream may take, and which of them fits best.

use super::space::{Freed, Space};
use crate::clock::{Clocks, StreamId};

/// The ways of reuse between streams, without waiting, that a pool may allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reuse {
    pub(crate) follow_events: bool,
    pub(crate) opportunistic: bool,
}

/// Where a new block may go, and what it takes.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) start: u64,
    pub(super) len: u64,
    /// Chunks that need memory from the device.
    pub(crate) chunks: Vec<u64>,
    /// Frees that the stream must wait for first.
    pub(crate) waits: Vec<Freed>,
}

/// A candidate: best is the one that needs the fewest chunks, then the tightest, then the lowest.
type Rank = (u64, u64, u64);

impl Space {
    /// Finds a place for `size` bytes on `stream` without waiting; `available` is what the device
    /// could still give.
    ///
    /// What the stream freed itself is taken first, then what is anybody's, then what another
    /// stream freed before a moment that this one waited for; then the pool grows. Neighbours make
    /// one place only if they are of one kind.
    pub(crate) fn plan(
        &mut self,
        size: u64,
        stream: StreamId,
        clocks: &Clocks,
        reuse: Reuse,
        available: u64,
    ) -> Option<Plan> {
        let len = self.rounded(size)?;
        if let Some(start) = self.quick_fit(len, stream) {
            return Some(self.plan_at(start, len, stream, false));
        }
        if reuse.follow_events
            && let Some(start) = self.others_fit(len, |freed| clocks.follows(stream, freed.point))
        {
            return Some(self.plan_at(start, len, stream, false));
        }
        if reuse.opportunistic {
            self.settle_finished();
            if let Some((start, _)) = self.idle_fit(len) {
                return Some(self.plan_at(start, len, stream, false));
            }
        }
        let (_, _, start) = self.growing_fit(len).filter(|(chunks, _, _)| {
            let bytes = chunks * self.chunk;
            bytes <= available && self.reserved.current + bytes <= self.limit
        })?;
        Some(self.plan_at(start, len, stream, false))
    }

    /// Finds a place that another stream still has to free: the driver's last resort.
    pub(crate) fn plan_waiting(&self, size: u64, stream: StreamId) -> Option<Plan> {
        let len = self.rounded(size)?;
        let start = self.others_fit(len, |_| true)?;
        Some(self.plan_at(start, len, stream, true))
    }

    fn rounded(&self, size: u64) -> Option<u64> {
        let len = size.checked_next_multiple_of(self.granule)?;
        (len > 0 && len <= self.capacity).then_some(len)
    }

    /// What the stream freed itself, or else what is anybody's. That the own place is taken although
    /// it is larger was measured for one and a half times the size; that it is not at any price is
    /// a guess.
    fn quick_fit(&self, len: u64, stream: StreamId) -> Option<u64> {
        let own = self.own_fit(len, stream);
        let idle = || self.idle_fit(len);
        match own {
            Some((_, size)) if size > 2 * len => {
                let tighter = idle().filter(|(_, idle)| *idle < size);
                tighter.or(own)
            }
            Some(_) => own,
            None => idle(),
        }
        .map(|(start, _)| start)
    }

    /// The tightest of what the stream freed itself; of equals, the one freed first.
    fn own_fit(&self, len: u64, stream: StreamId) -> Option<(u64, u64)> {
        let own = self.own.get(&stream)?;
        let (_, size) = own.runs.best_fit(len)?;
        let freed = |start: u64| self.pending.get(&start).map(|freed| freed.point.time);
        let first = own.runs.best_fits(len).min_by_key(|start| freed(*start))?;
        Some((first, size))
    }

    /// The tightest of what anybody may take and that has memory behind it.
    fn idle_fit(&self, len: u64) -> Option<(u64, u64)> {
        let (start, size) = self.idle.best_fit(len)?;
        if self.missing(start, len).next().is_none() {
            return Some((start, size));
        }
        // Ranges without memory lie in between: look at all.
        let best = self.growing_fit(len).filter(|(chunks, _, _)| *chunks == 0);
        best.map(|(_, size, start)| (start, size))
    }

    /// The tightest run that one other stream freed, of what is usable.
    fn others_fit(&self, len: u64, usable: impl Fn(&Freed) -> bool) -> Option<u64> {
        let mut best: Option<(u64, u64)> = None;
        let mut run: Option<(StreamId, u64, u64)> = None;
        let mut consider = |run: Option<(StreamId, u64, u64)>| {
            if let Some((_, start, end)) = run
                && end - start >= len
            {
                let rank = (end - start, start);
                best = Some(best.map_or(rank, |best| best.min(rank)));
            }
        };
        for (&start, freed) in self.pending.iter().filter(|(_, freed)| usable(freed)) {
            let (owner, end) = (freed.point.stream, start + freed.len);
            match &mut run {
                Some((of, _, run_end)) if *of == owner && *run_end == start => *run_end = end,
                _ => consider(run.replace((owner, start, end))),
            }
        }
        consider(run);
        best.map(|(_, start)| start)
    }

    /// Where the fewest chunks are needed, of what is anybody's and the end of the range.
    fn growing_fit(&self, len: u64) -> Option<Rank> {
        let mut best: Option<Rank> = None;
        let mut consider = |start: u64, end: u64| {
            for at in [start, self.first_backed(start, end)] {
                if end - at >= len {
                    let chunks = self.missing(at, len).count() as u64;
                    let rank = (chunks, end - start, at);
                    best = Some(best.map_or(rank, |best| best.min(rank)));
                }
            }
        };
        // The range may grow at its end, from a free run there if there is one.
        let mut tail = self.end;
        for (start, len) in self.idle.iter() {
            if start + len == self.end {
                tail = start;
            } else {
                consider(start, start + len);
            }
        }
        consider(tail, self.capacity);
        best
    }

    /// The first place in a run from which memory is there, if the run begins without.
    fn first_backed(&self, start: u64, end: u64) -> u64 {
        let mut at = start;
        while at < end.min(self.end) && !self.is_backed(at / self.chunk) {
            at = (at / self.chunk + 1) * self.chunk;
        }
        if at < end.min(self.end) { at } else { start }
    }

    pub(super) fn is_backed(&self, chunk: u64) -> bool {
        let chunk = usize::try_from(chunk).ok();
        chunk.and_then(|chunk| self.backed.get(chunk)) == Some(&true)
    }

    /// The chunks of a range that have no memory behind them.
    fn missing(&self, start: u64, len: u64) -> impl Iterator<Item = u64> + '_ {
        (start / self.chunk..(start + len).div_ceil(self.chunk))
            .filter(|chunk| !self.is_backed(*chunk))
    }

    fn plan_at(&self, start: u64, len: u64, stream: StreamId, waits: bool) -> Plan {
        let freed = self.pending_in(start, len).into_iter();
        let freed = freed.filter_map(|at| self.pending.get(&at));
        Plan {
            start,
            len,
            chunks: self.missing(start, len).collect(),
            waits: freed
                .filter(|freed| waits && freed.point.stream != stream)
                .cloned()
                .collect(),
        }
    }

    /// The starts of the freed ranges that overlap.
    pub(super) fn pending_in(&self, start: u64, len: u64) -> Vec<u64> {
        let before = self.pending.range(..start).next_back();
        let before = before.filter(|(at, freed)| **at + freed.len > start);
        before
            .into_iter()
            .chain(self.pending.range(start..start + len))
            .map(|(at, _)| *at)
            .collect()
    }
}
