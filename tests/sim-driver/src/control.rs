//! Talking to a simulator that is loaded in this process: faults, counts, reports.
//!
//! The library that a test opens and the one that it links have separate memory. Everything here
//! goes through the opened one.

use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cuda_driver_sys::{CUresult, CUstream};

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

/// A loaded simulator. Cheap to copy; the library stays open for the life of the process.
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
    reports: Count,
    report: Line,
}

fn arm(fail: Fail, function: &str, nth: u64, code: CUresult) {
    let known = CString::new(function).is_ok_and(|name| fail(name.as_ptr(), nth, code.0) != 0);
    assert!(known, "the simulator has no function {function}");
}

/// Why there is no simulator to talk to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlError {
    /// The library does not open.
    Open {
        /// Where it was looked for.
        path: PathBuf,
        /// What the loader said.
        reason: String,
    },
    /// The library opens, but is not this simulator.
    NotTheSimulator {
        /// What was opened.
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

/// Finds one function; the library is the simulator, so the type is known from the name.
macro_rules! function {
    ($library:expr, $name:literal, $ty:ty) => {{
        let address = $library.address($name)?;
        // SAFETY: the library identified itself, and exports this name with this signature: both
        // sides are of one crate, whose version is part of the identity.
        unsafe { std::mem::transmute::<*mut c_void, $ty>(address) }
    }};
}

impl Control {
    /// The simulator at `path`. The same path that the driver was opened by gives the same
    /// simulator.
    ///
    /// # Errors
    ///
    /// If nothing can be opened there, or it is something else.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ControlError> {
        let library = Library::open(path.as_ref())?;
        let identify = function!(library, c"simcuda_identify", Identify);
        // SAFETY: only the simulator exports this name, and it answers a constant string.
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
            reports: function!(library, c"simcuda_reports", Count),
            report: function!(library, c"simcuda_report", Line),
        })
    }

    /// Forgets counts, the log, faults and reports. What is alive stays alive.
    pub fn reset(&self) {
        (self.reset)();
    }

    /// How often `function` was called since the last reset; 0 if the simulator has none of this
    /// name. Names are real symbols: `cuMemAlloc_v2`.
    #[must_use]
    pub fn calls(&self, function: &str) -> u64 {
        CString::new(function).map_or(0, |name| (self.calls)(name.as_ptr()))
    }

    /// All driver calls since the last reset.
    #[must_use]
    pub fn calls_total(&self) -> u64 {
        (self.calls_total)()
    }

    /// Begins a new log of the functions called.
    pub fn start_call_log(&self) {
        (self.call_log_start)();
    }

    /// The names of the functions called since the log began, in order.
    #[must_use]
    pub fn call_log(&self) -> Vec<String> {
        lines(|index, buffer, len| (self.call_log)(index, buffer, len))
    }

    /// What `work` calls, in order. Other threads' calls are in it too.
    pub fn record<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<String>) {
        self.start_call_log();
        let result = work();
        (result, self.call_log())
    }

    /// The `nth` next call of `function` fails with `code`; 1 is the very next. A function that
    /// releases something still releases it.
    ///
    /// # Panics
    ///
    /// If the simulator has no function of this name: a test that fails nothing proves nothing.
    pub fn fail(&self, function: &str, nth: u64, code: CUresult) {
        arm(self.fail, function, nth, code);
    }

    /// As [`fail`](Self::fail), but a function that releases something does not release it.
    ///
    /// # Panics
    ///
    /// As there.
    pub fn fail_without_effect(&self, function: &str, nth: u64, code: CUresult) {
        arm(self.fail_without_effect, function, nth, code);
    }

    /// The `nth` driver call of any kind from now fails with `code`.
    pub fn fail_call(&self, nth: u64, code: CUresult) {
        (self.fail_call)(nth, code.0);
    }

    /// Forgets the faults that have not come yet.
    pub fn clear_faults(&self) {
        (self.fail_clear)();
    }

    /// What the program has and has not given back.
    #[must_use]
    pub fn live(&self) -> Live {
        let mut live = Live::default();
        (self.live)(&raw mut live);
        live
    }

    /// How many modules and libraries are loaded on a device: each counts once for every context that has
    /// it. A library is in a context when something of it was used there, or, with
    /// `CUDA_MODULE_LOADING=EAGER`, always.
    #[must_use]
    pub fn images(&self, device: usize) -> u64 {
        (self.images)(device as u64)
    }

    /// Tells the order sanitizer that a range of mapped memory is a block of its own, as if
    /// `cuMemAllocAsync` had answered it at this point of the stream. It has to be ordered after the last
    /// free of every annotated block that was there before. Reported and INVALID_VALUE: a range that is
    /// not all mapped, or overlaps a live annotated block. What is only out of order is reported and
    /// SUCCESS.
    pub fn annotate_allocate(&self, address: u64, bytes: u64, stream: CUstream) -> CUresult {
        (self.annotate_allocate)(address, bytes, stream)
    }

    /// Tells it that such a block is free, as `cuMemFreeAsync` at this point of the stream would. Address
    /// and size are those of the allocation; anything else is reported and INVALID_VALUE. An event that
    /// another stream waits for before it uses the memory has to be recorded after this call.
    pub fn annotate_free(&self, address: u64, bytes: u64, stream: CUstream) -> CUresult {
        (self.annotate_free)(address, bytes, stream)
    }

    /// How many violations of stream order were seen since the last reset.
    #[must_use]
    pub fn report_count(&self) -> u64 {
        (self.reports)()
    }

    /// The violations, one a line. The first thousand are kept.
    #[must_use]
    pub fn reports(&self) -> Vec<String> {
        lines(|index, buffer, len| (self.report)(index, buffer, len))
    }
}

/// Reads lines until there are no more.
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

/// An open library. Never closed: a driver does not survive that.
struct Library {
    handle: *mut c_void,
    path: PathBuf,
}

impl Library {
    fn open(path: &Path) -> Result<Self, ControlError> {
        let failed = |reason: String| ControlError::Open {
            path: path.to_owned(),
            reason,
        };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|e| failed(e.to_string()))?;
        // SAFETY: opening runs the library's initialisers; the caller names the simulator, whose
        // only initialiser reads the environment.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(failed(last_error()));
        }
        Ok(Self {
            handle,
            path: path.to_owned(),
        })
    }

    fn address(&self, name: &CStr) -> Result<*mut c_void, ControlError> {
        // SAFETY: the handle is open.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
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

fn last_error() -> String {
    // SAFETY: no preconditions; the text stays until the thread's next call into the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: not null, so a zero-terminated string.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
