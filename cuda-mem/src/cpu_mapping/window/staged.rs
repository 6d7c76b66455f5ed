//! Driver copies, for memory without a direct mapping and for sizes beyond a limit.

use cuda_driver_sys::CUdeviceptr;

use crate::base::error::Result;
use crate::driver::device::Device;
use crate::memory::slice::Span;
use crate::stream::Stream;
use crate::stream::context::Context;
use crate::stream::stage::Stage;

/// The stage and stream of a mapping's copies, borrowed from the context.
#[derive(Debug)]
pub(super) struct Staged {
    /// `None` only during the drop. Outlives `stream`, which refers to the stream in it.
    stage: Option<Stage>,
    stream: Stream,
    on_device: bool,
}

impl Staged {
    pub(super) fn new(context: &Context, on_device: bool) -> Result<Self> {
        let stage = context.take_stage()?;
        // SAFETY: the stage returns to the context after the last use of this stream, and lives until then.
        let stream = unsafe { Stream::borrow_raw(context, stage.stream(), ()) };
        Ok(Self {
            stage: Some(stage),
            stream,
            on_device,
        })
    }

    /// Returns when the copy is done.
    ///
    /// # Safety
    ///
    /// The bytes at `address` stay valid in every stream meanwhile.
    pub(super) unsafe fn write(&mut self, address: CUdeviceptr, from: &[u8]) -> Result<()> {
        // SAFETY: the caller's promises.
        let span = unsafe { Span::new(address, from.len(), &self.stream, self.device()) };
        let stage = self.stage.as_mut().map(Stage::bytes_mut);
        match stage.and_then(|stage| stage.get_mut(..from.len())) {
            Some(stage) => {
                stage.copy_from_slice(from);
                span.copy_from_alone(stage)
            }
            None => span.copy_from_alone(from),
        }
    }

    /// Returns when the copy is done.
    ///
    /// # Safety
    ///
    /// As [`write`](Self::write).
    pub(super) unsafe fn read(&mut self, address: CUdeviceptr, to: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's promises.
        let span = unsafe { Span::new(address, to.len(), &self.stream, self.device()) };
        let stage = self.stage.as_mut().map(Stage::bytes_mut);
        match stage.and_then(|stage| stage.get_mut(..to.len())) {
            Some(stage) => {
                span.copy_to_alone(stage)?;
                to.copy_from_slice(stage);
                Ok(())
            }
            None => span.copy_to_alone(to),
        }
    }
}

impl Staged {
    fn device(&self) -> Option<Device> {
        self.on_device.then(|| self.stream.device())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Every copy has completed.
        if let Some(stage) = self.stage.take() {
            self.stream.context().give_stage(stage);
        }
    }
}
