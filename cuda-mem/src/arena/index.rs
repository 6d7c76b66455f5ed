//! Finds the node of a used block by its address.
//!
//! Open addressing with linear probing over node numbers alone: the address that a number stands for
//! is in the node, which the caller needs anyway. So a live block costs eight to sixteen bytes here.

#![forbid(unsafe_code)]

use super::node::{Id, NONE, Nodes};

#[derive(Debug, Default)]
pub(super) struct Index {
    places: Vec<Id>,
    len: usize,
}

/// 2^64 divided by the golden ratio, which spreads neighbours far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Index {
    #[inline]
    fn home(&self, start: u64) -> usize {
        // The high bits are the well mixed ones.
        (start.wrapping_mul(SPREAD) >> 24) as usize & (self.places.len() - 1)
    }

    #[inline]
    pub(super) fn insert(&mut self, nodes: &Nodes, id: Id) {
        if (self.len + 1) * 2 > self.places.len() {
            self.grow(nodes);
        }
        self.put(nodes, id);
        self.len += 1;
    }

    #[inline]
    fn put(&mut self, nodes: &Nodes, id: Id) {
        let mask = self.places.len() - 1;
        let mut at = self.home(nodes[id].start());
        while self.places[at] != NONE {
            at = (at + 1) & mask;
        }
        self.places[at] = id;
    }

    #[cold]
    fn grow(&mut self, nodes: &Nodes) {
        let room = (self.places.len() * 2).max(64);
        let old = std::mem::replace(&mut self.places, vec![NONE; room]);
        for id in old {
            if id != NONE {
                self.put(nodes, id);
            }
        }
    }

    #[inline]
    pub(super) fn find(&self, nodes: &Nodes, start: u64) -> Option<Id> {
        self.place_of(nodes, start).map(|at| self.places[at])
    }

    #[inline]
    fn place_of(&self, nodes: &Nodes, start: u64) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let mask = self.places.len() - 1;
        let mut at = self.home(start);
        loop {
            let id = self.places[at];
            if id == NONE {
                return None;
            }
            if nodes[id].start() == start {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    /// Takes out the node that starts here. Later ones move up, so that no marks are left.
    #[inline]
    pub(super) fn remove(&mut self, nodes: &Nodes, start: u64) -> Option<Id> {
        let mut hole = self.place_of(nodes, start)?;
        let found = self.places[hole];
        let mask = self.places.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let id = self.places[at];
            if id == NONE {
                break;
            }
            let home = self.home(nodes[id].start());
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.places[hole] = id;
                hole = at;
            }
        }
        self.places[hole] = NONE;
        self.len -= 1;
        Some(found)
    }

    /// Bytes of the host that the index takes.
    pub(super) fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<Id>()
    }
}

#[cfg(test)]
mod tests;
