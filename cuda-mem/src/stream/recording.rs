//! The streams that this crate captures into graphs, and how other work stays out of the captures.
//!
//! Measured: while a stream is captured in a mode other than relaxed, an allocation or a free in any other stream is
//! refused and invalidates the capture, unless the calling thread is in relaxed capture mode. Querying or waiting for
//! a captured stream, or for its whole context, invalidates its capture in every mode. So beside a capture of this crate,
//! calls elsewhere are made in relaxed mode, and those that would invalidate it all the same are refused before the
//! driver is called. For captures by other code the driver decides: nothing is known before the call.

mod dependencies;
mod exclusion;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use cuda_driver_sys::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUgraph, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus,
};

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::report;
use crate::driver::raw::{self, Table};

pub(crate) use dependencies::{Dependencies, Dependency};
pub(crate) use exclusion::{
    CaptureExclusion, PlainExclusion, exclude_captures, exclude_captures_in, exclude_plainly,
};

/// The number of captures of this crate that are running, so that the usual call costs one relaxed load.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static STREAMS: Mutex<Captures> = Mutex::new(Vec::new());

type Captures = Vec<Running>;

/// A capture that is running.
struct Running {
    recorded: Recorded,
    /// The handle of the stream's context.
    context: usize,
    /// Whether the stream and the legacy default stream wait for each other, as a thread's own stream does.
    is_blocking: bool,
    /// What the recorded work uses.
    dependencies: Dependencies,
}

thread_local! {
    /// The number of captures of this crate that this thread has begun and that have not ended.
    static OWN: Cell<usize> = const { Cell::new(0) };
    /// The driver's table for which this thread is in relaxed capture mode now; 0: none.
    static RELAXED: Cell<usize> = const { Cell::new(0) };
}

/// A stream, identified by the driver's table, its number, and the thread whose own one it is: all threads share its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recorded {
    table: usize,
    stream: usize,
    thread: Option<ThreadId>,
}

impl Recorded {
    fn new(table: &Table, context: CUcontext, stream: CUstream) -> Self {
        let is_own = stream == CU_STREAM_PER_THREAD;
        Self {
            table: std::ptr::from_ref(table).addr(),
            stream: exclusion::number(context, stream),
            thread: is_own.then(|| std::thread::current().id()),
        }
    }
}

fn streams() -> MutexGuard<'static, Captures> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Marks a stream as captured, until dropped.
#[derive(Debug)]
pub(crate) struct CaptureToken {
    recorded: Recorded,
    /// It counts for the thread that created it.
    not_send: PhantomData<*mut ()>,
}

impl CaptureToken {
    /// An error if the stream is already captured. Waits for calls of other threads that use the stream right now;
    /// from then on there are none until this is dropped.
    pub(crate) fn new(
        table: &Table,
        context: CUcontext,
        stream: CUstream,
        is_blocking: bool,
    ) -> Result<Self> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        let note = Self::announce(table, context, stream, is_blocking)?;
        exclusion::wait_for_all(context, stream, is_blocking)?;
        Ok(note)
    }

    fn announce(
        table: &Table,
        context: CUcontext,
        stream: CUstream,
        is_blocking: bool,
    ) -> Result<Self> {
        let recorded = Recorded::new(table, context, stream);
        let mut streams = streams();
        if streams.iter().any(|other| other.recorded == recorded) {
            return Err(recorded_already());
        }
        streams.push(Running {
            recorded,
            context: context.addr(),
            is_blocking,
            dependencies: Dependencies::default(),
        });
        COUNT.fetch_add(1, Ordering::Relaxed);
        OWN.set(OWN.get() + 1);
        Ok(Self {
            recorded,
            not_send: PhantomData,
        })
    }
}

impl CaptureToken {
    /// What the recorded work uses.
    pub(crate) fn take_dependencies(&self) -> Dependencies {
        let mut streams = streams();
        let own = streams
            .iter_mut()
            .find(|other| other.recorded == self.recorded);
        own.map(|own| std::mem::take(&mut own.dependencies))
            .unwrap_or_default()
    }
}

/// Notes that work which is being recorded in this stream uses an object.
pub(crate) fn depend(table: &Table, context: CUcontext, stream: CUstream, on: Arc<dyn Dependency>) {
    let recorded = Recorded::new(table, context, stream);
    if let Some(running) = streams()
        .iter_mut()
        .find(|other| other.recorded == recorded)
    {
        running.dependencies.add(on);
    }
}

