//! Device memory exported as dma-bufs.

use std::ffi::{c_int, c_void};
use std::os::fd::OwnedFd;

use cuda_driver_sys::{CUdeviceptr, CUmemRangeFlags, CUmemRangeHandleType};

use super::{Table, call};
use crate::base::error::Result;

/// A dma-buf of whole pages of device memory.
///
/// # Safety
/// A context must be current (R166). Whatever the range is, the driver checks it.
pub(crate) unsafe fn export(
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
