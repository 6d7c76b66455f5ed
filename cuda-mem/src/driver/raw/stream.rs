//! Streams. With an explicit stream none of these needs a current context, except creation.

use std::ffi::c_uint;

use cuda_driver_sys::{CUevent, CUstream, CUstream_flags};

use super::{Queue, Table, call};
use crate::base::error::Result;

/// # Safety
/// A live context must be current: the stream belongs to it.
pub(crate) unsafe fn create(table: &Table, flags: c_uint) -> Result<CUstream> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: `stream` is valid for a write of one handle.
    unsafe { call!(table, cuStreamCreate(&raw mut stream, flags)) }?;
    Ok(stream)
}

/// # Safety
/// `stream` must be a live stream that is not used afterwards. Pending work still completes.
pub(crate) unsafe fn destroy(table: &Table, stream: CUstream) -> Result<()> {
    // SAFETY: the caller gives up the handle.
    unsafe { call!(table, cuStreamDestroy_v2(stream)) }
}

/// # Safety
/// The stream must be live.
pub(crate) unsafe fn synchronize(queue: Queue<'_>) -> Result<()> {
    // SAFETY: the caller vouches for the handle.
    unsafe { call!(queue.table, cuStreamSynchronize(queue.stream)) }
}

/// # Safety
/// The stream must be live. `false` while work is pending.
pub(crate) unsafe fn query(queue: Queue<'_>) -> Result<bool> {
    // SAFETY: the caller vouches for the handle.
    unsafe { call!(super::done, queue.table, cuStreamQuery(queue.stream)) }
}

/// # Safety
/// The stream must be live. No other stream of this process has, had or will have this id. CUDA 12.0.
pub(crate) unsafe fn id(queue: Queue<'_>) -> Result<u64> {
    let mut id = 0;
    // SAFETY: the caller vouches for the handle; `id` is valid for a write.
    unsafe { call!(queue.table, cuStreamGetId(queue.stream, &raw mut id)) }?;
    Ok(id)
}

/// # Safety
/// The stream must be live. Whether it and the legacy default stream wait for each other.
pub(crate) unsafe fn is_blocking(queue: Queue<'_>) -> Result<bool> {
    let mut flags = 0;
    // SAFETY: the caller vouches for the handle; `flags` is valid for a write.
    unsafe { call!(queue.table, cuStreamGetFlags(queue.stream, &raw mut flags)) }?;
    Ok(flags & CUstream_flags::CU_STREAM_NON_BLOCKING.0 == 0)
}

/// # Safety
/// Both must be live handles. The wait is for the latest recording at this moment, so the event may
/// be recorded again right away; one that was never recorded is not waited for.
pub(crate) unsafe fn wait(queue: Queue<'_>, event: CUevent) -> Result<()> {
    // SAFETY: the caller vouches for the handles; 0 is the default flag.
    unsafe { call!(queue.table, cuStreamWaitEvent(queue.stream, event, 0)) }
}
