//! How far a lane's stream has come: the marks in it, and what the host has seen done.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use cuda_driver_sys::{CU_STREAM_PER_THREAD, CUstream};

use super::owners::LaneId;
use crate::context::Context;
use crate::error::Result;
use crate::event::Event;
use crate::progress::{self, Progress};
use crate::recording;
use crate::stream::{Stream, StreamRef, WeakStream, is_default};

/// The stream that a lane serves. It is not kept alive; the lane hears of its end before.
#[derive(Debug)]
struct Served {
    context: Context,
    raw: CUstream,
    /// The thread that alone can name it.
    thread: Option<ThreadId>,
    /// What the host has seen of it through others.
    progress: Arc<Progress>,
    /// When it came to the lane. What waits before that have shown says nothing of the stream that the lane served
    /// before.
    since: u64,
    /// While the arena lives, the lane hears of the end; afterwards this tells.
    weak: WeakStream,
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
        // SAFETY: the stream is live, because its end is told to the centre before it comes; when the arena has
        // ended, `is_over` keeps a handle meanwhile.
        let stream = unsafe { StreamRef::borrow_raw(&self.context, self.raw) };
        // Asking a captured stream anything else would make the capture worthless (R113).
        (!stream.is_captured()).then_some(stream)
    }

    /// What waits that others made have shown to be done.
    fn seen(&self) -> u64 {
        let seen = self.progress.done().max(self.context.progress().done());
        if seen < self.since {
            return 0;
        }
        seen
    }
}

/// A stream that ended where its end could not be marked. A later wait for its context shows that it is done.
#[derive(Debug)]
struct Unmarked {
    progress: Arc<Progress>,
    ticket: u64,
}

/// The driver calls for marks.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) calls: AtomicU64,
    /// How often a stream was made to wait for another one.
    pub(super) waits: AtomicU64,
}

impl Calls {
    fn count(&self, calls: u64) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
    }
}

/// Runs a call that does no harm to captures of other streams, so that the driver believes it (R110). Other libraries
/// capture too, and a free must not spoil what they do.
fn harmlessly<T>(context: &Context, call: impl FnOnce() -> Result<T>) -> Result<T> {
    recording::harmlessly(context.driver().table(), call)
}

/// How far something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Done,
    /// Not done, or it is not known.
    Busy,
    /// Somebody has ended its context, and nothing of that is left to be waited for.
    Ended,
}

fn ask(context: &Context, is_done: impl FnOnce() -> Result<bool>) -> Asked {
    match harmlessly(context, is_done) {
        Ok(true) => Asked::Done,
        Err(error) if error.kind().is_of_ended_context() => Asked::Ended,
        Ok(false) | Err(_) => Asked::Busy,
    }
}

/// A mark, and the ticket that it took.
#[derive(Debug)]
struct Mark {
    ticket: u64,
    event: Event,
    context: Context,
}

impl Mark {
    fn ask(&self) -> Asked {
        ask(&self.context, || self.event.is_done())
    }

    fn hold_back(&self, stream: &Stream) -> Result<()> {
        harmlessly(&self.context, || stream.wait_event(&self.event))
    }
}

/// The marks in a stream.
#[derive(Debug, Default)]
struct Marks {
    /// Those that the host has not seen done, by their tickets.
    out: VecDeque<Mark>,
    /// What can be set again.
    spare: Vec<Event>,
}

/// Events that are kept to be set again.
const SPARE: usize = OUT;
/// Marks that are out at a time. Then every second one goes.
const OUT: usize = 64;

impl Marks {
    fn set(&mut self, stream: StreamRef<'_>, ticket: u64, calls: &Calls) {
        if self.out.len() >= OUT {
            self.thin_out();
        }
        let context = stream.context();
        let ours = |event: &Event| event.context().as_raw() == context.as_raw();
        let event = match self.spare.pop().filter(ours) {
            Some(event) => Ok(event),
            None => harmlessly(context, || context.event()),
        };
        calls.count(1);
        if let Ok(event) = event
            && harmlessly(context, || event.record(stream)).is_ok()
        {
            let context = context.clone();
            self.out.push_back(Mark {
                ticket,
                event,
                context,
            });
        }
    }

    /// Takes every second mark away; the last one stays.
    fn thin_out(&mut self) {
        let len = self.out.len();
        for (place, mark) in std::mem::take(&mut self.out).into_iter().enumerate() {
            if (len - place) % 2 == 1 {
                self.out.push_back(mark);
            } else {
                self.keep(mark.event);
            }
        }
    }

    /// The first mark is reached.
    fn reuse_first(&mut self) {
        if let Some(mark) = self.out.pop_front() {
            self.keep(mark.event);
        }
    }

    fn keep(&mut self, event: Event) {
        if self.spare.len() < SPARE {
            self.spare.push(event);
        }
    }

