//! What the generated types do not show well: fields that moved between headers, macros that are
//! no integers, and the meaning of result codes.

use std::ffi::{c_int, c_void};
use std::fmt;

use crate::names::lookup;
use crate::{CUdevice, CUmemLocation, CUmemLocationType, CUresult, CUstream};

/// `CU_STREAM_LEGACY`: the default stream that synchronises with the blocking streams.
pub const CU_STREAM_LEGACY: CUstream = std::ptr::without_provenance_mut(1);

/// `CU_STREAM_PER_THREAD`: the default stream of the calling thread.
pub const CU_STREAM_PER_THREAD: CUstream = std::ptr::without_provenance_mut(2);

/// `CU_DEVICE_CPU`: the host, where a device is asked for.
pub const CU_DEVICE_CPU: CUdevice = -1;

/// `CU_DEVICE_INVALID`: no device.
pub const CU_DEVICE_INVALID: CUdevice = -2;

/// `CU_LAUNCH_PARAM_END`: ends the `extra` list of a launch.
pub const CU_LAUNCH_PARAM_END: *mut c_void = std::ptr::null_mut();

/// `CU_LAUNCH_PARAM_BUFFER_POINTER`: the next entry of `extra` points at packed arguments.
pub const CU_LAUNCH_PARAM_BUFFER_POINTER: *mut c_void = std::ptr::without_provenance_mut(1);

/// `CU_LAUNCH_PARAM_BUFFER_SIZE`: the next entry of `extra` points at the size of that buffer.
pub const CU_LAUNCH_PARAM_BUFFER_SIZE: *mut c_void = std::ptr::without_provenance_mut(2);

/// A location as the driver lays it out. The header moved `id` into a union in 13.2, which breaks
/// sources but not the ABI; this view does not depend on the header.
#[repr(C)]
#[derive(Clone, Copy)]
struct PlainLocation {
    kind: CUmemLocationType,
    id: c_int,
}

const _: () = assert!(size_of::<PlainLocation>() == size_of::<CUmemLocation>());
const _: () = assert!(align_of::<PlainLocation>() == align_of::<CUmemLocation>());

/// A location of this kind and number.
#[must_use]
pub fn location(kind: CUmemLocationType, id: c_int) -> CUmemLocation {
    // SAFETY: both are two 32-bit integers in this order, in every header from 11.7 to 13.5; the
    // sizes are asserted above and every bit pattern is valid.
    unsafe { std::mem::transmute::<PlainLocation, CUmemLocation>(PlainLocation { kind, id }) }
}

/// The kind and number of a location.
#[must_use]
pub fn location_parts(location: CUmemLocation) -> (CUmemLocationType, c_int) {
    // SAFETY: as in `location`.
    let plain = unsafe { std::mem::transmute::<CUmemLocation, PlainLocation>(location) };
    (plain.kind, plain.id)
}

impl CUresult {
    /// The name of this code, such as `CUDA_ERROR_OUT_OF_MEMORY`; `None` for a code that is newer
    /// than these bindings. Never calls the driver.
    ///
    /// ```
    /// use cuda_driver_sys::CUresult;
    /// assert_eq!(CUresult(2).name(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    /// assert_eq!(CUresult(31337).name(), None);
    /// ```
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match lookup(self.0) {
            Some((name, _)) => Some(name),
            None => None,
        }
    }

    /// One line about this code.
    #[must_use]
    pub const fn meaning(self) -> Option<&'static str> {
        match lookup(self.0) {
            Some((_, meaning)) => Some(meaning),
            None => None,
        }
    }
}

/// Name, number and meaning: `CUDA_ERROR_OUT_OF_MEMORY (2): there is not enough memory …`.
impl fmt::Display for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match lookup(self.0) {
            Some((name, meaning)) => write!(f, "{name} ({}): {meaning}", self.0),
            None => write!(f, "result code {}, newer than these bindings", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_comes_back_as_it_was_made() {
        let made = location(CUmemLocationType(1), 5);
        assert_eq!(location_parts(made), (CUmemLocationType(1), 5));
        let odd = location(CUmemLocationType(77), -2);
        assert_eq!(location_parts(odd), (CUmemLocationType(77), -2));
    }

    #[test]
    fn unknown_codes_are_data() {
        assert_eq!(CUresult(0).name(), Some("CUDA_SUCCESS"));
        assert!(
            CUresult(2)
                .to_string()
                .starts_with("CUDA_ERROR_OUT_OF_MEMORY (2): ")
        );
        assert_eq!(CUresult(54321).meaning(), None);
        assert!(CUresult(u32::MAX).to_string().contains("4294967295"));
    }
}
