//! Memory of the host that devices reach at full speed: pinned by the driver, or the program's own,
//! registered with it.
//!
//! What of the driver this relies on:
//!
//! - pinned and registered memory is read and written by devices at any time until it is freed or
//!   unregistered, so work that uses it has to be over by then;
//! - a copy from or to such memory returns before it is done (measured), unlike one of other memory;
//! - a device knows it by an address that only `cuMemHostGetDevicePointer` tells for sure.
//!
//! So there are two states. With the host, the memory is a slice, and no stream has it: copies wait. On
//! [loan](InFlightBuffer) to a stream nobody sees the slice, and the only ways back wait for the stream. A loan
//! owns the memory, so leaking one leaks the memory with it, and no more.

mod in_flight;
mod pinned;
mod registered;

pub use in_flight::{HostMemory, InFlightBuffer};
pub use pinned::PinnedBuffer;
pub use registered::{RegisterFlags, Registered};

use std::ffi::c_void;

use cuda_driver_sys::CUdeviceptr;

use crate::base::error::Result;
use crate::driver::raw;
use crate::stream::context::Context;

/// The address by which the device of a context knows memory of the host.
///
/// # Safety
///
/// `at` must point into pinned or registered memory of the context's driver.
unsafe fn device_address(context: &Context, at: *mut c_void) -> Result<CUdeviceptr> {
    let _current = context.bind()?;
    // SAFETY: a context is current; the rest is the caller's.
    unsafe { raw::host::device_pointer(context.driver().table(), at) }
        .map_err(|error| error.asked(|| format!("the host's {at:p} on {}", context.device())))
}
