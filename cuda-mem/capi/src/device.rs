//! Devices and the driver.

use std::ffi::{c_int, c_void};

use cuda_mem::Driver;

use crate::status::{Status, answer, invalid, write};
use crate::stream::ordinal;

/// The number of visible devices. Loads and starts the driver if necessary.
///
/// CUDAMEM_STATUS_NO_DRIVER if there is none; the text says what was tried.
///
/// # Safety
///
/// `count` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_device_count(count: *mut c_int) -> Status {
    answer(|| {
        let found = Driver::load()?.device_count()?;
        let found = c_int::try_from(found).map_err(|_| invalid("too many devices"))?;
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { write(count, "count", found) }
    })
}

/// The driver's CUDA version as 1000 * major + 10 * minor, such as 13000.
///
/// CUDAMEM_STATUS_NO_DRIVER if there is no driver.
///
/// # Safety
///
/// `version` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_driver_version(version: *mut c_int) -> Status {
    answer(|| {
        let found = Driver::load()?.version();
        let found = 1000 * found.major() + 10 * found.minor();
        let found = c_int::try_from(found).map_err(|_| invalid("the driver has no version"))?;
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { write(version, "version", found) }
    })
}

/// Free and total memory of a device in bytes. Each result may be null. Creates the device's primary context if
/// necessary.
///
/// CUDAMEM_STATUS_INVALID_DEVICE if there is no such device.
///
/// # Safety
///
/// Each pointer is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_device_memory(
    device: c_int,
    free: *mut u64,
    total: *mut u64,
) -> Status {
    answer(|| {
        let device = Driver::load()?.device(ordinal(device)?)?;
        let info = device.primary_context()?.memory_info()?;
        for (out, value) in [(free, info.free), (total, info.total)] {
            if !out.is_null() {
                // SAFETY: not null, so valid by the contract of this function.
                unsafe { out.write(value) };
            }
        }
        Ok(())
    })
}

/// The number of the device that memory belongs to, or was allocated for.
///
/// CUDAMEM_STATUS_INVALID_VALUE if the driver does not know the memory.
///
/// # Safety
///
/// `pointer` does not point into memory that was deallocated in stream order; `device` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_pointer_device(
    pointer: *const c_void,
    device: *mut c_int,
) -> Status {
    answer(|| {
        let address = pointer.expose_provenance() as u64;
        let found = Driver::load()?.pointer_info(address)?;
        let found = found.ok_or_else(|| {
            invalid(format!(
                "the driver knows no memory at {address:#x}, so no device of it"
            ))
        })?;
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { write(device, "device", found.device) }
    })
}
