//! Who watches what becomes of an arena's memory.

#![forbid(unsafe_code)]

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::backing::Chunk;
use crate::base::error::Result;
use crate::ledger::{Recorder, TraceAction};
use crate::stream::Stream;

/// Is told of every block, and of the memory that blocks lie in.
#[derive(Clone, Debug, Default)]
pub(super) struct Observer {
    recorder: Option<Recorder>,
    /// The driver calls that were recorded last.
    calls: Arc<AtomicU64>,
}

/// The driver's handle of a stream, as a number.
fn number(stream: &Stream) -> u64 {
    stream.as_raw().addr() as u64
}

impl Observer {
    pub(super) fn record(&mut self, recorder: &Recorder) {
        self.recorder = Some(recorder.clone());
    }

    /// Whether it has to see every block.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.recorder.is_some()
    }

    #[inline]
    fn note(&self, action: TraceAction, address: u64, bytes: u64, stream: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.note(action, address, bytes, stream);
        }
    }

    pub(super) fn mapped(&self, chunk: Chunk) {
        self.note(TraceAction::Map, chunk.address, chunk.bytes, 0);
    }

    pub(super) fn unmapped(&self, chunk: Chunk) {
        self.note(TraceAction::Unmap, chunk.address, chunk.bytes, 0);
    }

    pub(super) fn moved(&self, from: Chunk, to: Chunk) {
        if let Some(recorder) = &self.recorder {
            recorder.note_move(from.address, to.address, to.bytes);
        }
    }

    pub(super) fn trims(&self, keep: u64) {
        self.note(TraceAction::Trim, 0, keep, 0);
    }

    /// The answer to a request.
    #[inline]
    pub(super) fn answered(
        &self,
        answer: &Result<u64>,
        bytes: u64,
        stream: &Stream,
        line: &'static Location<'static>,
    ) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let (action, address) = match answer {
            Ok(0) => return,
            Ok(address) => (TraceAction::Allocate, *address),
            Err(_) => (TraceAction::AllocateFailure, 0),
        };
        recorder.note_request(action, address, bytes, number(stream), line);
    }

    /// A block is about to be freed.
    #[inline]
    pub(super) fn frees(&self, address: u64, bytes: u64, stream: &Stream) {
        self.note(TraceAction::Free, address, bytes, number(stream));
    }

    /// A block that was said to be freed is still allocated.
    #[cold]
    pub(super) fn not_freed(&self, address: u64, bytes: u64, stream: &Stream) {
        self.note(TraceAction::Allocate, address, bytes, number(stream));
    }

    pub(super) fn parked(&self, address: u64, bytes: u64, stream: &Stream) {
        self.note(TraceAction::FreeRequested, address, bytes, number(stream));
    }

    pub(super) fn released_parked(&self, address: u64, bytes: u64) {
        self.note(TraceAction::FreeCompleted, address, bytes, 0);
    }

    /// The arena has made this many driver calls.
    #[inline]
    pub(super) fn calls(&self, calls: u64) {
        let relaxed = Ordering::Relaxed;
        if self.calls.load(relaxed) < calls && self.calls.fetch_max(calls, relaxed) < calls {
            self.note(TraceAction::DriverCalls, 0, calls, 0);
        }
    }
}
