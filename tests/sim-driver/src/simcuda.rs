//! The simulator's own functions, exported for whoever has opened the library. The Rust side of
//! them is [`crate::control`].

use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;

use cuda_driver_sys::{CUresult, CUstream};

use crate::device::Device;
use crate::export::Answer;
use crate::fault::{self, Hit};
use crate::live::Live;
use crate::state::{State, state};
use crate::table;

/// What the library says it is.
pub(crate) const IDENTITY: &CStr = c"cuda-sim 3";

/// A name given by C; `None` for null.
fn name<'a>(text: *const c_char) -> Option<std::borrow::Cow<'a, str>> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, so a zero-terminated string by the contract of these functions.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy())
}

/// Writes a line and its final zero into `len` bytes, cut if need be; answers the line's length.
fn write_line(line: Option<&str>, buffer: *mut c_char, len: usize) -> usize {
    let Some(line) = line else {
        return 0;
    };
    if !buffer.is_null() && len > 0 {
        let kept = line.len().min(len - 1);
        // SAFETY: the caller vouches for `len` bytes, and `kept` is less.
        unsafe { std::ptr::copy_nonoverlapping(line.as_ptr().cast(), buffer, kept) };
        // SAFETY: as above.
        let end = unsafe { buffer.add(kept) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    line.len()
}

/// A text that only the simulator gives.
#[unsafe(no_mangle)]
extern "C" fn simcuda_identify() -> *const c_char {
    IDENTITY.as_ptr()
}

/// Forgets counts, the log, faults and reports. What is alive stays alive.
#[unsafe(no_mangle)]
extern "C" fn simcuda_reset() {
    fault::reset(table::exports());
    if let Ok(mut state) = state() {
        state.reports.clear();
    }
}

/// How often a function was called; 0 for one that the simulator does not have.
#[unsafe(no_mangle)]
extern "C" fn simcuda_calls(function: *const c_char) -> u64 {
    let export = name(function).and_then(|name| table::find(&name));
    export.map_or(0, |export| export.calls.load(Ordering::Relaxed))
}

/// All driver calls.
#[unsafe(no_mangle)]
extern "C" fn simcuda_calls_total() -> u64 {
    fault::total()
}

/// Begins a new log of the functions called.
#[unsafe(no_mangle)]
extern "C" fn simcuda_call_log_start() {
    fault::start_log();
}

/// One name of the log; 0 behind its end.
#[unsafe(no_mangle)]
extern "C" fn simcuda_call_log(index: u64, buffer: *mut c_char, len: usize) -> usize {
    write_line(fault::log_line(index as usize), buffer, len)
}

/// The `nth` next call of a function fails with `code`. 0 if the simulator has no such function.
#[unsafe(no_mangle)]
extern "C" fn simcuda_fail(function: *const c_char, nth: u64, code: u32) -> u64 {
    fail(function, nth, code, true)
}

/// The same, and a function that releases something does not.
#[unsafe(no_mangle)]
extern "C" fn simcuda_fail_without_effect(function: *const c_char, nth: u64, code: u32) -> u64 {
    fail(function, nth, code, false)
}

fn fail(function: *const c_char, nth: u64, code: u32, releases: bool) -> u64 {
    let code = CUresult(code);
    let found = name(function).filter(|name| table::find(name).is_some());
    match found {
        Some(name) => {
            fault::arm(Some(name.into_owned()), nth, Hit { code, releases });
            1
        }
        None => 0,
    }
}

/// The `nth` driver call from now fails with `code`.
#[unsafe(no_mangle)]
extern "C" fn simcuda_fail_call(nth: u64, code: u32) {
    let code = CUresult(code);
    fault::arm(
        None,
        nth,
        Hit {
            code,
            releases: true,
        },
    );
}

/// Forgets the faults that have not come yet.
#[unsafe(no_mangle)]
extern "C" fn simcuda_fail_clear() {
    fault::disarm();
}

/// What the program has and has not given back.
#[unsafe(no_mangle)]
extern "C" fn simcuda_live(out: *mut Live) {
    let live = state().map(|state| state.live()).unwrap_or_default();
    if !out.is_null() {
        // SAFETY: not null, so valid for one write by the contract of this function.
        unsafe { out.write(live) };
    }
}

/// Modules and libraries that are loaded on a device.
#[unsafe(no_mangle)]
extern "C" fn simcuda_images(device: u64) -> u64 {
    state().map_or(0, |state| state.images(device as usize))
}

/// Bytes that pools and allocations of this process hold on a GPU of the machine, or on one of its MIG
/// instances, counted from 1; 0 stands for the whole GPU. For the simulated NVML.
#[unsafe(no_mangle)]
extern "C" fn simcuda_memory_used(gpu: u64, instance: u64) -> u64 {
    let is_meant = |device: &&Device| {
        let its = device.instance.map_or(0, |instance| instance as u64 + 1);
        device.index as u64 == gpu && (instance == 0 || its == instance)
    };
    state().map_or(0, |state| {
        let devices = state.devices.iter().filter(is_meant);
        devices.map(|device| device.taken).sum()
    })
}

/// From this point of the stream on, a range of mapped memory is a block of its own for the sanitizer.
#[unsafe(no_mangle)]
extern "C" fn simcuda_annotate_allocate(address: u64, bytes: u64, stream: CUstream) -> CUresult {
    annotate(|state| state.annotate_allocate(address, bytes, stream))
}

/// From this point of the stream on, such a block is none.
#[unsafe(no_mangle)]
extern "C" fn simcuda_annotate_free(address: u64, bytes: u64, stream: CUstream) -> CUresult {
    annotate(|state| state.annotate_free(address, bytes, stream))
}

fn annotate(note: impl FnOnce(&mut State) -> Answer) -> CUresult {
    match state().and_then(|mut state| note(&mut state)) {
        Ok(()) => CUresult::CUDA_SUCCESS,
        Err(code) => code,
    }
}

/// How many violations of stream order were seen.
#[unsafe(no_mangle)]
extern "C" fn simcuda_reports() -> u64 {
    state().map_or(0, |state| state.reports.count())
}

/// One report; 0 behind the last.
#[unsafe(no_mangle)]
extern "C" fn simcuda_report(index: u64, buffer: *mut c_char, len: usize) -> usize {
    state().map_or(0, |state| {
        write_line(state.reports.line(index as usize), buffer, len)
    })
}
