//! A biased lock: its usual thread needs no locked instruction.
//!
//! A stream's cache is nearly always used by one thread. One locked instruction costs 9 ns on some machines, as much
//! as the whole work inside, so the lock is biased to a thread. That thread only marks itself busy and checks that it
//! is still the owner. Any other thread takes the slow path, an ordinary mutex: it revokes the bias, makes all
//! processors pass a barrier ([`barrier::heavy`]), and waits until the owner is not busy. From then on all threads
//! take the slow path, until one of them has taken it often enough in a row for the lock to be biased to it.
//!
//! A thread may be stopped for any length of time between its look at the owner and its mark, and may mark itself busy
//! long after the lock has passed to another thread. So each owner has its own flag, which it gets back when the lock
//! is biased to it again. There are few flags: a thread that finds all of them taken by others never becomes the
//! owner.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

use super::barrier;
use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, UnsafeCell, relax};
use super::thread::is_guest;

/// The number of no thread; thread numbers start at 1.
const NOBODY: u64 = 0;

/// The initial streak: how many times in a row a thread takes the slow path before the lock is biased to it.
const FIRST_STREAK: u32 = if cfg!(loom) { 1 } else { 256 };
/// The streak doubles each time the bias is revoked, up to this limit: it then costs a few times as much as the
/// revocation. A higher limit would leave a busy thread on the slow path long after another thread came by.
const LONGEST_STREAK: u32 = 1 << 10;

/// The number of threads that can become owners.
const OWNERS: usize = 8;

pub(crate) struct BiasedLock<T> {
    /// The owner's number times [`OWNERS`], and the number of its flag.
    owner: AtomicU64,
    /// Each flag is written by one thread only.
    busy: [AtomicBool; OWNERS],
    /// Not a spin lock: the system may stop its holder, and the others should sleep then.
    slow: Mutex<Slow>,
    /// The number of threads that wait for it.
    waiting: AtomicU64,
    value: UnsafeCell<T>,
}

/// State of the slow path.
struct Slow {
    last: u64,
    streak: u32,
    needed: u32,
    /// A guest has the lock; its uses are not counted.
    is_guest: bool,
    /// The threads that write the flags.
    owners: [u64; OWNERS],
}

impl Slow {
    /// The number of the thread's flag, which is permanent.
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
    /// The lock is biased to this thread at first.
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

    /// Waits until this thread has exclusive access to the value. `thread` must be the calling thread's number
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

    /// Whether a thread has the value, or is about to. Does not wait.
    pub(crate) fn is_taken(&self) -> bool {
        let is_taken = |busy: &AtomicBool| busy.load(Ordering::Relaxed);
        self.busy.iter().any(is_taken)
            || matches!(self.slow.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// As [`lock`](Self::lock), if the lock is biased to this thread.
    #[inline]
    pub(crate) fn lock_by_owner(&self, thread: u64) -> Option<Guard<'_, T>> {
        // Acquire: the thread that handed the value over wrote to it before.
        let owner = self.owner.load(Ordering::Acquire);
        if owner / OWNERS as u64 == thread {
            let busy = self.busy_flag(owner);
            debug_assert!(
                !busy.load(Ordering::Relaxed),
                "the thread has the value already"
            );
            busy.store(true, Ordering::Relaxed);
            barrier::light();
            // Either this thread sees that the value was taken away, or the thread that took it sees that this one is
            // busy. The bias cannot have come back meanwhile: a thread becomes the owner only by its own action.
            if self.owner.load(Ordering::Relaxed) == owner {
                return Some(Guard::new(self, Held::ByOwner(busy)));
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
            // Without a barrier it never ends.
            slow.streak = slow.streak.saturating_add(1);
        } else {
            slow.last = thread;
            slow.streak = 0;
        }
        Guard::new(self, Held::Slowly(ManuallyDrop::new(slow)))
    }
}

impl<T> BiasedLock<T> {
    /// Biases the lock to the thread that has it, if that thread has taken it often.
    #[cold]
    #[inline(never)]
    fn unlock_slowly(&self, mut slow: MutexGuard<'_, Slow>) {
        if std::mem::take(&mut slow.is_guest) || slow.streak < slow.needed || !barrier::is_there() {
            return;
        }
        slow.streak = 0;
        let last = slow.last;
        if let Some(flag) = slow.flag_of(last) {
            // Other threads reach the mutex after this.
            self.owner.store(owner(last, flag), Ordering::Release);
        }
    }
}

/// How the value was reached.
enum Held<'a> {
    /// By the owner, who has this mark.
    ByOwner(&'a AtomicBool),
    /// Dropped by the guard, separately from the fast path.
    Slowly(ManuallyDrop<MutexGuard<'a, Slow>>),
}

/// Exclusive access to the value, until dropped.
pub(crate) struct Guard<'a, T> {
    lock: &'a BiasedLock<T>,
    held: Held<'a>,
    /// Shared between threads only if the value may be: the lock itself is shared for less.
    _value: PhantomData<&'a mut T>,
}

impl<'a, T> Guard<'a, T> {
    #[inline]
    fn new(lock: &'a BiasedLock<T>, held: Held<'a>) -> Self {
        Self {
            lock,
            held,
            _value: PhantomData,
        }
    }
}

impl<T> Guard<'_, T> {
    /// Whether another thread waits for the mutex. The system's mutex is not fair: while one thread sleeps, another
    /// takes it many times without ever waiting.
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
