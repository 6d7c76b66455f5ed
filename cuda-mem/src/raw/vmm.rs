//! Virtual memory management: addresses, physical memory, and what brings them together.

use std::ffi::c_ulonglong;

use cuda_driver_sys::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemGenericAllocationHandle,
};

use super::{Table, call};
use crate::error::Result;

/// No flag is defined for any of these calls.
const NO_FLAGS: c_ulonglong = 0;

/// The bytes that physical memory comes in multiples of.
///
/// # Safety
/// There must be an initialised driver behind the table.
pub(crate) unsafe fn granularity(table: &Table, prop: &CUmemAllocationProp) -> Result<usize> {
    let mut bytes = 0;
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: `bytes` is valid for a write, `prop` for the read of the struct.
    unsafe {
        call!(
            table,
            cuMemGetAllocationGranularity(&raw mut bytes, prop, least)
        )
    }?;
    Ok(bytes)
}

/// Addresses that nobody else gets; nothing is behind them yet.
///
/// # Safety
/// As [`granularity`]. `bytes` must be a multiple of it.
pub(crate) unsafe fn reserve(table: &Table, bytes: usize, align: usize) -> Result<CUdeviceptr> {
    let mut address = 0;
    // SAFETY: `address` is valid for a write; no place is wished for.
    unsafe {
        call!(
            table,
            cuMemAddressReserve(&raw mut address, bytes, align, 0, NO_FLAGS)
        )
    }?;
    Ok(address)
}

/// # Safety
/// The range must come from [`reserve`] as a whole, and nothing may be mapped in it (V5).
pub(crate) unsafe fn unreserve(table: &Table, address: CUdeviceptr, bytes: usize) -> Result<()> {
    // SAFETY: the caller gives up the range.
    unsafe { call!(table, cuMemAddressFree(address, bytes)) }
}

/// Physical memory.
///
/// # Safety
/// As [`granularity`]. `bytes` must be a multiple of it.
pub(crate) unsafe fn create(
    table: &Table,
    bytes: usize,
    prop: &CUmemAllocationProp,
) -> Result<CUmemGenericAllocationHandle> {
    let mut handle = 0;
    // SAFETY: `handle` is valid for a write, `prop` for the read of the struct.
    unsafe { call!(table, cuMemCreate(&raw mut handle, bytes, prop, NO_FLAGS)) }?;
    Ok(handle)
}

/// Gives the handle up. The memory stays until it is not mapped any more either (V6).
///
/// # Safety
/// `handle` must come from [`create`] and be released once.
pub(crate) unsafe fn release(table: &Table, handle: CUmemGenericAllocationHandle) -> Result<()> {
    // SAFETY: the caller gives up the handle.
    unsafe { call!(table, cuMemRelease(handle)) }
}

/// Puts physical memory behind addresses. Nobody may use them before [`allow`] (V4).
///
/// # Safety
/// The range must be part of a reservation with nothing mapped there, and as long as what `handle`
/// stands for (V3).
pub(crate) unsafe fn map(
    table: &Table,
    address: CUdeviceptr,
    bytes: usize,
    handle: CUmemGenericAllocationHandle,
) -> Result<()> {
    // SAFETY: the caller vouches for range and handle; the offset must be 0 (V3).
    unsafe { call!(table, cuMemMap(address, bytes, 0, handle, NO_FLAGS)) }
}

/// # Safety
/// The range must be whole mappings (V5), and no work that uses them may be left: this does not wait for
/// streams (V8, measured).
pub(crate) unsafe fn unmap(table: &Table, address: CUdeviceptr, bytes: usize) -> Result<()> {
    // SAFETY: the caller gives up what is mapped.
    unsafe { call!(table, cuMemUnmap(address, bytes)) }
}

/// Says who may use the memory.
///
/// # Safety
/// The range must be whole mappings (V4).
pub(crate) unsafe fn allow(
    table: &Table,
    address: CUdeviceptr,
    bytes: usize,
    who: &[CUmemAccessDesc],
) -> Result<()> {
    // SAFETY: `who` is valid for the read of its length.
    unsafe {
        call!(
            table,
            cuMemSetAccess(address, bytes, who.as_ptr(), who.len())
        )
    }
}
