//! Notifies the recorder and the NVTX tool of blocks, and of the memory that blocks lie in.

#![forbid(unsafe_code)]

use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::backing::Chunk;
use super::regions::Regions;
use crate::base::error::Result;
use crate::base::lock::LockedOnce;
use crate::ledger::{Recorder, TraceAction, nvtx};
use crate::stream::Stream;
use crate::stream::context::Context;

/// Is told of every block, and of the memory that blocks lie in.
#[derive(Debug)]
pub(super) struct Observer {
    recorder: Option<Recorder>,
    /// Notifies a tool, if there is one. Decided at the first request at the latest: CUDA is initialised then.
    regions: LockedOnce<Option<Regions>>,
    is_plain: bool,
    is_on: AtomicBool,
    /// Whether there are regions, which most requests ask: one load.
    has_tool: AtomicBool,
    /// The driver calls that were recorded last.
    calls: AtomicU64,
}

impl Observer {
    /// `is_plain` if the memory is from `cuMemAlloc`.
    pub(super) fn new(recorder: Option<Recorder>, is_plain: bool) -> Self {
        Self {
            is_plain,
            is_on: AtomicBool::new(recorder.is_some()),
            has_tool: AtomicBool::new(false),
            recorder,
            regions: LockedOnce::new(),
            calls: AtomicU64::new(0),
        }
    }

    /// As [`is_on`](Self::is_on), and looks for a tool the first time. To be asked before the first block is allocated.
    pub(super) fn begin(&self) -> bool {
        let regions = self
            .regions
            .get_or_try_init(|| Ok(nvtx::tool_for(self.is_plain).map(Regions::new)));
        if matches!(regions, Ok(Some(_))) {
            self.has_tool.store(true, Ordering::Relaxed);
            self.is_on.store(true, Ordering::Relaxed);
        }
        self.is_on()
    }

    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// Whether it has to see every block.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    #[inline]
    fn regions(&self) -> Option<&Regions> {
        if !self.has_tool.load(Ordering::Relaxed) {
            return None;
        }
        self.regions.get().ok().flatten()?.as_ref()
    }

    #[inline]
    fn note(&self, action: TraceAction, address: u64, bytes: u64, stream: u64) {
        if let Some(recorder) = &self.recorder {
            recorder.note(action, address, bytes, stream);
        }
    }

    /// `context` is one that the memory is mapped in, if there is one at hand.
    pub(super) fn mapped(&self, chunk: Chunk, context: Option<&Context>) {
        self.note(TraceAction::Map, chunk.address, chunk.bytes, 0);
        self.heap_begins(chunk, context);
    }

    pub(super) fn unmapped(&self, chunk: Chunk) {
        self.note(TraceAction::Unmap, chunk.address, chunk.bytes, 0);
        self.heap_ends(chunk);
    }

    pub(super) fn moved(&self, from: Chunk, to: Chunk, context: &Context) {
        if let Some(recorder) = &self.recorder {
            recorder.note_move(from.address, to.address, to.bytes);
        }
        self.heap_ends(from);
        self.heap_begins(to, Some(context));
    }

    fn heap_begins(&self, chunk: Chunk, context: Option<&Context>) {
        if let Some(regions) = self.regions() {
            // compute-sanitizer takes a heap only for the current context.
            let _current = context.and_then(|context| context.bind().ok());
            regions.mapped(chunk);
        }
    }

    fn heap_ends(&self, chunk: Chunk) {
        if let Some(regions) = self.regions() {
            regions.unmapped(chunk);
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
        if let Some(recorder) = &self.recorder {
            recorder.note_answer(answer, bytes, stream.raw_number(), line);
        }
        if let Ok(address) = answer
            && *address != 0
            && let Some(regions) = self.regions()
        {
            regions.allocated(*address, bytes, Some(line));
        }
    }

    /// A block is about to be freed.
    #[inline]
    pub(super) fn frees(&self, address: u64, bytes: u64, stream: &Stream) {
        self.note(TraceAction::Free, address, bytes, stream.raw_number());
        if let Some(regions) = self.regions() {
            regions.freed(address);
        }
    }

    pub(super) fn parked(&self, address: u64, bytes: u64, stream: &Stream) {
        self.note(
            TraceAction::FreeRequested,
            address,
            bytes,
            stream.raw_number(),
        );
    }

    pub(super) fn released_parked(&self, address: u64, bytes: u64, stream: u64) {
        self.note(TraceAction::FreeCompleted, address, bytes, stream);
        if let Some(regions) = self.regions() {
            regions.freed(address);
        }
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
