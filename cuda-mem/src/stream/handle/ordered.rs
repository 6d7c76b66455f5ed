//! Releases in the order of a stream, made as soon as no capture forbids them.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_driver_sys::CUstream;

use super::{Inner, Owner, Stream, StreamRef, WeakStream, is_default};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::report;
use crate::driver::raw;
use crate::stream::context::Context;
use crate::stream::deferred::{self, After, Deferred, Order, Outcome, ResourceCall};
use crate::stream::epoch;
use crate::stream::name::StreamName;

/// Something that a stream used, to be released in its order.
pub(crate) trait OrderedRelease: Send {
    /// Whether the release waits for the stream on the host.
    fn waits_for_stream(&self) -> bool;

    /// Whether the release waits for all work of the device.
    fn waits_for_device(&self) -> bool {
        false
    }

    /// An error of kind [`ErrorKind::Capturing`], or one that [is held up](crate::Error::is_held_up), if it cannot be done yet.
    /// `handle` is of the same stream, and may be kept; `None` while the last one is being dropped.
    fn release(&mut self, stream: StreamRef<'_>, handle: Option<&Stream>) -> Result<()>;

    /// It cannot be released because of this, and there will be no further attempt.
    fn abandon(&mut self, _failure: &Error) {}
}

impl Stream {
    /// Releases something once the stream is no longer captured.
    #[cold]
    pub(crate) fn release_later(&self, object: impl OrderedRelease + 'static) {
        self.0.deferred.0.fetch_add(1, Ordering::Relaxed);
        let order = self.0.order();
        let default = match order {
            Order::Stream(_) => None,
            Order::Default(name) => {
                OF_DEFAULT_STREAMS.fetch_add(1, Ordering::Relaxed);
                Some(name)
            }
        };
        let deferred = Ordered {
            object: Box::new(object),
            stream: self.downgrade(),
            default,
            context: self.context().clone(),
            since: epoch::now(),
            has_failed: false,
        };
        deferred::defer_in_order(order, Box::new(deferred));
    }

    /// Releases what had to wait, if there is anything. One load if not.
    #[inline]
    pub(crate) fn release_deferred(&self) {
        self.release_deferred_after(After::Call);
    }

    /// As [`release_deferred`](Self::release_deferred), and what may be released only after a wait.
    #[inline]
    pub(crate) fn release_deferred_after(&self, after: After) {
        if self.0.deferred.0.load(Ordering::Relaxed) > 0 {
            self.release_now(after);
        }
    }

    #[cold]
    fn release_now(&self, after: After) {
        let order = self.0.order();
        let is_default = matches!(order, Order::Default(_));
        if !is_default || OF_DEFAULT_STREAMS.load(Ordering::Relaxed) > 0 {
            deferred::poll_stream(order, after);
        }
    }
}

impl Inner {
    fn order(&self) -> Order {
        if is_default(self.raw) {
            Order::Default(self.view().name())
        } else {
            Order::Stream(self.drop_observers.number)
        }
    }
}

/// The number of releases that wait for a stream, deferred by this handle. Nearly always zero, but one more for a
/// default stream: other handles of it may have deferred something.
pub(super) struct Count(AtomicUsize);

impl Count {
    pub(super) fn new(stream: CUstream) -> Self {
        Self(AtomicUsize::new(Self::least(stream)))
    }

    fn least(stream: CUstream) -> usize {
        usize::from(is_default(stream))
    }
}

/// The number of releases that wait for default streams.
static OF_DEFAULT_STREAMS: AtomicUsize = AtomicUsize::new(0);

/// What waits in the queue.
struct Ordered {
    object: Box<dyn OrderedRelease>,
    stream: WeakStream,
    /// Which default stream, if it is one.
    default: Option<StreamName>,
    context: Context,
    /// Since when nothing uses it that the stream did not have then.
    since: u64,
    /// The last try failed before anything was released.
    has_failed: bool,
}

impl Ordered {
    fn release(&mut self, stream: StreamRef<'_>, handle: Option<&Stream>) -> Outcome {
        match self.object.release(stream, handle) {
            Ok(()) => Outcome::Done,
            Err(error) if error.kind() == ErrorKind::Capturing || error.is_held_up() => {
                Outcome::NotYet
            }
            Err(error) if !error.was_tried() => self.no_answer(error),
            Err(error) => self.give_up(error),
        }
    }

