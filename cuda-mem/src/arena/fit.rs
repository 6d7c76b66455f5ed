//! Best fit among free blocks, in constant time: the bookkeeping alone.
//!
//! Memory comes and goes as runs of whole pages; runs that touch become one, so a block may lie across
//! what were two of them. Neighbouring free blocks of the same last user are merged, unless they come
//! from more than a TiB that was free at once. All numbers are in units.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::PAGE_UNITS;
use super::bins::Bins;
use super::index::Index;
use super::node::{Id, Node, Nodes, State};
use super::stamp::Stamp;

#[derive(Debug, Default)]
pub(super) struct Fit<B = Bins> {
    pub(super) nodes: Nodes,
    pub(super) bins: B,
    used: Index,
    /// Where each run starts → its two edges.
    runs: BTreeMap<u64, (Id, Id)>,
    /// Units in free blocks.
    free: u64,
    /// Units in all.
    total: u64,
}

/// The lists of free blocks.
pub(super) trait FreeLists {
    fn insert(&mut self, nodes: &Nodes, id: Id);

    fn remove(&mut self, nodes: &Nodes, id: Id);

    /// Units of the largest block.
    fn largest(&self, nodes: &Nodes) -> Option<u32>;

    /// Bytes of the host that they take.
    fn bytes(&self) -> usize;
}

/// Part of a free block that is whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreePages {
    pub(super) start: u64,
    pub(super) units: u64,
}

/// On which sides a block may go on into the run that touches there.
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

impl<B: FreeLists> Fit<B> {
    /// Takes a run of memory in, of which the first `used` units are a block in use from the beginning.
    pub(super) fn add(&mut self, start: u64, units: u64, stamp: Stamp, used: u32, joins: Joins) {
        let end = start + units;
        let left = self.runs.range(..start).next_back().map(|run| *run.1);
        let left = left.filter(|edges| joins.left && self.nodes[edges.1].start() == start);
        let right = self.runs.get(&end).filter(|_| joins.right).copied();
        // A run may be larger than a node can say.
        let mut blocks = Vec::new();
        let mut at = start;
        while at < end {
            let most = if at == start && used > 0 {
                used
            } else {
                u32::MAX / 2
            };
            let size = (end - at).min(u64::from(most)) as u32;
            blocks.push(self.nodes.add(Node::new(at, size, State::Used, stamp)));
            at += u64::from(size);
        }
        let mut edge = |at| self.nodes.add(Node::new(at, 0, State::Edge, Stamp::FREE));
        let first = left.map_or_else(|| edge(start), |edges| edges.0);
        let last = right.map_or_else(|| edge(end), |edges| edges.1);
        let mut previous = match left {
            Some((_, edge)) => {
                let before = self.nodes[edge].before;
                self.nodes.remove(edge);
                before
            }
            None => first,
        };
        for block in &blocks {
            self.nodes.link(previous, *block);
            previous = *block;
        }
        match right {
            Some((edge, _)) => {
                let after = self.nodes[edge].after;
                self.nodes.link(previous, after);
                self.nodes.remove(edge);
                self.runs.remove(&end);
            }
            None => self.nodes.link(previous, last),
        }
        self.runs.insert(self.nodes[first].start(), (first, last));
        self.total += units;
        for (count, block) in blocks.into_iter().enumerate() {
            if count == 0 && used > 0 {
                self.used.insert(&mut self.nodes, block);
            } else {
                self.release(block, stamp);
            }
        }
    }

    /// As [`add`](Self::add), joined with whatever it touches.
    #[cfg(test)]
    pub(super) fn add_run(&mut self, start: u64, units: u64, stamp: Stamp, used: u32) {
        self.add(start, units, stamp, used, Joins::BOTH);
    }

    /// Takes a block from the beginning of a free one; the rest stays free.
    #[inline]
    pub(super) fn take(&mut self, id: Id, size: u32) -> u64 {
        let nodes = &mut self.nodes;
        self.bins.remove(nodes, id);
        let node = &mut nodes[id];
        let (start, rest, after) = (node.start(), node.size - size, node.after);
        node.set_state(State::Used);
        if rest > 0 {
            node.size = size;
            let stamp = node.stamp();
            let rest = Node::new(start + u64::from(size), rest, State::Free, stamp);
            let rest = nodes.add(rest);
            nodes.link(rest, after);
            nodes.link(id, rest);
            self.bins.insert(nodes, rest);
        }
        self.free -= u64::from(size);
        self.used.insert(nodes, id);
        start
    }

    /// How large the used block is that starts here.
    #[inline]
    pub(super) fn size_of(&self, start: u64) -> Option<u32> {
        let id = self.used.find(&self.nodes, start)?;
        Some(self.nodes[id].size)
    }

    /// Takes back the used block that starts here, and says how large it was.
    #[inline]
    pub(super) fn free(&mut self, start: u64, stamp: Stamp) -> Option<u32> {
        let id = self.used.remove(&mut self.nodes, start)?;
        let size = self.nodes[id].size;
        self.release(id, stamp);
        Some(size)
    }

