//! What a communicator's lock guards.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread::ThreadId;

use cuda_driver_sys::CU_STREAM_PER_THREAD;
use cuda_driver_sys::nccl::ncclComm_t;

use super::registration::Windows;
use crate::base::error::{Error, ErrorKind, Result};
use crate::stream::Stream;
use crate::stream::epoch::{self, Progress};

pub(super) struct State {
    /// `None` once it has been aborted or destroyed. Any thread may use it, one at a time: `State` is behind a lock.
    raw: Option<AtomicPtr<c_void>>,
    /// Why it only refuses.
    failure: Option<(ErrorKind, String)>,
    pub(super) windows: Windows,
    /// The last operation in each stream that the host may not have seen done.
    last: Vec<LastOperation>,
    /// Launches of graphs with its operations that threads are making.
    pub(super) launches: usize,
}

struct LastOperation {
    stream: Arc<Progress>,
    /// Not known of a graph's launch.
    name: Option<Name>,
    epoch: u64,
}

/// Which stream it is, whatever handle of this crate it was named by.
#[derive(Clone)]
struct Name {
    raw: usize,
    /// Of a per-thread default stream.
    thread: Option<ThreadId>,
    /// One value for each context.
    context: Arc<Progress>,
}

impl Name {
    fn of(stream: &Stream) -> Option<Self> {
        let view = stream.as_ref();
        // Another thread's own: the handle does not say whose.
        if view.is_foreign() {
            return None;
        }
        let is_own = view.as_raw() == CU_STREAM_PER_THREAD;
        Some(Self {
            raw: view.as_raw().addr(),
            thread: is_own.then(|| std::thread::current().id()),
            context: Arc::clone(stream.context().progress()),
        })
    }

    fn is(&self, other: &Self) -> bool {
        (self.raw, self.thread) == (other.raw, other.thread)
            && Arc::ptr_eq(&self.context, &other.context)
    }
}

impl LastOperation {
    /// Whether the host has not seen it done, neither by a wait for the stream nor by one for the whole context.
    fn is_pending(&self) -> bool {
        let name = self.name.as_ref();
        let context = name.map_or(0, |name| name.context.done());
        self.stream.done().max(context) < self.epoch
    }

    fn is_in(&self, stream: &Arc<Progress>, name: Option<&Name>) -> bool {
        let is_named = |own: &Name| name.is_some_and(|name| own.is(name));
        Arc::ptr_eq(&self.stream, stream) || self.name.as_ref().is_some_and(is_named)
    }

    /// Whether no handle by which it was named is left.
    fn is_left(&self) -> bool {
        Arc::strong_count(&self.stream) == 1
    }
}

impl State {
    pub(super) fn new(raw: ncclComm_t) -> Self {
        Self {
            raw: Some(AtomicPtr::new(raw.cast())),
            failure: None,
            windows: Windows::default(),
            last: Vec::new(),
            launches: 0,
        }
    }

    /// The handle, unless the communicator only refuses.
    pub(super) fn usable(&self) -> Result<ncclComm_t> {
        match (&self.raw, &self.failure) {
            (Some(raw), None) => Ok(raw.load(Ordering::Relaxed).cast()),
            (_, Some((ErrorKind::Aborted, text))) => Err(Error::new(
                ErrorKind::Aborted,
                format!("{text}; join a new one"),
            )),
            (_, Some((kind, text))) => Err(Error::new(
                *kind,
                format!("the communicator has failed: {text}; abort it and join a new one"),
            )),
            (None, None) => Err(Error::new(
                ErrorKind::Aborted,
                "the communicator has ended; join a new one",
            )),
        }
    }

    /// The handle, if it is live, whatever has failed.
    pub(super) fn live(&self) -> Option<ncclComm_t> {
        let raw = self.raw.as_ref();
        raw.map(|raw| raw.load(Ordering::Relaxed).cast())
    }

    /// As [`live`](Self::live), for its end: it has none afterwards, no windows, and nothing in any stream.
    pub(super) fn take(&mut self) -> Option<ncclComm_t> {
        self.windows.clear();
        self.last.clear();
        self.raw.take().map(|raw| raw.into_inner().cast())
    }

    /// It only refuses from now on. The first failure stays.
    pub(super) fn fail(&mut self, error: &Error) {
        self.failure
            .get_or_insert_with(|| (error.kind(), error.to_string()));
    }

