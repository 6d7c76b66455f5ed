//! The simulator's own functions, exported for programs that opened the library. Their Rust side is [`crate::control`].

use std::ffi::{CStr, c_char};

use cuda_driver_sys::nccl::ncclResult_t;

use crate::control::{Communicator, Live};
use crate::export::Comm;
use crate::register::RegistrationKind;
use crate::state::state;
use crate::{calls, communicator, memory, register, words};

/// The library's identity.
pub(crate) const IDENTITY: &CStr = c"nccl-sim 2";

/// A text passed from C; `None` for null.
fn name<'a>(text: *const c_char) -> Option<std::borrow::Cow<'a, str>> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, so a zero-terminated string by the contract of these functions.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy())
}

/// A text that only the simulator returns.
#[unsafe(no_mangle)]
extern "C" fn simnccl_identify() -> *const c_char {
    IDENTITY.as_ptr()
}

/// Clears counts, faults, and failures that have not occurred. Live objects are unaffected.
#[unsafe(no_mangle)]
extern "C" fn simnccl_reset() {
    calls::reset();
    words::clear_faults();
}

/// Number of calls of a function.
#[unsafe(no_mangle)]
extern "C" fn simnccl_calls(function: *const c_char) -> u64 {
    name(function).map_or(0, |name| calls::count(&name))
}

/// The `nth` call of a function from now answers `code`, and does nothing. 0 if the library has no such function.
#[unsafe(no_mangle)]
extern "C" fn simnccl_fail(function: *const c_char, nth: u64, code: u32) -> u64 {
    let is_known = name(function).is_some_and(|name| calls::arm(&name, nth, ncclResult_t(code)));
    is_known.into()
}

/// As if the process of this rank died. 0 if there is no such communicator.
#[unsafe(no_mangle)]
extern "C" fn simnccl_kill(comm: u64) -> u64 {
    communicator::kill(Comm(comm)).into()
}

/// From now on, or no longer, this rank's calls stay in progress, if it does not block. 0 if there is no such communicator.
#[unsafe(no_mangle)]
extern "C" fn simnccl_hold(comm: u64, is_held: u64) -> u64 {
    communicator::hold(Comm(comm), is_held != 0).into()
}

/// What the program has not released.
#[unsafe(no_mangle)]
extern "C" fn simnccl_live(out: *mut Live) {
    let live = Live {
        communicators: state().comms.len() as u64,
        registrations: register::count(RegistrationKind::Own),
        windows: register::count(RegistrationKind::Window),
        memories: memory::count(),
    };
    if !out.is_null() {
        // SAFETY: not null, so valid for one write by the contract of this function.
        unsafe { out.write(live) };
    }
}

/// One communicator, in the order of their creation; 0 past the last.
#[unsafe(no_mangle)]
extern "C" fn simnccl_communicator(index: u64, out: *mut Communicator) -> u64 {
    let state = state();
    let Some((comm, found)) = state.comms.iter().nth(index as usize) else {
        return 0;
    };
    let found = Communicator {
        handle: comm.0,
        rank: found.rank as u64,
        ranks: found.ranks as u64,
        device: u64::try_from(found.device).unwrap_or(0),
    };
    if !out.is_null() {
        // SAFETY: not null, so valid for one write by the contract of this function.
        unsafe { out.write(found) };
    }
    1
}

/// One fault, truncated to `len` bytes with a final zero; returns its length, 0 past the last.
#[unsafe(no_mangle)]
extern "C" fn simnccl_fault(index: u64, buffer: *mut c_char, len: usize) -> usize {
    let Some(fault) = words::fault_at(index as usize) else {
        return 0;
    };
    if !buffer.is_null() && len > 0 {
        let kept = fault.len().min(len - 1);
        // SAFETY: the caller guarantees `len` bytes, and `kept` is less.
        unsafe { std::ptr::copy_nonoverlapping(fault.as_ptr().cast(), buffer, kept) };
        // SAFETY: as above.
        unsafe { buffer.wrapping_add(kept).write(0) };
    }
    fault.len()
}
