//! Windows: `VirtualAlloc`, sections, and no forks.

mod addresses;
mod file;
mod range;
mod thread;

pub(crate) use addresses::{AddressRange, Memory, Part, Source};
pub(crate) use file::SharedFile;
pub(crate) use range::Range;
pub(crate) use thread::{
    end_with_thread, is_running, thread_id, try_lock, wait_while, wake_all, watch_forks,
};

use std::ffi::c_void;

/// What the program passes for memory of another process, and gets for its own: a handle of this process.
pub(crate) type SharedHandle = *mut c_void;

/// No simulated machine of Windows uses the memory of the program.
pub(crate) fn is_program_memory(_start: u64, _len: u64, _writes: bool) -> bool {
    false
}

/// Always, because no simulated machine here uses any other memory.
pub(crate) fn is_own_memory(_start: u64, _len: u64) -> bool {
    true
}

/// The kind of that handle, as in `CUmemAllocationHandleType`.
pub(crate) const SHARED_HANDLE: u32 = 2;

/// The kind of the other system.
pub(crate) const FOREIGN_HANDLE: u32 = 1;

/// The number of handles that this process can still open, counted up to `most`. Windows sets no limit.
pub(crate) fn openable(most: usize) -> usize {
    most
}

/// The kinds that this system does not have, and the older one of its own.
pub(crate) const FOREIGN_HANDLES: u32 = 1 | 4;

/// The handle in an argument of the driver.
pub(crate) fn shared_handle(argument: *mut c_void) -> SharedHandle {
    argument
}
