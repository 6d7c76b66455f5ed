//! Small numbers for threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the calling thread, counted from 1 in the order in which threads first call this.
#[inline]
pub(super) fn number() -> u64 {
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    match NUMBER.get() {
        0 => {
            let number = next();
            NUMBER.set(number);
            number
        }
        number => number,
    }
}

#[cold]
fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    #[test]
    fn threads_have_numbers_of_their_own() {
        let here = super::number();
        assert_eq!(super::number(), here);
        let there = std::thread::spawn(super::number).join();
        assert_ne!(there.expect("the thread does not panic"), here);
    }
}
