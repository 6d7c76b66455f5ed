//! A biased lock: it costs its usual thread no locked instruction.
//!
//! A stream's cache is nearly always used by one thread. One locked instruction costs 9 ns on some machines, as much as
//! the whole work inside, so the lock is biased to a thread. That thread only marks itself busy and checks that it is
//! still the owner. Any other thread takes the slow path, an ordinary mutex: it revokes the bias, makes all processors
//! pass a barrier ([`barrier::heavy`]), and waits until the owner is not busy. From then on all threads take the slow
//! path, until one of them has come so often in a row that the lock is biased to it.
//!
//! A thread may be stopped between its look at the owner and its mark, for as long as the system likes, and mark itself
//! busy when the lock has long been another's. So each owner has a flag of its own, which it has again when the lock is
//! biased to it once more. There are few flags: a thread that finds all of them taken by others never becomes the owner.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

use super::barrier;
use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, UnsafeCell, relax};
use super::thread::is_guest;

/// Nobody's number; threads count from 1.
const NOBODY: u64 = 0;

/// How often in a row a thread takes the slow path before the lock is biased to it, at first.
const FIRST_STREAK: u32 = if cfg!(loom) { 1 } else { 256 };
/// Twice as often after each time that the bias was revoked, up to this: then the streak costs a few times what the
/// revocation does. More would leave a busy thread on the slow path for long after another one came by.
const LONGEST_STREAK: u32 = 1 << 10;

/// Threads that can become owners.
const OWNERS: usize = 8;

pub(crate) struct BiasedLock<T> {
    /// The owner's number times [`OWNERS`], and the number of its flag.
    owner: AtomicU64,
    /// Each is written by one thread only.
    busy: [AtomicBool; OWNERS],
    /// Not a spin lock: whoever has it may be stopped by the system, and then the others should sleep.
    slow: Mutex<Slow>,
    /// Threads that wait for it.
    waiting: AtomicU64,
    value: UnsafeCell<T>,
}

/// Who took the slow path.
struct Slow {
    last: u64,
    streak: u32,
    needed: u32,
    /// A guest has the lock, whose uses are not counted.
    is_guest: bool,
    /// The threads that write the flags.
    owners: [u64; OWNERS],
}

impl Slow {
    /// The number of the thread's flag, which it has for good.
    fn flag_of(&mut self, thread: u64) -> Option<usize> {
        let flag = self
            .owners
            .iter()
            .position(|owner| *owner == thread || *owner == NOBODY)?;
        self.owners[flag] = thread;
        Some(flag)
    }
}

/// The word of an owner.
fn owner(thread: u64, flag: usize) -> u64 {
    thread * OWNERS as u64 + flag as u64
}