impl Drop for CaptureToken {
    fn drop(&mut self) {
        OWN.set(OWN.get() - 1);
        // In a fork there may be no thread left to unlock the list.
        if report::is_forked() {
            return;
        }
        let (mut streams, mut ended) = (streams(), Vec::new());
        if let Some(at) = streams
            .iter()
            .position(|other| other.recorded == self.recorded)
        {
            ended.push(streams.swap_remove(at));
        }
        // What a failed capture used is dropped outside the lock.
        drop(streams);
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether this crate captures any stream.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Whether this thread captures a stream with this crate now.
pub(crate) fn is_capturing() -> bool {
    OWN.get() > 0
}

/// Whether this crate captures a stream of this context. A wait for all of the context would invalidate that capture,
/// in every mode (R110).
#[inline]
pub(crate) fn captures_in(table: &Table, context: CUcontext) -> bool {
    any() && is_captured_in(table, context, |_| true)
}

#[cold]
fn is_captured_in(table: &Table, context: CUcontext, which: impl Fn(&Running) -> bool) -> bool {
    let (table, context) = (std::ptr::from_ref(table).addr(), context.addr());
    // In a fork there may be no thread left to unlock the list; there the driver is not called anyway.
    !report::is_forked()
        && streams()
            .iter()
            .filter(|other| other.recorded.table == table && other.context == context)
            .any(which)
}

/// An error if this crate captures the stream now. A capture may begin right afterwards: work that must stay out of it
/// runs under [`exclude_captures`].
#[cold]
pub(crate) fn refuse(table: &Table, context: CUcontext, stream: CUstream) -> Result<()> {
    // A capture that is announced waits for the work that this is part of.
    if any() && !exclusion::is_held(context, stream) {
        refuse_recorded(table, context, stream)?;
        if stream == CU_STREAM_LEGACY {
            return refuse_legacy(table, context);
        }
    }
    Ok(())
}

#[cold]
fn refuse_recorded(table: &Table, context: CUcontext, stream: CUstream) -> Result<()> {
    if report::is_forked() {
        return Err(Error::forked());
    }
    let recorded = Recorded::new(table, context, stream);
    if streams().iter().any(|other| other.recorded == recorded) {
        Err(recorded_already())
    } else {
        Ok(())
    }
}

/// An error if this crate captures a blocking stream of this context.
#[inline]
pub(crate) fn refuse_legacy(table: &Table, context: CUcontext) -> Result<()> {
    if any() && captures_blocking(table, context) {
        return Err(Error::capturing(
            "a stream that waits for the legacy default stream is being recorded into a graph, and work in the legacy \
             one would spoil that; use another stream"
                .to_owned(),
        ));
    }
    Ok(())
}

#[cold]
fn captures_blocking(table: &Table, context: CUcontext) -> bool {
    is_captured_in(table, context, |running| running.is_blocking)
}

#[cold]
fn recorded_already() -> Error {
    Error::capturing(
        "the stream is being recorded into a graph; use what the capture offers, or another stream"
            .to_owned(),
    )
}

/// Ends a capture. After an error no graph is left.
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

/// Whether any code captures the stream; an invalidated capture still counts.
///
/// # Safety
///
/// `stream` must be a live stream.
#[cold]
pub(crate) unsafe fn is_captured(table: &Table, stream: CUstream) -> Result<bool> {
    // SAFETY: the caller vouches for the handle.
    let status = unsafe { raw::graph::capture_status(table, stream) };
    match status {
        Ok(status) => Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
        Err(error) if error.kind() == ErrorKind::Capturing => Ok(true),
        Err(error) => Err(error),
    }
}

/// Runs `call` in relaxed capture mode, so it cannot invalidate a capture of another stream. If the mode cannot be
/// set, `call` is not run: the result is [`ErrorKind::Capturing`](crate::ErrorKind), and the call can be made later,
/// unless the driver has shut down.
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
        // Later would not help.
        if matches!(error.kind(), ErrorKind::Forked | ErrorKind::Deinitialized) {
            return error;
        }
        Error::capturing(format!(
            "this could not be kept from disturbing captures into graphs, so it was not done: {error}"
        ))
    })?;
    let _relaxed = Relaxed {
        table,
        before,
        outer: RELAXED.replace(place),
    };
    call()
}

/// Puts the mode back, also if a resource of the program panics meanwhile.
struct Relaxed<'a> {
    table: &'a Table,
    before: CUstreamCaptureMode,
    outer: usize,
}

impl Drop for Relaxed<'_> {
    fn drop(&mut self) {
        RELAXED.set(self.outer);
        report::release("capture mode", || {
            // SAFETY: there was a driver to set the mode.
            unsafe { raw::graph::exchange_capture_mode(self.table, self.before) }.map(drop)
        });
    }
}

/// As [`with_relaxed_capture_mode`], for calls that are not retried: makes the call even if the mode cannot be set.
#[cold]
pub(crate) fn relaxed_if_possible<T>(table: &Table, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut call = Some(call);
    let answer = with_relaxed_capture_mode(table, || Ok(call.take().map(|call| call())));
    match (answer, call) {
        (_, Some(call)) => call(),
        (Ok(Some(answer)), None) => answer,
        (answer, None) => Err(answer.err().unwrap_or_else(recorded_already)),
    }
}

/// As [`with_relaxed_capture_mode`] while this crate captures any stream; otherwise only makes the call.
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
