//! Recording requests.

use std::alloc::Layout;
use std::fmt;

use cuda_driver_sys::CUdeviceptr;

use super::{debug_over, free_through_self, from_upstream};
use crate::base::error::{Result, took_effect};
use crate::base::origin;
use crate::ledger::{Recorder, TraceAction};
use crate::memory::resource::MemoryResource;
use crate::stream::Stream;

/// Records every allocation and free, and every allocation that failed, with a [`Recorder`].
///
/// For any resource. An [`Arena`](crate::arena::ArenaBuilder::record) and a [pool](crate::PoolBuilder::record) can record by
/// themselves, and then record their growth too.
///
/// ```
/// use cuda_mem::{Driver, Resource};
/// use cuda_mem::ledger::Recorder;
/// use cuda_mem::memory::RecordingAdaptor;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let recorder = Recorder::ring(10_000);
/// let resource = Resource::new(RecordingAdaptor::new(device.default_resource()?, &recorder));
/// drop(resource.alloc::<u8>(&stream, 1000)?);
/// assert_eq!(recorder.recording().entries().len(), 2);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct RecordingAdaptor<U> {
    upstream: U,
    recorder: Recorder,
}

impl<U: MemoryResource> RecordingAdaptor<U> {
    /// Records requests to `upstream`.
    pub fn new(upstream: U, recorder: &Recorder) -> Self {
        Self {
            upstream,
            recorder: recorder.clone(),
        }
    }

    /// Where the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// The recorder.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    #[inline]
    fn free(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
        upstream: impl FnOnce(CUdeviceptr, Layout) -> Result<()>,
    ) -> Result<()> {
        let (bytes, number) = (layout.size() as u64, stream.raw_number());
        let note = |action| self.recorder.note(action, address, bytes, number);
        if address != 0 {
            // Before upstream has it: from then on another thread may get the same address.
            note(TraceAction::Free);
        }
        let freed = upstream(address, layout);
        if address != 0 && !took_effect(&freed) {
            note(TraceAction::Allocate);
        }
        freed
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl<U: MemoryResource> MemoryResource for RecordingAdaptor<U> {
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let answer = self.upstream.allocate(layout, stream);
        let (bytes, line) = (layout.size() as u64, origin::current());
        self.recorder
            .note_answer(&answer, bytes, stream.raw_number(), line);
        answer
    }

    free_through_self!();

    from_upstream!();
}

impl<U: fmt::Debug> fmt::Debug for RecordingAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_over(f, "RecordingAdaptor", &self.upstream)
    }
}
