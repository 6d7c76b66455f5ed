//! The progress of a stream: events recorded in it, and what the host knows to be done.

use std::sync::Arc;

use super::attached_stream::AttachedStream;
use super::page_map::CacheId;
use super::recorded_events::{
    Asked, DriverCalls, Loss, RecordedEvents, ask, with_relaxed_capture_mode,
};
use crate::base::error::Result;
use crate::stream::Stream;
use crate::stream::context::Context;
use crate::stream::epoch::{self, Progress};

/// A stream that ended without a recorded event. A later wait for its context shows that it is done.
#[derive(Debug)]
struct UnrecordedEnd {
    progress: Arc<Progress>,
    epoch: u64,
}

#[derive(Debug)]
pub(super) struct StreamProgress {
    calls: Arc<DriverCalls>,
    attached: Option<AttachedStream>,
    events: RecordedEvents,
    /// Frees of this epoch or an earlier one are done.
    done: u64,
    /// The stream that was attached last, if no event could be recorded at its end.
    unrecorded: Option<UnrecordedEnd>,
    /// What the last question about the stream told.
    loss: Option<Loss>,
    /// Fruitless queries in a row, and how many queries are still to be skipped.
    vain: u32,
    rest: u32,
    /// By cache: this stream was made to wait for that stream's frees up to this epoch.
    after: Vec<u64>,
}

/// After fruitless queries, at most 2 to this power are skipped.
const LONGEST_REST: u32 = 6;

impl StreamProgress {
    pub(super) fn new(calls: &Arc<DriverCalls>) -> Self {
        Self {
            calls: Arc::clone(calls),
            attached: None,
            events: RecordedEvents::default(),
            done: 0,
            unrecorded: None,
            loss: None,
            vain: 0,
            rest: 0,
            after: Vec::new(),
        }
    }

    /// Attaches a handle of a stream; other handles of it may already be attached. `is_same` if no other stream was
    /// attached before.
    pub(super) fn attach(&mut self, stream: &Stream, is_same: bool) {
        if let Some(attached) = self.attached.as_mut().filter(|_| is_same) {
            attached.add(stream);
            return;
        }
        if is_same {
            // Events recorded from now on come after its end.
            self.unrecorded = None;
        }
        if self.done == u64::MAX {
            // No stream was attached, and all earlier work is done. A new epoch begins, to distinguish blocks freed
            // from now on from earlier ones.
            self.done = epoch::take();
        }
        self.attached = Some(AttachedStream::new(stream));
        // Spare events belong to a context.
        self.events.clear_spare();
        self.after.clear();
    }

    /// Whether the stream is ordered after what another cache's stream freed in this epoch.
    pub(super) fn is_after(&self, cache: CacheId, epoch: u64) -> bool {
        self.after
            .get(cache as usize)
            .is_some_and(|after| *after >= epoch)
    }

    /// Notes that the stream was made to wait for the frees of another cache's stream up to this epoch.
    pub(super) fn comes_after(&mut self, cache: CacheId, epoch: u64) {
        let at = cache as usize;
        if self.after.len() <= at {
            self.after.resize(at + 1, 0);
        }
        self.after[at] = self.after[at].max(epoch);
    }

    /// Detaches a handle that is being dropped. Returns whether it was the last. Nothing is then submitted after the
    /// event recorded here, unless the stream is attached again.
    pub(super) fn detach(&mut self, number: u64) -> bool {
        let Some(attached) = &mut self.attached else {
            return false;
        };
        if attached.remove(number) {
            return false;
        }
        let before = epoch::now();
        self.reach();
        self.query_or_record();
        self.end(before);
        self.poll();
        true
    }

    /// Detaches the stream. Work submitted before this epoch is still waited for.
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

    /// Whether work submitted before this epoch is done or precedes a recorded event.
    fn is_recorded(&self, before: u64) -> bool {
        self.recorded() >= before
    }

    /// Notes the progress that the program's own waits have shown. No driver call.
    pub(super) fn note_waits(&mut self) {
        if let Some(attached) = &self.attached {
            self.advance(attached.seen());
        }
        let unrecorded = self.unrecorded.as_ref();
        if unrecorded.is_some_and(|last| last.progress.done() >= last.epoch) {
            self.unrecorded = None;
            self.events.clear();
            self.done = u64::MAX;
        }
    }

    /// Returns the epoch that is done, as shown by events and the program's own waits.
    pub(super) fn poll(&mut self) -> u64 {
        self.note_waits();
        if !self.reach() {
            return self.done;
        }
        if self.attached.is_none() && self.unrecorded.is_none() {
            self.done = u64::MAX;
            // Spare events would keep their context alive.
            self.events.clear_spare();
        }
        self.done
    }

    /// Finds the last event that is reached. Returns whether all events are reached.
    fn reach(&mut self) -> bool {
        if let Some(epoch) = self.events.reach(&self.calls) {
            self.done = epoch;
        }
        self.events.is_empty()
    }

