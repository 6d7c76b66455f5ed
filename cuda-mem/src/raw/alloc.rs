//! Stream-ordered allocation: the hot path. Neither call needs a current context on an explicit
//! stream (measured).

use cuda_driver_sys::{CUdeviceptr, CUmemoryPool, CUstream};

use super::{Table, call};
use crate::error::Result;

/// # Safety
/// `pool` and `stream` must be live. The memory may be used only after this point of `stream`,
/// and may be freed at most once.
#[inline]
pub(crate) unsafe fn from_pool(
    table: &Table,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Result<CUdeviceptr> {
    let mut address = 0;
    // SAFETY: `address` is valid for a write; the caller vouches for the handles.
    unsafe {
        call!(
            table,
            cuMemAllocFromPoolAsync(&raw mut address, bytes, pool, stream)
        )
    }?;
    Ok(address)
}

/// From the current pool of the stream's device; in a captured stream, memory of the graph.
///
/// # Safety
/// As [`from_pool`].
pub(crate) unsafe fn from_current_pool(
    table: &Table,
    bytes: usize,
    stream: CUstream,
) -> Result<CUdeviceptr> {
    let mut address = 0;
    // SAFETY: `address` is valid for a write; the caller vouches for the stream.
    unsafe { call!(table, cuMemAllocAsync(&raw mut address, bytes, stream)) }?;
    Ok(address)
}

/// # Safety
/// `address` must come from [`from_pool`] and be freed nowhere else; every use of it must be
/// ordered before this point of `stream`.
#[inline]
pub(crate) unsafe fn free(table: &Table, address: CUdeviceptr, stream: CUstream) -> Result<()> {
    // SAFETY: the caller gives up the address.
    unsafe { call!(table, cuMemFreeAsync(address, stream)) }
}
