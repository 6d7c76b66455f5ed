//! What the driver says of a stream. Answers change nothing, also while streams are captured.

use std::ffi::c_int;

use cuda_mem::Driver;
use cuda_mem::sys::{CUdevice, CUresult, CUstream, CUstreamCaptureStatus, DriverTable};

/// Whether any code captures the stream; an invalidated capture counts until it is ended. `None` if the driver does not say.
///
/// # Safety
///
/// `stream` is live; if it is a default stream, its context is current.
pub(super) unsafe fn is_captured(stream: CUstream) -> Option<bool> {
    let ask = Driver::load().ok()?.table().cuStreamIsCapturing?;
    let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut status = none;
    // SAFETY: the function of the driver, with a stream as the caller promises, and a place for the answer.
    let result = unsafe { ask(stream, &raw mut status) };
    (result == CUresult::CUDA_SUCCESS).then_some(status != none)
}

/// The number of a stream's device. `None` if the driver does not say.
///
/// # Safety
///
/// `stream` is live, and no default stream.
pub(super) unsafe fn device_of(stream: CUstream) -> Option<c_int> {
    let driver = Driver::load().ok()?;
    let table = driver.table();
    // The device of a captured stream may not be asked for: the capture would be lost (R194). Its context may.
    // SAFETY: promised by the caller, in the words of the section above.
    let told = match unsafe { is_captured(stream) } {
        Some(true) => None,
        // SAFETY: as above.
        _ => unsafe { told_device(table, stream) },
    };
    let found = match told {
        Some(found) => found,
        // SAFETY: as above.
        None => unsafe { device_of_context(table, stream) }?,
    };
    let devices = driver.devices().ok()?;
    let device = devices.iter().find(|device| device.as_raw() == found)?;
    device.ordinal().try_into().ok()
}

/// As drivers from CUDA 12.8 on say.
///
/// # Safety
///
/// As for [`device_of`].
unsafe fn told_device(table: &DriverTable, stream: CUstream) -> Option<CUdevice> {
    let ask = table.cuStreamGetDevice?;
    let mut device = CUdevice::default();
    // SAFETY: the function of the driver, with a stream as the caller promises, and a place for the answer.
    let result = unsafe { ask(stream, &raw mut device) };
    (result == CUresult::CUDA_SUCCESS).then_some(device)
}

/// # Safety
///
/// As for [`device_of`].
unsafe fn device_of_context(table: &DriverTable, stream: CUstream) -> Option<CUdevice> {
    let (ask, ask_current) = (table.cuStreamGetCtx?, table.cuCtxGetDevice?);
    let (push, pop) = (table.cuCtxPushCurrent_v2?, table.cuCtxPopCurrent_v2?);
    let mut context = std::ptr::null_mut();
    // SAFETY: the function of the driver, with a stream as the caller promises, and a place for the answer.
    if unsafe { ask(stream, &raw mut context) } != CUresult::CUDA_SUCCESS {
        return None;
    }
    // SAFETY: the context of a live stream is live.
    if unsafe { push(context) } != CUresult::CUDA_SUCCESS {
        return None;
    }
    let mut device = CUdevice::default();
    // SAFETY: a context is current, and there is a place for the answer.
    let result = unsafe { ask_current(&raw mut device) };
    // SAFETY: the context that was pushed just now, and a place for it.
    unsafe { pop(&raw mut context) };
    (result == CUresult::CUDA_SUCCESS).then_some(device)
}
