//! A TLSF heap: best fit in constant time. Bookkeeping only, in units.
//!
//! Memory is added and removed as runs of whole pages. Runs that touch become one, so a block may span what were two of
//! them. Neighbouring free blocks of the same last user merge, unless the result would be larger than a TiB.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::PAGE_UNITS;
use super::header::{Header, Headers, Id, State};
use super::index::Index;
use super::last_use::LastUse;
use super::size_classes::SizeClasses;

#[derive(Debug, Default)]
pub(super) struct Tlsf<B = SizeClasses> {
    pub(super) headers: Headers,
    pub(super) classes: B,
    used: Index,
    /// The start of each run → its two sentinels.
    runs: BTreeMap<u64, (Id, Id)>,
    /// Units in free blocks.
    free: u64,
    /// Units in total.
    total: u64,
}

/// The lists of free blocks.
pub(super) trait FreeLists {
    fn insert(&mut self, headers: &Headers, id: Id);

    fn remove(&mut self, headers: &Headers, id: Id);

    /// Units of the largest block.
    fn largest(&self, headers: &Headers) -> Option<u32>;

    /// Host bytes that they take.
    fn bytes(&self) -> usize;
}

/// The part of a free block that is whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreePages {
    pub(super) start: u64,
    pub(super) units: u64,
}

/// On which sides a run may merge with the run that touches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joins {
    pub(super) left: bool,
    pub(super) right: bool,
}

impl Joins {
    #[cfg(test)]
    pub(super) const BOTH: Self = Self {
        left: true,
        right: true,
    };
}

impl<B: FreeLists> Tlsf<B> {
    /// Adds a run of memory. Its first `used` units are a block in use from the beginning.
    pub(super) fn add(
        &mut self,
        start: u64,
        units: u64,
        last_use: LastUse,
        used: u32,
        joins: Joins,
    ) {
        let end = start + units;
        let left = self.runs.range(..start).next_back().map(|run| *run.1);
        let left =
            left.filter(|sentinels| joins.left && self.headers[sentinels.1].start() == start);
        let right = self.runs.get(&end).filter(|_| joins.right).copied();
        // A run may be larger than the size field of a header.
        let mut blocks = Vec::new();
        let mut at = start;
        while at < end {
            let most = if at == start && used > 0 {
                used
            } else {
                u32::MAX / 2
            };
            let size = (end - at).min(u64::from(most)) as u32;
            blocks.push(
                self.headers
                    .add(Header::new(at, size, State::Used, last_use)),
            );
            at += u64::from(size);
        }
        let mut sentinel = |at| {
            self.headers
                .add(Header::new(at, 0, State::Sentinel, LastUse::FREE))
        };
        let first = left.map_or_else(|| sentinel(start), |sentinels| sentinels.0);
        let last = right.map_or_else(|| sentinel(end), |sentinels| sentinels.1);
        let mut previous = match left {
            Some((_, sentinel)) => {
                let before = self.headers[sentinel].before;
                self.headers.remove(sentinel);
                before
            }
            None => first,
        };
        for block in &blocks {
            self.headers.link(previous, *block);
            previous = *block;
        }
        match right {
            Some((sentinel, _)) => {
                let after = self.headers[sentinel].after;
                self.headers.link(previous, after);
                self.headers.remove(sentinel);
                self.runs.remove(&end);
            }
            None => self.headers.link(previous, last),
        }
        self.runs.insert(self.headers[first].start(), (first, last));
        self.total += units;
        for (count, block) in blocks.into_iter().enumerate() {
            if count == 0 && used > 0 {
                self.used.insert(&mut self.headers, block);
            } else {
                self.release(block, last_use);
            }
        }
    }

    /// As [`add`](Self::add), merged on both sides.
    #[cfg(test)]
    pub(super) fn add_run(&mut self, start: u64, units: u64, last_use: LastUse, used: u32) {
        self.add(start, units, last_use, used, Joins::BOTH);
    }

