//! What a pool tells its recorder, and what it keeps for its own snapshots.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_driver_sys::{CUdeviceptr, CUmemPool_attribute};

use super::Pool;
use crate::base::error::Result;
use crate::base::lock::Lock;
use crate::base::origin;
use crate::ledger::{BlockState, LiveBlocks, MemoryBlock, Origin, Recorder, TraceAction};
use crate::memory::resource::{Handle, Resource};
use crate::stream::Stream;

/// A recorder, and what it knows of the pool.
#[derive(Debug)]
pub(super) struct PoolRecorder {
    recorder: Recorder,
    /// The bytes held that were recorded last.
    reserved: AtomicU64,
    /// The live blocks, by address. The events do not say which pool they are of.
    live: Lock<BTreeMap<u64, Live>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    bytes: u64,
    stream: u64,
    line: Option<&'static Location<'static>>,
}

impl PoolRecorder {
    pub(super) fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            reserved: AtomicU64::new(0),
            live: Lock::default(),
        }
    }

    fn insert(&self, address: u64, live: Live) {
        if let Some(mut all) = self.live.lock_unless_forked() {
            all.insert(address, live);
        }
    }
}

/// A pool that records.
#[derive(Clone, Copy)]
pub(super) struct Recorded<'a> {
    pool: &'a Pool,
    to: &'a PoolRecorder,
}

impl Pool {
    #[inline]
    pub(super) fn recorded(&self) -> Option<Recorded<'_>> {
        let to = self.0.recording.as_deref()?;
        Some(Recorded { pool: self, to })
    }

    /// What [records](super::PoolBuilder::record) the pool, if it is recorded.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.0.recording.as_deref().map(|to| &to.recorder)
    }

    /// The pool as a resource, if it records: the buffer then frees its memory through the pool.
    #[inline]
    pub(crate) fn recording_resource(&self) -> Option<Resource> {
        self.0.recording.as_ref()?;
        Some(Resource {
            inner: Handle::shared(Arc::new(self.clone())),
            device: self.device(),
        })
    }
}

impl Recorded<'_> {
    #[track_caller]
    pub(super) fn answered(self, answer: &Result<CUdeviceptr>, bytes: usize, stream: &Stream) {
        let (bytes, line) = (bytes as u64, origin::current());
        match answer {
            Ok(0) => return,
            Ok(address) => self.is_live(*address, bytes, stream, Some(line)),
            Err(_) => {}
        }
        let recorder = &self.to.recorder;
        recorder.note_answer(answer, bytes, stream.raw_number(), line);
        self.note_reserved();
    }

    /// Returns what is to be [restored](Self::restore) if the free fails.
    pub(super) fn frees(self, address: CUdeviceptr, bytes: usize, stream: &Stream) -> Option<Live> {
        let live = self.to.live.lock_unless_forked();
        let live = live.and_then(|mut all| all.remove(&address));
        self.note(
            TraceAction::Free,
            address,
            bytes as u64,
            stream.raw_number(),
        );
        live
    }

    /// Undoes [`frees`](Self::frees) after a free that failed.
    #[cold]
    pub(super) fn restore(self, address: CUdeviceptr, live: Live) {
        self.to.insert(address, live);
        self.note(TraceAction::Allocate, address, live.bytes, live.stream);
    }

    pub(super) fn trimmed(self, keep: usize) {
        self.note(TraceAction::Trim, 0, keep as u64, 0);
        self.note_reserved();
    }

    fn is_live(
        self,
        address: u64,
        bytes: u64,
        stream: &Stream,
        line: Option<&'static Location<'static>>,
    ) {
        let stream = stream.raw_number();
        let live = Live {
            bytes,
            stream,
            line,
        };
        self.to.insert(address, live);
    }

    /// The live blocks, and when they were read, by the recorder's clock.
    pub(super) fn blocks(self) -> Result<(Vec<MemoryBlock>, u64)> {
        let all = self.to.live.lock()?;
        let (live, time) = (all.clone(), self.to.recorder.now());
        drop(all);
        // For frames of another language.
        let mut known = LiveBlocks::of(&self.to.recorder.recording());
        let blocks = live.into_iter().map(|(address, live)| {
            let state = BlockState::Allocated;
            let mut block = MemoryBlock::new(address, live.bytes, state, Some(live.stream));
            block.requested = Some(live.bytes);
            // An arena over the pool may have a block there, too.
            let known = known.take(address);
            let known = known.filter(|known| known.bytes == live.bytes);
            let known = known.and_then(|known| known.origin);
            block.origin = known.or(live.line.map(Origin::Line));
            block
        });
        Ok((blocks.collect(), time))
    }

    fn note(self, action: TraceAction, address: u64, bytes: u64, stream: u64) {
        self.to.recorder.note(action, address, bytes, stream);
    }

    /// Nothing before CUDA 11.3, which cannot say.
    fn note_reserved(self) {
        let current = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        let Ok(bytes) = self.pool.wide(current) else {
            return;
        };
        if self.to.reserved.swap(bytes, Ordering::Relaxed) != bytes {
            // Pools that share a recorder are told apart by their handles.
            let handle = self.pool.as_raw().addr() as u64;
            self.note(TraceAction::Reserved, handle, bytes, 0);
        }
    }
}
