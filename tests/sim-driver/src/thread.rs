//! The program's threads, whose default streams end with them.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_driver_sys::CUresult;

use crate::clock::StreamId;
use crate::export::Answer;
use crate::state::{State, check_initialised, state};

/// The number of a thread, which takes the thread's streams with it.
#[derive(Debug)]
struct Thread(u64);

impl Drop for Thread {
    fn drop(&mut self) {
        if check_initialised().is_ok()
            && let Ok(mut state) = state()
        {
            state.end_thread(self.0);
        }
    }
}

/// A number for the calling thread; none while it is ending.
pub(crate) fn number() -> Answer<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: OnceCell<Thread> = const { OnceCell::new() };
    }
    let number = |cell: &OnceCell<Thread>| {
        let new = || Thread(NEXT.fetch_add(1, Ordering::Relaxed));
        cell.get_or_init(new).0
    };
    NUMBER
        .try_with(number)
        .map_err(|_| CUresult::CUDA_ERROR_INVALID_HANDLE)
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
