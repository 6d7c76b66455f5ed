//! Copies between memory of the host and of a device.

use std::ffi::{c_int, c_void};

use cuda_mem::sys::CUstream_st;
use cuda_mem::{DeviceBuffer, Error, Stream};

use crate::status::{Status, answer, invalid};
use crate::stream::with_stream;

/// Calls `copy` with a view of the device's memory; does nothing for zero bytes.
///
/// # Safety
///
/// `device_pointer` has `bytes` bytes that the device reaches; `stream` is a default stream or a live one of the
/// device's primary context.
unsafe fn with_view(
    host: *const c_void,
    device_pointer: *mut c_void,
    bytes: usize,
    device: c_int,
    stream: *mut CUstream_st,
    copy: impl FnOnce(&mut DeviceBuffer<u8>) -> Result<(), Error>,
) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    if host.is_null() || device_pointer.is_null() {
        return Err(invalid(format!(
            "{bytes} bytes are to be copied, and a pointer is null"
        )));
    }
    let address = device_pointer.expose_provenance() as u64;
    let with_view = |stream: &Stream| {
        // SAFETY: promised by the caller, in the words of the section above.
        let mut view = unsafe { DeviceBuffer::borrow_raw(stream, address, bytes, ()) };
        copy(&mut view)
    };
    // SAFETY: as above.
    unsafe { with_stream(device, stream.cast(), with_view) }
}

/// Copies from the host to a device, in the order of a stream. The host's memory may be changed when this returns.
///
/// # Safety
///
/// Both have `bytes` bytes; `stream` is a default stream or a live one of the device's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_copy_to_device(
    device_pointer: *mut c_void,
    host: *const c_void,
    bytes: usize,
    device: c_int,
    stream: *mut CUstream_st,
) -> Status {
    answer(|| {
        let copy = |view: &mut DeviceBuffer<u8>| {
            // SAFETY: promised by the caller, and not null.
            let host = unsafe { std::slice::from_raw_parts(host.cast::<u8>(), bytes) };
            view.copy_from(host)
        };
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { with_view(host, device_pointer, bytes, device, stream, copy) }
    })
}

/// Copies from a device to the host, in the order of a stream, and waits for it.
///
/// # Safety
///
/// As for `cudamem_copy_to_device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_copy_to_host(
    host: *mut c_void,
    device_pointer: *mut c_void,
    bytes: usize,
    device: c_int,
    stream: *mut CUstream_st,
) -> Status {
    answer(|| {
        let copy = |view: &mut DeviceBuffer<u8>| {
            // SAFETY: promised by the caller, and not null.
            let host = unsafe { std::slice::from_raw_parts_mut(host.cast::<u8>(), bytes) };
            view.copy_to(host)
        };
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { with_view(host, device_pointer, bytes, device, stream, copy) }
    })
}
