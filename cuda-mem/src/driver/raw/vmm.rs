//! Virtual memory management: addresses, physical memory, and what brings them together.

#[cfg(target_os = "linux")]
use std::ffi::c_int;
use std::ffi::c_ulonglong;
#[cfg(any(target_os = "linux", windows))]
use std::ffi::c_void;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
#[cfg(windows)]
use std::os::windows::io::{OwnedHandle, RawHandle};

#[cfg(any(target_os = "linux", windows))]
use cuda_driver_sys::CUmemAllocationHandleType;
use cuda_driver_sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
};

use super::{Table, call};
use crate::base::error::Result;

/// No flag is defined for any of these calls.
const NO_FLAGS: c_ulonglong = 0;

/// The minimum granularity of physical memory, in bytes.
///
/// # Safety
/// There must be an initialised driver behind the table.
pub(crate) unsafe fn granularity(table: &Table, prop: &CUmemAllocationProp) -> Result<usize> {
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the caller's.
    unsafe { step(table, prop, least) }
}

/// The recommended granularity, in bytes.
///
/// # Safety
/// As [`granularity`].
pub(crate) unsafe fn recommended_granularity(
    table: &Table,
    prop: &CUmemAllocationProp,
) -> Result<usize> {
    let best = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    // SAFETY: the caller's.
    unsafe { step(table, prop, best) }
}

/// # Safety
/// As [`granularity`].
unsafe fn step(
    table: &Table,
    prop: &CUmemAllocationProp,
    which: CUmemAllocationGranularity_flags,
) -> Result<usize> {
    let mut bytes = 0;
    // SAFETY: `bytes` is valid for a write, `prop` for the read of the struct.
    unsafe {
        call!(
            table,
            cuMemGetAllocationGranularity(&raw mut bytes, prop, which)
        )
    }?;
    Ok(bytes)
}

/// Reserves addresses; nothing is mapped there yet.
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

/// Releases the handle. The memory stays until it is no longer mapped either (V6).
///
/// # Safety
/// `handle` must come from [`create`] and be released once.
pub(crate) unsafe fn release(table: &Table, handle: CUmemGenericAllocationHandle) -> Result<()> {
    // SAFETY: the caller gives up the handle.
    unsafe { call!(table, cuMemRelease(handle)) }
}

/// Maps physical memory to addresses. They must not be used before [`allow`] (V4).
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

/// Sets who may access the memory.
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

/// The access that a place has to the memory there.
///
/// # Safety
/// Something must be mapped at the address.
pub(crate) unsafe fn access(
    table: &Table,
    address: CUdeviceptr,
    who: CUmemLocation,
) -> Result<CUmemAccess_flags> {
    let mut flags = 0;
    // SAFETY: `flags` is valid for a write, `who` for the read of the struct.
    unsafe {
        call!(
            table,
            cuMemGetAccess(&raw mut flags, &raw const who, address)
        )
    }?;
    Ok(CUmemAccess_flags(flags as u32))
}

/// The properties that memory was requested with.
///
/// # Safety
/// `handle` must be live.
#[cfg(any(target_os = "linux", windows))]
pub(crate) unsafe fn properties(
    table: &Table,
    handle: CUmemGenericAllocationHandle,
) -> Result<CUmemAllocationProp> {
    let mut prop = CUmemAllocationProp::default();
    // SAFETY: `prop` is valid for a write.
    unsafe {
        call!(
            table,
            cuMemGetAllocationPropertiesFromHandle(&raw mut prop, handle)
        )
    }?;
    Ok(prop)
}

/// Exports memory as a descriptor, for other processes.
///
/// # Safety
/// `handle` must be live.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn export_fd(
    table: &Table,
    handle: CUmemGenericAllocationHandle,
) -> Result<OwnedFd> {
    let mut descriptor: c_int = -1;
    let place = (&raw mut descriptor).cast::<c_void>();
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: of this kind the driver writes one int.
    unsafe {
        call!(
            table,
            cuMemExportToShareableHandle(place, handle, kind, NO_FLAGS)
        )
    }?;
    // SAFETY: the driver made it for this call.
    unsafe { super::descriptor(descriptor) }
}

/// Imports the memory behind a descriptor of another process.
///
/// # Safety
/// There must be an initialised driver behind the table.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn import_fd(
    table: &Table,
    descriptor: c_int,
) -> Result<CUmemGenericAllocationHandle> {
    let mut handle = 0;
    // A number in the place of a pointer, as the driver wants it.
    let place = std::ptr::without_provenance_mut::<c_void>(descriptor as usize);
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: `handle` is valid for a write.
    unsafe {
        call!(
            table,
            cuMemImportFromShareableHandle(&raw mut handle, place, kind)
        )
    }?;
    Ok(handle)
}

/// Exports memory as a handle, which can be duplicated into other processes.
///
/// # Safety
/// `handle` must be live.
#[cfg(windows)]
pub(crate) unsafe fn export_handle(
    table: &Table,
    handle: CUmemGenericAllocationHandle,
) -> Result<OwnedHandle> {
    let mut shared: RawHandle = std::ptr::null_mut();
    let place = (&raw mut shared).cast::<c_void>();
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_WIN32;
    // SAFETY: of this kind the driver writes one HANDLE.
    unsafe {
        call!(
            table,
            cuMemExportToShareableHandle(place, handle, kind, NO_FLAGS)
        )
    }?;
    // SAFETY: the driver made it for this call.
    unsafe { super::handle(shared) }
}

/// Imports the memory behind a handle of this process, which another one has exported.
///
/// # Safety
/// There must be an initialised driver behind the table.
#[cfg(windows)]
pub(crate) unsafe fn import_handle(
    table: &Table,
    shared: RawHandle,
) -> Result<CUmemGenericAllocationHandle> {
    let mut handle = 0;
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_WIN32;
    // SAFETY: `handle` is valid for a write.
    unsafe {
        call!(
            table,
            cuMemImportFromShareableHandle(&raw mut handle, shared, kind)
        )
    }?;
    Ok(handle)
}
