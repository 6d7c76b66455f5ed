//! The blocks of a lane, as numbered nodes that know their neighbours.

#![forbid(unsafe_code)]

use super::stamp::Stamp;

/// The number of a node. Numbers are given again once a node has gone.
pub(super) type Id = u32;

/// No node.
pub(super) const NONE: Id = Id::MAX;

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A block that somebody has.
    Used,
    /// A block that nobody has.
    Free,
    /// The first or last point of a run of memory: no bytes, and never merged with anything.
    Edge,
    /// Nothing: its number is to be given again.
    Vacant,
}

/// A block of memory. Kept to 32 bytes, because there is one for every live block and at most one
/// more for the gap behind it, and so that none lies across two lines of the processor's cache. The lists of
/// free blocks have their links elsewhere ([`Bins`](super::bins::Bins)).
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct Node {
    /// Where it starts, in units from address 0, times four, and the state.
    start: u64,
    /// In units.
    pub(super) size: u32,
    /// The neighbours by address.
    pub(super) before: Id,
    pub(super) after: Id,
    /// Of a free block, the user of its stamp; of a used one, the next in its chain of the
    /// [index](super::index::Index).
    user_or_next: u32,
    /// Of a free block's stamp.
    ticket: u64,
}

const _: () = assert!(size_of::<Node>() == 32);

impl Node {
    #[inline]
    pub(super) fn new(start: u64, size: u32, state: State, stamp: Stamp) -> Self {
        Self {
            start: start << 2 | state as u64,
            size,
            before: NONE,
            after: NONE,
            user_or_next: stamp.user,
            ticket: stamp.ticket,
        }
    }

    /// Where it starts, in units from address 0.
    #[inline]
    pub(super) fn start(&self) -> u64 {
        self.start >> 2
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        match self.start & 3 {
            0 => State::Used,
            1 => State::Free,
            2 => State::Edge,
            _ => State::Vacant,
        }
    }

    #[inline]
    pub(super) fn set_state(&mut self, state: State) {
        self.start = self.start & !3 | state as u64;
    }

    /// Until when it was in use, if it is free.
    #[inline]
    pub(super) fn stamp(&self) -> Stamp {
        Stamp {
            ticket: self.ticket,
            user: self.user_or_next,
        }
    }

    #[inline]
    pub(super) fn set_stamp(&mut self, stamp: Stamp) {
        self.ticket = stamp.ticket;
        self.user_or_next = stamp.user;
    }

    /// The next in the chain of the index, if it is used.
    #[inline]
    pub(super) fn next(&self) -> Id {
        self.user_or_next
    }

    /// Whom its stamp names is lost.
    #[inline]
    pub(super) fn set_next(&mut self, next: Id) {
        self.user_or_next = next;
    }

    /// Its first units become another block's.
    #[inline]
    pub(super) fn move_start(&mut self, units: u32) {
        self.start += u64::from(units) << 2;
        self.size -= units;
    }

    /// The unit behind its last one.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.start() + u64::from(self.size)
    }
}

/// All nodes of a lane.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    all: Vec<Node>,
    /// Vacant ones, chained by `after`.
    vacant: Option<Id>,
}

impl Nodes {
    #[inline]
    pub(super) fn add(&mut self, node: Node) -> Id {
        if let Some(id) = self.vacant {
            let next = self[id].after;
            self.vacant = (next != NONE).then_some(next);
            let place = &mut self[id];
            // One by one: built on the stack and copied it would be read back in wider pieces than it was
            // written, which processors wait for.
            place.start = node.start;
            place.size = node.size;
            place.before = node.before;
            place.after = node.after;
            place.user_or_next = node.user_or_next;
            place.ticket = node.ticket;
            return id;
        }
        self.push(node)
    }

    #[cold]
    fn push(&mut self, node: Node) -> Id {
        if self.all.len() == self.all.capacity() {
            // By a sixteenth and not by half, because what is not used counts as bookkeeping.
            self.all.reserve_exact((self.all.len() / 16).max(64));
        }
        self.all.push(node);
        (self.all.len() - 1) as Id
    }

    #[inline]
    pub(super) fn remove(&mut self, id: Id) {
        let next = self.vacant.unwrap_or(NONE);
        let node = &mut self[id];
        node.set_state(State::Vacant);
        node.after = next;
        self.vacant = Some(id);
    }

    /// Makes two nodes neighbours.
    #[inline]
    pub(super) fn link(&mut self, before: Id, after: Id) {
        self[before].after = after;
        self[after].before = before;
    }

    /// Numbers are below this for now.
    pub(super) fn room(&self) -> usize {
        self.all.capacity()
    }

    /// Bytes of the host that the nodes take.
    pub(super) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Node>()
    }
}

impl std::ops::Index<Id> for Nodes {
    type Output = Node;

    #[inline]
    fn index(&self, id: Id) -> &Node {
        &self.all[id as usize]
    }
}

impl std::ops::IndexMut<Id> for Nodes {
    #[inline]
    fn index_mut(&mut self, id: Id) -> &mut Node {
        &mut self.all[id as usize]
    }
}