    /// Takes a block from the beginning of a free one; the rest stays free.
    #[inline]
    pub(super) fn take(&mut self, id: Id, size: u32) -> u64 {
        let headers = &mut self.headers;
        self.classes.remove(headers, id);
        let header = &mut headers[id];
        let (start, rest, after) = (header.start(), header.size - size, header.after);
        header.set_state(State::Used);
        if rest > 0 {
            header.size = size;
            let last_use = header.last_use();
            let rest = Header::new(start + u64::from(size), rest, State::Free, last_use);
            let rest = headers.add(rest);
            headers.link(rest, after);
            headers.link(id, rest);
            self.classes.insert(headers, rest);
        }
        self.free -= u64::from(size);
        self.used.insert(headers, id);
        start
    }

    /// The size of the used block that starts here.
    #[inline]
    pub(super) fn size_of(&self, start: u64) -> Option<u32> {
        let id = self.used.find(&self.headers, start)?;
        Some(self.headers[id].size)
    }

    /// Frees the used block that starts here. Returns its size.
    #[inline]
    pub(super) fn free(&mut self, start: u64, last_use: LastUse) -> Option<u32> {
        let id = self.remove_used(start)?;
        let size = self.headers[id].size;
        self.release(id, last_use);
        Some(size)
    }

    /// Removes the used block that starts here from the index. It is to be released next.
    #[inline]
    pub(super) fn remove_used(&mut self, start: u64) -> Option<Id> {
        self.used.remove(&mut self.headers, start)
    }

    /// Makes a block free, and merges it with its free neighbours.
    #[inline]
    pub(super) fn release(&mut self, mut id: Id, mut last_use: LastUse) {
        let headers = &mut self.headers;
        let Header {
            mut size,
            before,
            after,
            ..
        } = headers[id];
        self.free += u64::from(size);
        let left = &headers[before];
        if left.state() == State::Free
            && let Some(sum) = size.checked_add(left.size)
            && let Some(joined) = last_use.join(left.last_use())
        {
            size = sum;
            last_use = joined;
            self.classes.remove(headers, before);
            headers.link(before, after);
            headers.remove(id);
            id = before;
        }
        let right = &headers[after];
        if right.state() == State::Free
            && let Some(sum) = size.checked_add(right.size)
            && let Some(joined) = last_use.join(right.last_use())
        {
            size = sum;
            last_use = joined;
            let next = right.after;
            self.classes.remove(headers, after);
            headers.link(id, next);
            headers.remove(after);
        }
        let header = &mut headers[id];
        header.size = size;
        header.set_last_use(last_use);
        header.set_state(State::Free);
        self.classes.insert(headers, id);
    }

    /// Makes a free block clean, because its last use is done. It merges with clean neighbours.
    pub(super) fn make_free_for_all(&mut self, id: Id) {
        self.classes.remove(&self.headers, id);
        self.free -= u64::from(self.headers[id].size);
        self.release(id, LastUse::FREE);
    }

    /// Removes a part of a free block from the heap.
    pub(super) fn cut_of(&mut self, id: Id, start: u64, units: u64) {
        let end = start + units;
        let header = self.headers[id];
        debug_assert!(header.start() <= start && end <= header.end());
        // Every block is in a run.
        let Some((&run, &(first, last))) = self.runs.range(..=start).next_back() else {
            return;
        };
        self.classes.remove(&self.headers, id);
        let left = start - header.start();
        let right = header.end() - end;
        self.free -= u64::from(header.size);
        self.total -= units;
        // The parts that remain on the left and on the right become new blocks.
        self.runs.remove(&run);
        let mut before = header.before;
        if left > 0 {
            let block = Header::new(header.start(), left as u32, State::Used, header.last_use());
            let block = self.headers.add(block);
            self.headers.link(before, block);
            before = block;
        }
        if before == first {
            self.headers.remove(first);
        } else {
            let sentinel = self
                .headers
                .add(Header::new(start, 0, State::Sentinel, LastUse::FREE));
            self.headers.link(before, sentinel);
            self.runs.insert(run, (first, sentinel));
        }
        if left > 0 {
            self.release(before, header.last_use());
        }
        let mut after = header.after;
        if right > 0 {
            let block = Header::new(end, right as u32, State::Used, header.last_use());
            let block = self.headers.add(block);
            self.headers.link(block, after);
            after = block;
        }
        if after == last {
            self.headers.remove(last);
        } else {
            let sentinel = self
                .headers
                .add(Header::new(end, 0, State::Sentinel, LastUse::FREE));
            self.headers.link(sentinel, after);
            self.runs.insert(end, (sentinel, last));
        }
        if right > 0 {
            self.release(after, header.last_use());
        }
        self.headers.remove(id);
    }

