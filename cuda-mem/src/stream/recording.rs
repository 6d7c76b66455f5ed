//! Which streams this crate records into graphs, and how other work keeps out of the way.
//!
//! Measured: while a stream is captured in another mode than relaxed, an allocation or a free in any
//! other stream is refused and makes the capture worthless, unless the calling thread has said that
//! it knows what it does. Asking or waiting for a captured stream makes its capture worthless in
//! every mode. So frees, which happen by themselves, say that they know; and what would spoil a
//! capture of ours is refused before the driver hears of it. For captures of others the driver
//! decides: there is nothing to know before the call.

mod exclusion;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use cuda_driver_sys::{
    CU_STREAM_PER_THREAD, CUgraph, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use crate::base::error::{Error, Result};
use crate::base::report;
use crate::driver::raw::{self, Table};

pub(crate) use exclusion::{CaptureExclusion, PlainExclusion, exclude_captures, exclude_plainly};

/// How many captures of ours run, so that the usual call costs one relaxed load.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static STREAMS: Mutex<Vec<Recorded>> = Mutex::new(Vec::new());

thread_local! {
    /// How many captures of ours this thread has begun that have not ended.
    static OWN: Cell<usize> = const { Cell::new(0) };
    /// The driver's table for which this thread is in relaxed capture mode now; 0: none.
    static RELAXED: Cell<usize> = const { Cell::new(0) };
}

/// A stream, by the driver's table and its handle; the own streams of all threads have one handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recorded {
    table: usize,
    stream: usize,
    thread: Option<ThreadId>,
}

impl Recorded {
    fn new(table: &Table, stream: CUstream) -> Self {
        let is_own = stream == CU_STREAM_PER_THREAD;
        Self {
            table: std::ptr::from_ref(table).addr(),
            stream: stream.addr(),
            thread: is_own.then(|| std::thread::current().id()),
        }
    }
}

fn streams() -> MutexGuard<'static, Vec<Recorded>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that a stream is recorded, until it is dropped.
#[derive(Debug)]
pub(crate) struct CaptureToken {
    recorded: Recorded,
    /// It counts for the thread that made it.
    not_send: PhantomData<*mut ()>,
}

impl CaptureToken {
    /// An error if the stream is recorded already. Waits for calls of other threads that use the stream right now;
    /// from then on there are none until this is dropped.
    pub(crate) fn new(table: &Table, stream: CUstream) -> Result<Self> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        let note = Self::announce(table, stream)?;
        exclusion::wait_for_all(stream)?;
        Ok(note)
    }

    fn announce(table: &Table, stream: CUstream) -> Result<Self> {
        let recorded = Recorded::new(table, stream);
        let mut streams = streams();
        if streams.contains(&recorded) {
            return Err(recorded_already());
        }
        streams.push(recorded);
        COUNT.fetch_add(1, Ordering::Relaxed);
        OWN.set(OWN.get() + 1);
        Ok(Self {
            recorded,
            not_send: PhantomData,
        })
    }
}

impl Drop for CaptureToken {
    fn drop(&mut self) {
        OWN.set(OWN.get() - 1);
        // In a fork nobody may be left to unlock the list.
        if report::is_forked() {
            return;
        }
        streams().retain(|recorded| *recorded != self.recorded);
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether any stream is recorded by this crate.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Whether this thread records a stream with this crate now.
pub(crate) fn is_capturing() -> bool {
    OWN.get() > 0
}

/// An error if the stream is recorded by this crate now. A capture may begin right after: what must not fall into
/// it is done under [`exclude_captures`].
#[cold]
pub(crate) fn refuse(table: &Table, stream: CUstream) -> Result<()> {
    // A capture that is announced waits for the work that this is part of.
    if any() && !exclusion::is_held(stream) {
        return refuse_recorded(table, stream);
    }
    Ok(())
}

#[cold]
fn refuse_recorded(table: &Table, stream: CUstream) -> Result<()> {
    if report::is_forked() {
        return Err(Error::forked());
    }
    if streams().contains(&Recorded::new(table, stream)) {
        Err(recorded_already())
    } else {
        Ok(())
    }
}

/// An error while this crate records any stream: making a pool, and asking it things, would make the capture
/// worthless (R110).
pub(crate) fn refuse_trials() -> Result<()> {
    if any() {
        return Err(Error::capturing(
            "whether the device has such pools is found out by making one, which would spoil the capture \
             that is going on; ask before it"
                .to_owned(),
        ));
    }
    Ok(())
}

#[cold]
fn recorded_already() -> Error {
    Error::capturing(
        "the stream is being recorded into a graph; use what the capture offers, or another stream"
            .to_owned(),
    )
}

/// Ends a capture. Beside an error there is no graph left.
///
/// # Safety
///
/// As [`raw::graph::end_capture`].
pub(crate) unsafe fn end(table: &Table, stream: CUstream) -> Result<CUgraph> {
    // SAFETY: the caller's.
    let (graph, ended) = unsafe { raw::graph::end_capture(table, stream) };
    if ended.is_err() && !graph.is_null() {
        // SAFETY: the graph was handed out just now, and nobody has it.
        report::release("graph", || unsafe { raw::graph::destroy(table, graph) });
    }
    ended.map(|()| graph)
}

/// Whether anybody captures the stream; a capture that is lost already counts too.
///
/// # Safety
///
/// `stream` must be a live stream.
#[cold]
pub(crate) unsafe fn is_captured(table: &Table, stream: CUstream) -> bool {
    // SAFETY: the caller vouches for the handle.
    let status = unsafe { raw::graph::capture_status(table, stream) };
    match status {
        Ok(status) => status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        Err(error) => error.kind() == crate::base::error::ErrorKind::Capturing,
    }
}

/// Runs `call`, which does no harm to a capture of another stream, so that the driver believes it. If
/// that cannot be, nothing is called: the answer is [`ErrorKind::Capturing`](crate::ErrorKind), and the
/// call can come later.
#[cold]
pub(crate) fn with_relaxed_capture_mode<T>(
    table: &Table,
    call: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let place = std::ptr::from_ref(table).addr();
    if RELAXED.get() == place {
        return call();
    }
    let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: there is a driver, or there would be no table of it.
    let before = unsafe { raw::graph::exchange_capture_mode(table, relaxed) }.map_err(|error| {
        Error::capturing(format!(
            "this could not be kept from disturbing captures into graphs, so it was not done: {error}"
        ))
    })?;
    let outer = RELAXED.replace(place);
    let answer = call();
    RELAXED.set(outer);
    report::release("capture mode", || {
        // SAFETY: as above.
        unsafe { raw::graph::exchange_capture_mode(table, before) }.map(drop)
    });
    answer
}

/// As [`with_relaxed_capture_mode`] while this crate records any stream; else the call alone.
#[inline]
pub(crate) fn relaxed_while_capturing<T>(
    table: &Table,
    call: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if any() {
        return with_relaxed_capture_mode(table, call);
    }
    call()
}
