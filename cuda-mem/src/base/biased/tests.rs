//! Handles and the references of buffers, on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;

/// Counts its drops.
struct Noted<'a>(&'a AtomicUsize);

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type Value<'a> = Shared<Noted<'a>, 2>;

#[test]
fn the_value_ends_with_the_last_reference_of_any_kind() {
    let ends = AtomicUsize::new(0);
    let handle: Value<'_> = Shared::new(Noted(&ends));
    let weak = handle.downgrade();
    let (held, other) = (Held::new(&handle), handle.clone());
    drop(handle);
    drop(other);
    assert_eq!(ends.load(Ordering::Relaxed), 0);
    assert!(weak.is_alive());
    let again = weak.upgrade();
    drop(held);
    assert_eq!(ends.load(Ordering::Relaxed), 0);
    drop(again);
    assert_eq!(ends.load(Ordering::Relaxed), 1);
    assert!(!weak.is_alive() && weak.upgrade().is_none());
}

#[test]
fn references_end_on_other_threads() {
    let (threads, times) = if cfg!(miri) { (2, 10) } else { (4, 2_000) };
    let ends = AtomicUsize::new(0);
    for _ in 0..times {
        let handle: Value<'_> = Shared::new(Noted(&ends));
        thread::scope(|scope| {
            for _ in 0..threads {
                let (held, handle) = (Held::new(&handle), handle.clone());
                scope.spawn(move || {
                    let own = Held::new(&*held);
                    drop(handle);
                    drop(held);
                    drop(Held::new(&*own));
                });
            }
            drop(handle);
        });
    }
    assert_eq!(ends.load(Ordering::Relaxed), times);
}
