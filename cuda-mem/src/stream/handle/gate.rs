//! The gate: everything that this crate submits to a stream, or asks about one, passes here before the driver is
//! called.
//!
//! Four things are checked, in this order:
//!
//! 1. Whether the process is a fork, where no call may be made (R88).
//! 2. Whether the stream's device can reach the memory, for calls about memory of a pool or a graph.
//! 3. Whether the stream is captured. By this crate: work outside the capture is refused, and no capture begins while
//!    work is submitted. By other code: only the driver knows, so it is queried where its refusal would not be enough.
//! 4. Which context is current: that of a default stream must be (R8), and that of copies and kernels always (R64). A
//!    thread's own stream can be named on that thread only.
//!
//! The functions of `raw` that take a stream take it as a [`Queue`], which is made here and nowhere else.

use std::marker::PhantomData;
use std::thread::ThreadId;

use cuda_driver_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUgraph, CUstreamCaptureMode};

use super::{StreamRef, is_default};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::report;
use crate::driver::device::Device;
use crate::driver::raw::{self, Queue, Table};
use crate::stream::context::Current;
use crate::stream::name::StreamName;
use crate::stream::recording::{self, CaptureExclusion, CaptureToken, PlainExclusion};

/// Memory that a device may or may not reach.
pub(crate) trait Reach {
    /// An error if this device does not reach it.
    fn require_reach(&self, device: Device) -> Result<()>;
}

/// A stream that is open for calls of the driver while this lives.
#[derive(Debug)]
#[must_use]
pub(crate) struct Submission<'a> {
    queue: Queue<'static>,
    _exclusion: Option<CaptureExclusion>,
    _current: Option<Current<'a>>,
    stream: PhantomData<StreamRef<'a>>,
}

/// As [`Submission`], for a stream that needs no checks: small, for the most frequent calls.
#[derive(Debug)]
#[must_use]
pub(crate) struct PlainSubmission<'a> {
    queue: Queue<'static>,
    _exclusion: PlainExclusion,
    stream: PhantomData<StreamRef<'a>>,
}

impl PlainSubmission<'_> {
    /// The stream, for functions of `raw` that are called while this lives.
    #[inline(always)]
    pub(crate) fn queue(&self) -> Queue<'_> {
        self.queue
    }
}

impl<'a> Submission<'a> {
    #[inline]
    fn new(
        stream: &StreamRef<'a>,
        exclusion: Option<CaptureExclusion>,
        current: Option<Current<'a>>,
    ) -> Self {
        Self {
            queue: Queue::new(stream.table(), stream.raw),
            _exclusion: exclusion,
            _current: current,
            stream: PhantomData,
        }
    }

