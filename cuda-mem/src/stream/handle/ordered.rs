//! Releases in the order of a stream, made as soon as no capture forbids them.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Inner, Owner, Stream, StreamRef, WeakStream};
use crate::base::error::{ErrorKind, Result};
use crate::base::report;
use crate::driver::raw;
use crate::stream::context::Context;
use crate::stream::deferred::{self, Deferred, Outcome, ResourceCall};
use crate::stream::epoch;

/// Something that a stream used, to be released in its order.
pub(crate) trait OrderedRelease: Send {
    /// Whether the release waits for the stream on the host.
    fn waits_for_stream(&self) -> bool;

    /// An error of kind [`ErrorKind::Capturing`], or one that [is held up](crate::Error::is_held_up), if it cannot be done yet.
    fn release(&mut self, stream: StreamRef<'_>) -> Result<()>;
}

impl Stream {
    /// Releases something once the stream is no longer captured.
    #[cold]
    pub(crate) fn release_later(&self, object: impl OrderedRelease + 'static) {
        self.0.deferred.fetch_add(1, Ordering::Relaxed);
        let deferred = Ordered {
            object: Box::new(object),
            stream: self.downgrade(),
            context: self.context().clone(),
            since: epoch::now(),
        };
        deferred::defer_in_order(self.number(), Box::new(deferred));
    }

    /// Releases what had to wait, if there is anything. One load if not.
    #[inline]
    pub(crate) fn release_deferred(&self) {
        if self.0.deferred.load(Ordering::Relaxed) > 0 {
            deferred::poll_stream(self.number());
        }
    }
}

/// The number of releases that wait for a stream. Nearly always zero.
pub(super) type Count = AtomicUsize;

/// What waits in the queue.
struct Ordered {
    object: Box<dyn OrderedRelease>,
    stream: WeakStream,
    context: Context,
    /// Since when nothing uses it that the stream did not have then.
    since: u64,
}

impl Ordered {
    fn release(&mut self, stream: StreamRef<'_>) -> Outcome {
        match self.object.release(stream) {
            Ok(()) => Outcome::Done,
            Err(error) if error.kind() == ErrorKind::Capturing || error.is_held_up() => {
                Outcome::NotYet
            }
            Err(error) => Outcome::GivenUp(error),
        }
    }

    /// Nothing can be ordered with the stream: it has ended, or is another thread's own. After a caller has waited for
    /// its whole context, this thread's own stream serves as well.
    fn release_past_stream(&mut self) -> Outcome {
        if self.context.progress().done() < self.since {
            return Outcome::NotYet;
        }
        let own = self.context.per_thread_stream();
        self.release(own.as_ref())
    }

    fn try_in_order(&mut self, stream: StreamRef<'_>) -> Outcome {
        if stream.is_foreign() {
            return self.release_past_stream();
        }
        if self.object.waits_for_stream() {
            match stream.is_done_unless_captured() {
                Ok(true) => {}
                Ok(false) => return Outcome::NotYet,
                Err(error) if error.kind() == ErrorKind::Capturing => return Outcome::NotYet,
                Err(error) => return Outcome::Again(error),
            }
        }
        self.release(stream)
    }
}

impl Deferred for Ordered {
    fn name(&self) -> &'static str {
        "buffer"
    }

    fn try_release(&mut self) -> Outcome {
        let Some(stream) = self.stream.upgrade() else {
            return self.release_past_stream();
        };
        let outcome = self.try_in_order(stream.as_ref());
        if matches!(outcome, Outcome::Done | Outcome::GivenUp(_)) {
            stream.0.deferred.fetch_sub(1, Ordering::Relaxed);
        }
        outcome
    }
}

/// The last handle of a stream is gone. If this crate destroys the stream, a capture of it ends with it, so the
/// capture is ended first: then the releases are possible, in order.
#[cold]
pub(super) fn release_at_last(inner: &Inner) {
    if inner.deferred.load(Ordering::Relaxed) == 0 || ResourceCall::is_running() {
        return;
    }
    end_capture(inner);
    let stream = inner.view();
    deferred::release_in_order(inner.drop_observers.number, |deferred| {
        let deferred: &mut dyn Any = deferred;
        match deferred.downcast_mut::<Ordered>() {
            Some(ordered) => ordered.release(stream),
            None => Outcome::NotYet,
        }
    });
}

/// Ends the capture of a stream that this crate owns. No code can still want its graph.
#[cold]
pub(super) fn end_capture(inner: &Inner) {
    if !matches!(inner.owner, Owner::Us) {
        return;
    }
    // The stream is destroyed only after this.
    let stream = inner.view();
    if !stream.is_captured() {
        return;
    }
    // SAFETY: nobody can use the stream any more. An error ends the capture as well (measured).
    if let Ok(graph) = unsafe { stream.end_capture() } {
        let table = inner.context.driver().table();
        // SAFETY: the graph was handed out just now.
        report::release("graph", || unsafe { raw::graph::destroy(table, graph) });
    }
}
