//! A lock that costs its usual thread no locked instruction.
//!
//! A lane is nearly always used by one thread. One locked instruction costs 9 ns on some machines, as
//! much as the whole work inside, so the lane belongs to a thread: that one only marks itself busy and
//! looks whether it still is the owner. Anybody else closes the gate, takes the lane away from its owner,
//! makes all processors pass a barrier ([`barrier::heavy`]), and waits until the owner is not busy. From
//! then on all come through the gate, an ordinary mutex, until one thread has come so often in a row that
//! the lane becomes its own.
//!
//! A thread may be stopped between its look at the owner and its mark, for as long as the system likes, and
//! mark itself busy when the lane has long been another's. So each term of ownership has a mark of its own,
//! and there are only so many terms; a lane that has had them all is nobody's for good.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::barrier;
use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, UnsafeCell, relax};

/// Nobody's number; threads count from 1.
const NOBODY: u64 = 0;

/// So often in a row a thread comes through the gate before the lane becomes its own, at first.
const FIRST_ROW: u32 = if cfg!(loom) { 1 } else { 256 };
/// Twice as often after each time that the lane was taken away, up to this.
const LONGEST_ROW: u32 = 1 << 20;

/// Terms of ownership.
const TERMS: usize = 8;

pub(super) struct Lock<T> {
    /// The owner's number times [`TERMS`], and the number of its term.
    owner: AtomicU64,
    /// By term. Only the owner of that term writes it.
    busy: [AtomicBool; TERMS],
    /// Not a spin lock: whoever has it may be stopped by the system, and then the others should sleep.
    gate: Mutex<Turn>,
    value: UnsafeCell<T>,
}

/// Who came through the gate.
struct Turn {
    last: u64,
    row: u32,
    needed: u32,
    /// Terms so far.
    terms: u64,
}

// SAFETY: the value is reached by one thread at a time, see `lock`; it is not shared, so `Send` is enough.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// The lock is the own of this thread at first.
    pub(super) fn new(thread: u64, value: T) -> Self {
        let owner = if barrier::is_there() {
            thread * TERMS as u64
        } else {
            NOBODY
        };
        Self {
            owner: AtomicU64::new(owner),
            busy: std::array::from_fn(|_| AtomicBool::new(false)),
            gate: Mutex::new(Turn {
                last: NOBODY,
                row: 0,
                needed: FIRST_ROW,
                terms: 1,
            }),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until this thread alone has the value. `thread` must be the calling thread's number
    /// ([`thread_number`]), and the thread must not have the value already.
    ///
    /// [`thread_number`]: super::thread::number
    #[inline]
    pub(super) fn lock(&self, thread: u64) -> Guard<'_, T> {
        // Acquire: whoever gave the lane to this thread wrote to the value before.
        let owner = self.owner.load(Ordering::Acquire);
        if owner / TERMS as u64 == thread {
            let busy = self.mark(owner);
            busy.store(true, Ordering::Relaxed);
            barrier::light();
            // Either this sees that the lane was taken away, or whoever did that sees that it is busy.
            if self.owner.load(Ordering::Relaxed) == owner {
                return Guard {
                    lock: self,
                    way: Way::Owner(busy),
                };
            }
            busy.store(false, Ordering::Release);
        }
        self.lock_gate(thread)
    }

    /// The mark of a term.
    #[inline]
    fn mark(&self, owner: u64) -> &AtomicBool {
        &self.busy[owner as usize % TERMS]
    }

    #[cold]
    fn lock_gate(&self, thread: u64) -> Guard<'_, T> {
        let mut turn = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != NOBODY {
            self.owner.store(NOBODY, Ordering::Relaxed);
            barrier::heavy();
            let mut tries = 0_u32;
            while self.mark(owner).load(Ordering::Acquire) {
                relax(&mut tries);
            }
            turn.needed = (turn.needed * 2).min(LONGEST_ROW);
            turn.row = 0;
        }
        if turn.last == thread {
            turn.row += 1;
        } else {
            turn.last = thread;
            turn.row = 0;
        }
        Guard {
            lock: self,
            way: Way::Gate(turn),
        }
    }
}

/// How the value was reached.
enum Way<'a> {
    /// By the owner, who has this mark.
    Owner(&'a AtomicBool),
    Gate(MutexGuard<'a, Turn>),
}

/// The value, until it is dropped.
pub(super) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    way: Way<'a>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard is one thread's alone, see `Lock::lock`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is one thread's alone, see `Lock::lock`.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match &mut self.way {
            Way::Owner(busy) => busy.store(false, Ordering::Release),
            Way::Gate(turn) => {
                // The gate opens after this.
                if turn.row >= turn.needed && turn.terms < TERMS as u64 && barrier::is_there() {
                    turn.row = 0;
                    let owner = turn.last * TERMS as u64 + turn.terms;
                    turn.terms += 1;
                    self.lock.owner.store(owner, Ordering::Release);
                }
            }
        }
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").finish_non_exhaustive()
    }
}

// Loom compiles this file too, and has tests of its own.
#[cfg(all(test, not(loom)))]
#[path = "lock/tests.rs"]
mod tests;
