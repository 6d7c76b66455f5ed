//! Frees that had to wait because somebody captures the stream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Inner, Owner, Stream, StreamRef};
use crate::context::Context;
use crate::deferred::{self, Deferred, Outcome, ResourceCall};
use crate::error::{ErrorKind, Result};
use crate::{raw, recording, report};

/// Something to be given back in the order of a stream, as soon as that can be done.
pub(crate) trait Later: Send + Sync {
    /// An error of kind [`ErrorKind::Capturing`] if it cannot be done yet.
    fn give_back(&self, stream: StreamRef<'_>) -> Result<()>;
}

/// What waits. Almost always nothing, and then it costs one relaxed load to know that.
#[derive(Default)]
pub(super) struct Waiting {
    any: AtomicBool,
    list: Mutex<Vec<Box<dyn Later>>>,
}

impl Waiting {
    #[inline]
    fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn push(&self, later: Box<dyn Later>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(later);
        self.any.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> Vec<Box<dyn Later>> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut list)
    }
}

impl Stream {
    /// Keeps something until the stream is not captured any more.
    #[cold]
    pub(crate) fn give_back_later(&self, later: Box<dyn Later>) {
        self.0.waiting.push(later);
    }

    /// Gives back what waits, if anything does.
    #[inline]
    pub(crate) fn give_back_waiting(&self) {
        if self.0.waiting.any() && !ResourceCall::is_running() {
            give_back(&self.0, true);
        }
    }
}

/// Gives back what can be; the rest goes on waiting, or is reported if it may not.
#[cold]
fn give_back(inner: &Inner, may_wait: bool) {
    let stream = inner.view();
    for later in inner.waiting.take() {
        match later.give_back(stream) {
            Err(error) if may_wait && error.kind() == ErrorKind::Capturing => {
                inner.waiting.push(later);
            }
            Err(error) if stream.is_elsewhere() && error.kind() == ErrorKind::Capturing => {
                deferred::defer(Box::new(Left {
                    later,
                    context: inner.context.clone(),
                    is_over: false,
                }));
            }
            Err(error) => report::failed("buffer", &error),
            Ok(()) => {}
        }
    }
}

/// What waits for another thread's own stream whose last handle is gone. Nothing can be ordered with that stream,
/// so all of its context is waited for, when no capture suffers from it.
struct Left {
    later: Box<dyn Later>,
    context: Context,
    /// The context was waited for.
    is_over: bool,
}

impl Deferred for Left {
    fn name(&self) -> &'static str {
        "buffer"
    }

    fn try_release(&mut self) -> Outcome {
        if recording::any() {
            return Outcome::NotYet;
        }
        let wait = || {
            let _current = self.context.bind()?;
            // SAFETY: this context is current.
            unsafe { raw::context::synchronize(self.context.driver().table()) }
        };
        match wait() {
            Ok(()) => {
                self.is_over = true;
                Outcome::Done
            }
            Err(error) => Outcome::GivenUp(error),
        }
    }
}

/// Not when it is waited for: what is given back may be the last of something that is looked at in the same way.
impl Drop for Left {
    fn drop(&mut self) {
        if self.is_over {
            // After the wait this thread's own stream serves as well.
            let own = self.context.per_thread_stream();
            report::release("buffer", || self.later.give_back(own.as_ref()));
        }
    }
}

/// The last handle of a stream is gone. A capture of a stream that is ours to destroy ends with it, so
/// it is ended first: then the frees are possible, in order.
#[cold]
pub(super) fn give_back_at_last(inner: &Inner) {
    // In a fork what waits is the parent's.
    if !inner.waiting.any() || report::is_forked() {
        return;
    }
    let table = inner.context.driver().table();
    // SAFETY: the stream is destroyed only after this.
    let is_captured = unsafe { recording::is_captured(table, inner.raw) };
    if is_captured && matches!(inner.owner, Owner::Us) {
        // SAFETY: nobody can use the stream any more, so nobody can want its graph. An error ends the
        // capture as well (measured).
        if let Ok(graph) = unsafe { recording::end(table, inner.raw) } {
            // SAFETY: the graph was handed out just now.
            report::release("graph", || unsafe { raw::graph::destroy(table, graph) });
        }
    }
    give_back(inner, false);
}
