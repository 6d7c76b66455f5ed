//! Small numbers for threads.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number of the calling thread, counted from 1 in the order in which threads first ask.
#[inline]
pub(super) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // 0 while the thread ends.
    NUMBER.try_with(|number| *number).unwrap_or(0)
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
