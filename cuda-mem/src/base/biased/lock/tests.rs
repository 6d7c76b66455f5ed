//! Tests with real threads. Loom checks the possible orders of steps, in `tests/loom`.

use std::sync::atomic::AtomicUsize;
use std::thread;

use super::*;
use crate::base::biased::thread::number;

/// Counts in many words at once, so that two at a time would be seen.
fn count(lock: &BiasedLock<[u64; 4]>, times: u64) {
    for _ in 0..times {
        let mut guard = lock.lock(number());
        let before = *guard;
        for (word, before) in guard.iter_mut().zip(before) {
            *word = before + 1;
        }
        assert_eq!(*guard, [guard[0]; 4]);
    }
}

#[test]
fn a_guest_takes_the_lock_from_nobody_for_long() {
    let lock = BiasedLock::new(number(), [0; 4]);
    let own = owner(&lock);
    thread::scope(|scope| {
        scope.spawn(|| {
            crate::base::biased::thread::become_guest();
            count(&lock, if cfg!(miri) { 10 } else { 2000 });
        });
    });
    assert!(owner(&lock) != own || !barrier::is_there());
    count(&lock, 1);
    assert_eq!(owner(&lock), own);
}

fn owner<T>(lock: &BiasedLock<T>) -> u64 {
    lock.owner.load(Ordering::Relaxed)
}

#[test]
fn threads_that_take_turns_lose_no_update() {
    let (threads, times) = if cfg!(miri) { (3, 30) } else { (4, 50_000) };
    let lock = BiasedLock::new(number(), [0; 4]);
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| count(&lock, times));
        }
        count(&lock, times);
    });
    assert_eq!(*lock.lock(number()), [threads * times; 4]);
}

#[test]
#[cfg_attr(
    windows,
    ignore = "without membarrier the lock is never a thread's own"
)]
fn the_lock_becomes_the_own_of_the_thread_that_comes_often() {
    let lock = BiasedLock::new(number(), [0; 4]);
    let first = owner(&lock);
    thread::scope(|scope| {
        scope.spawn(|| {
            // The streak is twice as long once the lock was taken away.
            count(&lock, u64::from(2 * FIRST_STREAK));
            assert_ne!(owner(&lock), first, "it was taken away");
            let before = owner(&lock);
            count(&lock, 2);
            assert_eq!(before == owner(&lock), !barrier::is_there());
            assert_ne!(owner(&lock), NOBODY, "it is this thread's");
        });
    });
    count(&lock, 1);
    assert_eq!(owner(&lock), NOBODY);
    assert_eq!(*lock.lock(number()), [u64::from(2 * FIRST_STREAK) + 3; 4]);
}

/// As where no barrier is there, so that it never becomes anybody's own.
#[test]
fn a_streak_of_any_length_is_counted() {
    let lock = BiasedLock::new(number(), 0);
    lock.owner.store(NOBODY, Ordering::Relaxed);
    {
        let mut slow = lock.slow.lock().expect("not poisoned");
        (slow.last, slow.streak) = (number(), u32::MAX);
    }
    *lock.lock(number()) += 1;
    *lock.lock(number()) += 1;
    assert_eq!(*lock.lock(number()), 2);
}

/// Whether a type is `Sync`: the constant of its own comes before that of the trait.
struct Of<T>(std::marker::PhantomData<T>);

impl<T: Sync> Of<T> {
    const IS_SYNC: bool = true;
}

trait Otherwise {
    const IS_SYNC: bool = false;
}

impl<T> Otherwise for Of<T> {}

#[test]
fn a_guard_is_shared_only_if_its_value_is() {
    const {
        assert!(Of::<Guard<'_, u64>>::IS_SYNC);
        assert!(Of::<BiasedLock<std::cell::Cell<u64>>>::IS_SYNC);
        assert!(!Of::<Guard<'_, std::cell::Cell<u64>>>::IS_SYNC);
    }
}

#[test]
fn the_owner_is_waited_for() {
    let lock = BiasedLock::new(number(), 0);
    let came = AtomicUsize::new(0);
    thread::scope(|scope| {
        let mut guard = lock.lock(number());
        scope.spawn(|| {
            came.fetch_add(1, Ordering::SeqCst);
            assert_eq!(*lock.lock(number()), 2);
        });
        while came.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        *guard = 1;
        thread::yield_now();
        *guard = 2;
    });
}
