//! Copies between memory of the host and of a device, and fills.

use std::ffi::{c_int, c_void};

use cuda_mem::sys::CUstream_st;
use cuda_mem::{DeviceBuffer, Error, Stream};

use crate::status::{Status, answer, invalid};
use crate::stream::{is_legacy, refuse_beside_captures, with_stream};

/// Calls `work` with a view of the device's memory; does nothing for zero bytes. `is_null` is whether a pointer is.
///
/// # Safety
///
/// `device_pointer` has `bytes` bytes that the device reaches; `stream` is a default stream or a live one of the
/// device's primary context.
unsafe fn with_view(
    is_null: bool,
    device_pointer: *mut c_void,
    bytes: usize,
    device: c_int,
    stream: *mut CUstream_st,
    work: impl FnOnce(&mut DeviceBuffer<u8>) -> Result<(), Error>,
) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    if is_null {
        return Err(invalid(format!(
            "{bytes} bytes are to be written, and a pointer is null"
        )));
    }
    let address = device_pointer.expose_provenance() as u64;
    let with_view = |view_stream: &Stream| {
        if is_legacy(stream.cast()) {
            refuse_beside_captures(view_stream)?;
        }
        // SAFETY: promised by the caller, in the words of the section above.
        let mut view = unsafe { DeviceBuffer::borrow_raw(view_stream, address, bytes, ()) };
        work(&mut view)
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
        let is_null = host.is_null() || device_pointer.is_null();
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { with_view(is_null, device_pointer, bytes, device, stream, copy) }
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
        let is_null = host.is_null() || device_pointer.is_null();
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { with_view(is_null, device_pointer, bytes, device, stream, copy) }
    })
}

/// Fills memory of a device with a byte, in the order of a stream. Does not wait.
///
/// In the legacy default stream this is work that comes after what is now in the streams that wait for that stream, and
/// before what they are given later. A deallocation alone may be no work.
///
/// CUDAMEM_STATUS_CAPTURING in the legacy default stream while a stream that waits for it is captured.
///
/// # Safety
///
/// `device_pointer` has `bytes` bytes; `stream` is a default stream or a live one of the device's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_fill(
    device_pointer: *mut c_void,
    value: u8,
    bytes: usize,
    device: c_int,
    stream: *mut CUstream_st,
) -> Status {
    answer(|| {
        let fill = |view: &mut DeviceBuffer<u8>| view.fill_bytes(value);
        let is_null = device_pointer.is_null();
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { with_view(is_null, device_pointer, bytes, device, stream, fill) }
    })
}
