//! What a communicator's lock guards.

use std::sync::Arc;

use cuda_driver_sys::nccl::ncclComm_t;

use super::registration::Windows;
use crate::base::error::{Error, ErrorKind, Result};
use crate::stream::epoch::{self, Progress};

pub(super) struct State {
    /// `None` once it has been aborted or destroyed.
    raw: Option<Raw>,
    /// Why it only refuses.
    failure: Option<(ErrorKind, String)>,
    pub(super) windows: Windows,
    /// The last operation in each stream that the host may not have seen done.
    last: Vec<LastOperation>,
    /// Launches of graphs with its operations that threads are making.
    pub(super) launches: usize,
}

struct Raw(ncclComm_t);

// SAFETY: a communicator may be used from any thread, by one at a time: `State` is behind a lock.
unsafe impl Send for Raw {}

struct LastOperation {
    stream: Arc<Progress>,
    epoch: u64,
}

impl LastOperation {
    fn is_pending(&self) -> bool {
        self.stream.done() < self.epoch
    }
}

impl State {
    pub(super) fn new(raw: ncclComm_t) -> Self {
        Self {
            raw: Some(Raw(raw)),
            failure: None,
            windows: Windows::default(),
            last: Vec::new(),
            launches: 0,
        }
    }

    /// The handle, unless the communicator only refuses.
    pub(super) fn usable(&self) -> Result<ncclComm_t> {
        match (&self.raw, &self.failure) {
            (Some(raw), None) => Ok(raw.0),
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
        self.raw.as_ref().map(|raw| raw.0)
    }

    /// As [`live`](Self::live), for its end: it has none afterwards, no windows, and nothing in any stream.
    pub(super) fn take(&mut self) -> Option<ncclComm_t> {
        self.windows.clear();
        self.last.clear();
        self.raw.take().map(|raw| raw.0)
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

    /// An operation was put into the stream with this progress.
    pub(super) fn note_operation(&mut self, stream: &Arc<Progress>) {
        self.last
            .retain(|last| last.is_pending() && !Arc::ptr_eq(&last.stream, stream));
        self.last.push(LastOperation {
            stream: Arc::clone(stream),
            epoch: epoch::now(),
        });
    }

    /// Whether the host has not seen all operations done; those of one stream, if one is given.
    pub(super) fn has_operations(&self, stream: Option<&Arc<Progress>>) -> bool {
        self.last.iter().any(|last| {
            last.is_pending() && stream.is_none_or(|stream| Arc::ptr_eq(&last.stream, stream))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_pending_until_the_host_has_seen_their_stream() {
        let mut state = State::new(std::ptr::null_mut());
        let (first, second) = (Arc::default(), Arc::default());
        assert!(!state.has_operations(None));
        state.note_operation(&first);
        state.note_operation(&second);
        assert!(state.has_operations(Some(&first)));
        first.advance(epoch::take());
        assert!(!state.has_operations(Some(&first)));
        assert!(state.has_operations(None) && state.has_operations(Some(&second)));
        second.advance(epoch::take());
        assert!(!state.has_operations(None));
        state.note_operation(&first);
        assert_eq!(state.last.len(), 1, "what is done is forgotten");
    }
}