    /// The ticket of the last one.
    fn last(&self) -> Option<u64> {
        self.out.back().map(|mark| mark.ticket)
    }
}

#[derive(Debug)]
pub(super) struct Course {
    calls: Arc<Calls>,
    served: Option<Served>,
    marks: Marks,
    /// What was given back with this ticket or an earlier one is done.
    done: u64,
    /// The stream that was served last, if its end could not be marked.
    unmarked: Option<Unmarked>,
    /// So many looks in a row found nothing done, and so many are left out now.
    vain: u32,
    rest: u32,
    /// By lane: what was given back there with this ticket or an earlier one comes before all that the stream gets from
    /// now on, because it was made to wait.
    after: Vec<u64>,
}

/// After looks in vain at most 2 to this power are left out.
const LONGEST_REST: u32 = 6;

impl Course {
    pub(super) fn new(calls: &Arc<Calls>) -> Self {
        Self {
            calls: Arc::clone(calls),
            served: None,
            marks: Marks::default(),
            done: 0,
            unmarked: None,
            vain: 0,
            rest: 0,
            after: Vec::new(),
        }
    }

    /// Serves this stream from now on.
    pub(super) fn serve(&mut self, stream: &Stream) {
        let raw = stream.as_raw();
        let own = raw == CU_STREAM_PER_THREAD;
        if self.done == u64::MAX {
            // Nobody served the lane, and all is done that was before. A ticket is taken, so that no block gets
            // a stamp from now on that one of before may have.
            self.done = progress::take();
        }
        self.served = Some(Served {
            context: stream.context().clone(),
            raw,
            thread: own.then(|| std::thread::current().id()),
            progress: Arc::clone(stream.progress()),
            since: progress::now(),
            weak: stream.downgrade(),
        });
        // They belong to a context.
        self.marks.spare.clear();
        self.after.clear();
    }

    /// Whether the stream comes after what was given back on a lane's stream with this ticket.
    pub(super) fn is_after(&self, lane: LaneId, ticket: u64) -> bool {
        self.after
            .get(lane as usize)
            .is_some_and(|after| *after >= ticket)
    }

    /// The stream was made to wait.
    pub(super) fn comes_after(&mut self, lane: LaneId, ticket: u64) {
        let at = lane as usize;
        if self.after.len() <= at {
            self.after.resize(at + 1, 0);
        }
        self.after[at] = self.after[at].max(ticket);
    }

    /// The stream is at its end, if one is served. Nothing comes to it after the mark that this sets.
    pub(super) fn leave(&mut self) {
        let before = progress::now();
        self.reach();
        self.mark();
        self.end(before);
        self.settle();
    }

    /// Nobody is served any more. What has come before this ticket is waited for.
    fn end(&mut self, before: u64) {
        let Some(served) = self.served.take() else {
            return;
        };
        let is_marked = self.is_marked(before);
        self.unmarked = (!is_marked).then(|| Unmarked {
            progress: Arc::clone(served.context.progress()),
            ticket: before,
        });
    }

    /// Whether what has come before this ticket is done or marked.
    fn is_marked(&self, before: u64) -> bool {
        self.marked() >= before
    }

    /// Takes in what is done, as far as the waits of others tell. Asks nobody.
    pub(super) fn hear(&mut self) {
        if let Some(served) = &self.served {
            self.advance(served.seen());
        }
        let unmarked = self.unmarked.as_ref();
        if unmarked.is_some_and(|last| last.progress.done() >= last.ticket) {
            self.unmarked = None;
            self.marks.out.clear();
            self.done = u64::MAX;
        }
    }

    /// What is done, as far as marks and the waits of others tell.
    pub(super) fn settle(&mut self) -> u64 {
        self.hear();
        if !self.reach() {
            return self.done;
        }
        if self.served.is_none() && self.unmarked.is_none() {
            self.done = u64::MAX;
            // They would keep a context.
            self.marks.spare.clear();
        }
        self.done
    }

    /// Finds the last mark that is reached. Says whether all are.
    fn reach(&mut self) -> bool {
        while let Some(first) = self.marks.out.front() {
            self.calls.count(1);
            match first.ask() {
                Asked::Busy => return false,
                // Marks behind it may be of another context.
                Asked::Ended => self.first_is_reached(),
                Asked::Done => {
                    let reached = self.reached_behind_first();
                    (0..reached).for_each(|_| self.first_is_reached());
                }
            }
        }
        true
    }

    fn first_is_reached(&mut self) {
        if let Some(first) = self.marks.out.front() {
            self.done = first.ticket;
            self.marks.reuse_first();
        }
    }

