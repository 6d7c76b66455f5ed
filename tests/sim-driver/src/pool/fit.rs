//! Where a new block goes: which freed ranges its stream may take, and which of them fits best.

use super::space::{Freed, Space};
use crate::clock::{Clocks, StreamId};

/// The three ways of reuse between streams that a pool may allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reuse {
    pub(crate) follow_events: bool,
    pub(crate) opportunistic: bool,
    pub(crate) internal_dependencies: bool,
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
    /// Finds a place for `size` bytes on `stream`; `available` is what the device could still
    /// give. Changes nothing.
    pub(crate) fn plan(
        &self,
        size: u64,
        stream: StreamId,
        clocks: &Clocks,
        reuse: Reuse,
        available: u64,
    ) -> Option<Plan> {
        let len = size.checked_next_multiple_of(self.granule)?;
        if len == 0 || len > self.capacity {
            return None;
        }
        if let Some(start) = self.quick_fit(len, stream) {
            return Some(self.plan_at(start, len, |_| true));
        }
        let usable = |freed: &Freed| {
            freed.point.stream == stream
                || (reuse.follow_events && clocks.is_after(stream, freed.point))
                || (reuse.opportunistic && freed.mark.is_reached())
        };
        let affordable = |(chunks, _, _): &Rank| {
            let bytes = chunks * self.chunk;
            bytes <= available && self.reserved.current + bytes <= self.limit
        };
        let without = self.best_run(len, usable).filter(affordable);
        if let Some((0, _, start)) = without {
            return Some(self.plan_at(start, len, usable));
        }
        // A wait is better than memory from the device, and either is better than failing.
        let with = if reuse.internal_dependencies {
            self.best_run(len, |_| true).filter(affordable)
        } else {
            None
        };
        match (without, with) {
            (_, Some((0, _, start))) | (None, Some((_, _, start))) => {
                Some(self.plan_at(start, len, usable))
            }
            (Some((_, _, start)), _) => Some(self.plan_at(start, len, usable)),
            (None, None) => None,
        }
    }

    /// What the stream freed itself, or nobody else can still use, with memory behind it.
    fn quick_fit(&self, len: u64, stream: StreamId) -> Option<u64> {
        let own = self.own.get(&stream);
        let own = own.and_then(|own| own.runs.best_fit(len));
        let fits = [own, self.idle.best_fit(len)];
        let best = fits
            .into_iter()
            .flatten()
            .filter(|(start, _)| self.missing(*start, len).next().is_none())
            .min_by_key(|(start, run)| (*run, *start))?;
        Some(best.0)
    }

    /// Walks over all free ranges and joins neighbours that are usable.
    fn best_run(&self, len: u64, usable: impl Fn(&Freed) -> bool) -> Option<Rank> {
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
        let mut pending = self.pending.iter().peekable();
        let mut idle = self.idle.iter().peekable();
        let mut run: Option<(u64, u64)> = None;
        loop {
            let next_pending = pending.peek().map(|(start, _)| **start);
            let next_idle = idle.peek().map(|(start, _)| *start);
            let (start, end, is_usable) = match (next_pending, next_idle) {
                (None, None) => break,
                (Some(at), other) if other.is_none_or(|other| at < other) => {
                    let Some((_, freed)) = pending.next() else {
                        break;
                    };
                    (at, at + freed.len, usable(freed))
                }
                _ => {
                    let Some((at, len)) = idle.next() else { break };
                    (at, at + len, true)
                }
            };
            match &mut run {
                Some((_, run_end)) if is_usable && *run_end == start => *run_end = end,
                _ => {
                    if let Some((start, end)) = run.take() {
                        consider(start, end);
                    }
                    run = is_usable.then_some((start, end));
                }
            }
        }
        // The range may grow at its end, from a free run there if there is one.
        match run {
            Some((start, end)) if end == self.end => consider(start, self.capacity),
            Some((start, end)) => {
                consider(start, end);
                consider(self.end, self.capacity);
            }
            None => consider(self.end, self.capacity),
        }
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

    fn plan_at(&self, start: u64, len: u64, usable: impl Fn(&Freed) -> bool) -> Plan {
        let waits = self.pending_in(start, len).into_iter();
        Plan {
            start,
            len,
            chunks: self.missing(start, len).collect(),
            waits: waits
                .filter_map(|at| self.pending.get(&at))
                .filter(|freed| !usable(freed))
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
