//! What lets others reach a device's memory: dma-bufs, and the order of their accesses.

use std::ffi::{c_int, c_uint, c_void};
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

use cuda_driver_sys::{
    CUdeviceptr, CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget,
    CUmemRangeFlags, CUmemRangeHandleType, CUpointer_attribute,
};

use super::{Table, call};
use crate::base::error::Result;

/// A dma-buf of whole pages of device memory.
///
/// # Safety
/// A context must be current (R166). Whatever the range is, the driver checks it.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn dma_buf(
    table: &Table,
    (address, bytes): (CUdeviceptr, usize),
    over_pcie: bool,
) -> Result<OwnedFd> {
    let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    let flag = CUmemRangeFlags::CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE;
    let flags = if over_pcie { u64::from(flag.0) } else { 0 };
    let mut descriptor: c_int = -1;
    let out: *mut c_void = (&raw mut descriptor).cast();
    // SAFETY: for this kind the driver writes an `int` to `out`.
    unsafe {
        call!(
            table,
            cuMemGetHandleForAddressRange(out, address, bytes, kind, flags)
        )
    }?;
    // SAFETY: the driver made it for this call.
    unsafe { super::descriptor(descriptor) }
}

/// # Safety
/// A context of the device must be current.
pub(crate) unsafe fn flush_writes(
    table: &Table,
    scope: CUflushGPUDirectRDMAWritesScope,
) -> Result<()> {
    let target =
        CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
    // SAFETY: plain values; the context is the caller's.
    unsafe { call!(table, cuFlushGPUDirectRDMAWrites(target, scope)) }
}

/// # Safety
/// The address must be that of live memory of a device.
pub(crate) unsafe fn set_sync_memops(
    table: &Table,
    address: CUdeviceptr,
    wanted: bool,
) -> Result<()> {
    let value = c_uint::from(wanted);
    let from: *const c_void = (&raw const value).cast();
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    // SAFETY: for this attribute the driver reads an `unsigned int`.
    unsafe { call!(table, cuPointerSetAttribute(from, attribute, address)) }
}
