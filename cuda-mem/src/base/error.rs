//! Errors: what was requested, what was available, what to do, and the driver's result code.
//!
//! This file never calls the driver: names and meanings come from a generated table, so an error can be printed at any
//! time, even while the driver is shutting down.

mod cause;
mod failed;
mod gdr;
mod kind;
mod memory;
mod nccl;
mod nvml;
mod nvtx;
#[cfg(test)]
mod tests;

pub use failed::Failed;
pub use kind::ErrorKind;
pub use memory::{Attempt, OutOfMemory, Remedy};

use cause::Cause;
use kind::kind_of;
use nccl::kind_of_nccl;
use nvml::kind_of_nvml;

pub(crate) use memory::Bytes;
use memory::Refusal;

use std::fmt;

use cuda_driver_sys::{CUresult, CudaVersion, LoadError, MissingSymbol};

/// The result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
///
/// ```
/// use cuda_mem::{Driver, ErrorKind};
///
/// # cuda_sim::use_if_no_driver();
/// let driver = Driver::load()?;
/// let error = driver.device(1000).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidDevice);
/// assert_eq!(error.function(), Some("cuDeviceGet"));
/// assert_eq!(error.code().map(|code| code.0), Some(101));
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct Error(Box<Cause>);

impl Error {
    pub(crate) fn driver(function: &'static str, code: CUresult) -> Self {
        Self::from(Cause::Driver {
            function,
            code,
            asked: None,
        })
    }

    /// Adds what was requested; the text is built only if there is an error.
    #[must_use]
    pub(crate) fn asked(mut self, text: impl FnOnce() -> String) -> Self {
        if let Cause::NotTried(why) = *self.0 {
            return why.asked(text).not_tried();
        }
        if let Cause::Driver { asked, .. }
        | Cause::NoDevice { asked, .. }
        | Cause::Logged { asked, .. }
        | Cause::Code { asked, .. }
        | Cause::Meant { asked, .. }
        | Cause::Nvml { asked, .. }
        | Cause::Nccl { asked, .. }
        | Cause::Errno { asked, .. } = &mut *self.0
        {
            *asked = Some(text());
        }
        self
    }

    /// Turns the driver's out-of-memory error into one with numbers; other errors are unchanged.
    #[must_use]
    pub(crate) fn with_memory(self, report: impl FnOnce() -> OutOfMemory) -> Self {
        if self.kind() != ErrorKind::OutOfMemory {
            return self;
        }
        match *self.0 {
            Cause::Driver {
                function,
                code,
                asked,
            } => Self::from(Cause::OutOfMemory {
                refusal: Refusal::Driver { function, code },
                asked,
                memory: report(),
            }),
            other => Self::from(other),
        }
    }

