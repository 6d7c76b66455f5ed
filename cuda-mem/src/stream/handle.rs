//! Streams: owned, borrowed from other code, and the two default streams that every context has.

mod drop_observers;
mod gate;
mod ordered;
mod reference;
#[cfg(target_os = "linux")]
mod thread_end;

pub(crate) use drop_observers::DropObserver;
use drop_observers::DropObservers;
pub(crate) use gate::{Reach, Submission};
pub(crate) use ordered::OrderedRelease;
pub use reference::StreamRef;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::thread::ThreadId;

use cuda_driver_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUstream, CUstream_flags};

use crate::base::biased::{Hold, Shared, WeakShared};
use crate::base::error::Result;
use crate::base::report;
use crate::driver::device::Device;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::stream::context::Context;
use crate::stream::deferred::After;
use crate::stream::epoch::{self, Progress};
use crate::stream::{after_wait, deferred};

/// A queue of work on a device. The handle can be cloned; the queue lives as long as any clone and any buffer that was
/// allocated on it.
///
/// Streams made here do not synchronise with the legacy default stream.
///
/// ```
/// # cuda_sim::use_if_no_driver();
/// let context = cuda_mem::Driver::load()?.device(0)?.primary_context()?;
/// let (first, second) = (context.stream()?, context.stream()?);
/// second.wait_for(&first)?; // what comes to `second` now runs after what is in `first`
/// second.synchronize()?;
/// assert!(first.is_done()?);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct Stream(Shared<Inner, THREADS>);

/// How many threads can count the buffers of a stream without contention.
const THREADS: usize = 4;

struct Inner {
    raw: CUstream,
    // Dropped before the context, which a foreign owner may still need to destroy something.
    owner: Owner,
    context: Context,
    /// Deferred releases that wait for this stream.
    deferred: ordered::Count,
    progress: Arc<Progress>,
    drop_observers: DropObservers,
}

impl Inner {
    fn item(&self) -> Item {
        let device = self.context.device();
        Item::new(LedgerKind::Stream, self.raw)
            .of(device.driver())
            .on(device)
    }

    #[inline]
    fn view(&self) -> StreamRef<'_> {
        StreamRef {
            context: &self.context,
            raw: self.raw,
            thread: match self.owner {
                Owner::Context(thread) => thread,
                Owner::Us | Owner::Foreign { .. } => None,
            },
        }
    }
}

/// The owner that destroys the queue.
enum Owner {
    /// This crate, when the last handle goes.
    Us,
    /// Other code; this keeps its owner alive.
    Foreign {
        keep: Option<Box<dyn Any + Send + Sync>>,
    },
    /// None: the stream exists as long as the context. If it is a per-thread stream, this is the thread.
    Context(Option<ThreadId>),
}

// SAFETY: stream handles may be used from any thread (the driver locks inside); what keeps a
// foreign stream alive is itself Send and Sync.
unsafe impl Send for Inner {}
// SAFETY: as for `Send`: what can be called through a shared handle is behind the driver's lock, and
// the owner is only kept.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if !report::is_forked() {
            ordered::release_at_last(self);
            if self.drop_observers.any() {
                // Nothing could be said of a captured stream.
                ordered::end_capture(self);
            }
        }
        if report::is_forked() {
            if let Owner::Foreign { keep } = &mut self.owner {
                // What it destroys belongs to the parent.
                std::mem::forget(keep.take());
            }
        } else {
            self.drop_observers.tell();
        }
        match &mut self.owner {
            Owner::Context(_) => return,
            Owner::Foreign { keep } => drop(keep.take()),
            Owner::Us => {
                ledger::remove(&self.item());
                let table = self.context.driver().table();
                // SAFETY: the last handle is gone, and buffers of the stream hold handles. Work that is
                // still queued completes.
                report::release("stream", || unsafe {
                    raw::stream::destroy(table, self.raw)
                });
            }
        }
        // Its frees count as seen, as far as they are carried out (measured), if it was destroyed. The owner of a borrowed
        // stream waits in ways that nobody hears of.
        deferred::poll(After::Call);
    }
}

