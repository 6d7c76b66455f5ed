//! Errors: what was asked, what was there, what to do, and the driver's own code.
//!
//! This file never calls the driver: names and meanings come from a generated table, so an error
//! can be printed at any time, also while the driver is shutting down.

mod memory;

pub use memory::OutOfMemory;

pub(crate) use memory::Bytes;

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

/// What kind of failure it was, for programs to decide on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No CUDA driver could be opened on this machine.
    DriverMissing,
    /// The driver is too old to have the function.
    SymbolMissing,
    /// The driver is not initialised in this process.
    NotInitialized,
    /// The driver is shutting down with the process.
    Deinitialized,
    /// This process is a fork; the parent's GPU objects cannot be used here.
    Forked,
    /// No device has this ordinal, or none is visible.
    InvalidDevice,
    /// Not enough memory. From a pool, [`Error::out_of_memory`] has the numbers.
    OutOfMemory,
    /// The device, the driver or the system cannot do this.
    NotSupported,
    /// This process may not do this.
    NotPermitted,
    /// An argument is wrong. Nothing was changed.
    InvalidValue,
    /// No usable context, or a handle of another one.
    InvalidContext,
    /// The context of the object is gone.
    ContextDestroyed,
    /// The work is still running.
    NotReady,
    /// Device code or hardware failed; the context and everything in it is lost.
    DeviceFault,
    /// The object cannot be closed because others still use it.
    InUse,
    /// The other process, or what it had made, is gone.
    PeerGone,
    /// The operating system refused something; see the error's source.
    System,
    /// A stream is being captured into a graph, and this cannot be done meanwhile.
    Capturing,
    /// The last launch of a graph left memory allocated that has to be freed first.
    StillAllocated,
    /// Anything else; see [`Error::code`].
    Other,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Missing(#[from] MissingSymbol),
    #[error("{function} answered {code}{}{}", Asked(asked), advice(kind_of(*code)))]
    Driver {
        function: &'static str,
        code: CUresult,
        asked: Option<String>,
    },
    #[error(
        "{function} answered {code}{}: {memory}. Free memory, synchronise the streams that still \
         hold frees, or trim the pool, then try again",
        Asked(asked)
    )]
    OutOfMemory {
        function: &'static str,
        code: CUresult,
        asked: Option<String>,
        memory: OutOfMemory,
    },
    #[error("the host has no memory for a copy of {} back from the device", Bytes(*bytes))]
    HostMemory { bytes: u64 },
    #[error("{what} needs CUDA {since}, and the driver has {found}; install a newer driver")]
    DriverTooOld {
        what: &'static str,
        since: CudaVersion,
        found: CudaVersion,
    },
    #[error("{0}")]
    NotSupported(String),
    #[error("{0}")]
    InvalidValue(String),
    #[error("{0}")]
    NotPermitted(String),
    #[error("{0}")]
    PeerGone(String),
    #[error("{what} failed: {source}")]
    System {
        what: &'static str,
        source: std::io::Error,
    },
    #[error("{function} answered {code}: {meaning}")]
    Meant {
        function: &'static str,
        code: CUresult,
        kind: ErrorKind,
        meaning: &'static str,
    },
    #[error("{0}")]
    Capturing(String),
    #[error(
        "the last launch left {blocks} blocks of {} allocated; free them, or instantiate the graph \
         so that a launch frees them",
        Bytes(*bytes)
    )]
    StillAllocated { blocks: usize, bytes: u64 },
    #[error("{what} is still used by {users} other owners; drop them first")]
    InUse { what: &'static str, users: usize },
    #[error(
        "memory of the pool is still handed out, or its free has not been seen done; drop the buffers \
         and synchronise their streams first"
    )]
    MemoryInUse,
    #[error(
        "this process was forked after the driver was initialised; CUDA works only in the parent, \
         so start a new process (exec) instead"
    )]
    Forked,
}

/// ` (asked …)`, or nothing.
struct Asked<'a>(&'a Option<String>);

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(asked) => write!(f, " ({asked})"),
            None => Ok(()),
        }
    }
}

