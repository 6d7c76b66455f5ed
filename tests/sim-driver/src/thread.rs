//! Per-thread state of the driver: the default streams, destroyed with the thread, and the context stack.
//!
//! As with the real driver this ends after the destructors of thread-local values, which may still call the driver.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::StreamId;
use crate::context::ContextId;
use crate::state::{State, check_initialised, state};
use crate::system::end_with_thread;

struct Thread {
    number: u64,
    /// The context stack; the last is current.
    contexts: RefCell<Vec<ContextId>>,
}

thread_local! {
    /// From a box, or null. It has no destructor; [`end`] frees it.
    static OWN: Cell<*mut Thread> = const { Cell::new(null_mut()) };
}

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

fn own<T>(f: impl FnOnce(&Thread) -> T) -> T {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if OWN.get().is_null() {
        let thread = Box::into_raw(Box::new(Thread {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            contexts: RefCell::default(),
        }));
        OWN.set(thread);
        // If this fails, the thread's streams stay, which is harmless.
        end_with_thread(end, thread.cast());
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
