//! Events.

use std::ffi::c_uint;

use cuda_driver_sys::CUevent;

use super::{Queue, Table, call};
use crate::base::error::Result;

/// # Safety
/// A live context must be current: the event belongs to it.
pub(crate) unsafe fn create(table: &Table, flags: c_uint) -> Result<CUevent> {
    let mut event = std::ptr::null_mut();
    // SAFETY: `event` is valid for a write of one handle.
    unsafe { call!(table, cuEventCreate(&raw mut event, flags)) }?;
    Ok(event)
}

/// # Safety
/// `event` must be a live event that is not used afterwards. Waits already issued stay valid.
pub(crate) unsafe fn destroy(table: &Table, event: CUevent) -> Result<()> {
    // SAFETY: the caller gives up the handle.
    unsafe { call!(table, cuEventDestroy_v2(event)) }
}

/// # Safety
/// Both must be live handles of one context.
pub(crate) unsafe fn record(queue: Queue<'_>, event: CUevent) -> Result<()> {
    // SAFETY: the caller vouches for the handles.
    unsafe { call!(queue.table, cuEventRecord(event, queue.stream)) }
}

/// # Safety
/// `event` must be a live event.
pub(crate) unsafe fn synchronize(table: &Table, event: CUevent) -> Result<()> {
    // SAFETY: the caller vouches for the handle.
    unsafe { call!(table, cuEventSynchronize(event)) }
}

/// # Safety
/// `event` must be a live event. `false` while it is pending.
pub(crate) unsafe fn query(table: &Table, event: CUevent) -> Result<bool> {
    // SAFETY: the caller vouches for the handle.
    unsafe { call!(super::done, table, cuEventQuery(event)) }
}

/// Milliseconds from `start` to `end`.
///
/// # Safety
/// Both must be live events of one context, made with timing.
pub(crate) unsafe fn elapsed(table: &Table, start: CUevent, end: CUevent) -> Result<f32> {
    let mut milliseconds = 0.0;
    // The base symbol is in every driver; 12.8's `_v2` differs only in the errors it reports.
    // SAFETY: `milliseconds` is valid for a write of one float.
    unsafe { call!(table, cuEventElapsedTime(&raw mut milliseconds, start, end)) }?;
    Ok(milliseconds)
}
