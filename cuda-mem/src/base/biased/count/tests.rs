//! Tests with real threads. Loom checks the possible orders of steps, in `tests/loom`.

use std::thread;

use super::super::thread::number;
use super::*;

#[test]
fn the_last_release_is_told() {
    let count = Count::<2>::new();
    count.retain();
    count.retain_by(number());
    assert!(!count.release(number));
    assert!(!count.release_by(number()));
    assert!(count.release(number));
}

#[test]
fn a_slot_may_count_the_last_reference() {
    let count = Count::<2>::new();
    count.retain_by(number());
    assert!(!count.release(number));
    assert!(count.release_by(number()));
}

#[test]
fn nobody_gets_a_reference_after_the_last() {
    let count = Count::<2>::new();
    assert!(count.try_retain());
    assert!(!count.release(number));
    assert!(count.release(number));
    assert!(!count.try_retain());
}

#[test]
fn threads_lose_no_reference() {
    let (threads, times) = if cfg!(miri) { (3, 20) } else { (4, 50_000) };
    let count = Count::<2>::new();
    thread::scope(|scope| {
        for _ in 0..threads {
            count.retain();
            scope.spawn(|| {
                for _ in 0..times {
                    // Slot and word drift apart.
                    count.retain();
                    assert!(!count.release_by(number()));
                    count.retain_by(number());
                    assert!(!count.release_by(number()));
                }
                assert!(!count.release(number));
            });
        }
    });
    assert!(count.release(number));
}
