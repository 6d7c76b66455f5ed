//! A lock that costs its usual thread no locked instruction.
//!
//! A lane is nearly always used by one thread. One locked instruction costs 9 ns on some machines, as
//! much as the whole work inside, so the lane belongs to a thread: that one only marks itself busy and
//! looks whether it still is the owner. Anybody else closes the gate, takes the lane away from its owner,
//! makes all processors pass a barrier ([`barrier::heavy`]), and waits until the owner is not busy. From
//! then on all come through the gate, an ordinary spin lock, until one thread has come so often in a row that
//! the lane becomes its own.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::barrier;
use super::sync::{AtomicBool, AtomicU64, Ordering, UnsafeCell, relax};

/// Nobody's number; threads count from 1.
const NOBODY: u64 = 0;

/// So often in a row a thread comes through the gate before the lane becomes its own, at first.
const FIRST_ROW: u32 = if cfg!(loom) { 1 } else { 256 };
/// Twice as often after each time that the lane was taken away, up to this.
const LONGEST_ROW: u32 = 1 << 20;

pub(super) struct Lock<T> {
    owner: AtomicU64,
    /// Only the owner writes it.
    busy: AtomicBool,
    gate: AtomicBool,
    /// Changed behind the closed gate only.
    turn: UnsafeCell<Turn>,
    value: UnsafeCell<T>,
}

/// Who came through the gate.
struct Turn {
    last: u64,
    row: u32,
    needed: u32,
}

// SAFETY: the value is reached by one thread at a time, see `lock`; it is not shared, so `Send` is enough.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// The lock is the own of this thread at first.
    pub(super) fn new(thread: u64, value: T) -> Self {
        let owner = if barrier::is_there() { thread } else { NOBODY };
        Self {
            owner: AtomicU64::new(owner),
            busy: AtomicBool::new(false),
            gate: AtomicBool::new(false),
            turn: UnsafeCell::new(Turn {
                last: NOBODY,
                row: 0,
                needed: FIRST_ROW,
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
        // Acquire: whoever gave the lane (back) to this thread wrote to the value before.
        if self.owner.load(Ordering::Acquire) == thread {
            self.busy.store(true, Ordering::Relaxed);
            barrier::light();
            // Either this sees that the lane was taken away, or whoever did that sees that it is busy.
            if self.owner.load(Ordering::Acquire) == thread {
                return Guard {
                    lock: self,
                    gate: false,
                };
            }
            self.busy.store(false, Ordering::Release);
        }
        self.lock_gate(thread)
    }

    #[cold]
    fn lock_gate(&self, thread: u64) -> Guard<'_, T> {
        let mut tries = 0_u32;
        while self.gate.swap(true, Ordering::Acquire) {
            while self.gate.load(Ordering::Relaxed) {
                relax(&mut tries);
            }
        }
        // SAFETY: the gate is closed, and only those behind it use the turn.
        let turn = unsafe { &mut *self.turn.get() };
        if self.owner.load(Ordering::Relaxed) != NOBODY {
            self.owner.store(NOBODY, Ordering::Relaxed);
            barrier::heavy();
            while self.busy.load(Ordering::Acquire) {
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
            gate: true,
        }
    }

    /// What happens when one who came through the gate leaves.
    #[inline]
    fn open_gate(&self) {
        // SAFETY: the gate is closed by this thread.
        let turn = unsafe { &mut *self.turn.get() };
        if turn.row >= turn.needed && barrier::is_there() {
            turn.row = 0;
            self.owner.store(turn.last, Ordering::Release);
        }
        self.gate.store(false, Ordering::Release);
    }
}

/// The value, until it is dropped.
pub(super) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Came through the gate, and not as the owner.
    gate: bool,
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
        if self.gate {
            self.lock.open_gate();
        } else {
            self.lock.busy.store(false, Ordering::Release);
        }
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").finish_non_exhaustive()
    }
}
