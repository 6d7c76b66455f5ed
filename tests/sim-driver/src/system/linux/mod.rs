//! Linux: `mmap`, memory files, futexes.

mod addresses;
mod file;
mod program;
mod range;
mod thread;

pub(crate) use addresses::{AddressRange, Memory, Part, Source};
pub(crate) use file::{SharedFile, anonymous_file, openable};
pub(crate) use program::{is_own_memory, is_program_memory};
pub(crate) use range::Range;
pub(crate) use thread::{
    end_with_thread, is_running, thread_id, try_lock, wait_while, wake_all, watch_forks,
};

/// What the program passes for memory of another process, and gets for its own: a descriptor.
pub(crate) type SharedHandle = std::ffi::c_int;

/// The kind of that handle, as in `CUmemAllocationHandleType`.
pub(crate) const SHARED_HANDLE: u32 = 1;

/// The kind of the other system.
pub(crate) const FOREIGN_HANDLE: u32 = 2;

/// The kinds that this system does not have.
pub(crate) const FOREIGN_HANDLES: u32 = 2 | 4;

/// The handle in an argument of the driver: the descriptor itself, as wide as an `int`.
pub(crate) fn shared_handle(argument: *mut std::ffi::c_void) -> SharedHandle {
    argument.addr() as SharedHandle
}
