//! Waiting for streams and events in asynchronous programs.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};

use cuda_driver_sys::CUevent;

use crate::base::biased::thread;
use crate::base::error::{ErrorKind, Result};
use crate::base::lock::Lock;
use crate::driver::raw;
use crate::stream::context::Context;
use crate::stream::deferred::After;
use crate::stream::event::{Event, OwnEvent};
use crate::stream::{Stream, StreamRef, after_wait, deferred, epoch, recording, waits, watcher};

/// A future that is ready once a stream has passed a point, or an event is done. From [`Stream::completion`] and
/// [`Event::completion`].
///
/// Any executor can poll it. The first poll asks the driver; while futures are pending, one thread of this crate asks
/// for all of them, and wakes their tasks. That thread sleeps between two looks for an eighth of the time that it has
/// waited, at least 20 µs and at most 1 ms, and ends when nothing is pending. Of one stream it looks at the future that
/// was polled first, and at the others every 8 ms or when that one is done. Nothing is put into the stream but an
/// event, so that the device is not held up. Wakers run on that thread: one that blocks holds up all others.
///
/// The output is an error if the driver reports one, such as a fault of earlier asynchronous work. Dropping the future
/// stops the wait and changes nothing else.
///
/// ```
/// # use std::task::{Context, Waker};
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let mut future = std::pin::pin!(future);
/// #     loop {
/// #         let mut context = Context::from_waker(Waker::noop());
/// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
/// #             return output;
/// #         }
/// #         std::thread::yield_now();
/// #     }
/// # }
/// use cuda_mem::{Driver, MemoryPool, Result, Stream};
///
/// async fn fill(pool: &MemoryPool, stream: &Stream) -> Result<()> {
///     let mut buffer = pool.alloc::<u32>(stream, 1 << 20)?;
///     buffer.fill(7)?;
///     stream.completion()?.await // blocks no thread
/// }
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let pool = MemoryPool::builder(&device).build()?;
/// block_on(fill(&pool, &stream))?; // of the executor of your choice
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct Completion {
    watched: Arc<Watched>,
    is_registered: bool,
}

/// What a future waits for, shared with the thread that looks.
pub(super) struct Watched {
    mark: Mark,
    progress: Lock<Progress>,
}

enum Mark {
    /// Shared with the program's event.
    Event(Arc<OwnEvent>),
    /// From the context's cache, and the stream that it was recorded in.
    Stream {
        context: Context,
        event: CUevent,
        key: Key,
    },
}

/// What is the same for marks that are reached in order: usually a later one is not done before an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Event(usize),
    /// Context, stream, and thread: handles of default streams are the same everywhere.
    Stream(usize, usize, u64),
}

impl Key {
    fn of(stream: StreamRef<'_>) -> Self {
        let context = stream.context().as_raw().addr();
        Self::Stream(context, stream.as_raw().addr(), thread::number())
    }
}

#[derive(Default)]
struct Progress {
    result: Option<Result<()>>,
    waker: Option<Waker>,
}

// SAFETY: event handles may be used from any thread; the driver locks inside. The stream's handle is only a number.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

impl Stream {
    /// A future that is ready once everything that is in the stream now is done. See [`Completion`]. Does not wait.
    ///
    /// # Errors
    ///
    /// Any driver error; [`Capturing`](crate::ErrorKind::Capturing) while the stream is captured.
    #[doc(alias("cuEventRecord", "cuEventQuery", "cuLaunchHostFunc"))]
    pub fn completion(&self) -> Result<Completion> {
        self.as_ref().completion()
    }
}

impl Stream {
    /// As [`synchronize`](Self::synchronize), for what is in the stream now: asks instead of waiting, and calls `pause` in between,
    /// whose error ends it.
    pub(crate) fn synchronize_by(&self, mut pause: impl FnMut() -> Result<()>) -> Result<()> {
        self.release_deferred();
        let epoch = epoch::take();
        let completion = self.completion()?;
        while !completion.is_done()? {
            pause()?;
        }
        // Memory that was freed in the stream serves others only after a wait, which ends at once here (R86).
        completion.watched.mark.synchronize()?;
        self.progress().advance(epoch);
        deferred::poll(After::Wait);
        after_wait::tell(After::Wait);
        Ok(())
    }
}

impl StreamRef<'_> {
    /// See [`Stream::completion`].
    ///
    /// # Errors
    ///
    /// As for that method.
    #[doc(alias("cuEventRecord", "cuEventQuery", "cuLaunchHostFunc"))]
    pub fn completion(&self) -> Result<Completion> {
        let open = self.submit()?;
        self.refuse_captured(
            "the stream is being captured into a graph, so there is nothing to wait for",
        )?;
        let event = self.context().take_event()?;
        let mark = Mark::Stream {
            context: self.context().clone(),
            event,
            key: Key::of(*self),
        };
        let completion = Completion::new(mark);
        // SAFETY: the event is of the stream's context and held by nobody else; the stream is live.
        unsafe { raw::event::record(open.queue(), event) }?;
        Ok(completion)
    }
}

