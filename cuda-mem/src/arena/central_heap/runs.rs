//! Blocks made of several adjacent free blocks.

use super::{CentralHeap, SeenBlock, pages_in};
use crate::arena::counters::Counters;
use crate::arena::header::{Id, State};
use crate::arena::last_use::LastUse;
use crate::arena::page_map::CacheId;
use crate::arena::tlsf::{FreeLists as _, FreePages, Tlsf};

/// Neighbouring free blocks that a stream may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) first: Id,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl CentralHeap {
    /// Merges several adjacent blocks into one.
    #[cold]
    pub(super) fn merge_run(&mut self, size: u32, own: CacheId) -> Option<Id> {
        let Some(run) = self.run(own, |run| run.end - run.start >= u64::from(size)) else {
            self.assert_none(own, |start, end| end - start >= u64::from(size));
            return None;
        };
        self.merge(run.first, size);
        Some(run.first)
    }

    /// The shortest run of several usable blocks for which `holds` is true.
    fn run(&self, own: CacheId, holds: impl Fn(&Run) -> bool) -> Option<Run> {
        let headers = &self.heap.headers;
        // Adjacent clean blocks are always merged, so each run of several has one of the stream's own.
        let mine = self.heap.classes.at_least(headers, own + 1, 1);
        let runs = mine.map(|id| self.run_around(id, own));
        let long = runs.filter(holds);
        long.min_by_key(|run| (run.end - run.start, run.start))
    }

    /// The run of usable blocks around this one.
    pub(super) fn run_around(&self, id: Id, own: CacheId) -> Run {
        let headers = &self.heap.headers;
        let is_usable = |id: Id| {
            let header = &headers[id];
            header.state() == State::Free && header.last_use().is_usable_by(own)
        };
        let (mut first, mut last) = (id, id);
        while is_usable(headers[first].before) {
            first = headers[first].before;
        }
        while is_usable(headers[last].after) {
            last = headers[last].after;
        }
        Run {
            first,
            start: headers[first].start(),
            end: headers[last].end(),
        }
    }

    /// Merges a block with as many after it as `size` needs. The rest of the last one keeps its last use.
    pub(super) fn merge(&mut self, first: Id, size: u32) {
        let Tlsf {
            headers, classes, ..
        } = &mut self.heap;
        classes.remove(headers, first);
        let mut last_use = headers[first].last_use();
        while headers[first].size < size {
            let next = headers[first].after;
            let (missing, next_header) = (size - headers[first].size, headers[next]);
            classes.remove(headers, next);
            // A clean part becomes the stream's own.
            let other = next_header.last_use();
            last_use = last_use.join(other).unwrap_or(LastUse {
                epoch: last_use.epoch.max(other.epoch),
                user: last_use.user.max(other.user),
            });
            if next_header.size > missing {
                headers[first].size = size;
                headers[next].move_start(missing);
                classes.insert(headers, next);
            } else {
                headers[first].size += next_header.size;
                headers.link(first, next_header.after);
                headers.remove(next);
            }
        }
        headers[first].set_last_use(last_use);
        classes.insert(headers, first);
    }

    /// The shortest run of free blocks that can hold `size`, whichever streams used them last.
    #[cold]
    pub(in crate::arena) fn run_of_all(&self, size: u32) -> Option<Vec<SeenBlock>> {
        let headers = &self.heap.headers;
        let mut best: Option<(u64, Id)> = None;
        let users = [0].into_iter().chain(self.heap.classes.users());
        for id in users.flat_map(|user| self.heap.classes.at_least(headers, user, 1)) {
            // Each run once, from its first block.
            if headers[headers[id].before].state() == State::Free {
                continue;
            }
            let mut last = id;
            while headers[headers[last].after].state() == State::Free {
                last = headers[last].after;
            }
            let units = headers[last].end() - headers[id].start();
            if units >= u64::from(size) && best.is_none_or(|best| units < best.0) {
                best = Some((units, id));
            }
        }
        let (_, mut id) = best?;
        let (mut places, mut units) = (Vec::new(), 0);
        while units < u64::from(size) {
            places.push(self.place(id));
            units += u64::from(headers[id].size);
            id = headers[id].after;
        }
        Some(places)
    }

    /// Takes a block of a run that was seen, if it is unchanged except that parts became clean.
    pub(in crate::arena) fn allocate_run_at(
        &mut self,
        places: &[SeenBlock],
        size: u32,
        own: CacheId,
        counters: &Counters,
    ) -> Option<u64> {
        let start = places.first()?.start;
        let headers = &self.heap.headers;
        let users = [0]
            .into_iter()
            .chain(places.iter().map(|place| place.last_use.user));
        let mut blocks = users.flat_map(|user| self.heap.classes.at_least(headers, user, 1));
        let first = blocks.find(|id| headers[*id].start() == start)?;
        drop(blocks);
        let (mut id, mut units) = (first, 0);
        while units < u64::from(size) {
            let header = &headers[id];
            let seen = places.iter().any(|place| {
                place.start == header.start()
                    && (place.last_use == header.last_use() || header.last_use() == LastUse::FREE)
            });
            if header.state() != State::Free || !seen {
                return None;
            }
            units += u64::from(header.size);
            id = header.after;
        }
        self.merge(first, size);
        Some(self.take(first, size, own, counters))
    }

    /// Pages of `least` units that span several blocks, which are merged.
    #[cold]
    pub(super) fn pages_of_run(&mut self, own: CacheId, least: u64) -> Option<(Id, FreePages)> {
        let page = |run: &Run| pages_in(run.start, run.end, least);
        let Some(run) = self.run(own, |run| page(run).units == least) else {
            self.assert_none(own, |start, end| pages_in(start, end, least).units == least);
            return None;
        };
        let pages = page(&run);
        let size = u32::try_from(pages.start + pages.units - run.start).ok()?;
        self.merge(run.first, size);
        Some((run.first, pages))
    }

    /// The precondition of growth, in debug builds: a request misses only if no run of memory that its stream may use
    /// can hold it.
    #[cfg(debug_assertions)]
    fn assert_none(&self, own: CacheId, would_do: impl Fn(u64, u64) -> bool) {
        for (start, end) in self.usable_runs(own) {
            let is_missed = would_do(start, end);
            assert!(
                !is_missed,
                "a request missed {start}..{end}, which would hold it"
            );
        }
    }

    #[cfg(not(debug_assertions))]
    fn assert_none(&self, _: CacheId, _: impl Fn(u64, u64) -> bool) {}

    /// All runs of memory that a stream may use, as start and end.
    #[cfg(any(debug_assertions, test))]
    pub(super) fn usable_runs(&self, own: CacheId) -> Vec<(u64, u64)> {
        let headers = &self.heap.headers;
        let blocks = [0, own + 1].map(|user| self.heap.classes.at_least(headers, user, 1));
        let mut blocks: Vec<Id> = blocks.into_iter().flatten().collect();
        blocks.sort_unstable_by_key(|id| headers[*id].start());
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut before = None;
        for id in blocks {
            let (start, end) = (headers[id].start(), headers[id].end());
            match runs.last_mut() {
                // Blocks of two separate runs of memory may touch too.
                Some(last) if Some(headers[id].before) == before => last.1 = end,
                _ => runs.push((start, end)),
            }
            before = Some(id);
        }
        runs
    }
}
