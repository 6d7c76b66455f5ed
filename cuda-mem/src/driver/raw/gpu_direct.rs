//! The order of the accesses that others make to a device's memory.

use std::ffi::{c_uint, c_void};

use cuda_driver_sys::{
    CUdeviceptr, CUflushGPUDirectRDMAWritesScope, CUflushGPUDirectRDMAWritesTarget,
    CUpointer_attribute,
};

use super::{Table, call};
use crate::base::error::Result;

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