    /// How many marks are reached, of which the first is. They are reached in their order, so few have to be asked.
    fn reached_behind_first(&self) -> usize {
        let out = &self.marks.out;
        let is_done = |place: usize| {
            self.calls.count(1);
            out[place].ask() == Asked::Done
        };
        let (mut reached, mut all) = (1, out.len());
        if all > 1 && is_done(all - 1) {
            return all;
        }
        while reached + 1 < all {
            let middle = reached.midpoint(all);
            if is_done(middle - 1) {
                reached = middle;
            } else {
                all = middle;
            }
        }
        reached
    }

    /// What has this ticket or an earlier one is done.
    fn advance(&mut self, ticket: u64) {
        if ticket <= self.done {
            return;
        }
        self.done = ticket;
        let out = &self.marks.out;
        let reached = out.iter().take_while(|mark| mark.ticket <= ticket).count();
        (0..reached).for_each(|_| self.marks.reuse_first());
    }

    /// Finds out what is done, with a new mark if none lies behind what was given back with this ticket. Seldom asks a
    /// stream that is always busy: says whether it did.
    pub(super) fn look(&mut self, ticket: u64) -> bool {
        if self.rest > 0 {
            self.rest -= 1;
            return false;
        }
        let before = self.done;
        self.look_now(ticket);
        if self.done > before {
            self.vain = 0;
        } else {
            self.vain = (self.vain + 1).min(LONGEST_REST);
            self.rest = (1 << self.vain) - 2;
        }
        true
    }

    /// As [`look`](Self::look), and asks in any case.
    pub(super) fn look_now(&mut self, ticket: u64) {
        let look = |course: &mut Self| {
            course.settle();
            if !course.is_marked(ticket) {
                course.mark();
            }
        };
        let context = self.served.as_ref().map(|served| served.context.clone());
        match context {
            // All questions together. Where they cannot be asked, nothing is known.
            Some(context) => drop(harmlessly(&context, || {
                look(self);
                Ok(())
            })),
            None => look(self),
        }
    }

    /// Marks the place where the stream is now, without asking whether it is done.
    pub(super) fn mark_batch(&mut self) {
        if let Some(stream) = self.served.as_ref().and_then(Served::view) {
            self.calls.count(1);
            self.marks.set(stream, progress::take(), &self.calls);
        }
    }

    /// Finds out whether all that is in the stream is done, and marks the place if not. Where neither can be,
    /// nothing is known.
    fn mark(&mut self) {
        let Some(stream) = self.served.as_ref().and_then(Served::view) else {
            return;
        };
        let ticket = progress::take();
        if !self.marks.out.is_empty() {
            // It was busy when it was last asked.
            self.calls.count(1);
            self.marks.set(stream, ticket, &self.calls);
            return;
        }
        self.calls.count(2);
        match ask(stream.context(), || stream.is_done()) {
            Asked::Done => self.advance(ticket),
            Asked::Ended => {
                self.reach();
                // Those that are left are of another context, which the lane served before.
                if self.marks.out.is_empty() {
                    self.advance(ticket);
                }
            }
            Asked::Busy => self.marks.set(stream, ticket, &self.calls),
        }
    }

    /// Makes a stream wait for what was given back with this ticket or earlier ones. Answers with the ticket up to which
    /// it comes after this stream, or with nothing if it does not.
    pub(super) fn hold_back(&mut self, stream: &Stream, ticket: u64) -> Result<Option<u64>> {
        if !self.is_marked(ticket) {
            self.mark();
        }
        if self.done >= ticket {
            return Ok(Some(ticket));
        }
        match self.marks.out.iter().find(|mark| mark.ticket >= ticket) {
            Some(mark) => self.wait(mark, stream).map(Some),
            None => Ok(None),
        }
    }

    /// Makes a stream wait for all that was in the stream that ended. Says whether it comes after that.
    pub(super) fn hold_back_last(&self, stream: &Stream) -> Result<bool> {
        match self.marks.out.back() {
            Some(mark) if self.unmarked.is_none() => self.wait(mark, stream).map(|_| true),
            _ => Ok(false),
        }
    }

    fn wait(&self, mark: &Mark, stream: &Stream) -> Result<u64> {
        self.calls.count(1);
        mark.hold_back(stream)?;
        self.calls.waits.fetch_add(1, Ordering::Relaxed);
        Ok(mark.ticket)
    }

    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// What was given back with this ticket or an earlier one lies before a mark, or is done.
    pub(super) fn marked(&self) -> u64 {
        self.marks.last().unwrap_or(0).max(self.done)
    }

    /// Whether all is done that came before this ticket, at which the arena ended and heard of the stream no more. What
    /// cannot be asked now is asked the next time.
    pub(super) fn is_over(&mut self, ended: u64) -> bool {
        if let Some(served) = self.served.as_ref().filter(|_| !self.is_marked(ended)) {
            // Default streams do not end. Of others a handle keeps the stream while it is asked.
            let kept = served.weak.upgrade();
            if kept.is_some() || is_default(served.raw) {
                self.mark();
            } else {
                self.end(ended);
            }
        }
        self.settle() >= ended
    }
}
