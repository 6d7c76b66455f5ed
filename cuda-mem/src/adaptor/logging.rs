//! A log of allocations in RMM's format.

use std::alloc::Layout;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use cuda_driver_sys::CUdeviceptr;

use super::{from_upstream, is_gone, thread};
use crate::error::{Error, Result};
use crate::report;
use crate::resource::MemoryResource;
use crate::stream::Stream;

/// Writes a line for each allocation, each free, and each allocation that failed, as RMM's logging
/// resource does: `Thread,Time,Action,Pointer,Size,Stream`, with sizes in bytes and times of day in UTC.
/// Tools that replay RMM's logs read it.
///
/// Lines are collected and written some hundred at a time, and at once when an allocation fails: then the
/// log ends with the request that did. If writing fails, the program goes on without a log, and
/// [`flush`](Self::flush) says why.
///
/// ```
/// use std::sync::Arc;
/// use cuda_mem::{Driver, LoggingAdaptor, MemoryPool, Resource};
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let pool = MemoryPool::builder(&device).build()?;
/// let logged = Arc::new(LoggingAdaptor::new(pool, std::io::stdout()));
/// let resource = Resource::from(logged.clone());
/// drop(resource.alloc::<u8>(&stream, 1000)?);
/// logged.flush()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LoggingAdaptor<U> {
    upstream: U,
    log: Mutex<Log>,
}

struct Log {
    records: Vec<Record>,
    out: Box<dyn Write + Send>,
    state: State,
}

enum State {
    /// Not even the header is written.
    New,
    Begun,
    /// A write failed, which nobody has been told. There is no log any more.
    Failed(io::Error),
    /// There is no log any more.
    Over,
}

/// So many lines are written at a time.
const BATCH: usize = 512;

#[derive(Clone, Copy)]
struct Record {
    action: Action,
    thread: u64,
    /// Microseconds since 1970.
    time: u64,
    address: CUdeviceptr,
    bytes: usize,
    stream: usize,
}

#[derive(Clone, Copy)]
enum Action {
    Allocate,
    Free,
    AllocateFailure,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::Allocate => "allocate",
            Action::Free => "free",
            Action::AllocateFailure => "allocate failure",
        };
        let (seconds, micros) = (self.time / 1_000_000 % 86_400, self.time % 1_000_000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(
            f,
            "{},{hour:02}:{minute:02}:{second:02}.{micros:06},{action},{:#x},{},{:#x}",
            self.thread, self.address, self.bytes, self.stream
        )
    }
}

impl Log {
    fn write(&mut self) -> io::Result<()> {
        if let State::New = self.state {
            self.state = State::Begun;
            writeln!(self.out, "Thread,Time,Action,Pointer,Size,Stream")?;
        }
        for record in &self.records {
            writeln!(self.out, "{record}")?;
        }
        self.out.flush()
    }

    #[cold]
    fn write_or_note(&mut self) {
        if let State::New | State::Begun = self.state
            && let Err(error) = self.write()
        {
            self.state = State::Failed(error);
        }
        // Nowhere to go with them if there is no log.
        self.records.clear();
    }

    /// Writes what is collected, and tells a failure once.
    fn finish(&mut self) -> Result<()> {
        self.write_or_note();
        if !matches!(self.state, State::Failed(_)) {
            return Ok(());
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Failed(error) => Err(Error::system("writing the allocation log", error)),
            _ => Ok(()),
        }
    }

    #[inline]
    fn push(&mut self, record: Record) {
        self.records.push(record);
        if self.records.len() >= BATCH {
            self.write_or_note();
        }
    }
}

impl<U: MemoryResource> LoggingAdaptor<U> {
    /// Logs what comes from `upstream` to `out`, which need not collect bytes itself.
    pub fn new(upstream: U, out: impl Write + Send + 'static) -> Self {
        Self {
            upstream,
            log: Mutex::new(Log {
                records: Vec::with_capacity(BATCH),
                out: Box::new(io::BufWriter::new(out)),
                state: State::New,
            }),
        }
    }

    /// Logs to a new file, in place of an earlier one.
    ///
    /// # Errors
    ///
    /// [`System`](crate::ErrorKind::System) if the file cannot be made.
    pub fn to_file(upstream: U, path: impl AsRef<Path>) -> Result<Self> {
        let file = File::create(path)
            .map_err(|error| Error::system("making the allocation log", error))?;
        Ok(Self::new(upstream, file))
    }

    /// Where the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// Writes what is collected.
    ///
    /// # Errors
    ///
    /// [`System`](crate::ErrorKind::System) if this or an earlier write failed; what came after that
    /// is not in the log. It is told once.
    pub fn flush(&self) -> Result<()> {
        self.log().finish()
    }
}

impl<U> LoggingAdaptor<U> {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[inline]
fn record(action: Action, address: CUdeviceptr, layout: Layout, stream: &Stream) -> Record {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Record {
        action,
        thread: thread::number(),
        time: now.map_or(0, |now| now.as_micros() as u64),
        address,
        bytes: layout.size(),
        stream: stream.as_raw().addr(),
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl<U: MemoryResource> MemoryResource for LoggingAdaptor<U> {
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        match self.upstream.allocate(layout, stream) {
            Ok(address) => {
                let record = record(Action::Allocate, address, layout, stream);
                self.log().push(record);
                Ok(address)
            }
            Err(error) => {
                let record = record(Action::AllocateFailure, 0, layout, stream);
                let mut log = self.log();
                log.push(record);
                log.write_or_note();
                Err(error)
            }
        }
    }

    #[inline]
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> Result<()> {
        // Noted before upstream has it: from then on another thread may get, and log, the same address.
        let record = record(Action::Free, address, layout, stream);
        self.log().push(record);
        // SAFETY: the caller's.
        let freed = unsafe { self.upstream.deallocate(address, layout, stream) };
        if !is_gone(&freed) {
            // It is there after all, so for who replays the log it is allocated again.
            let again = Record {
                action: Action::Allocate,
                ..record
            };
            self.log().push(again);
        }
        freed
    }

    from_upstream!();
}

impl<U> Drop for LoggingAdaptor<U> {
    fn drop(&mut self) {
        report::release("allocation log", || self.log().finish());
    }
}

impl<U: fmt::Debug> fmt::Debug for LoggingAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoggingAdaptor")
            .field("upstream", &self.upstream)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_as_rmm_writes_it() {
        let record = Record {
            action: Action::AllocateFailure,
            thread: 3,
            time: ((10 * 60 + 58) * 60 + 16) * 1_000_000 + 42,
            address: 0,
            bytes: 1 << 40,
            stream: 0x7f00,
        };
        assert_eq!(
            record.to_string(),
            "3,10:58:16.000042,allocate failure,0x0,1099511627776,0x7f00"
        );
    }
}
