//! Best fit among free blocks, in constant time: the bookkeeping alone.
//!
//! Memory comes and goes as runs of whole pages; runs that touch become one, so a block may lie across
//! what were two of them. Neighbouring free blocks are merged, unless they come from more than a TiB that was
//! free at once. All numbers are in units.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::PAGE_UNITS;
use super::bins::Bins;
use super::index::Index;
use super::node::{Id, Node, Nodes, State};
use super::stamp::Stamp;

#[derive(Debug, Default)]
pub(super) struct Fit {
    nodes: Nodes,
    bins: Bins,
    used: Index,
    /// Where each run starts → its two edges.
    runs: BTreeMap<u64, (Id, Id)>,
    /// Units in free blocks.
    free: u64,
    /// Units in all.
    total: u64,
}

/// Part of a free block that is whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreePages {
    pub(super) start: u64,
    pub(super) units: u64,
    pub(super) stamp: Stamp,
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

impl Fit {
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

    /// Takes a block of so many units, at least one.
    #[inline]
    pub(super) fn allocate(&mut self, size: u32) -> Option<u64> {
        let id = self.bins.find(&self.nodes, size)?;
        Some(self.take(id, size))
    }

    /// As [`allocate`](Self::allocate), if the block that fits best is usable; else it is left, and its
    /// stamp says for whom to look.
    #[inline]
    pub(super) fn allocate_if(
        &mut self,
        size: u32,
        usable: impl Fn(Stamp) -> bool,
    ) -> Option<Result<u64, Stamp>> {
        let id = self.bins.find(&self.nodes, size)?;
        let stamp = self.nodes[id].stamp();
        Some(if usable(stamp) {
            Ok(self.take(id, size))
        } else {
            Err(stamp)
        })
    }

    /// A small block that is usable, however many others have to be looked at.
    pub(super) fn allocate_where(
        &mut self,
        size: u32,
        usable: impl Fn(Stamp) -> bool,
    ) -> Option<u64> {
        let mut blocks = self.bins.at_least(&self.nodes, size);
        let id = blocks.find(|id| usable(self.nodes[*id].stamp()))?;
        drop(blocks);
        Some(self.take(id, size))
    }

    /// The free block that fits best: where it starts, and its stamp.
    pub(super) fn best(&self, size: u32) -> Option<(u64, Stamp)> {
        let id = self.bins.find(&self.nodes, size)?;
        Some((self.nodes[id].start(), self.nodes[id].stamp()))
    }

    /// Takes a block from the beginning of the free block that starts here and has this stamp.
    pub(super) fn allocate_at(&mut self, start: u64, stamp: Stamp, size: u32) -> bool {
        let mut blocks = self.bins.at_least(&self.nodes, size);
        let found = blocks.find(|id| {
            let node = &self.nodes[*id];
            node.start() == start && node.stamp() == stamp
        });
        drop(blocks);
        found.map(|id| self.take(id, size)).is_some()
    }

    /// Takes a block from the beginning of a free one; the rest stays free.
    #[inline]
    fn take(&mut self, id: Id, size: u32) -> u64 {
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
    fn release(&mut self, mut id: Id, mut stamp: Stamp) {
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
        {
            size = sum;
            stamp = stamp.and(left.stamp());
            self.bins.remove(nodes, before);
            nodes.link(before, after);
            nodes.remove(id);
            id = before;
        }
        let right = &nodes[after];
        if right.state() == State::Free
            && let Some(sum) = size.checked_add(right.size)
        {
            size = sum;
            stamp = stamp.and(right.stamp());
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
                    stamp: node.stamp(),
                })
            })
    }

    /// Gives a part of the free block with this stamp away: it is not in the fit any more. Searches the
    /// block, so this is for rare use.
    pub(super) fn cut(&mut self, start: u64, units: u64, stamp: Stamp) -> bool {
        let end = start + units;
        let Some((&run, &(first, last))) = self.runs.range(..=start).next_back() else {
            return false;
        };
        let Some(id) = self.free_block_with(start, end) else {
            return false;
        };
        let node = self.nodes[id];
        if node.stamp() != stamp {
            return false;
        }
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
        true
    }

    /// The free block that holds all of this.
    fn free_block_with(&self, start: u64, end: u64) -> Option<Id> {
        let least = u32::try_from(end - start).ok()?;
        self.bins.at_least(&self.nodes, least).find(|id| {
            let node = &self.nodes[*id];
            node.start() <= start && end <= node.end()
        })
    }

    /// The free block that ends here, where a run ends: where it starts, and its stamp.
    pub(super) fn tail(&self, end: u64) -> Option<(u64, Stamp)> {
        let (_, (_, last)) = self.runs.range(..end).next_back()?;
        let edge = &self.nodes[*last];
        let before = &self.nodes[edge.before];
        (edge.start() == end && before.state() == State::Free)
            .then(|| (before.start(), before.stamp()))
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

#[cfg(test)]
mod tests;
