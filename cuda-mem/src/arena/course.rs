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
        let thread = self.thread;
        if thread.is_some_and(|thread| thread != std::thread::current().id()) {
            return None;
        }
        // SAFETY: the stream is live, because its end is told to the centre before it comes, also while the
        // arena ends.
        let stream = unsafe { StreamRef::borrow_raw(&self.context, self.raw) };
        let _current = stream.enter().ok()?;
        // Asking a captured stream anything else would make the capture worthless (R113).
        // SAFETY: as above; a default stream's context is current.
        let captured = unsafe { recording::is_captured(self.context.driver().table(), self.raw) };
        (!captured).then_some(stream)
    }
}

/// The arena's count of tickets, and of the driver calls for marks.
#[derive(Debug, Default)]
pub(super) struct Clock {
    present: AtomicU64,
    pub(super) calls: AtomicU64,
    /// How often a stream was made to wait for another one.
    pub(super) waits: AtomicU64,
}

impl Clock {
    /// The ticket of now. What was submitted to a stream before this was read comes before each mark that
    /// takes this ticket or a later one: such a mark is set after the count went on.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.present.load(Ordering::SeqCst) + 1
    }

    fn take(&self) -> u64 {
        self.present.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self, calls: u64) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
    }
}

/// Runs a call that does no harm to captures of other streams, so that the driver believes it (R110).
fn harmlessly<T>(context: &Context, call: impl FnOnce() -> Result<T>) -> Result<T> {
    recording::kept_out(context.driver().table(), call)
}

/// A mark, and the ticket that it took.
#[derive(Debug)]
struct Mark {
    ticket: u64,
    event: Event,
    context: Context,
}

impl Mark {
    fn is_done(&self) -> bool {
        harmlessly(&self.context, || self.event.is_done()).unwrap_or(false)
    }

    fn hold_back(&self, stream: &Stream) -> Result<()> {
        harmlessly(&self.context, || stream.wait_event(&self.event))
    }
}

#[derive(Debug)]
pub(super) struct Course {
    clock: Arc<Clock>,
    served: Option<Served>,
    /// Marks that the host has not seen done, by their tickets.
    marks: VecDeque<Mark>,
    /// Marks that can be set again.
    spare: Vec<Event>,
    /// What was given back with this ticket or an earlier one is done.
    done: u64,
    /// The end of the stream that was served last could not be marked.
    is_lost: bool,
    /// So many looks in a row found nothing done, and so many are left out now.
    vain: u32,
    rest: u32,
}

/// Marks that are kept to be set again.
const SPARE: usize = 16;
/// Marks that are out at a time. Then the last one is moved.
const MARKS: usize = 8;
/// After looks in vain at most 2 to this power are left out.
const LONGEST_REST: u32 = 6;

impl Course {
    pub(super) fn new(clock: &Arc<Clock>) -> Self {
        Self {
            clock: Arc::clone(clock),
            served: None,
            marks: VecDeque::new(),
            spare: Vec::new(),
            done: 0,
            is_lost: false,
            vain: 0,
            rest: 0,
        }
    }

    /// Serves this stream from now on.
    pub(super) fn serve(&mut self, stream: &Stream) {
        let raw = stream.as_raw();
        let own = raw == CU_STREAM_PER_THREAD;
        if self.done == u64::MAX {
            // Nobody served the lane, and all is done that was before. A ticket is taken, so that no block gets
            // a stamp from now on that one of before may have.
            self.done = self.clock.take();
        }
        self.served = Some(Served {
            context: stream.context().clone(),
            raw,
            thread: own.then(|| std::thread::current().id()),
        });
        // They belong to a context.
        self.spare.clear();
    }

    /// The stream is at its end, if one is served. Nothing comes to it after the mark that this sets. If it
    /// cannot be set, nobody will ever know when all is done.
    pub(super) fn leave(&mut self) {
        if self.served.is_none() {
            return;
        }
        let before = self.clock.now();
        self.mark();
        self.served = None;
        let marked = self.marks.back().map_or(self.done, |mark| mark.ticket);
        self.is_lost = marked < before;
        self.settle();
    }

