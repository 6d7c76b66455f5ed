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
    /// What other lanes want of it.
    pub(super) wanted: Wanted,
    /// Units of small blocks of other lanes that were given back on this one's stream since the last mark, counted
    /// while others want marks.
    unmarked: AtomicU32,
}

/// What is done for others after one of them was short of memory: so often, and no more until it happens again.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    looks: AtomicU32,
    marks: AtomicU32,
}

/// Looks for one that was short of memory.
const LOOKS: u32 = 16;
/// Marks for one that was short of memory.
const MARKS: u32 = 64;

impl Wanted {
    /// Somebody has found nothing that was known to be done.
    pub(super) fn looks(&self) {
        self.looks.store(LOOKS, Ordering::Relaxed);
    }

    /// Somebody needs to know more than looks can tell while the stream is busy.
    pub(super) fn marks(&self) {
        self.marks.store(MARKS, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn has_looks(&self) -> bool {
        self.looks.load(Ordering::Relaxed) > 0
    }

    #[inline]
    pub(super) fn has_marks(&self) -> bool {
        self.marks.load(Ordering::Relaxed) > 0
    }
}

/// Takes one off. Two at a time may count as one.
fn less(counter: &AtomicU32) {
    let value = counter.load(Ordering::Relaxed);
    counter.store(value.saturating_sub(1), Ordering::Relaxed);
}

impl Slot {
    /// A small block of another lane was given back on this one's stream. Says whether it is time for a mark.
    pub(super) fn gave_elsewhere(&self, units: u32) -> bool {
        if !self.wanted.has_marks() {
            return false;
        }
        let before = self.unmarked.fetch_add(units, Ordering::Relaxed);
        u64::from(before.saturating_add(units)) >= PAGE_UNITS / 4
    }

    /// A mark was set.
    pub(super) fn marked(&self) {
        self.unmarked.store(0, Ordering::Relaxed);
        less(&self.wanted.marks);
    }

    /// The stream was looked at.
    pub(super) fn looked_at(&self) {
        less(&self.wanted.looks);
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
            wanted: Wanted::default(),
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
