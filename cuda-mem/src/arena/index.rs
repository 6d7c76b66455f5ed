//! Finds the header of a used block by its address.
//!
//! A hash table whose chains run through the headers, in the field where a free block has its last user. A live block
//! costs four to eight bytes here. The table does not shrink.

#![forbid(unsafe_code)]

use super::header::{Headers, Id, NONE};

#[derive(Debug, Default)]
pub(super) struct Index {
    /// The first header of each chain.
    heads: Vec<Id>,
    len: usize,
}

/// 2^64 divided by the golden ratio, which spreads neighbours far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Index {
    /// The chain that an address belongs to. There must be at least one.
    #[inline]
    fn home(&self, start: u64) -> usize {
        // The high bits are mixed best.
        (start.wrapping_mul(SPREAD) >> 24) as usize & (self.heads.len() - 1)
    }

    #[inline]
    pub(super) fn insert(&mut self, headers: &mut Headers, id: Id) {
        if self.len + 1 > self.heads.len() {
            self.grow(headers);
        }
        self.put(headers, id);
        self.len += 1;
    }

    #[inline]
    fn put(&mut self, headers: &mut Headers, id: Id) {
        let home = self.home(headers[id].start());
        let next = std::mem::replace(&mut self.heads[home], id);
        headers[id].set_next(next);
    }

    #[cold]
    fn grow(&mut self, headers: &mut Headers) {
        let room = (self.heads.len() * 2).max(64);
        let old = std::mem::replace(&mut self.heads, vec![NONE; room]);
        for mut id in old {
            while id != NONE {
                let next = headers[id].next();
                self.put(headers, id);
                id = next;
            }
        }
    }

    #[inline]
    pub(super) fn find(&self, headers: &Headers, start: u64) -> Option<Id> {
        if self.len == 0 {
            return None;
        }
        let mut id = self.heads[self.home(start)];
        while id != NONE {
            let header = &headers[id];
            if header.start() == start {
                return Some(id);
            }
            id = header.next();
        }
        None
    }

    /// Removes the header that starts here.
    #[inline]
    pub(super) fn remove(&mut self, headers: &mut Headers, start: u64) -> Option<Id> {
        if self.len == 0 {
            return None;
        }
        let home = self.home(start);
        let mut before = NONE;
        let mut id = self.heads[home];
        while id != NONE {
            let header = &headers[id];
            let next = header.next();
            if header.start() == start {
                if before == NONE {
                    self.heads[home] = next;
                } else {
                    headers[before].set_next(next);
                }
                self.len -= 1;
                return Some(id);
            }
            before = id;
            id = next;
        }
        None
    }

    /// Host bytes that the index takes.
    pub(super) fn bytes(&self) -> usize {
        self.heads.capacity() * size_of::<Id>()
    }
}

#[cfg(test)]
mod tests;