    /// An error from a resource outside this crate, such as one that a program implements.
    ///
    /// For [`OutOfMemory`](ErrorKind::OutOfMemory), add the numbers with [`with_asked`](Self::with_asked).
    ///
    /// ```
    /// use cuda_mem::{Error, ErrorKind};
    ///
    /// let error = Error::new(ErrorKind::OutOfMemory, "the ring is full").with_asked(4096);
    /// assert_eq!(error.out_of_memory().map(|memory| memory.asked), Some(4096));
    /// assert!(error.to_string().starts_with("the ring is full: asked for 4.0 KiB"));
    /// ```
    #[must_use]
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self::from(match kind {
            ErrorKind::OutOfMemory => Cause::OutOfMemory {
                refusal: Refusal::Told(text),
                asked: None,
                memory: OutOfMemory::default(),
            },
            kind => Cause::Told { kind, text },
        })
    }

    /// A request that exceeds a limit and can never succeed.
    pub(crate) fn over_limit(text: String, bytes: u64) -> Self {
        let error = Self::from(Cause::OutOfMemory {
            refusal: Refusal::TooLarge(text),
            asked: None,
            memory: OutOfMemory::default(),
        });
        error.with_asked(bytes)
    }

    /// Adds the number of requested bytes to an out-of-memory error; other errors are unchanged.
    #[must_use]
    pub fn with_asked(mut self, bytes: u64) -> Self {
        if let Cause::OutOfMemory { memory, .. } = &mut *self.0 {
            memory.asked = bytes;
        }
        self
    }

    /// Adds to the numbers of an out-of-memory error, which may have none yet.
    #[must_use]
    pub(crate) fn and_memory(self, change: impl FnOnce(&mut OutOfMemory)) -> Self {
        let mut error = self.with_memory(OutOfMemory::default);
        if let Cause::OutOfMemory { memory, .. } = &mut *error.0 {
            change(memory);
        }
        error
    }

    pub(crate) fn too_old(what: &'static str, since: CudaVersion, found: CudaVersion) -> Self {
        Self::from(Cause::DriverTooOld { what, since, found })
    }

    pub(crate) fn not_supported(text: String) -> Self {
        Self::from(Cause::NotSupported(text))
    }

    pub(crate) fn invalid(text: String) -> Self {
        Self::from(Cause::InvalidValue(text))
    }

    pub(crate) fn not_permitted(text: String) -> Self {
        Self::from(Cause::NotPermitted(text))
    }

    pub(crate) fn system(what: &'static str, error: std::io::Error) -> Self {
        Self::from(Cause::System { what, error })
    }

    /// Adds the output of the PTX compiler, if there is any.
    #[must_use]
    pub(crate) fn with_jit_log(self, log: String) -> Self {
        match *self.0 {
            Cause::Driver {
                function,
                code,
                asked,
            } if !log.is_empty() => Self::from(Cause::Code {
                function,
                code,
                asked,
                log,
            }),
            other => Self::from(other),
        }
    }

    /// Adds what the driver's log says about the call, if the PTX compiler said nothing.
    #[must_use]
    pub(crate) fn with_driver_log(self, log: String) -> Self {
        match *self.0 {
            Cause::Driver {
                function,
                code,
                asked,
            } => Self::from(Cause::Logged {
                function,
                code,
                asked,
                log,
            }),
            other => Self::from(other),
        }
    }

    /// Adds advice if the driver has no such device; other errors are unchanged.
    #[must_use]
    pub(crate) fn no_device(self, hint: impl FnOnce() -> String) -> Self {
        match *self.0 {
            Cause::Driver {
                function,
                code,
                asked,
            } if kind_of(code) == ErrorKind::InvalidDevice => Self::from(Cause::NoDevice {
                function,
                code,
                asked,
                hint: hint(),
            }),
            other => Self::from(other),
        }
    }

    /// Adds the meaning of a code where its name does not say enough.
    #[must_use]
    pub(crate) fn meaning(self, when: CUresult, kind: ErrorKind, meaning: &'static str) -> Self {
        match *self.0 {
            Cause::Driver {
                function,
                code,
                asked,
            } if code == when => Self::from(Cause::Meant {
                function,
                code,
                asked,
                kind,
                meaning,
            }),
            other => Self::from(other),
        }
    }

    pub(crate) fn in_use(what: &'static str, users: usize) -> Self {
        Self::from(Cause::InUse { what, users })
    }

    pub(crate) fn capturing(text: String) -> Self {
        Self::from(Cause::Capturing(text))
    }

    pub(crate) fn memory_in_use() -> Self {
        Self::from(Cause::MemoryInUse)
    }

    pub(crate) fn host_memory(bytes: usize) -> Self {
        Self::from(Cause::HostMemory {
            bytes: bytes as u64,
        })
    }

    /// Whether the failed call is known to have changed nothing: the driver was not called, or it refused. Any other
    /// code may report an earlier fault of asynchronous work, and the call may have been carried out anyway. The same
    /// holds for NCCL, NVML, gdrcopy and the system.
    ///
    /// For errors made by [`new`](Self::new), the kind decides: `OutOfMemory` and the refusals `InvalidValue`,
    /// `InvalidContext`, `NotInitialized`, `NotSupported`, `NotPermitted`, `Capturing`, `InvalidImage`, `NotFound`,
    /// `AlreadyRegistered` and `NotRegistered` had no effect. All other kinds may have had one.
    #[must_use]
    pub fn had_no_effect(&self) -> bool {
        if !self.was_tried() {
            return true;
        }
        let is_refusal = matches!(
            self.kind(),
            ErrorKind::InvalidValue
                | ErrorKind::InvalidContext
                | ErrorKind::NotInitialized
                | ErrorKind::NotSupported
                | ErrorKind::NotPermitted
                | ErrorKind::Capturing
                | ErrorKind::InvalidImage
                | ErrorKind::NotFound
                | ErrorKind::AlreadyRegistered
                | ErrorKind::NotRegistered
        );
        let is_of_another_call = matches!(
            self.cause(),
            Cause::Told { .. }
                | Cause::Nvml { .. }
                | Cause::Nccl { .. }
                | Cause::Errno { .. }
                | Cause::System { .. }
        );
        is_refusal || self.code().is_none() && !is_of_another_call
    }

    pub(crate) fn was_tried(&self) -> bool {
        !matches!(*self.0, Cause::NotTried(_))
    }

    /// This error kept a call from being tried, whatever other work it may report.
    pub(crate) fn not_tried(self) -> Self {
        Self::from(Cause::NotTried(self))
    }

    /// Why, whether or not the call was tried.
    fn cause(&self) -> &Cause {
        match &*self.0 {
            Cause::NotTried(why) => why.cause(),
            cause => cause,
        }
    }

    /// Whether this error means that the driver cannot do the operation at all; other refusals may be temporary.
    pub(crate) fn is_inability(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::InvalidValue | ErrorKind::NotSupported | ErrorKind::NotPermitted
        )
    }

    /// Whether memory of a device or a resource ran out, rather than the program's own memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.kind() == ErrorKind::OutOfMemory && !matches!(self.cause(), Cause::HostMemory { .. })
    }

    /// Whether the request is larger than a whole limit: nothing that is freed helps.
    pub(crate) fn is_over_limit(&self) -> bool {
        let is_too_large = |refusal: &Refusal| matches!(refusal, Refusal::TooLarge(_));
        matches!(self.cause(), Cause::OutOfMemory { refusal, .. } if is_too_large(refusal))
    }

    #[cold]
    pub(crate) fn forked() -> Self {
        Self::from(Cause::Forked)
    }

    /// The kind of the failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self.cause() {
            Cause::NotTried(why) => why.kind(),
            Cause::Load(_) => ErrorKind::DriverMissing,
            Cause::NvmlLoad(_) => ErrorKind::NvmlMissing,
            Cause::NcclLoad(_) => ErrorKind::NcclMissing,
            Cause::GdrLoad(_) | Cause::GdrClosed(_) => ErrorKind::GdrMissing,
            Cause::Errno { error, .. } => gdr::kind_of_errno(error),
            Cause::NvtxLoad(error) => nvtx::kind_of(error),
            Cause::NoCpuMapping(_) => ErrorKind::NoCpuMapping,
            Cause::NotInTime(_) => ErrorKind::TimedOut,
            Cause::Missing(_) | Cause::NvmlLacks(_) | Cause::NcclLacks(_) | Cause::GdrLacks(_) => {
                ErrorKind::SymbolMissing
            }
            Cause::NoDevice { .. } => ErrorKind::InvalidDevice,
            Cause::Nvml { code, .. } => kind_of_nvml(*code),
            Cause::Nccl { code, .. } => kind_of_nccl(*code),
            Cause::Driver { code, .. } | Cause::Code { code, .. } | Cause::Logged { code, .. } => {
                kind_of(*code)
            }
            Cause::OutOfMemory { .. } | Cause::HostMemory { .. } => ErrorKind::OutOfMemory,
            Cause::DriverTooOld { .. } | Cause::NotSupported(_) => ErrorKind::NotSupported,
            Cause::InvalidValue(_) => ErrorKind::InvalidValue,
            Cause::NotPermitted(_) => ErrorKind::NotPermitted,
            Cause::System { .. } => ErrorKind::System,
            Cause::Meant { kind, .. } | Cause::Told { kind, .. } => *kind,
            Cause::InUse { .. } | Cause::MemoryInUse => ErrorKind::InUse,
            Cause::Capturing(_) => ErrorKind::Capturing,
            Cause::StillAllocated { .. } | Cause::ArenaBlocks { .. } => ErrorKind::StillAllocated,
            Cause::Forked | Cause::NvmlForked => ErrorKind::Forked,
        }
    }

    /// The driver's own result code, if the driver was called.
    #[must_use]
    pub fn code(&self) -> Option<CUresult> {
        match self.cause() {
            Cause::Driver { code, .. }
            | Cause::NoDevice { code, .. }
            | Cause::Logged { code, .. }
            | Cause::Code { code, .. }
            | Cause::Meant { code, .. } => Some(*code),
            Cause::OutOfMemory { refusal, .. } => refusal.code(),
            _ => None,
        }
    }

    /// The function that failed or is missing: of the driver, of NVML, of NCCL, of gdrcopy's library or of the system.
    #[must_use]
    pub fn function(&self) -> Option<&'static str> {
        match self.cause() {
            Cause::Driver { function, .. }
            | Cause::NoDevice { function, .. }
            | Cause::Logged { function, .. }
            | Cause::Code { function, .. }
            | Cause::Meant { function, .. } => Some(function),
            Cause::OutOfMemory { refusal, .. } => refusal.function(),
            Cause::Nvml { function, .. }
            | Cause::NvmlLacks(function)
            | Cause::Nccl { function, .. }
            | Cause::NcclLacks(function)
            | Cause::Errno { function, .. }
            | Cause::GdrLacks(function) => Some(function),
            Cause::Missing(missing) => Some(missing.symbol),
            _ => None,
        }
    }

    /// The PTX compiler's log for the code, if there is one.
    #[doc(alias = "CU_JIT_ERROR_LOG_BUFFER")]
    #[must_use]
    pub fn jit_log(&self) -> Option<&str> {
        match self.cause() {
            Cause::Code { log, .. } => Some(log),
            _ => None,
        }
    }

    /// What the driver's log says about the call, for code that could not be loaded or launched. Drivers have a log
    /// since CUDA 12.9.
    #[doc(alias = "cuLogsDumpToMemory")]
    #[must_use]
    pub fn driver_log(&self) -> Option<&str> {
        match self.cause() {
            Cause::Logged { log, .. } => Some(log),
            _ => None,
        }
    }

    /// The numbers, if memory ran out.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self.cause() {
            Cause::OutOfMemory { memory, .. } => Some(memory),
            _ => None,
        }
    }

    /// The first CUDA version that supports the request, if the driver is too old for it.
    #[must_use]
    pub fn needs_version(&self) -> Option<CudaVersion> {
        match self.cause() {
            Cause::Missing(missing) => missing.since,
            Cause::DriverTooOld { since, .. } => Some(*since),
            _ => None,
        }
    }
}

