//! Primary contexts and the current context of a thread.

use std::ffi::{c_int, c_uint};

use cuda_driver_sys::{CUcontext, CUdevice};

use super::{Table, call};
use crate::base::error::Result;

/// # Safety
/// `device` must be a device of the same driver. Every success must be met by one [`release`].
pub(crate) unsafe fn retain(table: &Table, device: CUdevice) -> Result<CUcontext> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` is valid for a write of one handle.
    unsafe { call!(table, cuDevicePrimaryCtxRetain(&raw mut context, device)) }?;
    Ok(context)
}

/// # Safety
/// Gives up one [`retain`] of this device; nothing of the context may be used after the last.
pub(crate) unsafe fn release(table: &Table, device: CUdevice) -> Result<()> {
    // SAFETY: the caller holds a retain that it gives up here.
    unsafe { call!(table, cuDevicePrimaryCtxRelease_v2(device)) }
}

/// # Safety
/// `device` must be a device of the same driver.
pub(crate) unsafe fn is_active(table: &Table, device: CUdevice) -> Result<bool> {
    let mut flags: c_uint = 0;
    let mut active: c_int = 0;
    // SAFETY: both are valid for writes; the call creates nothing.
    unsafe {
        call!(
            table,
            cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active)
        )
    }?;
    Ok(active != 0)
}

/// # Safety
/// The driver must be initialised.
pub(crate) unsafe fn current(table: &Table) -> Result<CUcontext> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` is valid for a write; no context is answered as null.
    unsafe { call!(table, cuCtxGetCurrent(&raw mut context)) }?;
    Ok(context)
}

/// # Safety
/// `context` must be null or a live context of the same driver: one that was destroyed is freed twice (R84).
pub(crate) unsafe fn set_current(table: &Table, context: CUcontext) -> Result<()> {
    // SAFETY: the caller's; null leaves the thread without a context.
    unsafe { call!(table, cuCtxSetCurrent(context)) }
}

/// Makes `context` current, with what was current before under it.
///
/// # Safety
/// `context` must be a live context of the same driver.
pub(crate) unsafe fn push(table: &Table, context: CUcontext) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { call!(table, cuCtxPushCurrent_v2(context)) }
}

/// Takes the current context away. What is under it is current then, also if it was destroyed meanwhile: the driver
/// keeps what is left of it for as long as it is on a thread's stack (R84).
///
/// # Safety
/// The driver must be initialised.
pub(crate) unsafe fn pop(table: &Table) -> Result<()> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` is valid for a write of one handle; an empty stack answers an error.
    unsafe { call!(table, cuCtxPopCurrent_v2(&raw mut context)) }
}

/// The device of the current context.
///
/// # Safety
/// A live context must be current on this thread.
pub(crate) unsafe fn device(table: &Table) -> Result<CUdevice> {
    let mut device = 0;
    // SAFETY: `device` is valid for a write.
    unsafe { call!(table, cuCtxGetDevice(&raw mut device)) }?;
    Ok(device)
}

/// # Safety
/// A live context must be current on this thread.
pub(crate) unsafe fn synchronize(table: &Table) -> Result<()> {
    // SAFETY: waits for the work of the current context.
    unsafe { call!(table, cuCtxSynchronize()) }
}

/// Free and total bytes of the current context's device.
///
/// # Safety
/// A live context must be current on this thread.
pub(crate) unsafe fn memory_info(table: &Table) -> Result<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are valid for a write of one size_t.
    unsafe { call!(table, cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
    Ok((free, total))
}