    /// As [`fail`](Self::fail), whatever has failed before.
    pub(super) fn refuse_as_aborted(&mut self) {
        let text = "the communicator was aborted".to_owned();
        self.failure = Some((ErrorKind::Aborted, text));
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// How many operations are remembered whose stream has no handle any more. Such a stream may go on, as default streams do, so the
    /// newest are remembered. There is a bound because each operation searches the list.
    const MOST_LEFT: usize = 16;

    /// An operation was put into the stream.
    pub(super) fn note_operation(&mut self, stream: &Stream) {
        self.note(stream.progress(), Name::of(stream));
    }

    /// A graph was launched in the stream with this progress.
    pub(super) fn note_launch(&mut self, stream: &Arc<Progress>) {
        self.note(stream, None);
    }

    fn note(&mut self, stream: &Arc<Progress>, name: Option<Name>) {
        let mut name = name;
        self.last.retain(|last| {
            let is_same = last.is_in(stream, name.as_ref());
            if is_same && name.is_none() {
                name.clone_from(&last.name);
            }
            last.is_pending() && !is_same
        });
        self.last.push(LastOperation {
            stream: Arc::clone(stream),
            name,
            epoch: epoch::now(),
        });
        let left = || self.last.iter().filter(|last| last.is_left()).count();
        if self.last.len() > Self::MOST_LEFT && left() > Self::MOST_LEFT {
            // The oldest is first.
            if let Some(at) = self.last.iter().position(LastOperation::is_left) {
                self.last.remove(at);
            }
        }
    }

    /// Whether the host has not seen all operations done.
    pub(super) fn has_operations(&self) -> bool {
        self.last.iter().any(LastOperation::is_pending)
    }

    /// As [`has_operations`](Self::has_operations), for those in the stream.
    pub(super) fn has_operations_in(&self, stream: &Stream) -> bool {
        self.has_in(stream.progress(), Name::of(stream).as_ref())
    }

    fn has_in(&self, stream: &Arc<Progress>, name: Option<&Name>) -> bool {
        self.last.iter().any(|last| {
            // The host may have waited by this handle, and not by that of the operation.
            last.is_in(stream, name) && last.is_pending() && stream.done() < last.epoch
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(raw: usize, context: &Arc<Progress>) -> Option<Name> {
        Some(Name {
            raw,
            thread: None,
            context: Arc::clone(context),
        })
    }

    #[test]
    fn operations_are_pending_until_the_host_has_seen_their_stream() {
        let mut state = State::new(std::ptr::null_mut());
        let (first, second) = (Arc::default(), Arc::default());
        assert!(!state.has_operations());
        state.note(&first, None);
        state.note(&second, None);
        assert!(state.has_in(&first, None));
        first.advance(epoch::take());
        assert!(!state.has_in(&first, None));
        assert!(state.has_operations() && state.has_in(&second, None));
        second.advance(epoch::take());
        assert!(!state.has_operations());
        state.note(&first, None);
        assert_eq!(state.last.len(), 1, "what is done is forgotten");
    }

    #[test]
    fn a_wait_for_the_context_is_one_for_its_streams() {
        let mut state = State::new(std::ptr::null_mut());
        let (stream, context) = (Arc::default(), Arc::default());
        state.note(&stream, name(1, &context));
        assert!(state.has_operations() && state.has_in(&stream, None));
        context.advance(epoch::take());
        assert!(!state.has_operations() && !state.has_in(&stream, None));
    }

    #[test]
    fn handles_of_one_stream_are_one() {
        let mut state = State::new(std::ptr::null_mut());
        let (context, other) = (Arc::default(), Arc::default());
        let (first, second) = (Arc::default(), Arc::default());
        state.note(&first, name(1, &context));
        assert!(state.has_in(&second, name(1, &context).as_ref()));
        assert!(!state.has_in(&second, name(2, &context).as_ref()));
        assert!(!state.has_in(&second, name(1, &other).as_ref()));
        second.advance(epoch::take());
        assert!(!state.has_in(&second, name(1, &context).as_ref()));
        state.note(&second, name(1, &context));
        assert_eq!(state.last.len(), 1);
        // A launch does not say which stream it is of.
        state.note(&second, None);
        assert!(state.has_in(&first, name(1, &context).as_ref()));
    }

    #[test]
    fn streams_that_are_never_waited_for_do_not_add_up() {
        let mut state = State::new(std::ptr::null_mut());
        let context = Arc::default();
        let live: Vec<Arc<Progress>> = (0..100).map(|_| Arc::default()).collect();
        for (raw, stream) in (1000..).zip(&live) {
            state.note(stream, name(raw, &context));
        }
        for raw in 0..1000 {
            state.note(&Arc::default(), name(raw, &context));
        }
        assert!(state.last.len() <= live.len() + State::MOST_LEFT + 1);
        assert!(live.iter().all(|stream| state.has_in(stream, None)));
    }
}