/// Whether a call took effect, or must be assumed to have, because its error may report earlier work. Repeating the
/// call could then affect an object that belongs to another owner by now.
#[inline]
pub(crate) fn took_effect(answer: &Result<()>) -> bool {
    !answer.as_ref().is_err_and(Error::had_no_effect)
}

impl From<Cause> for Error {
    fn from(cause: Cause) -> Self {
        Self(Box::new(cause))
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        Self::from(Cause::Load(error))
    }
}

impl From<cuda_driver_sys::nvml::NvmlLoadError> for Error {
    fn from(error: cuda_driver_sys::nvml::NvmlLoadError) -> Self {
        Self::from(Cause::NvmlLoad(error))
    }
}

impl From<cuda_driver_sys::nccl::NcclLoadError> for Error {
    fn from(error: cuda_driver_sys::nccl::NcclLoadError) -> Self {
        Self::from(Cause::NcclLoad(error))
    }
}

impl From<cuda_driver_sys::nvtx::NvtxLoadError> for Error {
    fn from(error: cuda_driver_sys::nvtx::NvtxLoadError) -> Self {
        Self::from(Cause::NvtxLoad(error))
    }
}

impl From<MissingSymbol> for Error {
    fn from(error: MissingSymbol) -> Self {
        Self::from(Cause::Missing(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The message, as printed by [`Display`](fmt::Display), so that a `main` that returns an error shows it. `{:#?}`
/// prints the structure.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return fmt::Debug::fmt(&self.0, f);
        }
        fmt::Display::fmt(self, f)
    }
}

// No source: the message contains the text of the underlying error, and printers of chains would repeat it.
impl std::error::Error for Error {}