impl Context {
    /// Creates a stream that does not synchronise with the legacy default stream.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuStreamCreate")]
    #[track_caller]
    pub fn stream(&self) -> Result<Stream> {
        let table = self.driver().table();
        let raw = {
            let _current = self.bind()?;
            // SAFETY: this context is current.
            unsafe { raw::stream::create(table, CUstream_flags::CU_STREAM_NON_BLOCKING.0) }?
        };
        Ok(Stream::own(self, raw))
    }

    /// The legacy default stream of this context. It waits for all streams that synchronise with it, and they wait for
    /// it; those made by [`stream`](Self::stream) do not. Its context must be current at every call, so this crate
    /// binds it around each call, which costs tens of nanoseconds.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let device = cuda_mem::Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.legacy_stream();
    /// let buffer = device.default_pool()?.alloc_from(&stream, &[1u8, 2, 3])?;
    /// assert_eq!(buffer.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "CU_STREAM_LEGACY")]
    #[must_use]
    pub fn legacy_stream(&self) -> Stream {
        self.default_stream(CU_STREAM_LEGACY, None)
    }

    /// The calling thread's default stream in this context. The driver uses one handle for all threads, so the stream
    /// can be used on this thread only; other threads get an error. If a buffer of this stream is dropped on another
    /// thread, that thread waits for the whole context before the buffer is freed.
    ///
    /// A thread that has used its own stream waits for it when the thread ends (on Linux): the driver hangs at the end
    /// of a thread whose own stream is busy (measured). Not if the context is [another library's](crate::Driver::context_from_raw) and
    /// all handles of it are gone: wait before you drop the last one. A thread other than the main one that calls
    /// [`std::process::exit`] waits, too; [`std::process::abort`] does not.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let context = cuda_mem::Driver::load()?.device(0)?.primary_context()?;
    /// let stream = context.per_thread_stream();
    /// stream.synchronize()?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| assert!(stream.synchronize().is_err()));
    /// });
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "CU_STREAM_PER_THREAD")]
    #[must_use]
    pub fn per_thread_stream(&self) -> Stream {
        let thread = std::thread::current().id();
        let stream = self.default_stream(CU_STREAM_PER_THREAD, Some(thread));
        note_own_stream(self, Some(stream.progress()));
        stream
    }

    fn default_stream(&self, raw: CUstream, thread: Option<ThreadId>) -> Stream {
        Stream(Shared::new(Inner {
            context: self.clone(),
            raw,
            deferred: ordered::Count::new(raw),
            progress: Arc::default(),
            drop_observers: DropObservers::default(),
            owner: Owner::Context(thread),
        }))
    }
}

impl Stream {
    /// Creates the value that destroys the stream.
    #[track_caller]
    fn own(context: &Context, raw: CUstream) -> Self {
        let inner = Inner {
            context: context.clone(),
            raw,
            deferred: ordered::Count::new(raw),
            progress: Arc::default(),
            drop_observers: DropObservers::default(),
            owner: Owner::Us,
        };
        ledger::insert(inner.item());
        Self(Shared::new(inner))
    }

    /// Takes ownership of a stream that was made elsewhere; it is destroyed with the last handle.
    ///
    /// # Safety
    ///
    /// `raw` must be a live stream of `context`, made by `cuStreamCreate` or a similar function (not a default
    /// stream), and no other code may destroy it.
    #[must_use]
    #[track_caller]
    pub unsafe fn from_raw(context: &Context, raw: CUstream) -> Self {
        Self::own(context, raw)
    }

    /// Uses a stream that belongs to other code. `owner` is kept until the last handle and the last buffer of the
    /// stream are gone; pass a reference-counted handle of the other library, or `()` if the stream outlives
    /// everything anyway.
    ///
    /// # Safety
    ///
    /// `raw` must be a live stream of `context` while `owner` is kept, and not a default stream; for those use
    /// [`Context::legacy_stream`] and [`Context::per_thread_stream`].
    #[must_use]
    pub unsafe fn borrow_raw(
        context: &Context,
        raw: CUstream,
        owner: impl Any + Send + Sync,
    ) -> Self {
        Self(Shared::new(Inner {
            context: context.clone(),
            raw,
            deferred: ordered::Count::new(raw),
            progress: Arc::default(),
            drop_observers: DropObservers::default(),
            owner: Owner::Foreign {
                keep: Some(Box::new(owner)),
            },
        }))
    }

