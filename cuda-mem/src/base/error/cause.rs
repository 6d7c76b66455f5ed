//! What an error is made of, and how it reads.

use std::fmt;

use cuda_driver_sys::gdr::GdrLoadError;
use cuda_driver_sys::nccl::{NcclLoadError, ncclResult_t};
use cuda_driver_sys::nvml::{NvmlLoadError, nvmlReturn_t};
use cuda_driver_sys::nvtx::NvtxLoadError;
use cuda_driver_sys::{CUresult, CudaVersion, LoadError, MissingSymbol};

use super::kind::{advice, kind_of};
use super::memory::{Bytes, OutOfMemory, Refusal};
use super::{Error, ErrorKind, gdr};

#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    NotTried(Error),
    #[error(transparent)]
    Missing(#[from] MissingSymbol),
    #[error(transparent)]
    NvmlLoad(#[from] NvmlLoadError),
    #[error(
        "the NVML library has no {0}; it belongs to an older driver, or was built for another system"
    )]
    NvmlLacks(&'static str),
    #[error("{function} answered {code}{}", Asked(asked))]
    Nvml {
        function: &'static str,
        code: nvmlReturn_t,
        asked: Option<String>,
    },
    #[error(transparent)]
    NcclLoad(#[from] NcclLoadError),
    #[error("the NCCL library has no {0}; install a newer one")]
    NcclLacks(&'static str),
    #[error("{function} answered {code}{}{}", Asked(asked), Words(words))]
    Nccl {
        function: &'static str,
        code: ncclResult_t,
        words: Option<String>,
        asked: Option<String>,
    },
    #[error(transparent)]
    GdrLoad(#[from] GdrLoadError),
    #[error(transparent)]
    NvtxLoad(#[from] NvtxLoadError),
    #[error("gdrcopy's library has no {0}; install a newer one")]
    GdrLacks(&'static str),
    #[error("gdrcopy's library did not open /dev/gdrdrv: {words}. {hint}", words = gdr::words(.0), hint = gdr::hint(.0))]
    GdrClosed(std::io::Error),
    #[error("{function} answered {words}{}", Asked(asked), words = gdr::words(error))]
    Errno {
        function: &'static str,
        error: std::io::Error,
        asked: Option<String>,
    },
    #[error("{0}")]
    NotInTime(String),
    #[error("no CPU mapping: {0}")]
    NoCpuMapping(String),
    #[error(
        "this process was forked after NVML was initialised, or while a thread was opening it; look for the GPU \
         before the fork and hand its UUID on, or in a new process (exec)"
    )]
    NvmlForked,
    #[error("{function} answered {code}{}{}", Asked(asked), advice(kind_of(*code)))]
    Driver {
        function: &'static str,
        code: CUresult,
        asked: Option<String>,
    },
    #[error("{function} answered {code}{}; {hint}", Asked(asked))]
    NoDevice {
        function: &'static str,
        code: CUresult,
        asked: Option<String>,
        hint: String,
    },
    #[error(
        "{refusal}{}: {memory}. {}, then try again",
        Asked(asked),
        refusal.advice(memory)
    )]
    OutOfMemory {
        refusal: Refusal,
        asked: Option<String>,
        memory: OutOfMemory,
    },
    #[error("{function} answered {code}{}. The compiler said: {log}", Asked(asked))]
    Code {
        function: &'static str,
        code: CUresult,
        asked: Option<String>,
        log: String,
    },
    #[error(
        "{function} answered {code}{}{}. The driver's log says: {log}",
        Asked(asked),
        advice(kind_of(*code))
    )]
    Logged {
        function: &'static str,
        code: CUresult,
        asked: Option<String>,
        log: String,
    },
    #[error("{text}")]
    Told { kind: ErrorKind, text: String },
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
    #[error("{what} failed: {error}")]
    System {
        what: &'static str,
        error: std::io::Error,
    },
    #[error("{function} answered {code}{}: {meaning}", Asked(asked))]
    Meant {
        function: &'static str,
        code: CUresult,
        asked: Option<String>,
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
    #[error(
        "the last handle of the arena is gone, and {blocks} blocks of {} are still allocated; their memory stays",
        Bytes(*bytes)
    )]
    ArenaBlocks { blocks: u64, bytes: u64 },
    #[error("{what} is still used by {users} other owners; drop them first")]
    InUse { what: &'static str, users: usize },
    #[error(
        "memory of the pool is still handed out, or its free has not been seen done; drop the buffers \
         and synchronise their streams first"
    )]
    MemoryInUse,
    #[error(
        "this process was forked after the driver was initialised, or while a thread was opening it; CUDA works \
         only in the parent, so start a new process (exec) instead"
    )]
    Forked,
}

/// Memory that has to be freed first.
impl Error {
    pub(crate) fn still_allocated(blocks: usize, bytes: u64) -> Self {
        Self::from(Cause::StillAllocated { blocks, bytes })
    }

    pub(crate) fn arena_blocks(blocks: u64, bytes: u64) -> Self {
        Self::from(Cause::ArenaBlocks { blocks, bytes })
    }
}

/// What NCCL said last, or nothing. It keeps one text for the whole process, so that may be of another failure.
struct Words<'a>(&'a Option<String>);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(words) => write!(f, "; the last that NCCL said in this process: {words}"),
            None => Ok(()),
        }
    }
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