    fn give_up(&mut self, error: Error) -> Outcome {
        self.object.abandon(&error);
        Outcome::GivenUp(error)
    }

    /// The stream gives no answer, or cannot be waited for. That is reported once. A context that is lost never gives one.
    fn no_answer(&mut self, error: Error) -> Outcome {
        if !std::mem::replace(&mut self.has_failed, true) {
            return Outcome::Again(error);
        }
        if error.kind().is_of_lost_context() {
            return self.give_up(error);
        }
        Outcome::NotYet
    }

    /// Nothing can be ordered with the stream: it has ended, or is another thread's own. After a caller has waited for
    /// its whole context, this thread's own stream serves as well.
    fn release_past_stream(&mut self) -> Outcome {
        let own = self.context.per_thread_stream();
        if self.context.progress().done() < self.since {
            // Nothing can be learned from the stream. If the context is lost, this thread's own stream tells.
            return match own.as_ref().is_done_unless_captured() {
                Err(error) if error.kind().is_of_lost_context() => self.no_answer(error),
                _ => Outcome::NotYet,
            };
        }
        self.release(own.as_ref(), Some(&own))
    }

    /// A new handle of the stream, if it is a default stream that this thread can use: those end with their context.
    fn named_again(&self) -> Option<Stream> {
        match self.default?.thread {
            None => Some(self.context.legacy_stream()),
            Some(thread) if thread == std::thread::current().id() => {
                Some(self.context.per_thread_stream())
            }
            Some(_) => None,
        }
    }

    fn try_in_order(&mut self, handle: &Stream) -> Outcome {
        let stream = handle.as_ref();
        if stream.is_foreign() {
            return self.release_past_stream();
        }
        if self.object.waits_for_stream() {
            match stream.is_done_unless_captured() {
                Ok(true) => {}
                Ok(false) => {
                    self.has_failed = false;
                    return Outcome::NotYet;
                }
                Err(error) if error.kind() == ErrorKind::Capturing => return Outcome::NotYet,
                Err(error) => return self.no_answer(error),
            }
        }
        self.release(stream, Some(handle))
    }
}

impl Deferred for Ordered {
    fn name(&self) -> &'static str {
        "buffer"
    }

    fn waits_for_device(&self) -> bool {
        self.object.waits_for_device()
    }

    fn try_release(&mut self) -> Outcome {
        let Some(stream) = self.stream.upgrade() else {
            return match self.named_again() {
                Some(stream) => self.try_in_order(&stream),
                None => self.release_past_stream(),
            };
        };
        let outcome = self.try_in_order(&stream);
        if matches!(outcome, Outcome::Done | Outcome::GivenUp(_)) {
            stream.0.deferred.0.fetch_sub(1, Ordering::Relaxed);
        }
        outcome
    }
}

impl Drop for Ordered {
    fn drop(&mut self) {
        if self.default.is_some() {
            OF_DEFAULT_STREAMS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The last handle of a stream is gone. If this crate destroys the stream, a capture of it ends with it, so the
/// capture is ended first: then the releases are possible, in order.
#[cold]
pub(super) fn release_at_last(inner: &Inner) {
    let has_any = inner.deferred.0.load(Ordering::Relaxed) > Count::least(inner.raw);
    if !has_any || ResourceCall::is_running() {
        return;
    }
    end_capture(inner);
    let stream = inner.view();
    // The stream itself is waited for, too.
    deferred::release_in_order(inner.order(), After::Wait, |deferred| {
        let deferred: &mut dyn Any = deferred;
        match deferred.downcast_mut::<Ordered>() {
            Some(ordered) => ordered.release(stream, None),
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
