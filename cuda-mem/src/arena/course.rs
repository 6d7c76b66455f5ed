//! How far a lane's stream has come: the marks in it, and what the host has seen done.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use cuda_driver_sys::{CU_STREAM_PER_THREAD, CUstream};

use crate::context::Context;
use crate::error::Result;
use crate::event::Event;
use crate::recording;
use crate::stream::{Stream, StreamRef};

/// The stream that a lane serves. It is not kept alive; the lane hears of its end before.
#[derive(Debug)]
struct Served {
    context: Context,
    raw: CUstream,
    /// The thread that alone can name it.
    thread: Option<ThreadId>,
}

// SAFETY: stream handles may be used from any thread; what only one thread may name is checked in `view`.
unsafe impl Send for Served {}

impl Served {
    /// `None` where this thread cannot name it, and while somebody captures it.
    fn view(&self) -> Option<StreamRef<'_>> {
        if self
            .thread
            .is_some_and(|thread| thread != std::thread::current().id())
        {
            return None;
        }
        // SAFETY: the stream is live, because its end is told to the arena before it comes.
        let stream = unsafe { StreamRef::borrow_raw(&self.context, self.raw) };
        // Asking a captured stream anything else would make the capture worthless (R113).
        // SAFETY: as above.
        let captured = unsafe { recording::is_captured(self.context.driver().table(), self.raw) };
        (!captured).then_some(stream)
    }
}

#[derive(Debug, Default)]
pub(super) struct Course {
    served: Option<Served>,
    /// The epochs that ended at a mark which the host has not seen done.
    marks: VecDeque<(u32, Event)>,
    /// Marks that can be set again.
    spare: Vec<Event>,
    /// Epochs before this one are done.
    done: u32,
    /// Epochs before this one have a mark at their end or are done.
    marked: u32,
    /// Driver calls, of all courses of the arena.
    calls: Arc<AtomicU64>,
}

/// What is known of a lane's epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Those before are done.
    pub(super) done: u32,
    /// Those before are done or can be waited for.
    pub(super) marked: u32,
}

/// Marks that are kept to be set again.
const SPARE: usize = 16;

impl Course {
    pub(super) fn new(calls: &Arc<AtomicU64>) -> Self {
        Self {
            calls: Arc::clone(calls),
            ..Self::default()
        }
    }

    fn count(&self, calls: u64) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
    }

    /// Serves this stream from now on.
    pub(super) fn serve(&mut self, stream: &Stream) {
        let raw = stream.as_raw();
        let own = raw == CU_STREAM_PER_THREAD;
        self.served = Some(Served {
            context: stream.context().clone(),
            raw,
            thread: own.then(|| std::thread::current().id()),
        });
        // They belong to a context.
        self.spare.clear();
    }

    /// The stream is at its end.
    pub(super) fn leave(&mut self) {
        self.served = None;
    }

    /// Looks which marks are done.
    pub(super) fn settle(&mut self) -> Seen {
        while let Some((epoch, event)) = self.marks.front() {
            self.count(1);
            if !event.is_done().unwrap_or(false) {
                break;
            }
            self.done = epoch + 1;
            self.reuse_first();
        }
        self.marked = self.marked.max(self.done);
        self.seen()
    }

    /// The first mark is done; its event can mark another place.
    fn reuse_first(&mut self) {
        if let Some((_, event)) = self.marks.pop_front()
            && self.spare.len() < SPARE
        {
            self.spare.push(event);
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            done: self.done,
            marked: self.marked,
        }
    }

    /// The lane has ended this epoch just now. Finds out whether all that is in the stream is done, and marks
    /// the place if not. Where neither can be, the epoch stays unknown.
    pub(super) fn ended(&mut self, epoch: u32) -> Seen {
        let Some(stream) = self.served.as_ref().and_then(Served::view) else {
            return self.seen();
        };
        self.count(2);
        if stream.is_done().unwrap_or(false) {
            self.done = epoch + 1;
            self.marked = epoch + 1;
            while !self.marks.is_empty() {
                self.reuse_first();
            }
            return self.seen();
        }
        let event = match self.spare.pop() {
            Some(event) => Ok(event),
            None => stream.context().event(),
        };
        self.count(1);
        if let Ok(event) = event
            && event.record(stream).is_ok()
        {
            self.marks.push_back((epoch, event));
            self.marked = epoch + 1;
        }
        self.seen()
    }

    /// Makes a stream wait for the end of this epoch, which must be marked.
    pub(super) fn hold_back(&mut self, stream: &Stream, epoch: u32) -> Result<()> {
        let mark = self.marks.iter().find(|(marked, _)| *marked >= epoch);
        match mark {
            Some((_, event)) => {
                self.count(1);
                stream.wait_event(event)
            }
            None => Ok(()),
        }
    }

    /// Whether all marks are done.
    pub(super) fn is_over(&mut self) -> bool {
        self.settle();
        self.marks.is_empty()
    }

    /// Whether it serves any stream.
    pub(super) fn serves(&self) -> bool {
        self.served.is_some()
    }
}
