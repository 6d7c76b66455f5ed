//! A number for each thread, cheap to query.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// The calling thread's number, starting at 1. Numbers are never reused, so the owner of a lock cannot be mistaken for
/// another thread.
#[inline]
pub(crate) fn number() -> u64 {
    let number = NUMBER.get();
    if number != 0 { number } else { first() }
}

#[cold]
fn first() -> u64 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

/// Marks the numbers of guests.
const GUEST: u64 = 1 << 48;

/// Makes the calling thread a guest from now on: a lock that it takes goes back to the thread it was taken from.
pub(crate) fn become_guest() {
    NUMBER.set(guest());
}

/// The calling thread's number as a guest, for single uses of locks.
pub(crate) fn guest() -> u64 {
    number() | GUEST
}

/// The calling thread's number, for people: that of a guest, too.
#[inline]
pub(crate) fn own() -> u64 {
    number() & !GUEST
}

/// Whether this is the number of a guest.
#[inline]
pub(crate) fn is_guest(number: u64) -> bool {
    number & GUEST != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_numbers_of_their_own() {
        let here = own();
        assert_eq!(own(), here);
        let there = std::thread::spawn(|| {
            let first = own();
            become_guest();
            (first, own())
        });
        let (first, as_guest) = there.join().expect("the thread does not panic");
        assert_ne!(first, here);
        assert_eq!(as_guest, first);
    }
}
