//! The simulated driver of this process. Linking it would export its functions from this library too.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Mutex, PoisonError};

use cuda_driver_sys::nccl::ncclResult_t;
use cuda_driver_sys::{
    CUcontext, CUresult, CUstream, CUstreamCaptureStatus, DriverLibrary, DriverTable,
};
use cuda_sim_support::find::built_library;
use cuda_sim_support::library::Library;
use cuda_sim_support::library_file;
use cuda_sim_support::settings::machine_folder;

use crate::export::{Answer, fail};
use crate::{launch, register};

type Model = unsafe extern "C" fn(*const c_void, *mut c_void);
type RegisterModel =
    unsafe extern "C" fn(*const c_char, Option<Model>, *mut c_void, Option<Release>) -> CUresult;
type Release = unsafe extern "C" fn(*mut c_void);
type OnFree = extern "C" fn(Option<extern "C" fn(u64, u64)>);
pub(crate) type ReadMemory =
    unsafe extern "C" fn(*const c_void, u64, *mut c_void, usize) -> CUresult;
pub(crate) type WriteMemory =
    unsafe extern "C" fn(*const c_void, u64, *const c_void, usize) -> CUresult;

/// The simulated driver, and what NCCL's kernels call of it.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) table: &'static DriverTable,
    pub(crate) read: ReadMemory,
    pub(crate) write: WriteMemory,
}

/// Calls a function of the driver; NOT_SUPPORTED if it is absent.
macro_rules! cu_code {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {
        match $driver.table.$name {
            None => ::cuda_driver_sys::CUresult::CUDA_ERROR_NOT_SUPPORTED,
            // SAFETY: pointers are null or to live places of the types that the driver's contract names.
            Some(call) => unsafe { call($($arg),*) },
        }
    };
}

/// The same: UNHANDLED_CUDA_ERROR, with the driver's code in words, if it fails.
macro_rules! cu {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {
        $crate::driver::checked(
            stringify!($name),
            $crate::driver::cu_code!($driver, $name($($arg),*)),
        )
    };
}

pub(crate) use {cu, cu_code};

pub(crate) fn checked(name: &str, code: CUresult) -> Answer {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => fail(
            ncclResult_t::ncclUnhandledCudaError,
            format!("{name} answered {code}"),
        ),
    }
}

/// The driver, opened by the first call that finds it: the machine's if this library was copied for one, else the simulator
/// if the process has it, else the driver that programs find.
pub(crate) fn driver() -> Answer<&'static Driver> {
    static FOUND: Mutex<Option<&Driver>> = Mutex::new(None);
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = *found {
        return Ok(driver);
    }
    const FILE: &str = library_file!("cuda_sim");
    let known = match machine_folder() {
        Some(folder) => Some(folder.join(FILE)),
        None => {
            built_library("CUDA_SIM_LIBRARY", FILE).filter(|path| Library::if_open(path).is_some())
        }
    };
    let library = match known {
        // SAFETY: the simulated driver, which a machine's folder has under this name.
        Some(path) => unsafe { cuda_driver_sys::load_from(path) },
        None => cuda_driver_sys::load(),
    };
    let opened = match library {
        Ok(library) => open(library),
        Err(error) => return fail(ncclResult_t::ncclSystemError, error.to_string()),
    };
    let Some(driver) = opened else {
        return fail(
            ncclResult_t::ncclSystemError,
            "the driver is not the simulated one; use the real NCCL with a real driver",
        );
    };
    let driver: &Driver = Box::leak(Box::new(driver));
    *found = Some(driver);
    Ok(driver)
}

fn open(library: &'static DriverLibrary) -> Option<Driver> {
    let opened = Library::if_open(library.path())?;
    /// A function of the simulator, with the type that its name implies.
    macro_rules! function {
        ($name:literal) => {{
            let address = opened.address($name);
            // SAFETY: null is `None`; the simulator exports this name with this signature.
            unsafe { std::mem::transmute::<*mut c_void, Option<_>>(address) }
        }};
    }
    let register_model: RegisterModel = function!(c"simcuda_kernel")?;
    let on_free: OnFree = function!(c"simcuda_on_free")?;
    let driver = Driver {
        table: library.table(),
        read: function!(c"simcuda_read")?,
        write: function!(c"simcuda_write")?,
    };
    let name: &CStr = launch::KERNEL;
    let none = std::ptr::null_mut();
    // SAFETY: the name ends in a zero, and the model takes a launch record and no argument of its own.
    unsafe { register_model(name.as_ptr(), Some(launch::model), none, None) };
    on_free(Some(register::on_free));
    Some(driver)
}

impl Driver {
    /// The current context and its device.
    pub(crate) fn current(&self) -> Answer<(CUcontext, i32)> {
        let (mut context, mut device) = (std::ptr::null_mut(), 0);
        cu!(self, cuCtxGetCurrent(&raw mut context))?;
        if context.is_null() {
            return fail(
                ncclResult_t::ncclUnhandledCudaError,
                "no context is current on this thread",
            );
        }
        cu!(self, cuCtxGetDevice(&raw mut device))?;
        Ok((context, device))
    }

    /// Runs `work` with a context current.
    pub(crate) fn in_context<T>(
        &self,
        context: CUcontext,
        work: impl FnOnce() -> Answer<T>,
    ) -> Answer<T> {
        cu!(self, cuCtxPushCurrent_v2(context))?;
        let result = work();
        let mut popped = std::ptr::null_mut();
        cu!(self, cuCtxPopCurrent_v2(&raw mut popped)).and(result)
    }

    pub(crate) fn is_capturing(&self, stream: CUstream) -> Answer<bool> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        cu!(self, cuStreamIsCapturing(stream, &raw mut status))?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
}
