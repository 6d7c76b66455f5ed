//! Placement of new blocks: which freed ranges a stream may reuse, and which of them fits best.

use super::space::{Freed, Space};
use crate::clock::{Clocks, StreamId};

/// The kinds of reuse across streams without waiting that a pool allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reuse {
    pub(crate) follow_events: bool,
    pub(crate) opportunistic: bool,
}

/// The place for a new block, and what it requires.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) start: u64,
    pub(super) len: u64,
    /// Chunks that need memory from the device.
    pub(crate) chunks: Vec<u64>,
    /// Frees that the stream must wait for first.
    pub(crate) waits: Vec<Freed>,
}

/// The rank of a candidate: fewest new chunks first, then tightest, then lowest.
type Rank = (u64, u64, u64);

impl Space {
    /// Finds a place for `size` bytes on `stream` without waiting; `available` is what the device can still provide.
    ///
    /// Memory that the stream freed itself is preferred, then memory free for every stream, then memory that another
    /// stream freed before a point that this one waited for; then the pool grows. Adjacent ranges are combined only if
    /// they are of the same kind.
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

    /// Finds a place that another stream has yet to free: the driver's last resort.
    pub(crate) fn plan_waiting(&self, size: u64, stream: StreamId) -> Option<Plan> {
        let len = self.rounded(size)?;
        let start = self.others_fit(len, |_| true)?;
        Some(self.plan_at(start, len, stream, true))
    }

    fn rounded(&self, size: u64) -> Option<u64> {
        let len = size.checked_next_multiple_of(self.granule)?;
        (len > 0 && len <= self.capacity).then_some(len)
    }

    /// The stream's own freed memory, or else memory free for every stream. Measured: its own is preferred even at 1.5
    /// times the size. A guess: not at any size.
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

    /// The tightest range that the stream freed itself; among equals, the one freed first.
    fn own_fit(&self, len: u64, stream: StreamId) -> Option<(u64, u64)> {
        let own = self.own.get(&stream)?;
        let (_, size) = own.runs.best_fit(len)?;
        let freed = |start: u64| self.pending.get(&start).map(|freed| freed.point.time);
        let first = own.runs.best_fits(len).min_by_key(|start| freed(*start))?;
        Some((first, size))
    }

    /// The tightest range that is free for every stream and backed by memory.
    fn idle_fit(&self, len: u64) -> Option<(u64, u64)> {
        let (start, size) = self.idle.best_fit(len)?;
        if self.missing(start, len).next().is_none() {
            return Some((start, size));
        }
        // Ranges without memory are among them, so check all.
        let best = self.growing_fit(len).filter(|(chunks, _, _)| *chunks == 0);
        best.map(|(_, size, start)| (start, size))
    }

    /// The tightest usable run freed by one other stream.
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

    /// The place that needs the fewest new chunks, among ranges free for every stream and the end of the space.
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
        // The space may grow at its end, starting with a free run there, if any.
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

    /// The first backed position in a run that starts unbacked; otherwise its start.
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

    /// The unbacked chunks of a range.
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

    /// The starts of the overlapping freed ranges.
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