    /// The stream, for functions of `raw` that are called while this lives.
    #[inline]
    pub(crate) fn queue(&self) -> Queue<'_> {
        self.queue
    }

    /// Makes a call in relaxed capture mode, so it cannot invalidate captures of other streams. If the mode cannot be
    /// set, the call is not made: the error has the kind `Capturing`.
    #[cold]
    pub(crate) fn with_relaxed_capture_mode<T>(
        &self,
        call: impl FnOnce(Queue<'_>) -> Result<T>,
    ) -> Result<T> {
        recording::with_relaxed_capture_mode(self.queue.table(), || call(self.queue))
    }

    /// As [`with_relaxed_capture_mode`](Self::with_relaxed_capture_mode) while this crate captures any stream.
    #[inline]
    pub(crate) fn relaxed_while_capturing<T>(
        &self,
        call: impl FnOnce(Queue<'_>) -> Result<T>,
    ) -> Result<T> {
        recording::relaxed_while_capturing(self.queue.table(), || call(self.queue))
    }

    /// An error with this text, if any code captures the stream. Without an answer it counts as not captured.
    pub(crate) fn refuse_captured(&self, why: &str) -> Result<()> {
        match self.require_uncaptured(why) {
            Err(error) if error.kind() == ErrorKind::Capturing => Err(error),
            _ => Ok(()),
        }
    }

    /// As [`refuse_captured`](Self::refuse_captured), for calls that must not be recorded: without an answer they are
    /// not made either.
    pub(crate) fn require_uncaptured(&self, why: &str) -> Result<()> {
        // SAFETY: the stream is live while the submission borrows it, and a default stream's context current.
        match unsafe { recording::is_captured(self.queue.table(), self.queue.stream()) } {
            Ok(true) => Err(Error::capturing(why.to_owned())),
            answer => answer.map(drop),
        }
    }
}

impl<'a> StreamRef<'a> {
    #[inline]
    fn table(&self) -> &'static Table {
        self.context.driver().table()
    }

    #[inline]
    fn exclusion(&self) -> Result<CaptureExclusion> {
        let exclusion = recording::exclude_captures(self.table(), self.context.as_raw(), self.raw)?;
        // What belongs to work that is under way goes on: a capture that was announced meanwhile waits for it.
        if exclusion.is_outermost() {
            self.refuse_implicit()?;
        }
        Ok(exclusion)
    }

    /// Work in the legacy default stream waits for the blocking streams of its context, such as each thread's own, and
    /// would invalidate their captures (R193).
    #[inline]
    fn refuse_implicit(&self) -> Result<()> {
        if self.raw == CU_STREAM_LEGACY {
            return recording::refuse_legacy(self.table(), self.context.as_raw());
        }
        Ok(())
    }

    /// For work that belongs to no capture.
    #[inline]
    pub(crate) fn submit(&self) -> Result<Submission<'a>> {
        let exclusion = self.exclusion()?;
        Ok(Submission::new(self, Some(exclusion), self.enter()?))
    }

    /// As [`submit`](Self::submit), in the usual case: the stream is not a default stream, this crate captures no
    /// stream, and the thread submits nothing else. `None` in any other case, where `submit` says more. Does not check
    /// for a fork: the functions of `raw` do.
    #[inline(always)]
    pub(crate) fn submit_plainly(&self) -> Option<PlainSubmission<'a>> {
        if is_default(self.raw) {
            return None;
        }
        let exclusion = recording::exclude_plainly(self.raw)?;
        Some(PlainSubmission {
            queue: Queue::new(self.table(), self.raw),
            _exclusion: exclusion,
            stream: PhantomData,
        })
    }

    /// As [`submit`](Self::submit), with the context current for every stream.
    pub(crate) fn submit_bound(&self) -> Result<Submission<'a>> {
        let exclusion = self.exclusion()?;
        Ok(Submission::new(self, Some(exclusion), Some(self.bind()?)))
    }

    /// As [`submit_bound`](Self::submit_bound), for work that the caller records into a capture of its own.
    pub(crate) fn submit_recorded(&self) -> Result<Submission<'a>> {
        Ok(Submission::new(self, None, Some(self.bind()?)))
    }

    /// Makes a call that frees memory which is not part of a capture. In a captured stream the driver refuses such a
    /// free, which then has no effect (R68), so captures of the stream need not be excluded meanwhile. Only while this
    /// crate captures any stream is the call made as a [`Submission`], in relaxed capture mode.
    #[inline]
    pub(crate) fn submit_free(&self, free: impl FnOnce(Queue<'_>) -> Result<()>) -> Result<()> {
        if recording::any() || is_default(self.raw) {
            return self.submit_free_thoroughly(free);
        }
        free(Queue::new(self.table(), self.raw))
    }

    #[cold]
    #[inline(never)]
    fn submit_free_thoroughly(&self, free: impl FnOnce(Queue<'_>) -> Result<()>) -> Result<()> {
        self.submit()?.relaxed_while_capturing(free)
    }

    /// For queries, and for waits of the host. They would invalidate a capture of this crate, so a capture of this
    /// stream begins only after the answer.
    pub(crate) fn ask(&self) -> Result<Submission<'a>> {
        self.submit()
    }

    /// An error if the stream's device does not reach the memory.
    #[inline]
    pub(crate) fn require_reach(&self, memory: &impl Reach) -> Result<()> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        memory.require_reach(self.context.device())
    }

    /// An error if this crate captures the stream. A capture may begin right afterwards; this is for callers that
    /// would do much before they submit anything.
    #[inline]
    pub(crate) fn refuse_recorded(&self) -> Result<()> {
        // The table is a few loads away.
        if recording::any() {
            return recording::refuse(self.table(), self.context.as_raw(), self.raw);
        }
        Ok(())
    }

    /// An error with this text, if any code captures the stream, or if it is another thread's own.
    pub(crate) fn refuse_captured(&self, why: &str) -> Result<()> {
        Submission::new(self, None, self.enter()?).refuse_captured(why)
    }

    /// The driver's id of the stream, unique among all past, present and future streams of this process; `None` before
    /// CUDA 12.0. Not for a captured stream.
    pub(crate) fn id(&self) -> Option<u64> {
        let submission = Submission::new(self, None, self.enter().ok()?);
        // SAFETY: the stream is live while the submission borrows it, and a default stream's context current.
        unsafe { raw::stream::id(submission.queue()) }.ok()
    }

    /// Whether any code captures the stream, or this cannot be determined.
    pub(crate) fn is_captured(&self) -> bool {
        self.refuse_captured("").is_err()
    }

    /// Begins a capture. All other work of this crate stays out of it until the token is dropped.
    pub(crate) fn begin_capture(&self, mode: CUstreamCaptureMode) -> Result<CaptureToken> {
        self.refuse_recorded()?;
        let open = Submission::new(self, None, self.enter()?);
        // The next question would spoil the capture of another library (R194).
        open.refuse_captured("the stream is being captured into a graph already")?;
        let is_blocking = self.raw == CU_STREAM_PER_THREAD
            // SAFETY: the stream is live while the submission borrows it, and a default stream's context current.
            || unsafe { raw::stream::is_blocking(open.queue()) }?;
        let note = CaptureToken::new(self.table(), self.context.as_raw(), self.raw, is_blocking)?;
        // SAFETY: the stream is live, and the note keeps everything else of this crate out of it.
        unsafe { raw::graph::begin_capture(self.table(), self.raw, mode) }?;
        Ok(note)
    }

    /// Ends a capture. After an error no graph is left; in either case the capture is over.
    ///
    /// # Safety
    ///
    /// The capture must be the caller's to end.
    pub(crate) unsafe fn end_capture(&self) -> Result<CUgraph> {
        let _current = self.enter()?;
        // SAFETY: the stream is live; the rest is the caller's.
        unsafe { recording::end(self.table(), self.raw) }
    }

    /// Waits for the stream without disturbing any capture. If the stream itself is captured, nothing is done and an
    /// error is returned. For another thread's own stream this waits for its whole context.
    pub(crate) fn wait_unless_captured(&self) -> Result<()> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        if self.is_foreign() {
            return recording::with_relaxed_capture_mode(self.table(), || self.wait_foreign());
        }
        self.refuse_captured(NO_WAIT)?;
        recording::with_relaxed_capture_mode(self.table(), || self.synchronize())
    }

    /// As [`wait_unless_captured`](Self::wait_unless_captured), but captures by other code may be disturbed.
    #[cfg(target_os = "linux")]
    pub(crate) fn wait_uncaptured(&self) -> Result<()> {
        if self.is_foreign() {
            return self.wait_foreign();
        }
        self.refuse_captured(NO_WAIT)?;
        self.synchronize()
    }

    /// Whether everything in the stream is done, queried without disturbing any capture.
    pub(crate) fn is_done_unless_captured(&self) -> Result<bool> {
        self.refuse_captured(NO_WAIT)?;
        recording::with_relaxed_capture_mode(self.table(), || self.is_done())
    }

    /// Waits for the whole context of another thread's own stream, with which nothing here can be ordered. Refused
    /// while this crate captures a stream of that context: such a wait would invalidate the capture in every mode (R110).
    #[cold]
    pub(crate) fn wait_foreign(&self) -> Result<()> {
        if recording::captures_in(self.table(), self.context.as_raw()) {
            return Err(Error::capturing(format!(
                "{self} is the own stream of another thread, so all of its context would have to be waited for, \
                 and that would spoil the capture that is going on; do it after the capture, or on that thread"
            )));
        }
        self.context.synchronize()
    }

    pub(crate) fn name(&self) -> StreamName {
        StreamName {
            context: self.context.as_raw().addr(),
            stream: self.raw.addr(),
            thread: self.thread,
        }
    }

    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        /// Seldom called: only default streams are a thread's own.
        #[cold]
        fn is_other(thread: ThreadId) -> bool {
            thread != std::thread::current().id()
        }
        self.thread.is_some_and(is_other)
    }

    /// Whether memory can be freed in its order without further checks: it is not a default stream, this crate
    /// captures no stream, and this process is not a fork.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        !is_default(self.raw) && !recording::any() && !report::is_forked()
    }

    /// What a call with this stream needs: nothing, unless it is a default stream. Then its context
    /// must be current (R8), and a thread's own stream can only be named on that thread.
    #[inline]
    fn enter(&self) -> Result<Option<Current<'a>>> {
        if is_default(self.raw) {
            return self.bind().map(Some);
        }
        Ok(None)
    }

    #[cold]
    fn bind(&self) -> Result<Current<'a>> {
        if self.is_foreign() {
            return Err(Error::invalid(format!(
                "{self} is the own stream of another thread; use it there, or take a stream made by \
                 `Context::stream`"
            )));
        }
        self.context.bind()
    }
}

/// Why a captured stream is not waited for.
const NO_WAIT: &str = "the stream that has the memory is being captured into a graph, and cannot be waited for; \
                       take the memory back before or after";