// SAFETY: the value is reached by one thread at a time, see `lock`; it is not shared, so `Send` is enough.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    /// The lock is the own of this thread at first.
    pub(crate) fn new(thread: u64, value: T) -> Self {
        let mut slow = Slow {
            last: NOBODY,
            streak: 0,
            needed: FIRST_STREAK,
            is_guest: false,
            owners: [NOBODY; OWNERS],
        };
        let flag = slow.flag_of(thread).filter(|_| barrier::is_there());
        let owner = flag.map_or(NOBODY, |flag| owner(thread, flag));
        Self {
            owner: AtomicU64::new(owner),
            busy: std::array::from_fn(|_| AtomicBool::new(false)),
            slow: Mutex::new(slow),
            waiting: AtomicU64::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until this thread alone has the value. `thread` must be the calling thread's number
    /// ([`thread_number`]), and the thread must not have the value already.
    ///
    /// [`thread_number`]: super::thread::number
    #[inline]
    pub(crate) fn lock(&self, thread: u64) -> Guard<'_, T> {
        match self.lock_by_owner(thread) {
            Some(guard) => guard,
            None => self.lock_slowly(thread),
        }
    }

    /// Whether the lock is biased to this thread now.
    #[inline]
    pub(crate) fn is_biased_to(&self, thread: u64) -> bool {
        self.owner.load(Ordering::Relaxed) / OWNERS as u64 == thread
    }

    /// As [`lock`](Self::lock), if the lock is biased to this thread.
    #[inline]
    pub(crate) fn lock_by_owner(&self, thread: u64) -> Option<Guard<'_, T>> {
        // Acquire: whoever gave the value to this thread wrote to the value before.
        let owner = self.owner.load(Ordering::Acquire);
        if owner / OWNERS as u64 == thread {
            let busy = self.busy_flag(owner);
            debug_assert!(
                !busy.load(Ordering::Relaxed),
                "the thread has the value already"
            );
            busy.store(true, Ordering::Relaxed);
            barrier::light();
            // Either this sees that the value was taken away, or whoever did that sees that it is busy. Nobody gave it back
            // meanwhile: a thread becomes the owner by what it does itself.
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

    /// The mark of an owner.
    #[inline]
    fn busy_flag(&self, owner: u64) -> &AtomicBool {
        &self.busy[owner as usize % OWNERS]
    }

    #[cold]
    fn lock_slowly(&self, thread: u64) -> Guard<'_, T> {
        let mut slow = match self.slow.try_lock() {
            Ok(slow) => slow,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                self.waiting.fetch_add(1, Ordering::Relaxed);
                let slow = self.slow.lock().unwrap_or_else(PoisonError::into_inner);
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                slow
            }
        };
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != NOBODY {
            self.owner.store(NOBODY, Ordering::Relaxed);
            barrier::heavy();
            let mut tries = 0_u32;
            while self.busy_flag(owner).load(Ordering::Acquire) {
                relax(&mut tries);
            }
            if is_guest(thread) {
                // The next use by that thread is enough.
                slow.last = owner / OWNERS as u64;
                slow.streak = slow.needed;
            } else {
                slow.needed = (slow.needed * 2).min(LONGEST_STREAK);
                slow.streak = 0;
            }
        }
        if is_guest(thread) {
            slow.is_guest = true;
        } else if slow.last == thread {
            slow.streak += 1;
        } else {
            slow.last = thread;
            slow.streak = 0;
        }
        Guard {
            lock: self,
            held: Held::Slowly(ManuallyDrop::new(slow)),
        }
    }
}

impl<T> BiasedLock<T> {
    /// Biases the lock to the thread that has it, if that has come often.
    #[cold]
    #[inline(never)]
    fn unlock_slowly(&self, mut slow: MutexGuard<'_, Slow>) {
        if std::mem::take(&mut slow.is_guest) || slow.streak < slow.needed || !barrier::is_there() {
            return;
        }
        slow.streak = 0;
        let last = slow.last;
        if let Some(flag) = slow.flag_of(last) {
            // Other threads come to the mutex after this.
            self.owner.store(owner(last, flag), Ordering::Release);
        }
    }
}

/// How the value was reached.
enum Held<'a> {
    /// By the owner, who has this mark.
    ByOwner(&'a AtomicBool),
    /// Dropped by the guard, apart from the usual way.
    Slowly(ManuallyDrop<MutexGuard<'a, Slow>>),
}

/// The value, until it is dropped.
pub(crate) struct Guard<'a, T> {
    lock: &'a BiasedLock<T>,
    held: Held<'a>,
}

impl<T> Guard<'_, T> {
    /// Whether another thread waits for the mutex. The system's mutex is not fair: while one thread sleeps, another one
    /// takes it many times, and never waits itself.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.lock.waiting.load(Ordering::Relaxed) > 0
    }
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
            // SAFETY: it is not used again.
            Held::Slowly(slow) => self.lock.unlock_slowly(unsafe { ManuallyDrop::take(slow) }),
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
#[path = "lock/tests.rs"]
mod tests;
