//! The stream that a cache belongs to, and its handles.

use std::sync::Arc;
use std::thread::ThreadId;

use cuda_driver_sys::{CU_STREAM_PER_THREAD, CUstream};

use crate::stream::context::Context;
use crate::stream::epoch::{self, Progress};
use crate::stream::{Stream, StreamRef, WeakStream, is_default};

/// The stream that a cache belongs to. It is not kept alive; the cache is notified before it ends.
#[derive(Debug)]
pub(super) struct AttachedStream {
    pub(super) context: Context,
    raw: CUstream,
    /// The only thread that can name it, for a per-thread default stream.
    thread: Option<ThreadId>,
    /// When it was attached. Earlier waits for it say nothing about the stream that was attached before.
    since: u64,
    /// At least one.
    handles: Vec<Handle>,
}

/// A handle of an attached stream.
#[derive(Debug)]
struct Handle {
    number: u64,
    /// What waits through this handle have shown.
    progress: Arc<Progress>,
    /// Keeps the stream alive while it is queried after the arena has ended.
    weak: WeakStream,
}

impl Handle {
    fn new(stream: &Stream) -> Self {
        Self {
            number: stream.number(),
            progress: Arc::clone(stream.progress()),
            weak: stream.downgrade(),
        }
    }
}

// SAFETY: stream handles may be used from any thread; per-thread default streams are checked in `view`.
unsafe impl Send for AttachedStream {}

impl AttachedStream {
    pub(super) fn new(stream: &Stream) -> Self {
        let raw = stream.as_raw();
        let own = raw == CU_STREAM_PER_THREAD;
        Self {
            context: stream.context().clone(),
            raw,
            thread: own.then(|| std::thread::current().id()),
            since: epoch::now(),
            handles: vec![Handle::new(stream)],
        }
    }

    /// The driver's handle, as a number.
    pub(super) fn handle(&self) -> u64 {
        self.raw.addr() as u64
    }

    /// Adds another handle of the same stream, unless it is there already.
    pub(super) fn add(&mut self, stream: &Stream) {
        let mut handles = self.handles.iter();
        if handles.any(|handle| handle.number == stream.number()) {
            return;
        }
        // Handles of a legacy default stream do not report when they are dropped.
        self.handles.retain(|handle| handle.weak.is_alive());
        self.handles.push(Handle::new(stream));
    }

    /// Removes a handle, unless it is the last. Returns whether there are others.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        let has_others = self.handles.iter().any(|handle| handle.number != number);
        if has_others {
            self.handles.retain(|handle| handle.number != number);
        }
        has_others
    }

    /// Keeps the stream alive while it is queried; `None` if it has ended.
    pub(super) fn keep(&self) -> Option<Kept> {
        // Default streams do not end.
        if is_default(self.raw) {
            return Some(Kept(None));
        }
        let mut handles = self.handles.iter();
        let handle = handles.find_map(|handle| handle.weak.upgrade())?;
        Some(Kept(Some(handle)))
    }

    /// Whether it is another thread's per-thread default stream, which this thread cannot name.
    pub(super) fn is_foreign(&self) -> bool {
        let thread = self.thread;
        thread.is_some_and(|thread| thread != std::thread::current().id())
    }

    /// `None` if this thread cannot name it, or while it is captured.
    pub(super) fn view(&self) -> Option<StreamRef<'_>> {
        if self.is_foreign() {
            return None;
        }
        // SAFETY: the stream is live, because its last handle is detached before it is dropped; after the arena has
        // ended, `is_over` keeps a handle.
        let stream = unsafe { StreamRef::borrow_raw(&self.context, self.raw) };
        // Any other query would invalidate the capture (R113).
        (!stream.is_captured()).then_some(stream)
    }

    /// The epoch that the program's own waits have shown to be done.
    pub(super) fn seen(&self) -> u64 {
        let by_handles = self.handles.iter().map(|handle| handle.progress.done());
        let seen = by_handles.fold(self.context.progress().done(), u64::max);
        if seen < self.since {
            return 0;
        }
        seen
    }
}

/// Keeps a stream alive.
#[derive(Debug)]
pub(super) struct Kept(#[expect(dead_code, reason = "it is only kept")] Option<Stream>);
