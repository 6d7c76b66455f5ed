//! The simulator's own functions, exported for programs that opened the library. Their Rust side is [`crate::control`].

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::Ordering;

use cuda_driver_sys::{CUresult, CUstream};

use crate::abi::{LaunchRecord, ModelFunction, Release};
use crate::device::Device;
use crate::export::Answer;
use crate::fault::{self, Hit};
use crate::live::Live;
use crate::module::ModelRun;
use crate::module::model::{self, Model};
use crate::state::{State, state};
use crate::table;

/// The library's identity.
pub(crate) const IDENTITY: &CStr = c"cuda-sim 6";

/// A text passed from C; `None` for null.
fn name<'a>(text: *const c_char) -> Option<std::borrow::Cow<'a, str>> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, so a zero-terminated string by the contract of these functions.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy())
}

/// Writes a line and its terminating zero into `len` bytes, truncated if necessary; returns the line's length.
fn write_line(line: Option<&str>, buffer: *mut c_char, len: usize) -> usize {
    let Some(line) = line else {
        return 0;
    };
    if !buffer.is_null() && len > 0 {
        let kept = line.len().min(len - 1);
        // SAFETY: the caller guarantees `len` bytes, and `kept` is less.
        unsafe { std::ptr::copy_nonoverlapping(line.as_ptr().cast(), buffer, kept) };
        // SAFETY: as above.
        let end = unsafe { buffer.add(kept) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    line.len()
}

/// A text that only the simulator returns.
#[unsafe(no_mangle)]
extern "C" fn simcuda_identify() -> *const c_char {
    IDENTITY.as_ptr()
}

/// Clears counts, the log, faults and reports. Live objects are unaffected.
#[unsafe(no_mangle)]
extern "C" fn simcuda_reset() {
    fault::reset(table::exports());
    if let Ok(mut state) = state() {
        state.reports.clear();
    }
}

/// Number of calls of a function; 0 for one that the simulator does not have.
#[unsafe(no_mangle)]
extern "C" fn simcuda_calls(function: *const c_char) -> u64 {
    let export = name(function).and_then(|name| table::find(&name));
    export.map_or(0, |export| export.calls.load(Ordering::Relaxed))
}

/// Number of driver calls.
#[unsafe(no_mangle)]
extern "C" fn simcuda_calls_total() -> u64 {
    fault::total()
}

/// Starts a new log of the functions called.
#[unsafe(no_mangle)]
extern "C" fn simcuda_call_log_start() {
    fault::start_log();
}

/// One name of the log; 0 past its end.
#[unsafe(no_mangle)]
extern "C" fn simcuda_call_log(index: u64, buffer: *mut c_char, len: usize) -> usize {
    write_line(fault::log_line(index as usize), buffer, len)
}

/// The `nth` call of a function from now fails with `code`. 0 if the simulator has no such function.
#[unsafe(no_mangle)]
extern "C" fn simcuda_fail(function: *const c_char, nth: u64, code: u32) -> u64 {
    fail(function, nth, code, true)
}

/// The same, but a releasing function does not release.
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

/// Clears the faults that have not occurred yet.
#[unsafe(no_mangle)]
extern "C" fn simcuda_fail_clear() {
    fault::disarm();
}

/// What the program has not released.
#[unsafe(no_mangle)]
extern "C" fn simcuda_live(out: *mut Live) {
    let live = state().map(|state| state.live()).unwrap_or_default();
    if !out.is_null() {
        // SAFETY: not null, so valid for one write by the contract of this function.
        unsafe { out.write(live) };
    }
}

/// Number of modules and libraries loaded on a device.
#[unsafe(no_mangle)]
extern "C" fn simcuda_images(device: u64) -> u64 {
    state().map_or(0, |state| state.images(device as usize))
}

/// Bytes that pools and allocations of this process hold on a GPU of the machine, or on one of its MIG instances,
/// counted from 1; 0 means the whole GPU. For the simulated NVML.
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

/// Makes a range of mapped memory a separate block for the sanitizer, from this point of the stream on.
#[unsafe(no_mangle)]
extern "C" fn simcuda_annotate_allocate(address: u64, bytes: u64, stream: CUstream) -> CUresult {
    annotate(|state| state.annotate_allocate(address, bytes, stream))
}

/// Ends such a block at this point of the stream.
#[unsafe(no_mangle)]
extern "C" fn simcuda_annotate_free(address: u64, bytes: u64, stream: CUstream) -> CUresult {
    annotate(|state| state.annotate_free(address, bytes, stream))
}

fn annotate(note: impl FnOnce(&mut State) -> Answer) -> CUresult {
    code(state().and_then(|mut state| note(&mut state)))
}

fn code(answer: Answer) -> CUresult {
    answer.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Gives the kernels of this name a model, instead of an earlier one; null removes it, or answers NOT_FOUND. `release`
/// may be null. It is called once with `user`, when no launch can use the model any more.
#[unsafe(no_mangle)]
extern "C" fn simcuda_kernel(
    name: *const c_char,
    function: Option<ModelFunction>,
    user: *mut c_void,
    release: Option<Release>,
) -> CUresult {
    if name.is_null() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, so a zero-terminated string by the contract of this function.
    let name = unsafe { CStr::from_ptr(name) };
    if name.is_empty() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    let answer = match function {
        Some(function) => {
            model::register(name, Model::new(function, user, release));
            Ok(())
        }
        None => model::remove(name),
    };
    code(answer)
}

/// The launch of a running model.
fn run<'a>(launch: *const LaunchRecord) -> Option<&'a ModelRun> {
    // SAFETY: null, or the record of a running model by the contract of these functions.
    let record = unsafe { launch.as_ref() }?;
    // SAFETY: only `ModelRun::run` makes records, and the run lives as long as the model runs.
    unsafe { record.run.cast::<ModelRun>().as_ref() }
}

/// Copies memory of the device to a model; only checks the access if `out` is null. ILLEGAL_ADDRESS if it is not the
/// launch's to access. Once an access has failed or the launch has an error, every access fails.
#[unsafe(no_mangle)]
extern "C" fn simcuda_read(
    launch: *const LaunchRecord,
    address: u64,
    out: *mut c_void,
    len: usize,
) -> CUresult {
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    run(launch).map_or(invalid, |run| run.read(address, out, len))
}

/// The other way round.
#[unsafe(no_mangle)]
extern "C" fn simcuda_write(
    launch: *const LaunchRecord,
    address: u64,
    from: *const c_void,
    len: usize,
) -> CUresult {
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    run(launch).map_or(invalid, |run| run.write(address, from, len))
}

/// Finds a variable of the module that a running kernel is in. Each of the results may be null. NOT_FOUND if there is none.
#[unsafe(no_mangle)]
extern "C" fn simcuda_variable(
    launch: *const LaunchRecord,
    of: *const c_char,
    address: *mut u64,
    bytes: *mut usize,
) -> CUresult {
    let (Some(run), Some(of)) = (run(launch), name(of)) else {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    };
    let Some(found) = run.variable(&of) else {
        return CUresult::CUDA_ERROR_NOT_FOUND;
    };
    if !address.is_null() {
        // SAFETY: not null, so valid for one write by the contract of this function.
        unsafe { address.write(found.address) };
    }
    if !bytes.is_null() {
        // SAFETY: as above.
        unsafe { bytes.write(found.size as usize) };
    }
    CUresult::CUDA_SUCCESS
}

/// Reports that a model cannot do its work.
#[unsafe(no_mangle)]
extern "C" fn simcuda_kernel_error(launch: *const LaunchRecord, why: *const c_char) {
    if let (Some(run), Some(why)) = (run(launch), name(why)) {
        run.fail(&why);
    }
}

/// Number of stream-order violations.
#[unsafe(no_mangle)]
extern "C" fn simcuda_reports() -> u64 {
    state().map_or(0, |state| state.reports.count())
}

/// One report; 0 past the last.
#[unsafe(no_mangle)]
extern "C" fn simcuda_report(index: u64, buffer: *mut c_char, len: usize) -> usize {
    state().map_or(0, |state| {
        write_line(state.reports.line(index as usize), buffer, len)
    })
}
