//! Sharing with other processes. Pools and pointers need no current context (measured), events do.

#[cfg(target_os = "linux")]
use std::ffi::c_int;
use std::ffi::c_void;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
#[cfg(windows)]
use std::os::windows::io::{OwnedHandle, RawHandle};

use cuda_driver_sys::{
    CUdeviceptr, CUevent, CUipcEventHandle, CUmemAllocationHandleType, CUmemFabricHandle,
    CUmemPoolPtrExportData, CUmemoryPool,
};

use super::{Table, call};
use crate::base::error::Result;

#[cfg(target_os = "linux")]
const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
#[cfg(windows)]
const WIN32: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_WIN32;
const FABRIC: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;

/// A descriptor of the pool, for other processes.
///
/// # Safety
/// `pool` must be a live pool that no other thread destroys meanwhile (R28).
#[cfg(target_os = "linux")]
pub(crate) unsafe fn export_fd(table: &Table, pool: CUmemoryPool) -> Result<OwnedFd> {
    let mut descriptor: c_int = -1;
    let out: *mut c_void = (&raw mut descriptor).cast();
    // SAFETY: for this kind the driver writes an `int` to `out` (R51); the flags must be 0.
    unsafe {
        call!(
            table,
            cuMemPoolExportToShareableHandle(out, pool, DESCRIPTOR, 0)
        )
    }?;
    // SAFETY: the driver made it for this call (R51).
    unsafe { super::descriptor(descriptor) }
}

/// A handle of the pool, which can be duplicated into other processes.
///
/// # Safety
/// `pool` must be a live pool that no other thread destroys meanwhile (R28).
#[cfg(windows)]
pub(crate) unsafe fn export_handle(table: &Table, pool: CUmemoryPool) -> Result<OwnedHandle> {
    let mut handle: RawHandle = std::ptr::null_mut();
    let out: *mut c_void = (&raw mut handle).cast();
    // SAFETY: for this kind the driver writes a HANDLE to `out`; the flags must be 0.
    unsafe { call!(table, cuMemPoolExportToShareableHandle(out, pool, WIN32, 0)) }?;
    // SAFETY: the driver made it for this call.
    unsafe { super::handle(handle) }
}

/// # Safety
/// `pool` must be a live pool that no other thread destroys meanwhile (R28), and no export of this pool may have failed
/// before: the next one can crash the process (measured).
pub(crate) unsafe fn export_fabric(table: &Table, pool: CUmemoryPool) -> Result<[u8; 64]> {
    let mut handle = CUmemFabricHandle { data: [0; 64] };
    let out: *mut c_void = (&raw mut handle).cast();
    // SAFETY: for this kind the driver writes its struct of 64 bytes to `out`.
    unsafe {
        call!(
            table,
            cuMemPoolExportToShareableHandle(out, pool, FABRIC, 0)
        )
    }?;
    Ok(handle.data)
}

/// A descriptor of anything but a pool answers UNKNOWN; it is not taken over (measured, R51).
///
/// # Safety
/// No other thread may destroy a pool meanwhile (R28).
#[cfg(target_os = "linux")]
pub(crate) unsafe fn import_fd(table: &Table, descriptor: c_int) -> Result<CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    // The number itself is what is handed over, in the place of a pointer.
    let handle = std::ptr::without_provenance_mut(descriptor as isize as usize);
    // SAFETY: `pool` is valid for a write of one handle; the flags must be 0.
    unsafe {
        call!(
            table,
            cuMemPoolImportFromShareableHandle(&raw mut pool, handle, DESCRIPTOR, 0)
        )
    }?;
    Ok(pool)
}

/// The handle is not taken over.
///
/// # Safety
/// No other thread may destroy a pool meanwhile (R28).
#[cfg(windows)]
pub(crate) unsafe fn import_handle(table: &Table, handle: RawHandle) -> Result<CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    // SAFETY: `pool` is valid for a write of one handle; the flags must be 0.
    unsafe {
        call!(
            table,
            cuMemPoolImportFromShareableHandle(&raw mut pool, handle, WIN32, 0)
        )
    }?;
    Ok(pool)
}

/// # Safety
/// No other thread may destroy a pool meanwhile (R28), and the handle must come from [`export_fabric`] of some process.
pub(crate) unsafe fn import_fabric(table: &Table, handle: [u8; 64]) -> Result<CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    let mut handle = CUmemFabricHandle { data: handle };
    let place: *mut c_void = (&raw mut handle).cast();
    // SAFETY: `pool` is valid for a write of one handle, `place` for the read of the struct.
    unsafe {
        call!(
            table,
            cuMemPoolImportFromShareableHandle(&raw mut pool, place, FABRIC, 0)
        )
    }?;
    Ok(pool)
}

/// # Safety
/// `address` must be one that a live pool handed out, and that pool must not be destroyed
/// meanwhile (R28).
pub(crate) unsafe fn export_pointer(table: &Table, address: CUdeviceptr) -> Result<[u8; 64]> {
    let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
    // SAFETY: `data` is valid for a write of the struct.
    unsafe { call!(table, cuMemPoolExportPointer(&raw mut data, address)) }?;
    Ok(data.reserved)
}

/// # Safety
/// `pool` must be a live imported pool that no other thread destroys meanwhile (R28), and the token
/// one that [`export_pointer`] gave for it: another can crash the process (measured).
pub(crate) unsafe fn import_pointer(
    table: &Table,
    pool: CUmemoryPool,
    token: [u8; 64],
) -> Result<CUdeviceptr> {
    let mut address = 0;
    let mut data = CUmemPoolPtrExportData { reserved: token };
    // SAFETY: `address` is valid for a write, and `data` for reads: the header forgot its `const`.
    unsafe {
        call!(
            table,
            cuMemPoolImportPointer(&raw mut address, pool, &raw mut data)
        )
    }?;
    Ok(address)
}

/// # Safety
/// `event` must be a live event, made to be shared, and its context current.
pub(crate) unsafe fn export_event(table: &Table, event: CUevent) -> Result<[u8; 64]> {
    let mut handle = CUipcEventHandle { reserved: [0; 64] };
    // SAFETY: `handle` is valid for a write of the struct.
    unsafe { call!(table, cuIpcGetEventHandle(&raw mut handle, event)) }?;
    Ok(handle.reserved.map(|byte| byte as _))
}

/// # Safety
/// A live context must be current: the event belongs to it. The handle must be one that
/// [`export_event`] gave to some process; that may be gone since.
pub(crate) unsafe fn import_event(table: &Table, handle: [u8; 64]) -> Result<CUevent> {
    let mut event = std::ptr::null_mut();
    let handle = CUipcEventHandle {
        reserved: handle.map(|byte| byte as _),
    };
    // SAFETY: `event` is valid for a write of one handle.
    unsafe { call!(table, cuIpcOpenEventHandle(&raw mut event, handle)) }?;
    Ok(event)
}