    /// A view that borrows this stream.
    #[inline]
    #[must_use]
    pub fn as_ref(&self) -> StreamRef<'_> {
        self.0.view()
    }

    /// Whether this is another thread's own stream, with which nothing can be ordered.
    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        self.as_ref().is_foreign()
    }

    /// See [`StreamRef::is_plain`].
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.as_ref().is_plain()
    }

    /// The context of this stream.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The device of this stream.
    #[must_use]
    pub fn device(&self) -> Device {
        self.0.context.device()
    }

    /// The driver's handle. It stays valid while this stream, or a clone, lives.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> CUstream {
        self.0.raw
    }

    /// The driver's handle, as a number.
    #[inline]
    pub(crate) fn raw_number(&self) -> u64 {
        self.as_raw().addr() as u64
    }

    /// Blocks the host until everything in this stream is done. Every stream can then reuse memory that was freed in
    /// this one.
    ///
    /// # Errors
    ///
    /// [`Capturing`](crate::ErrorKind::Capturing) while this crate captures the stream;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if it is another thread's [own
    /// stream](Context::per_thread_stream); otherwise any driver error, including faults of earlier asynchronous work.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        self.release_deferred();
        self.wait()?;
        self.after_wait();
        Ok(())
    }

    /// As [`synchronize`](Self::synchronize), without releasing anything.
    pub(crate) fn wait(&self) -> Result<()> {
        let epoch = epoch::take();
        self.as_ref().wait()?;
        self.0.progress.advance(epoch);
        Ok(())
    }

    /// Releases what a wait has made possible. Runs code of the program.
    pub(crate) fn after_wait(&self) {
        // What waited for this stream is not skipped.
        self.release_deferred_after(After::Wait);
        deferred::poll(After::Wait);
        after_wait::tell(After::Wait);
    }

    /// Whether everything in this stream is done. Does not wait. Pools do not let other streams reuse memory that was freed
    /// here because of it, as they do when a program synchronises; an arena does.
    ///
    /// # Errors
    ///
    /// Same as [`synchronize`](Self::synchronize).
    #[doc(alias = "cuStreamQuery")]
    pub fn is_done(&self) -> Result<bool> {
        let epoch = epoch::take();
        let is_done = self.as_ref().is_done()?;
        if is_done {
            self.0.progress.advance(epoch);
        }
        Ok(is_done)
    }

    /// How far the host has seen this stream progress.
    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.0.progress
    }

    /// A handle that does not keep the stream alive.
    pub(crate) fn downgrade(&self) -> WeakStream {
        WeakStream(self.0.downgrade())
    }
}

/// A handle that does not keep its stream alive.
#[derive(Clone)]
pub(crate) struct WeakStream(WeakShared<Inner, THREADS>);

impl WeakStream {
    /// Whether the stream still exists.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    /// The stream, if it still exists.
    pub(crate) fn upgrade(&self) -> Option<Stream> {
        self.0.upgrade().map(Stream)
    }
}

impl Hold for Stream {
    #[inline(always)]
    fn hold(&self) -> Self {
        Self(self.0.hold())
    }

    #[inline(always)]
    fn release(self) {
        self.0.release();
    }
}

impl fmt::Debug for WeakStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakStream")
    }
}

impl PartialEq for Stream {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_ref() == other.as_ref()
    }
}

impl Eq for Stream {}

/// Its handle and device, in words.
impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:p} of {}", self.0.raw, self.0.context.device())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:p} of {:?})", self.0.raw, self.0.context)
    }
}

/// Called when a thread names its own stream.
fn note_own_stream(context: &Context, handle: Option<&Arc<Progress>>) {
    #[cfg(target_os = "linux")]
    thread_end::note(context, handle);
    #[cfg(not(target_os = "linux"))]
    let _ = (context, handle);
}

/// Whether a handle names a default stream of whichever context is current, rather than one particular stream.
#[inline]
pub(crate) fn is_default(raw: CUstream) -> bool {
    raw.addr() <= CU_STREAM_PER_THREAD.addr()
}
