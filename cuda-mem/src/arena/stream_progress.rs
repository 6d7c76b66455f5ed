//! The progress of a stream: events recorded in it, and what the host knows to be done.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use cuda_driver_sys::{CU_STREAM_PER_THREAD, CUstream};

use super::page_map::CacheId;
use crate::context::Context;
use crate::epoch::{self, Progress};
use crate::error::Result;
use crate::event::Event;
use crate::recording;
use crate::stream::{Stream, StreamRef, WeakStream, is_default};

/// The stream that a cache belongs to. It is not kept alive; the cache is told before it ends.
#[derive(Debug)]
struct AttachedStream {
    context: Context,
    raw: CUstream,
    /// The only thread that can name it, for a per-thread default stream.
    thread: Option<ThreadId>,
    /// When it was attached. Earlier waits for it say nothing of the stream that was attached before.
    since: u64,
    /// One or more.
    handles: Vec<Handle>,
}

/// A handle of an attached stream.
#[derive(Debug)]
struct Handle {
    number: u64,
    /// What waits through this handle have shown.
    progress: Arc<Progress>,
    /// Keeps the stream while it is queried after the arena has ended.
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
    /// `None` if this thread cannot name it, and while it is captured.
    fn view(&self) -> Option<StreamRef<'_>> {
        let thread = self.thread;
        if thread.is_some_and(|thread| thread != std::thread::current().id()) {
            return None;
        }
        // SAFETY: the stream is live, because its last handle is detached before it is dropped; when the arena has ended,
        // `is_over` keeps a handle meanwhile.
        let stream = unsafe { StreamRef::borrow_raw(&self.context, self.raw) };
        // Any other question would invalidate the capture (R113).
        (!stream.is_captured()).then_some(stream)
    }

    /// What waits of the program have shown to be done.
    fn seen(&self) -> u64 {
        let by_handles = self.handles.iter().map(|handle| handle.progress.done());
        let seen = by_handles.fold(self.context.progress().done(), u64::max);
        if seen < self.since {
            return 0;
        }
        seen
    }
}

/// A stream that ended where no event could be recorded. A later wait for its context shows that it is done.
#[derive(Debug)]
struct UnrecordedEnd {
    progress: Arc<Progress>,
    epoch: u64,
}

/// Driver calls for queries and events.
#[derive(Debug, Default)]
pub(super) struct DriverCalls {
    pub(super) calls: AtomicU64,
    /// How often a stream was made to wait for another one.
    pub(super) waits: AtomicU64,
}

impl DriverCalls {
    fn count(&self, calls: u64) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
    }
}

/// Runs a call in relaxed capture mode, so that it cannot invalidate a capture of another stream (R110), which may be
/// another library's.
fn harmlessly<T>(context: &Context, call: impl FnOnce() -> Result<T>) -> Result<T> {
    recording::harmlessly(context.driver().table(), call)
}

/// The answer to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Done,
    /// Not done, or not known.
    Busy,
    /// Its context was destroyed, and its work with it.
    Ended,
}

fn ask(context: &Context, is_done: impl FnOnce() -> Result<bool>) -> Asked {
    match harmlessly(context, is_done) {
        Ok(true) => Asked::Done,
        Err(error) if error.kind().is_of_ended_context() => Asked::Ended,
        Ok(false) | Err(_) => Asked::Busy,
    }
}

/// An event, and the epoch in which it was recorded.
#[derive(Debug)]
struct RecordedEvent {
    epoch: u64,
    event: Event,
    context: Context,
}

impl RecordedEvent {
    fn ask(&self) -> Asked {
        ask(&self.context, || self.event.is_done())
    }

    fn make_wait(&self, stream: &Stream) -> Result<()> {
        harmlessly(&self.context, || stream.wait_event(&self.event))
    }
}

/// The events recorded in a stream.
#[derive(Debug, Default)]
struct RecordedEvents {
    /// Not known to be reached, by their epochs.
    out: VecDeque<RecordedEvent>,
    /// To be recorded again.
    spare: Vec<Event>,
}

/// Events that are kept to be recorded again.
const SPARE: usize = OUT;
/// Pending events at a time. One more, and every second one is given up.
const OUT: usize = 64;

impl RecordedEvents {
    fn set(&mut self, stream: StreamRef<'_>, epoch: u64, calls: &DriverCalls) {
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
            self.out.push_back(RecordedEvent {
                epoch,
                event,
                context,
            });
        }
    }

    /// Gives up every second event; the last one stays.
    fn thin_out(&mut self) {
        let len = self.out.len();
        for (place, event) in std::mem::take(&mut self.out).into_iter().enumerate() {
            if (len - place) % 2 == 1 {
                self.out.push_back(event);
            } else {
                self.keep(event.event);
            }
        }
    }

    /// The first event is reached.
    fn reuse_first(&mut self) {
        if let Some(event) = self.out.pop_front() {
            self.keep(event.event);
        }
    }

    fn keep(&mut self, event: Event) {
        if self.spare.len() < SPARE {
            self.spare.push(event);
        }
    }

    /// The epoch of the last one.
    fn last(&self) -> Option<u64> {
        self.out.back().map(|event| event.epoch)
    }
}