    /// Frees of this epoch or an earlier one are done.
    fn advance(&mut self, epoch: u64) {
        if epoch <= self.done {
            return;
        }
        self.done = epoch;
        self.events.pass(epoch);
    }

    /// Finds out what is done, and records an event if none covers the frees of this epoch. Skips most queries of a
    /// stream that is always busy. Returns whether it made this one.
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

    /// As [`query`](Self::query), but never skips.
    pub(super) fn query_now(&mut self, epoch: u64) {
        let look = |progress: &mut Self| {
            progress.poll();
            if !progress.is_recorded(epoch) {
                progress.query_or_record();
            }
        };
        let context = self
            .attached
            .as_ref()
            .map(|attached| attached.context.clone());
        match context {
            // All calls in one relaxed section. If they cannot be made, nothing is learned.
            Some(context) => drop(with_relaxed_capture_mode(&context, || {
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
            self.events.record(stream, epoch::take(), &self.calls);
        }
    }

    /// Queries the stream, and records an event if it is busy. If neither is possible, nothing is learned.
    fn query_or_record(&mut self) {
        let Some(stream) = self.attached.as_ref().and_then(AttachedStream::view) else {
            return;
        };
        let epoch = epoch::take();
        if !self.events.is_empty() {
            // It was busy at the last query.
            self.calls.count(1);
            self.events.record(stream, epoch, &self.calls);
            return;
        }
        self.calls.count(2);
        self.loss = None;
        match ask(stream.context(), || stream.is_done()) {
            Asked::Done | Asked::Ended => self.advance(epoch),
            Asked::Lost(loss) => self.loss = Some(loss),
            Asked::Busy => self.events.record(stream, epoch, &self.calls),
        }
    }

    /// Makes a stream wait for the frees of this epoch or earlier ones. Returns the epoch up to which it is ordered
    /// after this stream; `None` if it is not.
    pub(super) fn make_wait(&mut self, stream: &Stream, epoch: u64) -> Result<Option<u64>> {
        if !self.is_recorded(epoch) {
            self.query_or_record();
        }
        if self.done >= epoch {
            return Ok(Some(epoch));
        }
        self.events.make_wait(stream, epoch, &self.calls)
    }

    /// Makes a stream wait for all work of the stream that ended. Returns whether it is ordered after that work.
    pub(super) fn make_wait_for_end(&self, stream: &Stream) -> Result<bool> {
        match self.events.last() {
            Some(last) if self.unrecorded.is_none() => {
                let waits = self.events.make_wait(stream, last, &self.calls)?;
                Ok(waits.is_some())
            }
            _ => Ok(false),
        }
    }

    /// Whether only the program's waits show progress, because this thread cannot query the stream.
    pub(super) fn is_foreign(&self) -> bool {
        self.attached
            .as_ref()
            .is_some_and(AttachedStream::is_foreign)
    }

    /// The driver's handle of the attached stream, as a number.
    pub(super) fn handle(&self) -> Option<u64> {
        self.attached.as_ref().map(AttachedStream::handle)
    }

    /// The context of the attached stream.
    pub(super) fn context(&self) -> Option<&Context> {
        self.attached.as_ref().map(|attached| &attached.context)
    }

    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Frees of this epoch or an earlier one precede a recorded event or are done.
    pub(super) fn recorded(&self) -> u64 {
        self.events.last().unwrap_or(0).max(self.done)
    }

    /// If work submitted before this epoch is not known to be done, queries the stream or records an event after that
    /// work.
    pub(super) fn record_before(&mut self, epoch: u64) {
        self.note_waits();
        if !self.is_recorded(epoch) {
            self.query_or_record();
        }
    }

    /// This thread cannot ask the stream, but its own stream tells whether their context is lost.
    fn ask_whether_lost(&mut self) {
        let own = self.context().map(Context::per_thread_stream);
        self.loss = own.and_then(|own| {
            match ask(own.context(), || own.as_ref().is_done_unless_captured()) {
                Asked::Lost(loss) => Some(loss),
                _ => None,
            }
        });
    }

    /// Why it is not known, and never will be, how far the stream is.
    pub(super) fn loss(&self) -> Option<Loss> {
        self.loss.or_else(|| self.events.loss())
    }

    /// Whether all work submitted before `ended`, the epoch in which the arena ended, is done. A query that cannot be
    /// made now is made next time.
    pub(super) fn is_over(&mut self, ended: u64) -> bool {
        if let Some(attached) = self.attached.as_ref().filter(|_| !self.is_recorded(ended)) {
            // A handle keeps the stream alive during the query.
            match attached.keep() {
                Some(_kept) if attached.is_foreign() => self.ask_whether_lost(),
                Some(_kept) => self.query_or_record(),
                None => self.end(ended),
            }
        }
        self.poll() >= ended
    }
}
