//! Copies and fills. For pool memory the stream's context must be current around each.

use std::ffi::c_void;

use cuda_driver_sys::{CUcontext, CUdeviceptr, CUstream};

use super::{Table, call};
use crate::error::Result;

/// # Safety
/// `to` must be valid for `bytes` at this point of `stream`, `from` readable for `bytes` until the
/// stream has been synchronised; the stream's context must be current.
pub(crate) unsafe fn to_device(
    table: &Table,
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> Result<()> {
    // SAFETY: the caller vouches for both ranges.
    unsafe { call!(table, cuMemcpyHtoDAsync_v2(to, from, bytes, stream)) }
}

/// # Safety
/// `from` must be valid for `bytes` at this point of `stream`, `to` writable for `bytes` until the
/// stream has been synchronised; the stream's context must be current.
pub(crate) unsafe fn to_host(
    table: &Table,
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<()> {
    // SAFETY: the caller vouches for both ranges.
    unsafe { call!(table, cuMemcpyDtoHAsync_v2(to, from, bytes, stream)) }
}

/// # Safety
/// Both ranges must be valid for `bytes` at this point of `stream` and not overlap; the stream's
/// context must be current.
pub(crate) unsafe fn on_device(
    table: &Table,
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<()> {
    // SAFETY: the caller vouches for both ranges.
    unsafe { call!(table, cuMemcpyDtoDAsync_v2(to, from, bytes, stream)) }
}

/// A copy whose ends the driver finds out from the addresses. Host pools need it: the calls that name
/// a direction refuse their memory (measured).
///
/// # Safety
/// Each end must be valid for `bytes` at this point of `stream`, or, if it is the program's own memory,
/// until the stream has been synchronised; the stream's context must be current.
pub(crate) unsafe fn anywhere(
    table: &Table,
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Result<()> {
    // SAFETY: the caller vouches for both ranges.
    unsafe { call!(table, cuMemcpyAsync(to, from, bytes, stream)) }
}

/// A copy between devices, whether they can reach each other or not.
///
/// # Safety
/// Each range must be valid for `bytes` at this point of `stream` and be memory of its context's device;
/// the stream's context must be current.
pub(crate) unsafe fn between_devices(
    table: &Table,
    to: (CUdeviceptr, CUcontext),
    from: (CUdeviceptr, CUcontext),
    bytes: usize,
    stream: CUstream,
) -> Result<()> {
    // SAFETY: the caller vouches for both ranges and contexts.
    unsafe {
        call!(
            table,
            cuMemcpyPeerAsync(to.0, to.1, from.0, from.1, bytes, stream)
        )
    }
}

/// # Safety
/// `to` must be valid for `count` bytes at this point of `stream`, whose context must be current.
pub(crate) unsafe fn fill_u8(
    table: &Table,
    to: CUdeviceptr,
    value: u8,
    count: usize,
    stream: CUstream,
) -> Result<()> {
    // SAFETY: the caller vouches for the range.
    unsafe { call!(table, cuMemsetD8Async(to, value, count, stream)) }
}

/// # Safety
/// As [`fill_u8`], for `count` times 2 bytes, 2-aligned.
pub(crate) unsafe fn fill_u16(
    table: &Table,
    to: CUdeviceptr,
    value: u16,
    count: usize,
    stream: CUstream,
) -> Result<()> {
    // SAFETY: the caller vouches for the range.
    unsafe { call!(table, cuMemsetD16Async(to, value, count, stream)) }
}

/// # Safety
/// As [`fill_u8`], for `count` times 4 bytes, 4-aligned.
pub(crate) unsafe fn fill_u32(
    table: &Table,
    to: CUdeviceptr,
    value: u32,
    count: usize,
    stream: CUstream,
) -> Result<()> {
    // SAFETY: the caller vouches for the range.
    unsafe { call!(table, cuMemsetD32Async(to, value, count, stream)) }
}
