//! Copies and fills. For pool memory the stream's context must be current around each.

use std::ffi::c_void;

use cuda_driver_sys::{CUcontext, CUdeviceptr};

use super::{Queue, call};
use crate::base::error::Result;

/// # Safety
/// `to` must be valid for `bytes` at this point of the stream, `from` readable for `bytes` until the
/// stream has been synchronised; the stream's context must be current.
pub(crate) unsafe fn to_device(
    queue: Queue<'_>,
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
) -> Result<()> {
    // SAFETY: the caller vouches for both ranges.
    unsafe {
        call!(
            queue.table,
            cuMemcpyHtoDAsync_v2(to, from, bytes, queue.stream)
        )
    }
}

/// # Safety
/// `from` must be valid for `bytes` at this point of the stream, `to` writable for `bytes` until the
/// stream has been synchronised; the stream's context must be current.
pub(crate) unsafe fn to_host(
    queue: Queue<'_>,
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
) -> Result<()> {
    // SAFETY: the caller vouches for both ranges.
    unsafe {
        call!(
            queue.table,
            cuMemcpyDtoHAsync_v2(to, from, bytes, queue.stream)
        )
    }
}

/// # Safety
/// Both ranges must be valid for `bytes` at this point of the stream and not overlap; the stream's
/// context must be current.
pub(crate) unsafe fn on_device(
    queue: Queue<'_>,
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
) -> Result<()> {
    // SAFETY: the caller vouches for both ranges.
    unsafe {
        call!(
            queue.table,
            cuMemcpyDtoDAsync_v2(to, from, bytes, queue.stream)
        )
    }
}

/// A copy whose ends the driver finds out from the addresses. Host pools need it: the calls that name
/// a direction refuse their memory (measured).
///
/// # Safety
/// Each end must be valid for `bytes` at this point of the stream, or, if it is the program's own memory,
/// until the stream has been synchronised; the stream's context must be current.
pub(crate) unsafe fn anywhere(
    queue: Queue<'_>,
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
) -> Result<()> {
    // SAFETY: the caller vouches for both ranges.
    unsafe { call!(queue.table, cuMemcpyAsync(to, from, bytes, queue.stream)) }
}

/// A copy between devices, whether they can reach each other or not.
///
/// # Safety
/// Each range must be valid for `bytes` at this point of the stream and be memory of its context's device;
/// the stream's context must be current.
pub(crate) unsafe fn between_devices(
    queue: Queue<'_>,
    to: (CUdeviceptr, CUcontext),
    from: (CUdeviceptr, CUcontext),
    bytes: usize,
) -> Result<()> {
    // SAFETY: the caller vouches for both ranges and contexts.
    unsafe {
        call!(
            queue.table,
            cuMemcpyPeerAsync(to.0, to.1, from.0, from.1, bytes, queue.stream)
        )
    }
}

/// # Safety
/// `to` must be valid for `count` bytes at this point of the stream, whose context must be current.
pub(crate) unsafe fn fill_u8(
    queue: Queue<'_>,
    to: CUdeviceptr,
    value: u8,
    count: usize,
) -> Result<()> {
    // SAFETY: the caller vouches for the range.
    unsafe { call!(queue.table, cuMemsetD8Async(to, value, count, queue.stream)) }
}

/// # Safety
/// As [`fill_u8`], for `count` times 2 bytes, 2-aligned.
pub(crate) unsafe fn fill_u16(
    queue: Queue<'_>,
    to: CUdeviceptr,
    value: u16,
    count: usize,
) -> Result<()> {
    // SAFETY: the caller vouches for the range.
    unsafe {
        call!(
            queue.table,
            cuMemsetD16Async(to, value, count, queue.stream)
        )
    }
}

/// # Safety
/// As [`fill_u8`], for `count` times 4 bytes, 4-aligned.
pub(crate) unsafe fn fill_u32(
    queue: Queue<'_>,
    to: CUdeviceptr,
    value: u32,
    count: usize,
) -> Result<()> {
    // SAFETY: the caller vouches for the range.
    unsafe {
        call!(
            queue.table,
            cuMemsetD32Async(to, value, count, queue.stream)
        )
    }
}
