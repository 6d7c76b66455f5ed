//! A log of allocations in RMM's format.

use super::debug_over;
use std::alloc::Layout;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use cuda_driver_sys::CUdeviceptr;

use super::{free_through_self, from_upstream};
use crate::base::biased::thread;
use crate::base::error::{Error, Result, took_effect};
use crate::base::lock::Lock;
use crate::base::report;
use crate::ledger::csv::{self, Fraction, Line};
use crate::ledger::log_writer::LogWriter;
use crate::memory::resource::MemoryResource;
use crate::stream::Stream;

/// Writes a line for each allocation, each free, and each allocation that failed, as RMM's logging
/// resource does: `Thread,Time,Action,Pointer,Size,Stream`, with sizes in bytes and times of day in UTC.
/// Tools that replay RMM's logs read it.
///
/// Lines are buffered and written a few hundred at a time, and at once when an allocation fails, so that the log
/// ends with the failed request. If writing fails, the program continues without a log, and [`flush`](Self::flush)
/// returns the error.
///
/// ```
/// use std::sync::Arc;
/// use cuda_mem::{Driver, MemoryPool, Resource};
/// use cuda_mem::memory::LoggingAdaptor;
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
    log: Lock<Log>,
}

struct Log {
    records: Vec<Record>,
    writer: LogWriter,
}

/// The number of lines written at a time.
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

impl Record {
    fn line(&self) -> Line {
        Line {
            thread: self.thread,
            time: self.time * 1000,
            action: match self.action {
                Action::Allocate => "allocate",
                Action::Free => "free",
                Action::AllocateFailure => "allocate failure",
            },
            address: self.address,
            bytes: self.bytes as u64,
            stream: self.stream as u64,
        }
    }
}

impl Log {
    #[cold]
    fn write(&mut self) {
        let records = std::mem::take(&mut self.records);
        self.writer.write(64 * records.len(), |lines| {
            for record in &records {
                record.line().write(lines, Fraction::Micros);
                lines.push(b'\n');
            }
        });
        // Discarded if there is no log.
        self.records = records;
        self.records.clear();
    }

    /// Writes the buffered lines, and returns a failure once.
    fn finish(&mut self) -> Result<()> {
        self.write();
        self.writer.finish("writing the allocation log")
    }

    #[inline]
    fn push(&mut self, record: Record) {
        self.records.push(record);
        if self.records.len() >= BATCH {
            self.write();
        }
    }
}

impl<U: MemoryResource> LoggingAdaptor<U> {
    /// Logs allocations of `upstream` to `out`, which need not be buffered. It is called under a lock, so it must
    /// not allocate from this adaptor or free to it.
    pub fn new(upstream: U, out: impl Write + Send + 'static) -> Self {
        Self {
            upstream,
            log: Lock::new(Log {
                records: Vec::with_capacity(BATCH),
                writer: LogWriter::new(Box::new(out), csv::RMM_HEADER),
            }),
        }
    }

    /// Logs to a new file, replacing an existing one.
    ///
    /// # Errors
    ///
    /// [`System`](crate::ErrorKind::System) if the file cannot be created.
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
    /// [`System`](crate::ErrorKind::System) if this or an earlier write failed; later events are not in the log.
    /// The error is returned once.
    pub fn flush(&self) -> Result<()> {
        self.log.lock()?.finish()
    }
}

impl<U> LoggingAdaptor<U> {
    /// Not in a fork: the buffered lines belong to the parent.
    #[inline]
    fn note(&self, record: Record) {
        if let Some(mut log) = self.log.lock_unless_forked() {
            log.push(record);
        }
    }

    #[cold]
    fn note_and_write(&self, record: Record) {
        if let Some(mut log) = self.log.lock_unless_forked() {
            log.push(record);
            log.write();
        }
    }
}

#[inline]
fn record(action: Action, address: CUdeviceptr, layout: Layout, stream: &Stream) -> Record {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Record {
        action,
        thread: thread::own(),
        time: now.map_or(0, |now| now.as_micros() as u64),
        address,
        bytes: layout.size(),
        stream: stream.as_raw().addr(),
    }
}

impl<U: MemoryResource> LoggingAdaptor<U> {
    #[inline]
    fn free(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
        upstream: impl FnOnce(CUdeviceptr, Layout) -> Result<()>,
    ) -> Result<()> {
        if address == 0 {
            return upstream(address, layout);
        }
        // Noted before upstream has it: from then on another thread may get, and log, the same address.
        let record = record(Action::Free, address, layout, stream);
        self.note(record);
        let freed = upstream(address, layout);
        if !took_effect(&freed) {
            // It is still allocated, so the log records it as allocated again, for tools that replay it.
            let again = Record {
                action: Action::Allocate,
                ..record
            };
            self.note(again);
        }
        freed
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl<U: MemoryResource> MemoryResource for LoggingAdaptor<U> {
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let allocated = self.upstream.allocate(layout, stream);
        match &allocated {
            Ok(address) => self.note(record(Action::Allocate, *address, layout, stream)),
            Err(_) => self.note_and_write(record(Action::AllocateFailure, 0, layout, stream)),
        }
        allocated
    }

    free_through_self!();

    from_upstream!();
}

impl<U> Drop for LoggingAdaptor<U> {
    fn drop(&mut self) {
        if report::is_forked() {
            // What it has is the parent's to write, and so is what the writer's destructor would write.
            let log = self.log.get_mut();
            log.records.clear();
            log.writer.forget();
        }
        report::release("allocation log", || self.log.get_mut().finish());
    }
}

impl<U: fmt::Debug> fmt::Debug for LoggingAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_over(f, "LoggingAdaptor", &self.upstream)
    }
}
