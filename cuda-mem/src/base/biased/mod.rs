//! Reference-counted values whose references are cheap on the threads that take and release most of them: handles,
//! counted as usual, and references held by buffers, counted per thread ([`Count`]).

mod count;
pub(crate) mod lock;
pub(crate) mod thread;

/// The primitives of counts and locks; a memory-model checker substitutes its own.
pub(crate) mod sync {
    pub(super) use std::cell::UnsafeCell;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard};

    /// One round of waiting for another thread.
    pub(crate) fn relax(tries: &mut u32) {
        *tries += 1;
        // The thread that is waited for may have been put to sleep.
        if *tries < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crate::base::barrier;
use crate::base::report::is_forked;

use count::Count;

struct Counted<T, const SLOTS: usize> {
    count: Count<SLOTS>,
    value: T,
}

/// Like an `Arc`. References of buffers are [`Held`].
pub(crate) struct Shared<T, const SLOTS: usize>(NonNull<Counted<T, SLOTS>>);

// SAFETY: as of `Arc`: whoever has a reference may share the value, and the last one drops it.
unsafe impl<T: Send + Sync, const SLOTS: usize> Send for Shared<T, SLOTS> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync, const SLOTS: usize> Sync for Shared<T, SLOTS> {}

impl<T, const SLOTS: usize> Shared<T, SLOTS> {
    pub(crate) fn new(value: T) -> Self {
        let count = Count::new();
        // All references together keep it once.
        let kept = Arc::into_raw(Arc::new(Counted { count, value }));
        // SAFETY: an `Arc` is not null.
        Self(unsafe { NonNull::new_unchecked(kept.cast_mut()) })
    }

    #[inline]
    fn counted(&self) -> &Counted<T, SLOTS> {
        // SAFETY: this reference is counted, so the value has not been dropped.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn downgrade(&self) -> WeakShared<T, SLOTS> {
        // SAFETY: the `Arc` is kept while references are counted; this one is not dropped.
        let kept = ManuallyDrop::new(unsafe { Arc::from_raw(self.0.as_ptr().cast_const()) });
        WeakShared(Arc::downgrade(&kept))
    }

    /// The last reference is gone.
    #[cold]
    #[inline(never)]
    fn end(value: NonNull<Counted<T, SLOTS>>) {
        // SAFETY: made by `Arc::into_raw`, and dropped once: by whoever released the last reference.
        drop(unsafe { Arc::from_raw(value.as_ptr().cast_const()) });
    }
}

impl<T, const SLOTS: usize> Clone for Shared<T, SLOTS> {
    #[inline]
    fn clone(&self) -> Self {
        self.counted().count.retain();
        Self(self.0)
    }
}

impl<T, const SLOTS: usize> Drop for Shared<T, SLOTS> {
    #[inline]
    fn drop(&mut self) {
        if self.counted().count.release(thread::number) {
            Self::end(self.0);
        }
    }
}

impl<T, const SLOTS: usize> Deref for Shared<T, SLOTS> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.counted().value
    }
}

/// A value that buffers keep references to.
pub(crate) trait Hold {
    /// Another reference, counted by this thread if possible.
    fn hold(&self) -> Self;

    /// Releases a reference that [`hold`](Self::hold) made.
    fn release(self);
}

impl<T, const SLOTS: usize> Hold for Shared<T, SLOTS> {
    #[inline(always)]
    fn hold(&self) -> Self {
        self.counted().count.retain_by(thread::number());
        Self(self.0)
    }

    #[inline(always)]
    fn release(self) {
        let this = ManuallyDrop::new(self);
        if this.counted().count.release_by(thread::number()) {
            Self::end(this.0);
        }
    }
}

/// A reference that is cheap on a thread that takes and releases many.
pub(crate) struct Held<R: Hold>(ManuallyDrop<R>);

impl<R: Hold> Held<R> {
    #[inline]
    pub(crate) fn new(of: &R) -> Self {
        Self(ManuallyDrop::new(of.hold()))
    }
}

impl<R: Hold> Deref for Held<R> {
    type Target = R;

    #[inline]
    fn deref(&self) -> &R {
        &self.0
    }
}

impl<R: Hold> Drop for Held<R> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::take(&mut self.0) }.release();
    }
}

/// A weak reference.
pub(crate) struct WeakShared<T, const SLOTS: usize>(Weak<Counted<T, SLOTS>>);

impl<T, const SLOTS: usize> WeakShared<T, SLOTS> {
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    pub(crate) fn upgrade(&self) -> Option<Shared<T, SLOTS>> {
        let kept = self.0.upgrade()?;
        if !kept.count.try_retain() {
            return None;
        }
        // SAFETY: an `Arc` is not null.
        Some(Shared(unsafe {
            NonNull::new_unchecked(Arc::as_ptr(&kept).cast_mut())
        }))
    }
}

impl<T, const SLOTS: usize> Clone for WeakShared<T, SLOTS> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests;
