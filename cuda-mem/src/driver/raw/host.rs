//! Memory of the host that devices reach: allocated by the driver, or registered with it. What makes it
//! reachable needs a current context; freeing needs none, and waits for the device (R131).

use std::ffi::{c_uint, c_void};

use cuda_driver_sys::CUdeviceptr;

use super::{Table, call};
use crate::base::error::Result;

/// Null for zero bytes (R133).
///
/// # Safety
/// A context must be current. The memory may be freed at most once.
pub(crate) unsafe fn allocate(table: &Table, bytes: usize, flags: c_uint) -> Result<*mut c_void> {
    let mut address: *mut c_void = std::ptr::null_mut();
    // SAFETY: `address` is valid for a write.
    unsafe { call!(table, cuMemHostAlloc(&raw mut address, bytes, flags)) }?;
    Ok(address)
}

/// Memory of [`allocate`].
///
/// # Safety
/// The address must come from there and be freed nowhere else, and no work that uses it may be left.
pub(crate) unsafe fn free(table: &Table, address: *mut c_void) -> Result<()> {
    // SAFETY: the caller gives up the address.
    unsafe { call!(table, cuMemFreeHost(address)) }
}

/// Pins the program's own memory and registers it with the driver.
///
/// # Safety
/// A context must be current. The range must be memory of the program, and stay so until [`unregister`].
pub(crate) unsafe fn register(
    table: &Table,
    address: *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> Result<()> {
    // SAFETY: the caller vouches for the range.
    unsafe { call!(table, cuMemHostRegister_v2(address, bytes, flags)) }
}

/// # Safety
/// The address must be one that [`register`] was given, and no work that uses the range may be left. The
/// context that was current then must be current.
pub(crate) unsafe fn unregister(table: &Table, address: *mut c_void) -> Result<()> {
    // SAFETY: the caller ends what was registered there.
    unsafe { call!(table, cuMemHostUnregister(address)) }
}

/// The flags of memory from [`allocate`], or those given to [`register`]. The driver looks the address up and does not
/// touch the memory: for host memory that is neither pinned nor registered it answers INVALID_VALUE (measured,
/// `registered.ranges`).
///
/// # Safety
/// A context must be current. Memory at the address must not be freed meanwhile.
pub(crate) unsafe fn flags(table: &Table, address: *mut c_void) -> Result<c_uint> {
    let mut flags = 0;
    // SAFETY: `flags` is valid for a write, and the driver checks the address.
    unsafe { call!(table, cuMemHostGetFlags(&raw mut flags, address)) }?;
    Ok(flags)
}

/// The address by which the device of the current context knows memory of [`allocate`], or of
/// [`register`].
///
/// # Safety
/// A context must be current. The memory must be there, allocated or registered.
pub(crate) unsafe fn device_pointer(table: &Table, address: *mut c_void) -> Result<CUdeviceptr> {
    let mut device = 0;
    // SAFETY: `device` is valid for a write. The driver wants 0 for flags.
    unsafe {
        call!(
            table,
            cuMemHostGetDevicePointer_v2(&raw mut device, address, 0)
        )
    }?;
    Ok(device)
}