#[derive(Debug)]
pub(super) struct StreamProgress {
    calls: Arc<DriverCalls>,
    attached: Option<AttachedStream>,
    events: RecordedEvents,
    /// What was freed in this epoch or an earlier one is done.
    done: u64,
    /// The stream that was attached last, if no event could be recorded at its end.
    unrecorded: Option<UnrecordedEnd>,
    /// Queries in a row that found nothing done, and how many are left out now.
    vain: u32,
    rest: u32,
    /// By cache: frees of that stream up to this epoch come before all that this stream gets from now on, because it
    /// was made to wait.
    after: Vec<u64>,
}

/// After fruitless queries at most 2 to this power are left out.
const LONGEST_REST: u32 = 6;

impl StreamProgress {
    pub(super) fn new(calls: &Arc<DriverCalls>) -> Self {
        Self {
            calls: Arc::clone(calls),
            attached: None,
            events: RecordedEvents::default(),
            done: 0,
            unrecorded: None,
            vain: 0,
            rest: 0,
            after: Vec::new(),
        }
    }

    /// Belongs to this stream from now on, of which other handles may be attached already. `is_same` says that no other
    /// stream was attached before.
    pub(super) fn attach(&mut self, stream: &Stream, is_same: bool) {
        if let Some(attached) = self.attached.as_mut().filter(|_| is_same) {
            // Those of a legacy default stream are not told of.
            attached.handles.retain(|handle| handle.weak.is_alive());
            attached.handles.push(Handle::new(stream));
            return;
        }
        if is_same {
            // What is recorded from now on lies behind it.
            self.unrecorded = None;
        }
        let raw = stream.as_raw();
        let own = raw == CU_STREAM_PER_THREAD;
        if self.done == u64::MAX {
            // No stream was attached, and all earlier work is done. A new epoch begins, so that blocks freed from now
            // on are told from those freed before.
            self.done = epoch::take();
        }
        self.attached = Some(AttachedStream {
            context: stream.context().clone(),
            raw,
            thread: own.then(|| std::thread::current().id()),
            since: epoch::now(),
            handles: vec![Handle::new(stream)],
        });
        // They belong to a context.
        self.events.spare.clear();
        self.after.clear();
    }

    /// Whether the stream comes after what another cache's stream freed in this epoch.
    pub(super) fn is_after(&self, cache: CacheId, epoch: u64) -> bool {
        self.after
            .get(cache as usize)
            .is_some_and(|after| *after >= epoch)
    }

    /// The stream was made to wait.
    pub(super) fn comes_after(&mut self, cache: CacheId, epoch: u64) {
        let at = cache as usize;
        if self.after.len() <= at {
            self.after.resize(at + 1, 0);
        }
        self.after[at] = self.after[at].max(epoch);
    }

    /// A handle of the attached stream is dropped. Returns whether it was the last: then nothing is submitted after the
    /// event that this records, unless the stream is attached again.
    pub(super) fn detach(&mut self, number: u64) -> bool {
        let Some(attached) = &mut self.attached else {
            return false;
        };
        // The last one is still needed.
        if attached
            .handles
            .iter()
            .any(|handle| handle.number != number)
        {
            attached.handles.retain(|handle| handle.number != number);
            return false;
        }
        let before = epoch::now();
        self.reach();
        self.event();
        self.end(before);
        self.poll();
        true
    }

    /// No stream is attached from now on. What was submitted before this epoch is still waited for.
    fn end(&mut self, before: u64) {
        let Some(attached) = self.attached.take() else {
            return;
        };
        let is_recorded = self.is_recorded(before);
        self.unrecorded = (!is_recorded).then(|| UnrecordedEnd {
            progress: Arc::clone(attached.context.progress()),
            epoch: before,
        });
    }

    /// Whether what was submitted before this epoch is done, or lies before an event.
    fn is_recorded(&self, before: u64) -> bool {
        self.recorded() >= before
    }

    /// Notes what waits of the program have shown. No driver call.
    pub(super) fn note_waits(&mut self) {
        if let Some(attached) = &self.attached {
            self.advance(attached.seen());
        }
        let unrecorded = self.unrecorded.as_ref();
        if unrecorded.is_some_and(|last| last.progress.done() >= last.epoch) {
            self.unrecorded = None;
            self.events.out.clear();
            self.done = u64::MAX;
        }
    }

    /// What is done, as events and the waits of the program tell.
    pub(super) fn poll(&mut self) -> u64 {
        self.note_waits();
        if !self.reach() {
            return self.done;
        }
        if self.attached.is_none() && self.unrecorded.is_none() {
            self.done = u64::MAX;
            // They would keep their context alive.
            self.events.spare.clear();
        }
        self.done
    }

