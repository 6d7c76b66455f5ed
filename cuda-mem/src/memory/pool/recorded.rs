//! What a pool tells its recorder.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_driver_sys::{CUdeviceptr, CUmemPool_attribute};

use super::Pool;
use crate::base::error::Result;
use crate::base::origin;
use crate::ledger::{Recorder, TraceAction};
use crate::memory::resource::{Handle, Resource};
use crate::stream::Stream;

/// A recorder, and what it knows of the pool.
#[derive(Debug)]
pub(super) struct PoolRecorder {
    recorder: Recorder,
    /// The bytes held that were recorded last.
    reserved: AtomicU64,
}

impl PoolRecorder {
    pub(super) fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            reserved: AtomicU64::new(0),
        }
    }
}

/// A pool that records.
#[derive(Clone, Copy)]
pub(super) struct Recorded<'a> {
    pool: &'a Pool,
    to: &'a PoolRecorder,
}

fn number(stream: &Stream) -> u64 {
    stream.as_raw().addr() as u64
}

impl Pool {
    #[inline]
    pub(super) fn recorded(&self) -> Option<Recorded<'_>> {
        let to = self.0.recording.as_deref()?;
        Some(Recorded { pool: self, to })
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
        let (action, address) = match answer {
            Ok(0) => return,
            Ok(address) => (TraceAction::Allocate, *address),
            Err(_) => (TraceAction::AllocateFailure, 0),
        };
        let (bytes, line) = (bytes as u64, origin::current());
        let recorder = &self.to.recorder;
        recorder.note_request(action, address, bytes, number(stream), line);
        self.note_reserved();
    }

    pub(super) fn frees(self, address: CUdeviceptr, bytes: usize, stream: &Stream) {
        self.note(TraceAction::Free, address, bytes as u64, number(stream));
    }

    /// Memory that was said to be freed is still allocated.
    #[cold]
    pub(super) fn not_freed(self, address: CUdeviceptr, bytes: usize, stream: &Stream) {
        self.note(TraceAction::Allocate, address, bytes as u64, number(stream));
    }

    pub(super) fn trimmed(self, keep: usize) {
        self.note(TraceAction::Trim, 0, keep as u64, 0);
        self.note_reserved();
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