    /// Whether the stream ended, and the end could not be marked.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// What is done, as far as marks tell.
    pub(super) fn settle(&mut self) -> u64 {
        while let Some(mark) = self.marks.front() {
            self.clock.count(1);
            if !mark.is_done() {
                return self.done;
            }
            self.done = mark.ticket;
            self.reuse_first();
        }
        if self.served.is_none() && !self.is_lost {
            self.done = u64::MAX;
            // They would keep a context.
            self.spare.clear();
        }
        self.done
    }

    /// What is done, with a new mark where there is none. Seldom asks a stream that is always busy.
    pub(super) fn look(&mut self) -> u64 {
        if self.rest > 0 {
            self.rest -= 1;
            return self.done;
        }
        let before = self.settle();
        if self.marks.is_empty() && self.served.is_some() {
            self.mark();
        }
        if self.done > before {
            self.vain = 0;
        } else {
            self.vain = (self.vain + 1).min(LONGEST_REST);
            self.rest = (1 << self.vain) - 2;
        }
        self.done
    }

    /// As [`look`](Self::look), and asks in any case.
    pub(super) fn look_now(&mut self) -> u64 {
        self.settle();
        if self.served.is_some() {
            self.mark();
        }
        self.done
    }

    /// Finds out whether all that is in the stream is done, and marks the place if not. Where neither can be,
    /// nothing is known.
    fn mark(&mut self) {
        let Some(stream) = self.served.as_ref().and_then(Served::view) else {
            return;
        };
        let context = stream.context();
        let ticket = self.clock.take();
        self.clock.count(2);
        if harmlessly(context, || stream.is_done()).unwrap_or(false) {
            self.done = ticket;
            while !self.marks.is_empty() {
                self.reuse_first();
            }
            return;
        }
        // Waits that were issued for a mark stay as they are when it is moved.
        let moved = (self.marks.len() >= MARKS).then(|| self.marks.pop_back());
        let event = moved
            .flatten()
            .map(|mark| mark.event)
            .or_else(|| self.spare.pop());
        let event = match event {
            Some(event) => Ok(event),
            None => harmlessly(context, || context.event()),
        };
        self.clock.count(1);
        if let Ok(event) = event
            && harmlessly(context, || event.record(stream)).is_ok()
        {
            let context = context.clone();
            self.marks.push_back(Mark {
                ticket,
                event,
                context,
            });
        }
    }

    /// The first mark is done; its event can mark another place.
    fn reuse_first(&mut self) {
        if let Some(mark) = self.marks.pop_front()
            && self.spare.len() < SPARE
        {
            self.spare.push(mark.event);
        }
    }

    /// Makes a stream wait for what was given back with this ticket or earlier ones. Says whether it comes
    /// after that.
    pub(super) fn hold_back(&mut self, stream: &Stream, ticket: u64) -> Result<bool> {
        if self.done < ticket && self.marks.back().is_none_or(|mark| mark.ticket < ticket) {
            self.mark();
        }
        if self.done >= ticket {
            return Ok(true);
        }
        match self.marks.iter().find(|mark| mark.ticket >= ticket) {
            Some(mark) => self.wait(mark, stream),
            None => Ok(false),
        }
    }

    /// Makes a stream wait for all that was in the stream that ended. Says whether it comes after that.
    pub(super) fn hold_back_last(&self, stream: &Stream) -> Result<bool> {
        match self.marks.back() {
            Some(mark) if !self.is_lost => self.wait(mark, stream),
            _ => Ok(false),
        }
    }

    fn wait(&self, mark: &Mark, stream: &Stream) -> Result<bool> {
        self.clock.count(1);
        mark.hold_back(stream)?;
        self.clock.waits.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Whether all marks are done.
    pub(super) fn is_over(&mut self) -> bool {
        self.settle();
        self.marks.is_empty()
    }
}
