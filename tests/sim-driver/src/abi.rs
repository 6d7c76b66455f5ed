//! What the simulator and the models of kernels exchange, also in other languages: see `include/simcuda.h`.

use std::ffi::{c_char, c_void};

use cuda_driver_sys::CUresult;

/// The work of a kernel, done at once for all threads of the launch.
pub(crate) type ModelFunction = unsafe extern "C" fn(*const LaunchRecord, *mut c_void);

/// Called once with the model's argument, when no launch can use the model any more.
pub(crate) type Release = unsafe extern "C" fn(*mut c_void);

/// Gives a model to the kernels of a name.
pub(crate) type RegisterModel = unsafe extern "C" fn(
    *const c_char,
    Option<ModelFunction>,
    *mut c_void,
    Option<Release>,
) -> CUresult;

/// Reads memory of the device.
pub(crate) type ReadMemory =
    unsafe extern "C" fn(*const LaunchRecord, u64, *mut c_void, usize) -> CUresult;

/// Writes memory of the device.
pub(crate) type WriteMemory =
    unsafe extern "C" fn(*const LaunchRecord, u64, *const c_void, usize) -> CUresult;

/// Finds a variable of the kernel's module.
pub(crate) type FindVariable =
    unsafe extern "C" fn(*const LaunchRecord, *const c_char, *mut u64, *mut usize) -> CUresult;

/// Ends the work with an error.
pub(crate) type FailLaunch = unsafe extern "C" fn(*const LaunchRecord, *const c_char);

/// One launch, as its model sees it. Valid while the model runs.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct LaunchRecord {
    pub(crate) name: *const c_char,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(crate) shared_bytes: u32,
    pub(crate) device: u32,
    /// All arguments, at a multiple of 16 bytes.
    pub(crate) arguments: *const c_void,
    pub(crate) arguments_size: usize,
    pub(crate) parameters: *const LaunchParameter,
    pub(crate) parameter_count: usize,
    /// The simulator's own.
    pub(crate) run: *const c_void,
    /// When it was submitted, in nanoseconds of the monotonic clock.
    pub(crate) submitted_ns: u64,
}

/// Position of an argument.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct LaunchParameter {
    pub(crate) offset: usize,
    pub(crate) size: usize,
}
