//! Threads count through the lock. A lost update, two in the lock at once, or all waiting for each other
//! fails the test.

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use super::barrier;
use super::lock::BiasedLock;

/// The threads' numbers. The lock belongs to the first one at the beginning.
const FIRST: u64 = 1;
const OTHERS: [u64; 2] = [2, 3];

/// How often the first thread counts, and each of the others.
#[derive(Clone, Copy)]
struct Counts {
    owner: u64,
    first: u64,
    others: &'static [u64],
}

/// Checks all orders with at most so many changes from a thread that could go on to another one. Orders
/// that go wrong need few of them, and without a bound there are too many orders.
fn check(changes: usize, counts: Counts) {
    let mut model = Builder::new();
    model.preemption_bound = Some(changes);
    model.max_branches = 1_000;
    model.check(move || {
        let lock = Arc::new(BiasedLock::new(counts.owner, 0_u64));
        let others: Vec<_> = OTHERS
            .into_iter()
            .zip(counts.others)
            .map(|(number, times)| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || count(&lock, number, *times))
            })
            .collect();
        count(&lock, FIRST, counts.first);
        for other in others {
            other.join().expect("no thread panics");
        }
        let all = counts.first + counts.others.iter().sum::<u64>();
        assert_eq!(*lock.lock(FIRST), all, "an update was lost");
    });
}

fn count(lock: &BiasedLock<u64>, thread: u64, times: u64) {
    for _ in 0..times {
        *lock.lock(thread) += 1;
    }
}

#[test]
fn the_owner_and_another_thread_lose_no_update() {
    check(
        4,
        Counts {
            owner: FIRST,
            first: 2,
            others: &[2],
        },
    );
}

/// The other thread comes so often that the lock becomes its own, while the first one is anywhere on its
/// way in.
#[test]
fn an_owner_that_was_long_on_its_way_does_not_free_the_lock_of_the_next_owner() {
    check(
        3,
        Counts {
            owner: FIRST,
            first: 1,
            others: &[4],
        },
    );
}

#[test]
fn the_lock_becomes_the_own_of_each_thread_in_turn() {
    check(
        3,
        Counts {
            owner: FIRST,
            first: 4,
            others: &[4],
        },
    );
}

/// The first thread loses the lock, becomes its owner again with the flag that it had, and loses it once more.
#[test]
fn an_owner_that_comes_back_has_its_flag_again() {
    check(
        3,
        Counts {
            owner: FIRST,
            first: 5,
            others: &[2],
        },
    );
}

#[test]
fn two_threads_take_the_lock_from_its_owner() {
    check(
        2,
        Counts {
            owner: FIRST,
            first: 2,
            others: &[1, 1],
        },
    );
}

#[test]
fn a_lock_of_nobody_finds_an_owner() {
    check(
        3,
        Counts {
            owner: 0,
            first: 3,
            others: &[3],
        },
    );
}

/// That these tests find anything: without the light half the owner may not see that the lock was taken
/// away, while the other one does not see that it is busy.
#[test]
#[should_panic(expected = "Causality violation")]
fn without_the_light_half_two_threads_come_in() {
    barrier::break_light();
    check(
        4,
        Counts {
            owner: FIRST,
            first: 1,
            others: &[1],
        },
    );
}

/// A guest takes the lock from its owner, who has it back at once.
#[test]
fn a_guest_and_the_owner_lose_no_update() {
    const GUEST: u64 = 2 | 1 << 48;
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.max_branches = 1_000;
    model.check(|| {
        let lock = Arc::new(BiasedLock::new(FIRST, 0_u64));
        let other = Arc::clone(&lock);
        let guest = thread::spawn(move || count(&other, GUEST, 2));
        count(&lock, FIRST, 2);
        guest.join().expect("no thread panics");
        assert_eq!(*lock.lock(FIRST), 4, "an update was lost");
    });
}
