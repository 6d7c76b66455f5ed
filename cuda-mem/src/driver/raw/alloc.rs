//! Stream-ordered allocation: the hot path. Neither call needs a current context on an explicit
//! stream (measured).

use cuda_driver_sys::{CUdeviceptr, CUmemoryPool};

use super::{Queue, call};
use crate::base::error::Result;

/// # Safety
/// `pool` and the stream must be live. The memory may be used only after this point of the stream,
/// and may be freed at most once.
#[inline]
pub(crate) unsafe fn from_pool(
    queue: Queue<'_>,
    bytes: usize,
    pool: CUmemoryPool,
) -> Result<CUdeviceptr> {
    let mut address = 0;
    // SAFETY: `address` is valid for a write; the caller vouches for the handles.
    unsafe {
        call!(
            queue.table,
            cuMemAllocFromPoolAsync(&raw mut address, bytes, pool, queue.stream)
        )
    }?;
    Ok(address)
}

/// From the current pool of the stream's device; in a captured stream, memory of the graph.
///
/// # Safety
/// As [`from_pool`].
pub(crate) unsafe fn from_current_pool(queue: Queue<'_>, bytes: usize) -> Result<CUdeviceptr> {
    let mut address = 0;
    // SAFETY: `address` is valid for a write; the caller vouches for the queue.stream.
    unsafe {
        call!(
            queue.table,
            cuMemAllocAsync(&raw mut address, bytes, queue.stream)
        )
    }?;
    Ok(address)
}

/// # Safety
/// `address` must come from [`from_pool`] and be freed nowhere else; every use of it must be
/// ordered before this point of the stream.
#[inline]
pub(crate) unsafe fn free(queue: Queue<'_>, address: CUdeviceptr) -> Result<()> {
    // SAFETY: the caller gives up the address.
    unsafe { call!(queue.table, cuMemFreeAsync(address, queue.stream)) }
}
