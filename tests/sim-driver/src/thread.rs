//! What the driver keeps for each thread of the program: its default streams, which end with it, and the contexts that
//! it has pushed.
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
    /// The contexts that it has pushed; the last is current.
    contexts: RefCell<Vec<ContextId>>,
}

thread_local! {
    /// From a box, or null. No destructor runs for it: that of [`key`] does.
    static OWN: Cell<*mut Thread> = const { Cell::new(null_mut()) };
}

/// The key whose destructor runs at the end of each thread; `None` if the system has no more of them. Then nothing of
/// a thread ends.
fn key() -> Option<libc::pthread_key_t> {
    extern "C" fn end(thread: *mut c_void) {
        OWN.set(null_mut());
        // SAFETY: from the box of `own`, and the system passes each value once.
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
            // SAFETY: the key is never deleted. Without room for it the thread's streams stay, which does no harm.
            unsafe { libc::pthread_setspecific(key, thread.cast()) };
        }
    }
    // SAFETY: from a box that only the thread's end drops, and never borrowed mutably.
    f(unsafe { &*OWN.get() })
}

/// A number for the calling thread.
pub(crate) fn number() -> u64 {
    own(|thread| thread.number)
}

/// The contexts that the calling thread has pushed; the last is current.
pub(crate) fn with_contexts<T>(f: impl FnOnce(&mut Vec<ContextId>) -> T) -> T {
    own(|thread| f(&mut thread.contexts.borrow_mut()))
}

impl State {
    /// Measured: the default streams of a thread end with it, as if it had destroyed them.
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