impl Event {
    /// A future that is ready once everything before the mark is done. See [`Completion`]. If the event is recorded
    /// again meanwhile, the future waits for the new mark.
    #[doc(alias = "cuEventQuery")]
    pub fn completion(&self) -> Completion {
        Completion::new(Mark::Event(Arc::clone(self.shared())))
    }
}

impl Mark {
    /// In relaxed capture mode: the question would invalidate captures, also those of other libraries. If the mode
    /// cannot be set, the answer comes later.
    fn is_done(&self) -> Result<bool> {
        let (context, event) = self.event();
        let table = context.driver().table();
        // SAFETY: the event is live.
        let query = || unsafe { raw::event::query(table, event) };
        match recording::with_relaxed_capture_mode(table, query) {
            Err(error) if error.kind() == ErrorKind::Capturing && error.code().is_none() => {
                Ok(false)
            }
            answer => answer,
        }
    }
}

impl Mark {
    fn event(&self) -> (&Context, CUevent) {
        match self {
            Self::Event(event) => (event.context(), event.as_raw()),
            Self::Stream { context, event, .. } => (context, *event),
        }
    }

    /// Blocks the host until it is done.
    fn synchronize(&self) -> Result<()> {
        let (context, event) = self.event();
        let table = context.driver().table();
        let _waits = waits::begin()?;
        // SAFETY: the event is live.
        recording::with_relaxed_capture_mode(table, || unsafe {
            raw::event::synchronize(table, event)
        })
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Self::Stream { context, event, .. } = self {
            context.give_event(*event);
        }
    }
}

impl Watched {
    pub(super) fn key(&self) -> Key {
        match &self.mark {
            Mark::Event(event) => Key::Event(Arc::as_ptr(event).addr()),
            Mark::Stream { key, .. } => *key,
        }
    }

    /// Asks the driver. The result, if the wait is over.
    pub(super) fn look(&self) -> Poll<Result<()>> {
        match self.mark.is_done() {
            Ok(false) => Poll::Pending,
            Ok(true) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Stores the result for the next poll, and returns the waker. The watcher looks at it no more.
    pub(super) fn end(&self, result: Result<()>) -> Option<Waker> {
        let mut progress = self.progress.lock_unless_forked()?;
        progress.result = Some(result);
        progress.waker.take()
    }
}

impl Completion {
    fn new(mark: Mark) -> Self {
        Self {
            watched: Arc::new(Watched {
                mark,
                progress: Lock::default(),
            }),
            is_registered: false,
        }
    }

    /// Asks the driver, for callers that do not poll the future.
    pub(crate) fn is_done(&self) -> Result<bool> {
        self.watched.mark.is_done()
    }

    /// The result, or `None` after the waker was stored for it.
    fn result_or_wait(&self, waker: &Waker) -> Result<Option<Result<()>>> {
        // Cloned before and dropped after the lock is held: both may run code of the executor.
        let mut new = Some(waker.clone());
        let mut progress = self.watched.progress.lock()?;
        let result = progress.result.take();
        if result.is_none() {
            std::mem::swap(&mut progress.waker, &mut new);
        }
        drop(progress);
        drop(new);
        Ok(result)
    }

    /// Pools end once the host has seen that their memory is free, and a question is no look (R86). The wait ends at once. An
    /// event of the program may have been recorded again.
    fn see_frees(&self) {
        if deferred::has_entries() && matches!(self.watched.mark, Mark::Stream { .. }) {
            // What it would tell, the question has told.
            let _ = self.watched.mark.synchronize();
        }
    }

    fn poll_result(&mut self, waker: &Waker) -> Poll<Result<()>> {
        if !self.is_registered {
            match self.watched.mark.is_done() {
                Ok(false) => {}
                Ok(true) => return Poll::Ready(Ok(())),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        if let Some(result) = self.result_or_wait(waker)? {
            self.is_registered = false;
            return Poll::Ready(result);
        }
        if !self.is_registered {
            watcher::add(&self.watched)?;
            self.is_registered = true;
        }
        Poll::Pending
    }
}

impl Future for Completion {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Result<()>> {
        let polled = self.poll_result(task.waker());
        if let Poll::Ready(result) = &polled {
            if result.is_ok() {
                self.see_frees();
            }
            deferred::poll(After::Call);
            after_wait::tell(After::Call);
        }
        polled
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if self.is_registered {
            watcher::remove(&self.watched);
            // Here and not on the watcher's thread, which may be looking at this.
            let progress = self.watched.progress.lock_unless_forked();
            let waker = progress.map(|mut progress| progress.waker.take());
            drop(waker);
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.watched.mark {
            Mark::Event(_) => "event",
            Mark::Stream { .. } => "stream",
        };
        write!(f, "Completion(of a {kind})")
    }
}
