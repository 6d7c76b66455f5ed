//! Kinds of failures, and the kind of each code.

use std::fmt;

use cuda_driver_sys::CUresult;

/// The kind of a failure, for programs to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No CUDA driver could be opened on this machine.
    DriverMissing,
    /// No NVML library could be opened on this machine.
    NvmlMissing,
    /// No NCCL could be opened on this machine.
    NcclMissing,
    /// gdrcopy's library or its kernel module is missing, or this process may not use it.
    GdrMissing,
    /// The driver, NVML, NCCL or gdrcopy's library is too old to provide the function.
    SymbolMissing,
    /// The driver is not initialised in this process.
    NotInitialized,
    /// The driver is shutting down with the process.
    Deinitialized,
    /// This process is a fork; the parent's GPU objects cannot be used here.
    Forked,
    /// No device has this ordinal, or no device is visible.
    InvalidDevice,
    /// Not enough memory. For pools, [`Error::out_of_memory`](crate::Error::out_of_memory) has the numbers.
    OutOfMemory,
    /// The device, the driver or the system cannot do this.
    NotSupported,
    /// This process may not do this.
    NotPermitted,
    /// An argument is invalid. Nothing was changed.
    InvalidValue,
    /// No usable context, or a handle from another context.
    InvalidContext,
    /// The object's context no longer exists.
    ContextDestroyed,
    /// The work is still running.
    NotReady,
    /// Others did not do their part in time.
    TimedOut,
    /// The communicator was aborted. A new one can be joined.
    Aborted,
    /// Device code or hardware failed, or the MPS server ended this client; the context and everything in it are lost.
    DeviceFault,
    /// The object cannot be closed, or changed in this way, while it is in use.
    InUse,
    /// The other process, or an object that it created, no longer exists.
    PeerGone,
    /// The other process failed to do its part; the text contains its error.
    PeerFailed,
    /// The operating system refused something; see [`Error::io_error`](crate::Error::io_error).
    System,
    /// A stream is being captured into a graph, and this operation is not possible meanwhile.
    Capturing,
    /// Something must be freed first: memory left by the last launch of a graph, blocks of an arena whose last handle
    /// is gone, or what the [`Ledger`](crate::ledger::Ledger) lists.
    StillAllocated,
    /// Code cannot be loaded: it is for other devices or a newer driver, or it is not code at all.
    /// [`Error::jit_log`](crate::Error::jit_log) may say more.
    InvalidImage,
    /// Nothing has this name.
    NotFound,
    /// The memory, or part of it, is already registered with the driver. Nothing was changed.
    AlreadyRegistered,
    /// The memory is not registered with the driver. Nothing was changed.
    NotRegistered,
    /// None of the allowed CPU mappings is available; the text gives the reason for each.
    NoCpuMapping,
    /// Anything else; see [`Error::code`](crate::Error::code).
    Other,
}

impl ErrorKind {
    /// Whether the driver reports this kind for a context that has ended, even if it was created anew.
    pub(crate) fn is_of_ended_context(self) -> bool {
        matches!(self, Self::InvalidContext | Self::ContextDestroyed)
    }

    /// Whether the driver reports this kind for a context in which nothing works any more.
    pub(crate) fn is_of_lost_context(self) -> bool {
        self == Self::DeviceFault || self.is_of_ended_context()
    }
}

/// A short phrase, such as `out of memory`.
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::DriverMissing => "no CUDA driver",
            Self::NvmlMissing => "no NVML",
            Self::NcclMissing => "no NCCL",
            Self::GdrMissing => "no gdrcopy",
            Self::SymbolMissing => "function missing",
            Self::NotInitialized => "not initialised",
            Self::Deinitialized => "driver shutting down",
            Self::Forked => "process forked",
            Self::InvalidDevice => "no such device",
            Self::OutOfMemory => "out of memory",
            Self::NotSupported => "not supported",
            Self::NotPermitted => "not permitted",
            Self::InvalidValue => "invalid argument",
            Self::InvalidContext => "no usable context",
            Self::ContextDestroyed => "context destroyed",
            Self::NotReady => "not ready",
            Self::TimedOut => "timed out",
            Self::Aborted => "aborted",
            Self::DeviceFault => "device fault",
            Self::InUse => "in use",
            Self::PeerGone => "other process gone",
            Self::PeerFailed => "other process failed",
            Self::System => "refused by the system",
            Self::Capturing => "stream being captured",
            Self::StillAllocated => "still allocated",
            Self::InvalidImage => "code that cannot be loaded",
            Self::NotFound => "not found",
            Self::AlreadyRegistered => "already registered",
            Self::NotRegistered => "not registered",
            Self::NoCpuMapping => "no CPU mapping",
            Self::Other => "other error",
        })
    }
}

/// What the caller can do about a failure of this kind.
pub(super) fn advice(kind: ErrorKind) -> &'static str {
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
        ErrorKind::AlreadyRegistered => {
            "; a part of the memory is registered already, here or by another library: use it as it is, or \
             end that first"
        }
        ErrorKind::NotRegistered => "; somebody else has ended the registration, or the context",
        ErrorKind::Deinitialized => "; drop GPU objects before the process exits",
        _ => "",
    }
}

pub(super) fn kind_of(code: CUresult) -> ErrorKind {
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
        CUresult::CUDA_ERROR_NOT_SUPPORTED
        | CUresult::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER
        | CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => ErrorKind::NotSupported,
        CUresult::CUDA_ERROR_NOT_PERMITTED => ErrorKind::NotPermitted,
        CUresult::CUDA_ERROR_INVALID_CONTEXT => ErrorKind::InvalidContext,
        CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED => ErrorKind::ContextDestroyed,
        CUresult::CUDA_ERROR_NOT_READY => ErrorKind::NotReady,
        CUresult::CUDA_ERROR_TIMEOUT => ErrorKind::TimedOut,
        CUresult::CUDA_ERROR_INVALID_IMAGE
        | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_INVALID_PTX
        | CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | CUresult::CUDA_ERROR_JIT_COMPILATION_DISABLED => ErrorKind::InvalidImage,
        CUresult::CUDA_ERROR_NOT_FOUND => ErrorKind::NotFound,
        CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => ErrorKind::AlreadyRegistered,
        CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => ErrorKind::NotRegistered,
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
        | CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_CONTAINED
        | CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK
        | CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED => ErrorKind::DeviceFault,
        _ => ErrorKind::Other,
    }
}
