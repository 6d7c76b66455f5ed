//! Per-thread state of the driver: the default streams, destroyed with the thread, and the context stack.
//!
//! As with the real driver this ends after the destructors of thread-local values, which may still call the driver.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::StreamId;
use crate::context::ContextId;
use crate::state::{State, check_initialised, state};

struct Thread {
    number: u64,
    /// The context stack; the last is current.
    contexts: RefCell<Vec<ContextId>>,
}

thread_local! {
    /// From a box, or null. It has no destructor; that of [`key`] frees it.
    static OWN: Cell<*mut Thread> = const { Cell::new(null_mut()) };
}

/// The key whose destructor runs at the exit of each thread; `None` if the system has none left. Per-thread state is
/// then never freed.
fn key() -> Option<libc::pthread_key_t> {
    extern "C" fn end(thread: *mut c_void) {
        OWN.set(null_mut());
        // SAFETY: from the box in `own`, and the system passes each value once.
        let thread = unsafe { Box::from_raw(thread.cast::<Thread>()) };
        if check_initialised().is_ok()
            && let Ok(mut state) = state()
        {
            state.end_thread(thread.number);
        }
    }
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is valid for a write, and `end` may be called on any thread.
        let code = unsafe { libc::pthread_key_create(&raw mut key, Some(end)) };
        (code == 0).then_some(key)
    })
}

fn own<T>(f: impl FnOnce(&Thread) -> T) -> T {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if OWN.get().is_null() {
        let thread = Box::into_raw(Box::new(Thread {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            contexts: RefCell::default(),
        }));
        OWN.set(thread);
        if let Some(key) = key() {
            // SAFETY: the key is never deleted. If this fails, the thread's streams stay, which is harmless.
            unsafe { libc::pthread_setspecific(key, thread.cast()) };
        }
    }
    // SAFETY: from a box that is freed only at the thread's exit, and never borrowed mutably.
    f(unsafe { &*OWN.get() })
}

/// A number that identifies the calling thread.
pub(crate) fn number() -> u64 {
    own(|thread| thread.number)
}

/// The context stack of the calling thread; the last is current.
pub(crate) fn with_contexts<T>(f: impl FnOnce(&mut Vec<ContextId>) -> T) -> T {
    own(|thread| f(&mut thread.contexts.borrow_mut()))
}

impl State {
    /// Measured: a thread's default streams end with it, as if destroyed.
    fn end_thread(&mut self, thread: u64) {
        let contexts = self.contexts.values_mut();
        let its: Vec<StreamId> = contexts
            .filter_map(|context| context.per_thread.remove(&thread))
            .collect();
        if !its.is_empty() {
            self.destroy_streams(&its);
        }
    }
}
