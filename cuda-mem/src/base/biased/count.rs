//! A reference count that needs no locked instruction on the threads that use it most.
//!
//! Each of the first threads has a slot that only it writes; the references of all other threads are counted in one
//! word, as usual. A reference that was taken on one thread may be released on another: it is subtracted from that
//! thread's slot, or from the word if the slot has none. So no slot goes below zero, and the word never exceeds the
//! number of references.
//!
//! When the last reference of the word is being released, the slots are merged into it: no thread may use its slot any
//! more ([`barrier::heavy`]), and from then on the word counts everything. Until then the word counts at least one, so
//! that the merging thread has a reference of its own, and there are no others if the slots count none.
//!
//! This is known as biased reference counting.

#![forbid(unsafe_code)]

use super::barrier;
use super::is_forked;
use super::sync::{AtomicU64, Ordering, relax};

/// The slots count too.
const SLOTTED: u64 = 1;
/// The slots are being merged.
const MERGING: u64 = 2;
/// One reference in the word.
const ONE: u64 = 4;

/// The slot is free; thread numbers start at 1.
const NOBODY: u64 = 0;
/// The slot is closed for good.
const CLOSED: u64 = u64::MAX;

/// Everything is atomic, also what is between: a thread that has released its reference may be stopped before it
/// returns, while another one ends what it had borrowed.
#[derive(Debug)]
pub(crate) struct Count<const SLOTS: usize> {
    word: AtomicU64,
    _apart: [AtomicU64; 15],
    slots: [Slot; SLOTS],
}

/// Two cache lines long, because processors fetch two together.
#[derive(Debug)]
struct Slot {
    owner: AtomicU64,
    /// Not 0 while the owner is using the count. Only the owner writes it.
    busy: AtomicU64,
    count: AtomicU64,
    _apart: [AtomicU64; 13],
}

const _: () = assert!(cfg!(loom) || size_of::<Slot>() == 128);

impl<const SLOTS: usize> Count<SLOTS> {
    /// One reference, counted in the word.
    pub(super) fn new() -> Self {
        let is_slotted = barrier::is_there();
        let owner = if is_slotted { NOBODY } else { CLOSED };
        Self {
            word: AtomicU64::new(if is_slotted { ONE | SLOTTED } else { ONE }),
            _apart: apart(),
            slots: std::array::from_fn(|_| Slot {
                owner: AtomicU64::new(owner),
                busy: AtomicU64::new(0),
                count: AtomicU64::new(0),
                _apart: apart(),
            }),
        }
    }

    /// Adds a reference, for a caller that has one. Overflow would take centuries.
    #[inline]
    pub(super) fn retain(&self) {
        self.word.fetch_add(ONE, Ordering::Relaxed);
    }

    /// As [`retain`](Self::retain), in the slot of the calling thread, which has this number.
    #[inline]
    pub(super) fn retain_by(&self, thread: u64) {
        if !self.change(thread, |count| Some(count + 1)) {
            self.retain();
        }
    }