    /// Finds the last event that is reached. Returns whether all are.
    fn reach(&mut self) -> bool {
        while let Some(first) = self.events.out.front() {
            self.calls.count(1);
            match first.ask() {
                Asked::Busy => return false,
                // Later events may be of another context.
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
        if let Some(first) = self.events.out.front() {
            self.done = first.epoch;
            self.events.reuse_first();
        }
    }

    /// How many events are reached, if the first is. They are reached in order, so few have to be queried.
    fn reached_behind_first(&self) -> usize {
        let out = &self.events.out;
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

    /// What was freed in this epoch or an earlier one is done.
    fn advance(&mut self, epoch: u64) {
        if epoch <= self.done {
            return;
        }
        self.done = epoch;
        let out = &self.events.out;
        let reached = out.iter().take_while(|event| event.epoch <= epoch).count();
        (0..reached).for_each(|_| self.events.reuse_first());
    }

    /// Finds out what is done, and records an event if none lies behind what was freed in this epoch. Skips most
    /// queries of a stream that is always busy: returns whether it made this one.
    pub(super) fn query(&mut self, epoch: u64) -> bool {
        if self.rest > 0 {
            self.rest -= 1;
            return false;
        }
        let before = self.done;
        self.query_now(epoch);
        if self.done > before {
            self.vain = 0;
        } else {
            self.vain = (self.vain + 1).min(LONGEST_REST);
            self.rest = (1 << self.vain) - 2;
        }
        true
    }

    /// As [`query`](Self::query), and never skips.
    pub(super) fn query_now(&mut self, epoch: u64) {
        let look = |progress: &mut Self| {
            progress.poll();
            if !progress.is_recorded(epoch) {
                progress.event();
            }
        };
        let context = self
            .attached
            .as_ref()
            .map(|attached| attached.context.clone());
        match context {
            // All calls in one relaxed section. Where they cannot be made, nothing is known.
            Some(context) => drop(harmlessly(&context, || {
                look(self);
                Ok(())
            })),
            None => look(self),
        }
    }

    /// Records an event without a query.
    pub(super) fn record_batch(&mut self) {
        if let Some(stream) = self.attached.as_ref().and_then(AttachedStream::view) {
            self.calls.count(1);
            self.events.set(stream, epoch::take(), &self.calls);
        }
    }

    /// Queries the stream, and records an event if it is busy. Where neither is possible, nothing is known.
    fn event(&mut self) {
        let Some(stream) = self.attached.as_ref().and_then(AttachedStream::view) else {
            return;
        };
        let epoch = epoch::take();
        if !self.events.out.is_empty() {
            // It was busy at the last query.
            self.calls.count(1);
            self.events.set(stream, epoch, &self.calls);
            return;
        }
        self.calls.count(2);
        match ask(stream.context(), || stream.is_done()) {
            Asked::Done => self.advance(epoch),
            Asked::Ended => {
                self.reach();
                // The others are of another context, of a stream that was attached before.
                if self.events.out.is_empty() {
                    self.advance(epoch);
                }
            }
            Asked::Busy => self.events.set(stream, epoch, &self.calls),
        }
    }

    /// Makes a stream wait for what was freed in this epoch or earlier ones. Returns the epoch up to which it comes
    /// after this stream, or nothing if it does not.
    pub(super) fn make_wait(&mut self, stream: &Stream, epoch: u64) -> Result<Option<u64>> {
        if !self.is_recorded(epoch) {
            self.event();
        }
        if self.done >= epoch {
            return Ok(Some(epoch));
        }
        match self.events.out.iter().find(|event| event.epoch >= epoch) {
            Some(event) => self.wait(event, stream).map(Some),
            None => Ok(None),
        }
    }

    /// Makes a stream wait for all work of the stream that ended. Returns whether it comes after that.
    pub(super) fn make_wait_for_end(&self, stream: &Stream) -> Result<bool> {
        match self.events.out.back() {
            Some(event) if self.unrecorded.is_none() => self.wait(event, stream).map(|_| true),
            _ => Ok(false),
        }
    }

    fn wait(&self, event: &RecordedEvent, stream: &Stream) -> Result<u64> {
        self.calls.count(1);
        event.make_wait(stream)?;
        self.calls.waits.fetch_add(1, Ordering::Relaxed);
        Ok(event.epoch)
    }

    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// What was freed in this epoch or an earlier one lies before an event, or is done.
    pub(super) fn recorded(&self) -> u64 {
        self.events.last().unwrap_or(0).max(self.done)
    }

    /// Whether all work is done that was submitted before this epoch, in which the arena ended. A query that cannot be
    /// made now is made the next time.
    pub(super) fn is_over(&mut self, ended: u64) -> bool {
        if let Some(attached) = self.attached.as_ref().filter(|_| !self.is_recorded(ended)) {
            // Default streams do not end. Others are kept alive by a handle during the query.
            let mut handles = attached.handles.iter();
            let kept = handles.find_map(|handle| handle.weak.upgrade());
            if kept.is_some() || is_default(attached.raw) {
                self.event();
            } else {
                self.end(ended);
            }
        }
        self.poll() >= ended
    }
}
