//! Control of a simulator loaded in this process: faults, counts, reports.
//!
//! The library that a test opens and the one it links have separate memory. Everything here uses the opened one.

use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::path::{Path, PathBuf};

use cuda_driver_sys::{CUresult, CUstream};
use cuda_sim_support::library::Library;

use crate::abi::{FailLaunch, FindVariable, ReadMemory, RegisterModel, WriteMemory};
pub use crate::live::Live;
use crate::simcuda::IDENTITY;

type Act = extern "C" fn();
type Count = extern "C" fn() -> u64;
type CountOf = extern "C" fn(*const c_char) -> u64;
type CountAt = extern "C" fn(u64) -> u64;
type Line = extern "C" fn(u64, *mut c_char, usize) -> usize;
type Fail = extern "C" fn(*const c_char, u64, u32) -> u64;
type FailCall = extern "C" fn(u64, u32);
type Annotate = extern "C" fn(u64, u64, CUstream) -> CUresult;
type ReadLive = extern "C" fn(*mut Live);
type Identify = extern "C" fn() -> *const c_char;

/// A loaded simulator. Cheap to copy; the library stays open until the process exits.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    reset: Act,
    calls: CountOf,
    calls_total: Count,
    call_log_start: Act,
    call_log: Line,
    fail: Fail,
    fail_without_effect: Fail,
    fail_call: FailCall,
    fail_clear: Act,
    live: ReadLive,
    images: CountAt,
    annotate_allocate: Annotate,
    annotate_free: Annotate,
    pub(crate) register_model: RegisterModel,
    pub(crate) launch_functions: LaunchFunctions,
    reports: Count,
    report: Line,
}

/// What a model calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchFunctions {
    pub(crate) read: ReadMemory,
    pub(crate) write: WriteMemory,
    pub(crate) variable: FindVariable,
    pub(crate) fail: FailLaunch,
}

fn arm(fail: Fail, function: &str, nth: u64, code: CUresult) {
    let known = CString::new(function).is_ok_and(|name| fail(name.as_ptr(), nth, code.0) != 0);
    assert!(known, "the simulator has no function {function}");
}

/// Why the simulator cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlError {
    /// The library cannot be opened.
    Open {
        /// The path tried.
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// The built library is not where [`library_path`](crate::library_path) looks for it.
    NotFound,
    /// The library opened, but is not this simulator.
    NotTheSimulator {
        /// The library opened.
        path: PathBuf,
    },
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, reason } => {
                write!(
                    f,
                    "the simulator {} does not open: {reason}",
                    path.display()
                )
            }
            Self::NotFound => f.write_str("the built simulator was not found"),
            Self::NotTheSimulator { path } => {
                write!(
                    f,
                    "{} is not the simulator, or another version",
                    path.display()
                )
            }
        }
    }
}

impl Error for ControlError {}

/// Looks up one function. The library is the simulator, so the name implies the type.
macro_rules! function {
    ($library:expr, $name:literal, $ty:ty) => {{
        let address = $library.address($name)?;
        // SAFETY: the library identified itself, and exports this name with this signature: both sides are built from
        // one crate, whose version is part of the identity.
        unsafe { std::mem::transmute::<*mut c_void, $ty>(address) }
    }};
}

