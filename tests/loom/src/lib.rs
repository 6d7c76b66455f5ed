//! Runs the lock of the arena, its notes of late waits, and the reference count of streams and resources, under every order of their steps that
//! the memory model allows, with [loom](https://docs.rs/loom).
//!
//! Their source is compiled a second time here, over atomics, cells and barriers of loom. Without
//! `--cfg loom` this package is empty:
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p cuda-mem-loom --release
//! ```

#![cfg(all(loom, test))]

// The tests need not use all of it.
#[allow(dead_code)]
#[path = "../../../cuda-mem/src/base/biased/lock.rs"]
mod lock;

#[allow(dead_code, clippy::duplicate_mod)]
#[path = "../../../cuda-mem/src/base/biased/count.rs"]
mod count;

#[path = "../../../cuda-mem/src/arena/late_waits.rs"]
mod late_waits;

mod count_tests;
mod late_waits_tests;
mod tests;

/// Threads are numbered by hand here.
mod thread {
    pub(super) fn is_guest(thread: u64) -> bool {
        thread & 1 << 48 != 0
    }
}

/// What they are made of.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    pub(super) use loom::sync::{Mutex, MutexGuard};

    use loom::cell;

    /// Each `get` counts as a write, so two that no order keeps apart are told.
    pub(super) struct UnsafeCell<T>(cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(super) fn new(value: T) -> Self {
            Self(cell::UnsafeCell::new(value))
        }

        pub(super) fn get(&self) -> *mut T {
            self.0.with_mut(|value| value)
        }
    }

    /// Where threads only let each other go first, without end, there is nothing new to be seen.
    pub(super) fn relax(tries: &mut u32) {
        *tries += 1;
        if *tries > 4 {
            loom::skip_branch();
        }
        loom::thread::yield_now();
    }
}

/// What the two halves mean to the memory model: a full barrier each.
mod barrier {
    use std::cell::Cell;

    use loom::sync::atomic::{Ordering, fence};

    thread_local! {
        /// Loom runs all threads of a model on one thread of the system, so this is the test's own.
        static BROKEN: Cell<bool> = const { Cell::new(false) };
    }

    /// For the rest of this test the light half is no barrier at all.
    pub(crate) fn break_light() {
        BROKEN.set(true);
    }

    pub(crate) fn is_there() -> bool {
        true
    }

    pub(crate) fn light() {
        if !BROKEN.get() {
            fence(Ordering::SeqCst);
        }
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

/// Loom's threads do not fork.
fn is_forked() -> bool {
    false
}
