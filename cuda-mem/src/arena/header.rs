//! The block headers of a heap, numbered and linked to their neighbours by address.

#![forbid(unsafe_code)]

use super::last_use::LastUse;
use super::page_map::CacheId;

/// The number of a header. The numbers of removed headers are reused.
pub(super) type Id = u32;

/// No header.
pub(super) const NONE: Id = Id::MAX;

/// What a header describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A block in use.
    Used,
    /// A free block.
    Free,
    /// A sentinel at the start or end of a run of memory: no bytes, and never merged.
    Sentinel,
    /// Nothing: its number can be reused.
    Vacant,
}

/// A block of memory. Limited to 32 bytes, because there is one per live block and at most one more for the gap behind
/// it, and so that none straddles two cache lines. The links of the free lists are elsewhere
/// ([`SizeClasses`](super::size_classes::SizeClasses)).
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(super) struct Header {
    /// Its start, in units from address 0, times four, plus the state.
    start: u64,
    /// In units.
    pub(super) size: u32,
    /// The neighbours by address.
    pub(super) before: Id,
    pub(super) after: Id,
    /// For a free block, the user of its last use; for a used one, the next in its chain of the
    /// [index](super::index::Index).
    user_or_next: u32,
    /// For a free block, the epoch of its last use; for a used one of the central heap, the cache that requested it.
    epoch: u64,
}

const _: () = assert!(size_of::<Header>() == 32);

impl Header {
    #[inline]
    pub(super) fn new(start: u64, size: u32, state: State, last_use: LastUse) -> Self {
        Self {
            start: start << 2 | state as u64,
            size,
            before: NONE,
            after: NONE,
            user_or_next: last_use.user,
            epoch: last_use.epoch,
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
            2 => State::Sentinel,
            _ => State::Vacant,
        }
    }

    #[inline]
    pub(super) fn set_state(&mut self, state: State) {
        self.start = self.start & !3 | state as u64;
    }

    /// Its last use, if it is free.
    #[inline]
    pub(super) fn last_use(&self) -> LastUse {
        LastUse {
            epoch: self.epoch,
            user: self.user_or_next,
        }
    }

    #[inline]
    pub(super) fn set_last_use(&mut self, last_use: LastUse) {
        self.epoch = last_use.epoch;
        self.user_or_next = last_use.user;
    }

    /// The next in the chain of the index, if it is used.
    #[inline]
    pub(super) fn next(&self) -> Id {
        self.user_or_next
    }

    /// Overwrites the user of its last use.
    #[inline]
    pub(super) fn set_next(&mut self, next: Id) {
        self.user_or_next = next;
    }

    /// The cache that requested it, if it is used.
    #[inline]
    pub(super) fn asker(&self) -> CacheId {
        self.epoch as CacheId
    }

    /// Overwrites the epoch of its last use.
    #[inline]
    pub(super) fn set_asker(&mut self, cache: CacheId) {
        self.epoch = cache.into();
    }

    /// Removes its first units, which go to another block.
    #[inline]
    pub(super) fn move_start(&mut self, units: u32) {
        self.start += u64::from(units) << 2;
        self.size -= units;
    }

    /// The unit after its last one.
    #[inline]
    pub(super) fn end(&self) -> u64 {
        self.start() + u64::from(self.size)
    }
}

/// All headers of a heap.
#[derive(Debug, Default)]
pub(super) struct Headers {
    all: Vec<Header>,
    /// Vacant ones, chained by `after`.
    vacant: Option<Id>,
}

impl Headers {
    #[inline]
    pub(super) fn add(&mut self, header: Header) -> Id {
        if let Some(id) = self.vacant {
            let next = self[id].after;
            self.vacant = (next != NONE).then_some(next);
            let place = &mut self[id];
            // Field by field: a header built on the stack would be copied with wider loads than its stores, which
            // defeats store forwarding.
            place.start = header.start;
            place.size = header.size;
            place.before = header.before;
            place.after = header.after;
            place.user_or_next = header.user_or_next;
            place.epoch = header.epoch;
            return id;
        }
        self.push(header)
    }

    #[cold]
    fn push(&mut self, header: Header) -> Id {
        if self.all.len() == self.all.capacity() {
            // Only by a sixteenth, because unused capacity counts as bookkeeping.
            self.all.reserve_exact((self.all.len() / 16).max(64));
        }
        self.all.push(header);
        (self.all.len() - 1) as Id
    }

    #[inline]
    pub(super) fn remove(&mut self, id: Id) {
        let next = self.vacant.unwrap_or(NONE);
        let header = &mut self[id];
        header.set_state(State::Vacant);
        header.after = next;
        self.vacant = Some(id);
    }

    /// Makes two headers neighbours.
    #[inline]
    pub(super) fn link(&mut self, before: Id, after: Id) {
        self[before].after = after;
        self[after].before = before;
    }

    /// All current numbers are below this.
    pub(super) fn room(&self) -> usize {
        self.all.capacity()
    }

    /// Host bytes that the headers take.
    pub(super) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Header>()
    }
}

impl std::ops::Index<Id> for Headers {
    type Output = Header;

    #[inline]
    fn index(&self, id: Id) -> &Header {
        &self.all[id as usize]
    }
}

impl std::ops::IndexMut<Id> for Headers {
    #[inline]
    fn index_mut(&mut self, id: Id) -> &mut Header {
        &mut self.all[id as usize]
    }
}
