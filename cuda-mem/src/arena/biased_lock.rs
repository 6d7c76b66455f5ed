//! A biased lock: it costs its usual thread no locked instruction.
//!
//! A stream's cache is nearly always used by one thread. One locked instruction costs 9 ns on some machines, as much as
//! the whole work inside, so the lock is biased to a thread. That thread only marks itself busy and checks that it is
//! still the owner. Any other thread takes the slow path, an ordinary mutex: it revokes the bias, makes all processors
//! pass a barrier ([`barrier::heavy`]), and waits until the owner is not busy. From then on all threads take the slow
//! path, until one of them has come so often in a row that the lock is biased to it.
//!
//! A thread may be stopped between its look at the owner and its mark, for as long as the system likes, and mark itself
//! busy when the lock has long been another's. So each generation of ownership has a flag of its own, and the number of
//! generations is limited; after the last one the lock is an ordinary mutex.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::barrier;
use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, UnsafeCell, relax};

/// Nobody's number; threads count from 1.
const NOBODY: u64 = 0;

/// How often in a row a thread takes the slow path before the lock is biased to it, at first.
const FIRST_STREAK: u32 = if cfg!(loom) { 1 } else { 256 };
/// Twice as often after each time that the bias was revoked, up to this.
const LONGEST_STREAK: u32 = 1 << 20;

/// Generations of ownership.
const GENERATIONS: usize = 8;

pub(super) struct BiasedLock<T> {
    /// The owner's number times [`GENERATIONS`], and the number of its generation.
    owner: AtomicU64,
    /// By generation. Only the owner of that generation writes it.
    busy: [AtomicBool; GENERATIONS],
    /// Not a spin lock: whoever has it may be stopped by the system, and then the others should sleep.
    slow: Mutex<Slow>,
    value: UnsafeCell<T>,
}

/// Who took the slow path.
struct Slow {
    last: u64,
    streak: u32,
    needed: u32,
    /// Generations so far.
    generations: u64,
}

// SAFETY: the value is reached by one thread at a time, see `lock`; it is not shared, so `Send` is enough.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    /// The lock is the own of this thread at first.
    pub(super) fn new(thread: u64, value: T) -> Self {
        let owner = if barrier::is_there() {
            thread * GENERATIONS as u64
        } else {
            NOBODY
        };
        Self {
            owner: AtomicU64::new(owner),
            busy: std::array::from_fn(|_| AtomicBool::new(false)),
            slow: Mutex::new(Slow {
                last: NOBODY,
                streak: 0,
                needed: FIRST_STREAK,
                generations: 1,
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
        match self.lock_by_owner(thread) {
            Some(guard) => guard,
            None => self.lock_slowly(thread),
        }
    }

    /// Whether the lock is biased to this thread now.
    #[inline]
    pub(super) fn is_biased_to(&self, thread: u64) -> bool {
        self.owner.load(Ordering::Relaxed) / GENERATIONS as u64 == thread
    }

    /// As [`lock`](Self::lock), if the lock is biased to this thread.
    #[inline]
    pub(super) fn lock_by_owner(&self, thread: u64) -> Option<Guard<'_, T>> {
        // Acquire: whoever gave the value to this thread wrote to the value before.
        let owner = self.owner.load(Ordering::Acquire);
        if owner / GENERATIONS as u64 == thread {
            let busy = self.busy_flag(owner);
            busy.store(true, Ordering::Relaxed);
            barrier::light();
            // Either this sees that the value was taken away, or whoever did that sees that it is busy.
            if self.owner.load(Ordering::Relaxed) == owner {
                return Some(Guard {
                    lock: self,
                    held: Held::ByOwner(busy),
                });
            }
            busy.store(false, Ordering::Release);
        }
        None
    }

    /// The mark of a generation.
    #[inline]
    fn busy_flag(&self, owner: u64) -> &AtomicBool {
        &self.busy[owner as usize % GENERATIONS]
    }

    #[cold]
    fn lock_slowly(&self, thread: u64) -> Guard<'_, T> {
        let mut slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != NOBODY {
            self.owner.store(NOBODY, Ordering::Relaxed);
            barrier::heavy();
            let mut tries = 0_u32;
            while self.busy_flag(owner).load(Ordering::Acquire) {
                relax(&mut tries);
            }
            slow.needed = (slow.needed * 2).min(LONGEST_STREAK);
            slow.streak = 0;
        }
        if slow.last == thread {
            slow.streak += 1;
        } else {
            slow.last = thread;
            slow.streak = 0;
        }
        Guard {
            lock: self,
            held: Held::Slowly(slow),
        }
    }
}

/// How the value was reached.
enum Held<'a> {
    /// By the owner, who has this mark.
    ByOwner(&'a AtomicBool),
    Slowly(MutexGuard<'a, Slow>),
}

/// The value, until it is dropped.
pub(super) struct Guard<'a, T> {
    lock: &'a BiasedLock<T>,
    held: Held<'a>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard is one thread's alone, see `BiasedLock::lock`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard is one thread's alone, see `BiasedLock::lock`.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match &mut self.held {
            Held::ByOwner(busy) => busy.store(false, Ordering::Release),
            Held::Slowly(slow) => {
                // The slow opens after this.
                if slow.streak >= slow.needed
                    && slow.generations < GENERATIONS as u64
                    && barrier::is_there()
                {
                    slow.streak = 0;
                    let owner = slow.last * GENERATIONS as u64 + slow.generations;
                    slow.generations += 1;
                    self.lock.owner.store(owner, Ordering::Release);
                }
            }
        }
    }
}

impl<T> fmt::Debug for BiasedLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BiasedLock").finish_non_exhaustive()
    }
}

// Loom compiles this file too, and has tests of its own.
#[cfg(all(test, not(loom)))]
#[path = "biased_lock/tests.rs"]
mod tests;
