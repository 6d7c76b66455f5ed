//! Locks for process-wide state, which are never taken in a fork.
//!
//! A fork has only the thread that called `fork`. If another thread of the parent held a lock at that moment, no
//! thread of the child can release it, and the state it guards may be half changed. So these locks check
//! [`report::is_forked`] first, and fail in a fork. A value that was being changed there is not dropped either: to free
//! what another thread was about to free would end the child.
//!
//! A panic of a thread that holds a lock does not poison it.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

use once_cell::sync::OnceCell;

use crate::base::biased::lock::{BiasedLock, Guard};
use crate::base::biased::thread;
use crate::base::error::{Error, Result};
use crate::base::report;

/// A lock that is not dropped in a fork while a thread of the parent holds it: its value may be half changed.
#[derive(Debug, Default)]
struct KeptIfTaken<L: IsTaken>(ManuallyDrop<L>);

trait IsTaken {
    /// Whether a thread has the lock. Asked in forks: that thread may not be there.
    fn is_taken(&self) -> bool;
}

impl<T> IsTaken for Mutex<T> {
    fn is_taken(&self) -> bool {
        matches!(self.try_lock(), Err(TryLockError::WouldBlock))
    }
}

impl<T> IsTaken for RwLock<T> {
    fn is_taken(&self) -> bool {
        matches!(self.try_write(), Err(TryLockError::WouldBlock))
    }
}

impl<T> IsTaken for spin::Mutex<T> {
    fn is_taken(&self) -> bool {
        self.is_locked()
    }
}

impl<T> IsTaken for BiasedLock<T> {
    fn is_taken(&self) -> bool {
        self.is_taken()
    }
}

impl<L: IsTaken> KeptIfTaken<L> {
    const fn new(lock: L) -> Self {
        Self(ManuallyDrop::new(lock))
    }
}

impl<L: IsTaken> Deref for KeptIfTaken<L> {
    type Target = L;

    #[inline]
    fn deref(&self) -> &L {
        &self.0
    }
}

impl<L: IsTaken> DerefMut for KeptIfTaken<L> {
    #[inline]
    fn deref_mut(&mut self) -> &mut L {
        &mut self.0
    }
}

impl<L: IsTaken> Drop for KeptIfTaken<L> {
    #[inline]
    fn drop(&mut self) {
        if report::is_forked() && self.0.is_taken() {
            return;
        }
        // SAFETY: it is dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// A mutex.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(KeptIfTaken<Mutex<T>>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(KeptIfTaken::new(Mutex::new(value)))
    }

    /// Waits for the lock. [`Forked`](crate::base::error::ErrorKind::Forked) in a fork.
    #[inline]
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, T>> {
        self.lock_unless_forked().ok_or_else(Error::forked)
    }

    /// Takes the lock if it is free, without waiting. [`Forked`](crate::base::error::ErrorKind::Forked) in a fork.
    pub(crate) fn try_lock(&self) -> Result<Option<MutexGuard<'_, T>>> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        match self.0.try_lock() {
            Ok(guard) => Ok(Some(guard)),
            Err(TryLockError::Poisoned(guard)) => Ok(Some(guard.into_inner())),
            Err(TryLockError::WouldBlock) => Ok(None),
        }
    }

    /// Waits for the lock. `None` in a fork.
    #[inline]
    pub(crate) fn lock_unless_forked(&self) -> Option<MutexGuard<'_, T>> {
        if report::is_forked() {
            return None;
        }
        Some(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The value, without locking: the caller has exclusive access. Works in a fork too, where the value is as the
    /// parent left it.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader-writer lock.
#[derive(Debug, Default)]
pub(crate) struct SharedLock<T>(KeptIfTaken<RwLock<T>>);

impl<T> SharedLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(KeptIfTaken::new(RwLock::new(value)))
    }

    /// Waits for writers. [`Forked`](crate::base::error::ErrorKind::Forked) in a fork.
    #[inline]
    pub(crate) fn read(&self) -> Result<RwLockReadGuard<'_, T>> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        Ok(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for readers and writers. [`Forked`](crate::base::error::ErrorKind::Forked) in a fork.
    #[inline]
    pub(crate) fn write(&self) -> Result<RwLockWriteGuard<'_, T>> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        Ok(self.0.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the lock for writing if it is free, without waiting. [`Forked`](crate::base::error::ErrorKind::Forked) in
    /// a fork.
    pub(crate) fn try_write(&self) -> Result<Option<RwLockWriteGuard<'_, T>>> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        match self.0.try_write() {
            Ok(guard) => Ok(Some(guard)),
            Err(TryLockError::Poisoned(guard)) => Ok(Some(guard.into_inner())),
            Err(TryLockError::WouldBlock) => Ok(None),
        }
    }
}

/// A spin lock, for critical sections of a few instructions: its release is a plain store.
#[derive(Debug, Default)]
pub(crate) struct SpinLock<T>(KeptIfTaken<spin::Mutex<T>>);

impl<T> SpinLock<T> {
    /// Waits for the lock. `None` in a fork.
    #[inline]
    pub(crate) fn lock_unless_forked(&self) -> Option<spin::MutexGuard<'_, T>> {
        (!report::is_forked()).then(|| self.0.lock())
    }
}

/// A lock that needs no locked instruction on the thread that takes it most.
#[derive(Debug)]
pub(crate) struct UsualThreadLock<T>(KeptIfTaken<BiasedLock<T>>);

