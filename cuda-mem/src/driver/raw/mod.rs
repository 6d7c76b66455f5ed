//! The only place that calls the driver, NVML, NCCL, gdrcopy's library or a tool of NVTX: one thin function per call.
//!
//! Out-parameters become return values and the result code becomes a `Result`; nothing else
//! happens here. Each function is `unsafe` with the driver's own preconditions.

pub(crate) mod alloc;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
#[cfg(target_os = "linux")]
pub(crate) mod dma_buf;
pub(crate) mod event;
pub(crate) mod gdr;
pub(crate) mod gpu_direct;
pub(crate) mod graph;
pub(crate) mod host;
pub(crate) mod init;
#[cfg(any(target_os = "linux", windows))]
pub(crate) mod ipc;
pub(crate) mod log;
pub(crate) mod managed;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod nccl;
pub(crate) mod nvml;
pub(crate) mod nvtx;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod stream;
pub(crate) mod vmm;

pub(crate) use cuda_driver_sys::DriverTable as Table;

/// A stream that was checked for a call. Made by the gate of `stream`, and nowhere else (`cargo xtask tidy`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue<'a> {
    table: &'a Table,
    stream: CUstream,
}

impl<'a> Queue<'a> {
    #[inline]
    pub(crate) fn new(table: &'a Table, stream: CUstream) -> Self {
        Self { table, stream }
    }

    #[inline]
    pub(crate) fn table(self) -> &'a Table {
        self.table
    }

    #[inline]
    pub(crate) fn stream(self) -> CUstream {
        self.stream
    }
}

#[cfg(target_os = "linux")]
use std::ffi::c_int;
#[cfg(target_os = "linux")]
use std::os::fd::{FromRawFd, OwnedFd};
#[cfg(windows)]
use std::os::windows::io::{FromRawHandle, OwnedHandle};

use cuda_driver_sys::{CUresult, CUstream, MissingSymbol};

use crate::base::error::{Error, Result};

/// Calls a function of the table by its symbol; a missing one is an error.
///
/// So is any call in a fork: there the driver answers some calls with NOT_INITIALIZED, and those with
/// a live stream or pool end the process by a signal (measured, R88).
macro_rules! call {
    ($table:expr, $symbol:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::raw::call!($crate::driver::raw::check, $table, $symbol($($argument),*))
    };
    ($answer:path, $table:expr, $symbol:ident($($argument:expr),* $(,)?)) => {
        match $table.$symbol {
            _ if $crate::base::report::is_forked() => Err($crate::base::error::Error::forked()),
            Some(function) => $answer(stringify!($symbol), function($($argument),*)),
            None => Err($crate::driver::raw::missing(stringify!($symbol))),
        }
    };
}
pub(crate) use call;

/// The one conversion from result codes to `Result`.
#[inline]
fn check(function: &'static str, code: CUresult) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        Ok(())
    } else {
        Err(failure(function, code))
    }
}

#[cold]
fn failure(function: &'static str, code: CUresult) -> Error {
    Error::driver(function, code)
}

/// The answer of a query that may say "not yet".
#[inline]
fn done(function: &'static str, code: CUresult) -> Result<bool> {
    if code == CUresult::CUDA_ERROR_NOT_READY {
        return Ok(false);
    }
    check(function, code).map(|()| true)
}

/// A descriptor that the driver has just made for this process. The driver lets started programs inherit it
/// (measured); this does not.
///
/// # Safety
/// It must have no other owner.
#[cfg(target_os = "linux")]
unsafe fn descriptor(number: c_int) -> Result<OwnedFd> {
    if number < 0 {
        return Err(Error::invalid(format!(
            "the driver gave the descriptor {number}"
        )));
    }
    // SAFETY: the caller's, and it is one.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)
        .map_err(|error| Error::system("closing a descriptor on exec", error.into()))?;
    Ok(descriptor)
}

/// A handle that the driver has just made for this process.
///
/// # Safety
/// It must have no other owner.
#[cfg(windows)]
unsafe fn handle(raw: std::os::windows::io::RawHandle) -> Result<OwnedHandle> {
    if raw.is_null() {
        return Err(Error::invalid("the driver gave no handle".to_owned()));
    }
    // SAFETY: the caller's, and it is one.
    Ok(unsafe { OwnedHandle::from_raw_handle(raw) })
}

#[cold]
fn missing(symbol: &'static str) -> Error {
    Error::from(MissingSymbol::new(symbol))
}