    /// The free block that ends here, where a run ends.
    pub(super) fn tail(&self, end: u64) -> Option<Id> {
        let (_, (_, last)) = self.runs.range(..end).next_back()?;
        let sentinel = &self.headers[*last];
        let before = &self.headers[sentinel.before];
        (sentinel.start() == end && before.state() == State::Free).then_some(sentinel.before)
    }

    /// The free block that begins here, where a run begins.
    pub(super) fn head(&self, start: u64) -> Option<Id> {
        let (first, _) = self.runs.get(&start)?;
        let after = self.headers[*first].after;
        (self.headers[after].state() == State::Free).then_some(after)
    }

    /// The headers of all blocks, by address.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &Header> {
        self.runs.values().flat_map(|(first, last)| {
            let next = |id: &Id| Some(self.headers[*id].after);
            let inside = std::iter::successors(next(first), next);
            inside
                .take_while(move |id| id != last)
                .map(|id| &self.headers[id])
        })
    }

    /// Units in free blocks.
    pub(super) fn free_units(&self) -> u64 {
        self.free
    }

    /// Units in total.
    pub(super) fn total_units(&self) -> u64 {
        self.total
    }

    /// Units of the largest free block.
    pub(super) fn largest_free(&self) -> u64 {
        self.classes.largest(&self.headers).map_or(0, u64::from)
    }

    /// Host bytes that the bookkeeping takes.
    pub(super) fn bytes(&self) -> usize {
        self.headers.bytes() + self.classes.bytes() + self.used.bytes() + size_of::<Self>()
    }
}

impl Tlsf {
    /// Takes a block of at least one unit.
    #[inline]
    pub(super) fn allocate(&mut self, size: u32) -> Option<u64> {
        let id = self.classes.find(&self.headers, size)?;
        Some(self.take(id, size))
    }

    /// The whole pages of free blocks that have at least this many in a row.
    pub(super) fn free_pages(&self, pages: u64) -> impl Iterator<Item = FreePages> {
        let least = u32::try_from(pages * PAGE_UNITS).unwrap_or(u32::MAX);
        self.classes
            .at_least(&self.headers, least)
            .filter_map(move |id| {
                let header = &self.headers[id];
                let start = header.start().next_multiple_of(PAGE_UNITS);
                let end = header.end() / PAGE_UNITS * PAGE_UNITS;
                (start + pages * PAGE_UNITS <= end).then(|| FreePages {
                    start,
                    units: end - start,
                })
            })
    }

    /// Removes a part of a free block from the heap. Searches for the block, so this is for rare use.
    pub(super) fn cut(&mut self, start: u64, units: u64) -> bool {
        let end = start + units;
        let Ok(least) = u32::try_from(units) else {
            return false;
        };
        let mut blocks = self.classes.at_least(&self.headers, least);
        let found = blocks.find(|id| {
            let header = &self.headers[*id];
            header.start() <= start && end <= header.end()
        });
        drop(blocks);
        found.map(|id| self.cut_of(id, start, units)).is_some()
    }
}

#[cfg(test)]
mod tests;
