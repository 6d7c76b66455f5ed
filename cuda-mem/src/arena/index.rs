//! Finds the node of a used block by its address.
//!
//! A hash table with chains that run through the nodes themselves, where a free block has its stamp: so a
//! block goes in without a search, and a live one costs four to eight bytes here. The table does not shrink.

#![forbid(unsafe_code)]

use super::node::{Id, NONE, Nodes};

#[derive(Debug, Default)]
pub(super) struct Index {
    /// The first of each chain.
    heads: Vec<Id>,
    len: usize,
}

/// 2^64 divided by the golden ratio, which spreads neighbours far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Index {
    /// Whose chain an address is in. There must be chains.
    #[inline]
    fn home(&self, start: u64) -> usize {
        // The high bits are the well mixed ones.
        (start.wrapping_mul(SPREAD) >> 24) as usize & (self.heads.len() - 1)
    }

    #[inline]
    pub(super) fn insert(&mut self, nodes: &mut Nodes, id: Id) {
        if self.len + 1 > self.heads.len() {
            self.grow(nodes);
        }
        self.put(nodes, id);
        self.len += 1;
    }

    #[inline]
    fn put(&mut self, nodes: &mut Nodes, id: Id) {
        let home = self.home(nodes[id].start());
        let next = std::mem::replace(&mut self.heads[home], id);
        nodes[id].set_next(next);
    }

    #[cold]
    fn grow(&mut self, nodes: &mut Nodes) {
        let room = (self.heads.len() * 2).max(64);
        let old = std::mem::replace(&mut self.heads, vec![NONE; room]);
        for mut id in old {
            while id != NONE {
                let next = nodes[id].next();
                self.put(nodes, id);
                id = next;
            }
        }
    }

    #[inline]
    pub(super) fn find(&self, nodes: &Nodes, start: u64) -> Option<Id> {
        if self.len == 0 {
            return None;
        }
        let mut id = self.heads[self.home(start)];
        while id != NONE {
            let node = &nodes[id];
            if node.start() == start {
                return Some(id);
            }
            id = node.next();
        }
        None
    }

    /// Takes out the node that starts here.
    #[inline]
    pub(super) fn remove(&mut self, nodes: &mut Nodes, start: u64) -> Option<Id> {
        if self.len == 0 {
            return None;
        }
        let home = self.home(start);
        let mut before = NONE;
        let mut id = self.heads[home];
        while id != NONE {
            let node = &nodes[id];
            let next = node.next();
            if node.start() == start {
                if before == NONE {
                    self.heads[home] = next;
                } else {
                    nodes[before].set_next(next);
                }
                self.len -= 1;
                return Some(id);
            }
            before = id;
            id = next;
        }
        None
    }

    /// Bytes of the host that the index takes.
    pub(super) fn bytes(&self) -> usize {
        self.heads.capacity() * size_of::<Id>()
    }
}

#[cfg(test)]
mod tests;