/// What the caller can do about a failure of this kind.
fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidDevice => {
            "; see which devices CUDA_VISIBLE_DEVICES leaves to this process"
        }
        ErrorKind::InvalidContext => "; use objects of one device and driver together",
        ErrorKind::DeviceFault => "; end the process: the driver cannot recover this context",
        ErrorKind::Capturing => {
            "; a stream is being captured into a graph: do this before or after, or capture in relaxed \
             mode"
        }
        ErrorKind::Deinitialized => "; drop GPU objects before the process exits",
        _ => "",
    }
}

impl Error {
    pub(crate) fn driver(function: &'static str, code: CUresult) -> Self {
        Self::from(Cause::Driver {
            function,
            code,
            asked: None,
        })
    }

    /// Adds what was asked for; the text is only made when there is an error to carry it.
    #[must_use]
    pub(crate) fn asked(mut self, text: impl FnOnce() -> String) -> Self {
        if let Cause::Driver { asked, .. } = &mut *self.0 {
            *asked = Some(text());
        }
        self
    }

    /// Turns the driver's out-of-memory answer into one with numbers; other errors stay.
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
                function,
                code,
                asked,
                memory: report(),
            }),
            other => Self::from(other),
        }
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

    pub(crate) fn peer_gone(text: String) -> Self {
        Self::from(Cause::PeerGone(text))
    }

    pub(crate) fn system(what: &'static str, source: std::io::Error) -> Self {
        Self::from(Cause::System { what, source })
    }

    /// Says what a code means where it means more than its name.
    #[must_use]
    pub(crate) fn meaning(self, when: CUresult, kind: ErrorKind, meaning: &'static str) -> Self {
        match *self.0 {
            Cause::Driver { function, code, .. } if code == when => Self::from(Cause::Meant {
                function,
                code,
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

    pub(crate) fn still_allocated(blocks: usize, bytes: u64) -> Self {
        Self::from(Cause::StillAllocated { blocks, bytes })
    }

    pub(crate) fn memory_in_use() -> Self {
        Self::from(Cause::MemoryInUse)
    }

    pub(crate) fn host_memory(bytes: usize) -> Self {
        Self::from(Cause::HostMemory {
            bytes: bytes as u64,
        })
    }

    /// Whether a failed call is known to have changed nothing: the driver was not called, or refused
    /// the arguments. Any other code may report an earlier fault of asynchronous work, and the call
    /// may have been carried out all the same.
    pub(crate) fn had_no_effect(&self) -> bool {
        self.code().is_none()
            || matches!(
                self.kind(),
                ErrorKind::InvalidValue
                    | ErrorKind::InvalidContext
                    | ErrorKind::NotInitialized
                    | ErrorKind::NotSupported
                    | ErrorKind::NotPermitted
                    | ErrorKind::Capturing
            )
    }

    #[cold]
    pub(crate) fn forked() -> Self {
        Self::from(Cause::Forked)
    }

    /// What kind of failure it was.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match &*self.0 {
            Cause::Load(_) => ErrorKind::DriverMissing,
            Cause::Missing(_) => ErrorKind::SymbolMissing,
            Cause::Driver { code, .. } => kind_of(*code),
            Cause::OutOfMemory { .. } | Cause::HostMemory { .. } => ErrorKind::OutOfMemory,
            Cause::DriverTooOld { .. } | Cause::NotSupported(_) => ErrorKind::NotSupported,
            Cause::InvalidValue(_) => ErrorKind::InvalidValue,
            Cause::NotPermitted(_) => ErrorKind::NotPermitted,
            Cause::PeerGone(_) => ErrorKind::PeerGone,
            Cause::System { .. } => ErrorKind::System,
            Cause::Meant { kind, .. } => *kind,
            Cause::InUse { .. } | Cause::MemoryInUse => ErrorKind::InUse,
            Cause::Capturing(_) => ErrorKind::Capturing,
            Cause::StillAllocated { .. } => ErrorKind::StillAllocated,
            Cause::Forked => ErrorKind::Forked,
        }
    }

    /// The driver's own result code, if the driver was called.
    #[must_use]
    pub fn code(&self) -> Option<CUresult> {
        match &*self.0 {
            Cause::Driver { code, .. }
            | Cause::OutOfMemory { code, .. }
            | Cause::Meant { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The driver function that failed or is missing.
    #[must_use]
    pub fn function(&self) -> Option<&'static str> {
        match &*self.0 {
            Cause::Driver { function, .. }
            | Cause::OutOfMemory { function, .. }
            | Cause::Meant { function, .. } => Some(function),
            Cause::Missing(missing) => Some(missing.symbol),
            _ => None,
        }
    }

    /// The numbers, if memory ran out.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match &*self.0 {
            Cause::OutOfMemory { memory, .. } => Some(memory),
            _ => None,
        }
    }

    /// The first CUDA version that has what was asked for, if the driver is too old for it.
    #[must_use]
    pub fn needs_version(&self) -> Option<CudaVersion> {
        match &*self.0 {
            Cause::Missing(missing) => missing.since,
            Cause::DriverTooOld { since, .. } => Some(*since),
            _ => None,
        }
    }
}

fn kind_of(code: CUresult) -> ErrorKind {
    match code {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::OutOfMemory,
        CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_INVALID_HANDLE => {
            ErrorKind::InvalidValue
        }
        CUresult::CUDA_ERROR_NOT_INITIALIZED => ErrorKind::NotInitialized,
        CUresult::CUDA_ERROR_DEINITIALIZED => ErrorKind::Deinitialized,
        CUresult::CUDA_ERROR_NO_DEVICE | CUresult::CUDA_ERROR_INVALID_DEVICE => {
            ErrorKind::InvalidDevice
        }
        CUresult::CUDA_ERROR_NOT_SUPPORTED => ErrorKind::NotSupported,
        CUresult::CUDA_ERROR_NOT_PERMITTED => ErrorKind::NotPermitted,
        CUresult::CUDA_ERROR_INVALID_CONTEXT => ErrorKind::InvalidContext,
        CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED => ErrorKind::ContextDestroyed,
        CUresult::CUDA_ERROR_NOT_READY => ErrorKind::NotReady,
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        | CUresult::CUDA_ERROR_CAPTURED_EVENT
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD => ErrorKind::Capturing,
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
        | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
        | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
        | CUresult::CUDA_ERROR_ASSERT
        | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUresult::CUDA_ERROR_INVALID_PC
        | CUresult::CUDA_ERROR_LAUNCH_FAILED => ErrorKind::DeviceFault,
        _ => ErrorKind::Other,
    }
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

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// A consuming operation failed and gives back what it was called on, so that nothing is lost.
pub struct Failed<T> {
    /// Why it failed.
    pub error: Error,
    /// The object, as it was before. `None` if the driver may have released it although it answered
    /// an error, as it does when it reports an earlier fault: releasing it again could release what
    /// somebody else has got since, so it is given up.
    pub object: Option<T>,
}

impl<T> Failed<T> {
    pub(crate) fn new(error: Error, object: T) -> Self {
        Self {
            error,
            object: Some(object),
        }
    }

    pub(crate) fn lost(error: Error) -> Self {
        Self {
            error,
            object: None,
        }
    }
}

/// For callers who want the error and drop the object.
impl<T> From<Failed<T>> for Error {
    fn from(failed: Failed<T>) -> Self {
        failed.error
    }
}

impl<T> fmt::Debug for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> fmt::Display for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for Failed<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_error_says_function_code_and_request() {
        let error = Error::driver("cuDeviceGet", CUresult::CUDA_ERROR_INVALID_DEVICE)
            .asked(|| "device 7 of 1".to_owned());
        let text = error.to_string();
        for part in [
            "cuDeviceGet",
            "(101)",
            "device 7 of 1",
            "CUDA_VISIBLE_DEVICES",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn an_unknown_code_is_kept() {
        let error = Error::driver("cuInit", CUresult(54321));
        assert_eq!(error.kind(), ErrorKind::Other);
        assert_eq!(error.code(), Some(CUresult(54321)));
        assert!(error.to_string().contains("54321"));
    }

    #[test]
    fn numbers_are_only_added_to_out_of_memory() {
        let report = || OutOfMemory {
            asked: 40 << 20,
            pool_used: Some(1),
            ..OutOfMemory::default()
        };
        let error = Error::driver("cuMemAllocAsync", CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let error = error.with_memory(report);
        assert_eq!(
            error.out_of_memory().map(|memory| memory.asked),
            Some(40 << 20)
        );
        let text = error.to_string();
        assert!(
            text.contains("asked for 40.0 MiB, pool used 1 B."),
            "{text}"
        );
        let other = Error::driver("cuMemAllocAsync", CUresult::CUDA_ERROR_INVALID_VALUE);
        assert!(other.with_memory(report).out_of_memory().is_none());
    }
}
