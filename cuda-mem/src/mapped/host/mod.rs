//! Host memory that devices access at full speed: pinned by the driver, or memory of the program registered with it.
//!
//! This module relies on the following behaviour of the driver:
//!
//! - devices may read and write pinned and registered memory at any time until it is freed or unregistered, so work
//!   that uses it must be complete by then;
//! - a copy from or to such memory returns before it is complete (measured), unlike a copy of other memory;
//! - only `cuMemHostGetDevicePointer` reliably gives the device's address of it.
//!
//! So there are two states. With the host, the memory is a slice, and no stream has it: copies wait. [In
//! flight](InFlightBuffer) the slice is inaccessible, and the only ways back wait for the stream. The value owns the
//! memory, so leaking it leaks its memory and nothing else.

mod in_flight;
mod pinned;
mod registered;
mod returned;

pub use in_flight::{HostMemory, InFlightBuffer};
pub use pinned::PinnedBuffer;
pub use registered::{RegisterFlags, Registered};
pub use returned::Returned;

use std::ffi::c_void;

use cuda_driver_sys::CUdeviceptr;

use crate::base::error::Result;
use crate::driver::raw;
use crate::stream::context::Context;

/// The address of host memory on the device of a context.
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