impl<T: Default> Default for UsualThreadLock<T> {
    fn default() -> Self {
        Self(KeptIfTaken::new(BiasedLock::new(
            thread::number(),
            T::default(),
        )))
    }
}

impl<T> UsualThreadLock<T> {
    /// Waits for the lock. `None` in a fork.
    #[inline]
    pub(crate) fn lock_unless_forked(&self) -> Option<Guard<'_, T>> {
        (!report::is_forked()).then(|| self.0.lock(thread::number()))
    }
}

/// A value that is created once. Other threads wait for the thread that creates it, so it is a lock too.
#[derive(Debug)]
pub(crate) struct LockedOnce<T>(OnceCell<T>);

impl<T> LockedOnce<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceCell::new())
    }

    /// The value, created by `make` if there is none yet. An error of `make` is not kept.
    /// [`Forked`](crate::base::error::ErrorKind::Forked) in a fork, even if there is a value: it is the parent's.
    pub(crate) fn get_or_try_init(&self, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        self.0.get_or_try_init(make)
    }

    /// The value, if there is one. [`Forked`](crate::base::error::ErrorKind::Forked) in a fork.
    pub(crate) fn get(&self) -> Result<Option<&T>> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        Ok(self.0.get())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;

    /// The process has other threads, but only this one holds the locks when it forks, so a child that waited for them
    /// would wait forever; the alarm then ends it.
    #[test]
    fn a_fork_is_refused_though_its_parent_holds_the_locks() {
        report::watch_forks();
        let (lock, shared, spin) = (
            Lock::new(1),
            SharedLock::new(2),
            SpinLock(KeptIfTaken::new(spin::Mutex::new(3))),
        );
        let usual = UsualThreadLock::<u8>::default();
        let once = LockedOnce::new();
        once.get_or_try_init(|| Ok(4)).expect("not a fork");
        let held = (
            lock.lock().expect("not a fork"),
            shared.write().expect("not a fork"),
            spin.lock_unless_forked().expect("not a fork"),
            usual.lock_unless_forked().expect("not a fork"),
        );
        // SAFETY: the child only asks the locks and ends with _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a signal that ends the child.
            unsafe { libc::alarm(10) };
            let refuses = |error: &Error| error.kind() == ErrorKind::Forked;
            let fine = lock.lock().is_err_and(|error| refuses(&error))
                && lock.lock_unless_forked().is_none()
                && shared.read().is_err_and(|error| refuses(&error))
                && shared.write().is_err_and(|error| refuses(&error))
                && spin.lock_unless_forked().is_none()
                && usual.lock_unless_forked().is_none()
                && once
                    .get_or_try_init(|| Ok(5))
                    .is_err_and(|error| refuses(&error));
            // SAFETY: ends the child without running the parent's exit handlers a second time.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        assert!(child > 0, "fork failed");
        let mut status = 0;
        // SAFETY: `status` is valid for a write, and the child is ours.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        assert_eq!((*held.0, *held.1, *held.2), (1, 2, 3));
    }

    /// A value that is dropped in a fork: it is a mistake there.
    #[derive(Debug, Default)]
    struct NotInAFork;

    impl Drop for NotInAFork {
        fn drop(&mut self) {
            if report::is_forked() {
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(1) };
            }
        }
    }

    /// Drops a copy of the lock in a fork, which has to end well.
    fn drop_in_a_fork<L>(lock: &L) {
        // SAFETY: the child only drops the lock and ends with _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the child uses neither the lock nor its guard afterwards.
            drop(unsafe { std::ptr::read(lock) });
            // SAFETY: ends the child without running the parent's exit handlers a second time.
            unsafe { libc::_exit(0) };
        }
        assert!(child > 0, "fork failed");
        let mut status = 0;
        // SAFETY: `status` is valid for a write, and the child is ours.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
    }

    #[test]
    fn a_fork_does_not_drop_what_was_being_changed() {
        report::watch_forks();
        let (lock, shared) = (Lock::new(NotInAFork), SharedLock::new(NotInAFork));
        let spin = SpinLock::<NotInAFork>::default();
        let usual = UsualThreadLock::<NotInAFork>::default();
        let held = lock.lock().expect("not a fork");
        drop_in_a_fork(&lock);
        drop(held);
        let held = shared.write().expect("not a fork");
        drop_in_a_fork(&shared);
        drop(held);
        let held = shared.read().expect("not a fork");
        drop_in_a_fork(&shared);
        drop(held);
        let held = spin.lock_unless_forked().expect("not a fork");
        drop_in_a_fork(&spin);
        drop(held);
        let held = usual.lock_unless_forked().expect("not a fork");
        drop_in_a_fork(&usual);
        drop(held);
        // The other way to have it: by a thread that is not the usual one.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let held = usual.lock_unless_forked().expect("not a fork");
                drop_in_a_fork(&usual);
                drop(held);
            });
        });
    }

    #[test]
    fn a_panic_under_the_lock_leaves_it_usable() {
        let mut lock = Lock::new(1);
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = lock.lock();
                panic!("while the lock is held");
            });
            holder.join()
        });
        assert!(panicked.is_err());
        *lock.lock().expect("not a fork") += 1;
        assert_eq!(*lock.get_mut(), 2);
    }
}
