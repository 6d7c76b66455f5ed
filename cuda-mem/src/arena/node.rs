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

/// A block of memory. Kept to 40 bytes, because there is one for every live block and at most one
/// more for the gap behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    start_low: u32,
    /// In units.
    pub(super) size: u32,
    /// The neighbours by address.
    pub(super) before: Id,
    pub(super) after: Id,
    /// The neighbours in the list of free blocks of this class.
    pub(super) free_before: Id,
    pub(super) free_after: Id,
    start_high: u16,
    pub(super) state: State,
    /// The parts of a stamp, apart because together they would take more room.
    users: u32,
    ticket: u64,
}

const _: () = assert!(size_of::<Node>() == 40);

impl Node {
    pub(super) fn new(start: u64, size: u32, state: State, stamp: Stamp) -> Self {
        Self {
            start_low: start as u32,
            start_high: (start >> 32) as u16,
            size,
            before: NONE,
            after: NONE,
            free_before: NONE,
            free_after: NONE,
            state,
            users: stamp.users,
            ticket: stamp.ticket,
        }
    }

    /// Where it starts, in units from address 0.
    #[inline]
    pub(super) fn start(&self) -> u64 {
        u64::from(self.start_high) << 32 | u64::from(self.start_low)
    }

    /// Until when it was in use, if it is free.
    #[inline]
    pub(super) fn stamp(&self) -> Stamp {
        Stamp {
            ticket: self.ticket,
            users: self.users,
        }
    }

    #[inline]
    pub(super) fn set_stamp(&mut self, stamp: Stamp) {
        self.ticket = stamp.ticket;
        self.users = stamp.users;
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
            self[id] = node;
            return id;
        }
        self.push(node)
    }

    #[cold]
    fn push(&mut self, node: Node) -> Id {
        if self.all.len() == self.all.capacity() {
            // By an eighth and not by half, because what is not used counts as bookkeeping.
            self.all.reserve_exact((self.all.len() / 8).max(64));
        }
        self.all.push(node);
        (self.all.len() - 1) as Id
    }

    #[inline]
    pub(super) fn remove(&mut self, id: Id) {
        let next = self.vacant.unwrap_or(NONE);
        let node = &mut self[id];
        node.state = State::Vacant;
        node.after = next;
        self.vacant = Some(id);
    }

    /// Makes two nodes neighbours.
    #[inline]
    pub(super) fn link(&mut self, before: Id, after: Id) {
        self[before].after = after;
        self[after].before = before;
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
