//! Devices. None of these calls creates a context.

use std::ffi::{CStr, c_char, c_int};

use cuda_driver_sys::{CUdevice, CUdevice_attribute, CUuuid};

use super::{Table, call};
use crate::base::error::Result;

/// Before the driver is initialised, it answers NOT_INITIALIZED (measured).
///
/// # Safety
/// The table's functions must be a CUDA driver's.
pub(crate) unsafe fn count(table: &Table) -> Result<c_int> {
    let mut count = 0;
    // SAFETY: `count` is valid for a write of one int.
    unsafe { call!(table, cuDeviceGetCount(&raw mut count)) }?;
    Ok(count)
}

/// # Safety
/// The driver must be initialised.
pub(crate) unsafe fn get(table: &Table, ordinal: c_int) -> Result<CUdevice> {
    let mut device = 0;
    // SAFETY: `device` is valid for a write; a wrong ordinal answers INVALID_DEVICE.
    unsafe { call!(table, cuDeviceGet(&raw mut device, ordinal)) }?;
    Ok(device)
}

/// # Safety
/// `device` must come from [`get`] of the same driver.
pub(crate) unsafe fn name(table: &Table, device: CUdevice) -> Result<String> {
    let mut text: [c_char; 256] = [0; 256];
    // One byte less than there is, so that the text ends in a zero whatever the driver does.
    let room = text.len() as c_int - 1;
    // SAFETY: `text` is valid for `room` bytes, all that cuDeviceGetName may write.
    unsafe { call!(table, cuDeviceGetName(text.as_mut_ptr(), room, device)) }?;
    // SAFETY: the last byte is zero, so there is a terminator inside the array.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    Ok(text.to_string_lossy().into_owned())
}

/// # Safety
/// `device` must come from [`get`] of the same driver.
pub(crate) unsafe fn uuid(table: &Table, device: CUdevice) -> Result<[u8; 16]> {
    let mut uuid = CUuuid::default();
    // The `_v2` of 11.4 differs only for MIG devices, so an older driver's answer is as good.
    let answer = if table.cuDeviceGetUuid_v2.is_some() {
        // SAFETY: `uuid` is valid for a write of 16 bytes.
        unsafe { call!(table, cuDeviceGetUuid_v2(&raw mut uuid, device)) }
    } else {
        // SAFETY: as above.
        unsafe { call!(table, cuDeviceGetUuid(&raw mut uuid, device)) }
    };
    answer?;
    Ok(uuid.bytes.map(|byte| byte.to_ne_bytes()[0]))
}

/// The PCI bus address as text, such as `0000:3B:00.0`.
///
/// # Safety
/// `device` must come from [`get`] of the same driver.
pub(crate) unsafe fn pci_bus_id(table: &Table, device: CUdevice) -> Result<String> {
    let mut text: [c_char; 64] = [0; 64];
    // As in `name`: the last byte stays zero.
    let room = text.len() as c_int - 1;
    // SAFETY: `text` is valid for `room` bytes, all that cuDeviceGetPCIBusId may write.
    unsafe { call!(table, cuDeviceGetPCIBusId(text.as_mut_ptr(), room, device)) }?;
    // SAFETY: the last byte is zero, so there is a terminator inside the array.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    Ok(text.to_string_lossy().into_owned())
}

/// # Safety
/// `device` must come from [`get`] of the same driver.
pub(crate) unsafe fn total_memory(table: &Table, device: CUdevice) -> Result<usize> {
    let mut bytes = 0;
    // SAFETY: `bytes` is valid for a write of one size_t.
    unsafe { call!(table, cuDeviceTotalMem_v2(&raw mut bytes, device)) }?;
    Ok(bytes)
}

/// # Safety
/// `device` must come from [`get`] of the same driver.
pub(crate) unsafe fn attribute(
    table: &Table,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> Result<c_int> {
    let mut value = 0;
    // SAFETY: `value` is valid for a write of one int; an unknown attribute answers INVALID_VALUE
    // and leaves it alone.
    unsafe {
        call!(
            table,
            cuDeviceGetAttribute(&raw mut value, attribute, device)
        )
    }?;
    Ok(value)
}

/// Whether `device` can be given access to memory of `peer`. A device is no peer of itself.
///
/// # Safety
/// Both must come from [`get`] of the same driver.
pub(crate) unsafe fn can_access_peer(
    table: &Table,
    device: CUdevice,
    peer: CUdevice,
) -> Result<bool> {
    let mut able = 0;
    // SAFETY: `able` is valid for a write of one int.
    unsafe { call!(table, cuDeviceCanAccessPeer(&raw mut able, device, peer)) }?;
    Ok(able != 0)
}
