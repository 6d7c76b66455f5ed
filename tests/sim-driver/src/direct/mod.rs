//! Device memory for third parties: what they may access, and notification of frees.

#[cfg(target_os = "linux")]
mod files;
#[cfg(not(target_os = "linux"))]
mod none;

use std::sync::{Mutex, PoisonError};

/// Called with the state locked.
type OnFree = extern "C" fn(u64, u64);

static ON_FREE: Mutex<Vec<OnFree>> = Mutex::new(Vec::new());

/// Reports that memory outside the pools is freed: its address and size.
pub(crate) fn tell_freed(start: u64, len: u64) {
    let on_free = ON_FREE.lock().unwrap_or_else(PoisonError::into_inner);
    for call in &*on_free {
        call(start, len);
    }
}

/// Adds a callback for memory outside the pools that is freed or unmapped; it gets the address and size. It is called
/// before the memory is gone and with the simulator locked, so it must not call the simulator. Null removes all: several
/// libraries may have added theirs.
#[unsafe(no_mangle)]
extern "C" fn simcuda_on_free(call: Option<OnFree>) {
    let mut on_free = ON_FREE.lock().unwrap_or_else(PoisonError::into_inner);
    match call {
        Some(call) => on_free.push(call),
        None => on_free.clear(),
    }
}
