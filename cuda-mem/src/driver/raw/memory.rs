//! Memory outside the pools: of a device, and managed. What allocates needs a current context; what frees
//! needs none, and waits for the device.

use cuda_driver_sys::{CUdeviceptr, CUmemAttach_flags};

use super::{Table, call};
use crate::base::error::Result;

/// # Safety
/// A context must be current. The memory may be freed at most once.
pub(crate) unsafe fn on_device(table: &Table, bytes: usize) -> Result<CUdeviceptr> {
    let mut address = 0;
    // SAFETY: `address` is valid for a write.
    unsafe { call!(table, cuMemAlloc_v2(&raw mut address, bytes)) }?;
    Ok(address)
}

/// For every stream of every device.
///
/// # Safety
/// As [`on_device`].
pub(crate) unsafe fn managed(table: &Table, bytes: usize) -> Result<CUdeviceptr> {
    let mut address = 0;
    let flags = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
    // SAFETY: `address` is valid for a write.
    unsafe { call!(table, cuMemAllocManaged(&raw mut address, bytes, flags)) }?;
    Ok(address)
}

/// Memory of [`on_device`] and [`managed`].
///
/// # Safety
/// The address must come from there and be freed nowhere else, and no work that uses it may be left.
pub(crate) unsafe fn free(table: &Table, address: CUdeviceptr) -> Result<()> {
    // SAFETY: the caller gives up the address.
    unsafe { call!(table, cuMemFree_v2(address)) }
}