    /// Adds a reference, for a caller that has none but keeps the memory, unless all are gone.
    pub(super) fn try_retain(&self) -> bool {
        let relaxed = Ordering::Relaxed;
        let mut word = self.word.load(relaxed);
        while word != 0 {
            let more = word.wrapping_add(ONE);
            match self
                .word
                .compare_exchange_weak(word, more, relaxed, relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Releases a reference. Returns whether it was the last of all; if not, the count may be gone already. Calls
    /// `thread` for the calling thread's number only if needed.
    #[inline]
    pub(super) fn release(&self, thread: impl FnOnce() -> u64) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word == ONE | SLOTTED {
                let merging = word | MERGING;
                match self.exchange(word, merging) {
                    Ok(_) => return self.merge(thread()),
                    Err(now) => word = now,
                }
                continue;
            }
            let less = word.wrapping_sub(ONE);
            match self.exchange(word, less) {
                Ok(_) => return self.was_last(less),
                Err(now) => word = now,
            }
        }
    }

    #[inline]
    fn exchange(&self, from: u64, to: u64) -> Result<u64, u64> {
        self.word
            .compare_exchange_weak(from, to, Ordering::Release, Ordering::Relaxed)
    }

    /// As [`release`](Self::release), in the slot of the calling thread, which has this number.
    #[inline]
    pub(super) fn release_by(&self, thread: u64) -> bool {
        // While slots count, it is not the last: the word counts at least one.
        !self.change(thread, |count| count.checked_sub(1)) && self.release_counted(thread)
    }

    #[cold]
    #[inline(never)]
    fn release_counted(&self, thread: u64) -> bool {
        self.release(|| thread)
    }

    /// Changes this thread's slot, if it has one that still counts, and if there is a change. Returns whether it did.
    #[inline]
    fn change(&self, thread: u64, change: impl Fn(u64) -> Option<u64>) -> bool {
        let slot = &self.slots[thread as usize % SLOTS];
        if slot.owner.load(Ordering::Relaxed) != thread {
            return self.claim_and_change(thread, change);
        }
        slot.busy.store(1, Ordering::Relaxed);
        barrier::light();
        // Either this sees that the slot is closed, or the thread that closed it sees that it is busy.
        let is_open = slot.owner.load(Ordering::Relaxed) == thread;
        let changed = change(slot.count.load(Ordering::Relaxed)).filter(|_| is_open);
        if let Some(count) = changed {
            slot.count.store(count, Ordering::Relaxed);
        }
        slot.busy.store(0, Ordering::Release);
        changed.is_some()
    }

    /// As [`change`](Self::change), if the slot is not yet this thread's. Separate, so that the usual path needs few
    /// registers.
    #[cold]
    #[inline(never)]
    fn claim_and_change(&self, thread: u64, change: impl Fn(u64) -> Option<u64>) -> bool {
        let slot = &self.slots[thread as usize % SLOTS];
        slot.claim(thread) && self.change(thread, change)
    }

    /// Merges the slots into the word, and releases the caller's reference. Returns whether it was the last.
    #[cold]
    fn merge(&self, thread: u64) -> bool {
        let mut is_used_elsewhere = false;
        for slot in &self.slots {
            let owner = slot.owner.swap(CLOSED, Ordering::Relaxed);
            is_used_elsewhere |= owner != NOBODY && owner != thread;
        }
        // This takes microseconds. In a fork no other thread uses its slot, and one that was busy stays so; the
        // reference it was about to release has no owner there, and is never released.
        let has_others = is_used_elsewhere && !is_forked();
        if has_others {
            barrier::heavy();
        }
        let mut sum = 0;
        for slot in &self.slots {
            let mut tries = 0;
            while has_others && slot.busy.load(Ordering::Acquire) != 0 {
                relax(&mut tries);
            }
            sum += slot.count.load(Ordering::Relaxed);
        }
        let change = (sum * ONE).wrapping_sub(ONE | SLOTTED | MERGING);
        let word = self.word.fetch_add(change, Ordering::AcqRel);
        self.was_last(word.wrapping_add(change))
    }

    /// Whether nothing is counted any more, given the word after a release. If so, what other threads did with the
    /// object happens before its end.
    #[inline]
    fn was_last(&self, word: u64) -> bool {
        // A load instead of a fence: ThreadSanitizer does not support fences.
        word == 0 && self.word.load(Ordering::Acquire) == 0
    }
}

fn apart<const WORDS: usize>() -> [AtomicU64; WORDS] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

impl Slot {
    /// Claims the slot for this thread, if it is free.
    #[cold]
    fn claim(&self, thread: u64) -> bool {
        let claimed =
            self.owner
                .compare_exchange(NOBODY, thread, Ordering::Relaxed, Ordering::Relaxed);
        claimed.is_ok()
    }
}

// Loom compiles this file too, and has tests of its own.
#[cfg(all(test, not(loom)))]
#[path = "count/tests.rs"]
mod tests;
