//! The lanes of an arena by number. None goes before the arena does, so all may be read without a lock.

#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::PAGE_UNITS;
use super::counters::Counters;
use super::lane::Lane;
use super::lock::Lock;
use super::owners::LaneId;

/// A lane, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Slot {
    pub(super) lock: Lock<Lane>,
    pub(super) counters: Counters,
    /// So many marks may be set yet for others.
    wanted: AtomicU32,
    /// Units of small blocks of other lanes that were given back on this one's stream since the last mark.
    unmarked: AtomicU32,
}

/// So many marks are set for others after they were short of memory.
const WANTED: u32 = 64;

impl Slot {
    /// Others are short of memory, and this lane's stream may be done with some.
    pub(super) fn want_marks(&self) {
        self.wanted.store(WANTED, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn wants_marks(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// A small block of another lane was given back on this one's stream. Says whether it is time for a mark.
    pub(super) fn gave_elsewhere(&self, units: u32) -> bool {
        let unmarked = self.unmarked.fetch_add(units, Ordering::Relaxed) + units;
        u64::from(unmarked) >= PAGE_UNITS / 4 && self.wants_marks()
    }

    /// A mark was set.
    pub(super) fn marked(&self) {
        self.unmarked.store(0, Ordering::Relaxed);
        let wanted = self.wanted.load(Ordering::Relaxed);
        // Two at a time may count as one.
        self.wanted
            .store(wanted.saturating_sub(1), Ordering::Relaxed);
    }
}

/// So many are found in one step; few programs have more streams.
const FIRST: usize = 64;

#[derive(Debug)]
pub(super) struct Slots {
    first: [OnceLock<Box<Slot>>; FIRST],
    rest: boxcar::Vec<Box<Slot>>,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            first: [const { OnceLock::new() }; FIRST],
            rest: boxcar::Vec::new(),
        }
    }
}

impl Slots {
    /// Adds the next one. By one thread at a time.
    pub(super) fn push(&self, thread: u64) -> LaneId {
        let slot = Box::new(Slot {
            lock: Lock::new(thread, Lane::default()),
            counters: Counters::default(),
            wanted: AtomicU32::new(0),
            unmarked: AtomicU32::new(0),
        });
        let id = self.count();
        match self.first.get(id) {
            Some(place) => {
                let place = place.set(slot);
                debug_assert!(place.is_ok(), "two threads at a time");
            }
            None => {
                self.rest.push(slot);
            }
        }
        id as LaneId
    }

    #[inline]
    pub(super) fn get(&self, id: LaneId) -> &Slot {
        let id = id as usize;
        match self.first.get(id).and_then(OnceLock::get) {
            Some(slot) => slot,
            None => &self.rest[id - FIRST],
        }
    }

    pub(super) fn count(&self) -> usize {
        let first = self.first.iter().take_while(|place| place.get().is_some());
        first.count() + self.rest.count()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LaneId, &Slot)> {
        let first = self.first.iter().filter_map(|place| place.get());
        let all = first.chain(self.rest.iter().map(|(_, slot)| slot));
        all.enumerate().map(|(id, slot)| (id as LaneId, &**slot))
    }
}