impl Control {
    /// The simulator at `path`. A driver opened by the same path is the same simulator.
    ///
    /// # Errors
    ///
    /// If nothing can be opened there, or the library is not the simulator.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ControlError> {
        let library = Opened::open(path.as_ref())?;
        let identify = function!(library, c"simcuda_identify", Identify);
        // SAFETY: only the simulator exports this name, and it returns a constant string.
        let identity = unsafe { CStr::from_ptr(identify()) };
        if identity != IDENTITY {
            return Err(library.wrong());
        }
        Ok(Self {
            reset: function!(library, c"simcuda_reset", Act),
            calls: function!(library, c"simcuda_calls", CountOf),
            calls_total: function!(library, c"simcuda_calls_total", Count),
            call_log_start: function!(library, c"simcuda_call_log_start", Act),
            call_log: function!(library, c"simcuda_call_log", Line),
            fail: function!(library, c"simcuda_fail", Fail),
            fail_without_effect: function!(library, c"simcuda_fail_without_effect", Fail),
            fail_call: function!(library, c"simcuda_fail_call", FailCall),
            fail_clear: function!(library, c"simcuda_fail_clear", Act),
            live: function!(library, c"simcuda_live", ReadLive),
            images: function!(library, c"simcuda_images", CountAt),
            annotate_allocate: function!(library, c"simcuda_annotate_allocate", Annotate),
            annotate_free: function!(library, c"simcuda_annotate_free", Annotate),
            register_model: function!(library, c"simcuda_kernel", RegisterModel),
            launch_functions: LaunchFunctions {
                read: function!(library, c"simcuda_read", ReadMemory),
                write: function!(library, c"simcuda_write", WriteMemory),
                variable: function!(library, c"simcuda_variable", FindVariable),
                fail: function!(library, c"simcuda_kernel_error", FailLaunch),
            },
            reports: function!(library, c"simcuda_reports", Count),
            report: function!(library, c"simcuda_report", Line),
        })
    }

    /// Clears counts, the log, faults and reports. Live objects are unaffected.
    pub fn reset(&self) {
        (self.reset)();
    }

    /// How often `function` was called since the last reset; 0 for a name unknown to the simulator. Names are real
    /// symbols: `cuMemAlloc_v2`.
    #[must_use]
    pub fn calls(&self, function: &str) -> u64 {
        CString::new(function).map_or(0, |name| (self.calls)(name.as_ptr()))
    }

    /// Number of driver calls since the last reset.
    #[must_use]
    pub fn calls_total(&self) -> u64 {
        (self.calls_total)()
    }

    /// Starts a new log of the functions called.
    pub fn start_call_log(&self) {
        (self.call_log_start)();
    }

    /// The names of the functions called since the log started, in order.
    #[must_use]
    pub fn call_log(&self) -> Vec<String> {
        lines(|index, buffer, len| (self.call_log)(index, buffer, len))
    }

    /// The functions that `work` calls, in order. Includes calls from other threads.
    pub fn record<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<String>) {
        self.start_call_log();
        let result = work();
        (result, self.call_log())
    }

    /// The `nth` call of `function` from now fails with `code`; 1 is the next one. A function that releases something
    /// still releases it.
    ///
    /// # Panics
    ///
    /// If the simulator has no function of this name, because a fault that never occurs would prove nothing.
    pub fn fail(&self, function: &str, nth: u64, code: CUresult) {
        arm(self.fail, function, nth, code);
    }

    /// As [`fail`](Self::fail), but a function that releases something does not release it.
    ///
    /// # Panics
    ///
    /// As [`fail`](Self::fail).
    pub fn fail_without_effect(&self, function: &str, nth: u64, code: CUresult) {
        arm(self.fail_without_effect, function, nth, code);
    }

    /// The `nth` driver call from now fails with `code`, whichever it is.
    pub fn fail_call(&self, nth: u64, code: CUresult) {
        (self.fail_call)(nth, code.0);
    }

    /// Clears the faults that have not occurred yet.
    pub fn clear_faults(&self) {
        (self.fail_clear)();
    }

    /// What the program has not released.
    #[must_use]
    pub fn live(&self) -> Live {
        let mut live = Live::default();
        (self.live)(&raw mut live);
        live
    }

    /// Number of modules and libraries loaded on a device, each counted once per context that has it. A library is
    /// loaded in a context once something of it was used there, or always with `CUDA_MODULE_LOADING=EAGER`.
    #[must_use]
    pub fn images(&self, device: usize) -> u64 {
        (self.images)(device as u64)
    }

    /// Tells the order sanitizer that a range of mapped memory is a separate block, as if `cuMemAllocAsync` had
    /// returned it at this point of the stream. This must be ordered after the last free of every annotated block that
    /// was there before. A range that is not fully mapped or overlaps a live annotated block is reported and
    /// INVALID_VALUE. Wrong ordering alone is reported with SUCCESS.
    pub fn annotate_allocate(&self, address: u64, bytes: u64, stream: CUstream) -> CUresult {
        (self.annotate_allocate)(address, bytes, stream)
    }

    /// Tells it that such a block is free, as `cuMemFreeAsync` at this point of the stream would. Address and size must
    /// be those of the allocation; anything else is reported and INVALID_VALUE. If another stream waits for an event
    /// before it uses the memory, record the event after this call.
    pub fn annotate_free(&self, address: u64, bytes: u64, stream: CUstream) -> CUresult {
        (self.annotate_free)(address, bytes, stream)
    }

    /// Number of stream-order violations since the last reset.
    #[must_use]
    pub fn report_count(&self) -> u64 {
        (self.reports)()
    }

    /// The violations, one per line. The first thousand are kept.
    #[must_use]
    pub fn reports(&self) -> Vec<String> {
        lines(|index, buffer, len| (self.report)(index, buffer, len))
    }
}

/// Reads all lines.
fn lines(read: impl Fn(u64, *mut c_char, usize) -> usize) -> Vec<String> {
    let mut lines = Vec::new();
    for index in 0.. {
        let mut buffer = vec![0_u8; 1024];
        let len = read(index, buffer.as_mut_ptr().cast(), buffer.len());
        if len == 0 {
            break;
        }
        buffer.truncate(len.min(buffer.len() - 1));
        lines.push(String::from_utf8_lossy(&buffer).into_owned());
    }
    lines
}

/// The simulator's library.
struct Opened {
    library: Library,
    path: PathBuf,
}

impl Opened {
    fn open(path: &Path) -> Result<Self, ControlError> {
        let path = path.to_owned();
        // SAFETY: the caller names the simulator, whose only initialiser reads the environment.
        match unsafe { Library::open(&path) } {
            Ok(library) => Ok(Self { library, path }),
            Err(reason) => Err(ControlError::Open { path, reason }),
        }
    }

    fn address(&self, name: &CStr) -> Result<*mut c_void, ControlError> {
        let address = self.library.address(name);
        if address.is_null() {
            Err(self.wrong())
        } else {
            Ok(address)
        }
    }

    fn wrong(&self) -> ControlError {
        ControlError::NotTheSimulator {
            path: self.path.clone(),
        }
    }
}