    /// Makes a block free, and one with its free neighbours.
    #[inline]
    pub(super) fn release(&mut self, mut id: Id, mut stamp: Stamp) {
        let nodes = &mut self.nodes;
        let Node {
            mut size,
            before,
            after,
            ..
        } = nodes[id];
        self.free += u64::from(size);
        let left = &nodes[before];
        if left.state() == State::Free
            && let Some(sum) = size.checked_add(left.size)
            && let Some(joined) = stamp.join(left.stamp())
        {
            size = sum;
            stamp = joined;
            self.bins.remove(nodes, before);
            nodes.link(before, after);
            nodes.remove(id);
            id = before;
        }
        let right = &nodes[after];
        if right.state() == State::Free
            && let Some(sum) = size.checked_add(right.size)
            && let Some(joined) = stamp.join(right.stamp())
        {
            size = sum;
            stamp = joined;
            let next = right.after;
            self.bins.remove(nodes, after);
            nodes.link(id, next);
            nodes.remove(after);
        }
        let node = &mut nodes[id];
        node.size = size;
        node.set_stamp(stamp);
        node.set_state(State::Free);
        self.bins.insert(nodes, id);
    }

    /// A free block is nobody's any more, and one with neighbours of which that is so.
    pub(super) fn make_free_for_all(&mut self, id: Id) {
        self.bins.remove(&self.nodes, id);
        self.free -= u64::from(self.nodes[id].size);
        self.release(id, Stamp::FREE);
    }

    /// Gives a part of a free block away: it is not in the fit any more.
    pub(super) fn cut_of(&mut self, id: Id, start: u64, units: u64) {
        let end = start + units;
        let node = self.nodes[id];
        debug_assert!(node.start() <= start && end <= node.end());
        // Every block is in a run.
        let Some((&run, &(first, last))) = self.runs.range(..=start).next_back() else {
            return;
        };
        self.bins.remove(&self.nodes, id);
        let left = start - node.start();
        let right = node.end() - end;
        self.free -= u64::from(node.size);
        self.total -= units;
        // The block becomes what is left of it on the right side, and a new one takes the left.
        self.runs.remove(&run);
        let mut before = node.before;
        if left > 0 {
            let block = Node::new(node.start(), left as u32, State::Used, node.stamp());
            let block = self.nodes.add(block);
            self.nodes.link(before, block);
            before = block;
        }
        if before == first {
            self.nodes.remove(first);
        } else {
            let edge = self
                .nodes
                .add(Node::new(start, 0, State::Edge, Stamp::FREE));
            self.nodes.link(before, edge);
            self.runs.insert(run, (first, edge));
        }
        if left > 0 {
            self.release(before, node.stamp());
        }
        let mut after = node.after;
        if right > 0 {
            let block = Node::new(end, right as u32, State::Used, node.stamp());
            let block = self.nodes.add(block);
            self.nodes.link(block, after);
            after = block;
        }
        if after == last {
            self.nodes.remove(last);
        } else {
            let edge = self.nodes.add(Node::new(end, 0, State::Edge, Stamp::FREE));
            self.nodes.link(edge, after);
            self.runs.insert(end, (edge, last));
        }
        if right > 0 {
            self.release(after, node.stamp());
        }
        self.nodes.remove(id);
    }

    /// The free block that ends here, where a run ends.
    pub(super) fn tail(&self, end: u64) -> Option<Id> {
        let (_, (_, last)) = self.runs.range(..end).next_back()?;
        let edge = &self.nodes[*last];
        let before = &self.nodes[edge.before];
        (edge.start() == end && before.state() == State::Free).then_some(edge.before)
    }

    /// Units in free blocks.
    pub(super) fn free_units(&self) -> u64 {
        self.free
    }

    /// Units in all.
    pub(super) fn total_units(&self) -> u64 {
        self.total
    }

    /// Units of the largest free block.
    pub(super) fn largest_free(&self) -> u64 {
        self.bins.largest(&self.nodes).map_or(0, u64::from)
    }

    /// Bytes of the host that the bookkeeping takes.
    pub(super) fn bytes(&self) -> usize {
        self.nodes.bytes() + self.bins.bytes() + self.used.bytes() + size_of::<Self>()
    }
}

impl Fit {
    /// Takes a block of so many units, at least one.
    #[inline]
    pub(super) fn allocate(&mut self, size: u32) -> Option<u64> {
        let id = self.bins.find(&self.nodes, size)?;
        Some(self.take(id, size))
    }

    /// The whole pages of free blocks that have at least so many of them in a row.
    pub(super) fn free_pages(&self, pages: u64) -> impl Iterator<Item = FreePages> {
        let least = u32::try_from(pages * PAGE_UNITS).unwrap_or(u32::MAX);
        self.bins
            .at_least(&self.nodes, least)
            .filter_map(move |id| {
                let node = &self.nodes[id];
                let start = node.start().next_multiple_of(PAGE_UNITS);
                let end = node.end() / PAGE_UNITS * PAGE_UNITS;
                (start + pages * PAGE_UNITS <= end).then(|| FreePages {
                    start,
                    units: end - start,
                })
            })
    }

    /// Gives a part of a free block away: it is not in the fit any more. Searches the block, so this is for rare use.
    pub(super) fn cut(&mut self, start: u64, units: u64) -> bool {
        let end = start + units;
        let Ok(least) = u32::try_from(units) else {
            return false;
        };
        let mut blocks = self.bins.at_least(&self.nodes, least);
        let found = blocks.find(|id| {
            let node = &self.nodes[*id];
            node.start() <= start && end <= node.end()
        });
        drop(blocks);
        found.map(|id| self.cut_of(id, start, units)).is_some()
    }
}

#[cfg(test)]
mod tests;
