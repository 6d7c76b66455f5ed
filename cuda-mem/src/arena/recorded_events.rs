//! Queries, and the events recorded in a stream.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_driver_sys::CUresult;

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::telemetry;
use crate::stream::context::Context;
use crate::stream::event::Event;
use crate::stream::recording;
use crate::stream::{Stream, StreamRef};

/// Driver calls for queries and events.
#[derive(Debug, Default)]
pub(super) struct DriverCalls {
    pub(super) calls: AtomicU64,
    /// How often a stream was made to wait for another one.
    pub(super) waits: AtomicU64,
}

impl DriverCalls {
    pub(super) fn count(&self, calls: u64) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
    }
}

/// Runs a call in relaxed capture mode, so that it cannot invalidate a capture of another stream (R110), which may be
/// another library's.
pub(super) fn with_relaxed_capture_mode<T>(
    context: &Context,
    call: impl FnOnce() -> Result<T>,
) -> Result<T> {
    recording::with_relaxed_capture_mode(context.driver().table(), call)
}

/// The answer to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Done,
    /// Not done, or not known.
    Busy,
    /// Its context was destroyed, and its work with it.
    Ended,
    /// Its context is lost, or the driver has shut down: there is no answer, now or later.
    Lost(Loss),
}

/// How a driver says that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    function: &'static str,
    code: CUresult,
}

impl Loss {
    fn of(error: &Error) -> Option<Self> {
        let kind = error.kind();
        let is_loss = kind.is_of_lost_context() || kind == ErrorKind::Deinitialized;
        let (function, code) = (error.function()?, error.code()?);
        is_loss.then_some(Self { function, code })
    }

    pub(super) fn error(self) -> Error {
        Error::driver(self.function, self.code)
    }
}

pub(super) fn ask(context: &Context, is_done: impl FnOnce() -> Result<bool>) -> Asked {
    match with_relaxed_capture_mode(context, is_done) {
        Ok(true) => Asked::Done,
        Err(error) if error.kind().is_of_ended_context() => Asked::Ended,
        Ok(false) => Asked::Busy,
        Err(error) => Loss::of(&error).map_or(Asked::Busy, Asked::Lost),
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
}

/// The events recorded in a stream.
#[derive(Debug, Default)]
pub(super) struct RecordedEvents {
    /// Not known to be reached, in the order of their epochs.
    pending: VecDeque<RecordedEvent>,
    /// For reuse.
    spare: Vec<Event>,
    /// What the last question about an event told.
    loss: Option<Loss>,
}

/// The most events that are kept for reuse.
const SPARE: usize = PENDING;
/// The most pending events. With one more, every second one is given up.
const PENDING: usize = 64;

impl RecordedEvents {
    /// Records an event in this epoch.
    pub(super) fn record(&mut self, stream: StreamRef<'_>, epoch: u64, calls: &DriverCalls) {
        if self.pending.len() >= PENDING {
            self.thin_out();
        }
        let context = stream.context();
        let ours = |event: &Event| event.context().as_raw() == context.as_raw();
        let event = match self.spare.pop().filter(ours) {
            Some(event) => Ok(event),
            None => with_relaxed_capture_mode(context, || context.event()),
        };
        calls.count(1);
        if let Ok(event) = event
            && with_relaxed_capture_mode(context, || event.record(stream)).is_ok()
        {
            let context = context.clone();
            self.pending.push_back(RecordedEvent {
                epoch,
                event,
                context,
            });
        }
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.loss
    }

    /// Gives up every second event; the last one stays.
    fn thin_out(&mut self) {
        let len = self.pending.len();
        for (place, event) in std::mem::take(&mut self.pending).into_iter().enumerate() {
            if (len - place) % 2 == 1 {
                self.pending.push_back(event);
            } else {
                self.keep(event.event);
            }
        }
    }

    /// Finds the last event that is reached, and returns its epoch.
    pub(super) fn reach(&mut self, calls: &DriverCalls) -> Option<u64> {
        let mut last = None;
        self.loss = None;
        while let Some(first) = self.pending.front() {
            calls.count(1);
            let reached = match first.ask() {
                Asked::Busy => break,
                Asked::Lost(loss) => {
                    self.loss = Some(loss);
                    break;
                }
                // Later events may be of another context.
                Asked::Ended => 1,
                Asked::Done => self.reached_behind_first(calls),
            };
            (0..reached).for_each(|_| last = self.reuse_first().or(last));
        }
        last
    }

    /// How many events are reached, given that the first is. Events are reached in order, so a binary search queries
    /// few.
    fn reached_behind_first(&self, calls: &DriverCalls) -> usize {
        let is_done = |place: usize| {
            calls.count(1);
            self.pending[place].ask() == Asked::Done
        };
        let (mut reached, mut all) = (1, self.pending.len());
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

    /// Removes the events up to this epoch: something else has shown that the stream is past it.
    pub(super) fn pass(&mut self, epoch: u64) {
        while self
            .pending
            .front()
            .is_some_and(|event| event.epoch <= epoch)
        {
            self.reuse_first();
        }
    }

    /// Removes the first event, and returns its epoch.
    fn reuse_first(&mut self) -> Option<u64> {
        let first = self.pending.pop_front()?;
        self.keep(first.event);
        Some(first.epoch)
    }

    fn keep(&mut self, event: Event) {
        if self.spare.len() < SPARE {
            self.spare.push(event);
        }
    }

    /// Makes a stream wait for the first event of this epoch or a later one. Returns its epoch; `None` if there is no
    /// such event.
    pub(super) fn make_wait(
        &self,
        stream: &Stream,
        epoch: u64,
        calls: &DriverCalls,
    ) -> Result<Option<u64>> {
        let Some(event) = self.pending.iter().find(|event| event.epoch >= epoch) else {
            return Ok(None);
        };
        telemetry::event!(TRACE, stream = %stream, "a stream waits for memory freed on another");
        calls.count(1);
        with_relaxed_capture_mode(&event.context, || stream.wait_event(&event.event))?;
        calls.waits.fetch_add(1, Ordering::Relaxed);
        Ok(Some(event.epoch))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The epoch of the last event.
    pub(super) fn last(&self) -> Option<u64> {
        self.pending.back().map(|event| event.epoch)
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    /// Spare events keep their context alive.
    pub(super) fn clear_spare(&mut self) {
        self.spare.clear();
    }
}
