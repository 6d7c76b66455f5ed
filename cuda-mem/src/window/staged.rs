//! Copies by the driver, for what no mapping reaches or what is too large for one.

use cuda_driver_sys::CUdeviceptr;

use crate::context::Context;
use crate::copy::Span;
use crate::error::Result;
use crate::host::PinnedBuffer;
use crate::stream::Stream;

/// Up to so many bytes go through pinned memory of ours; the driver does as well with more.
const STAGE: usize = 64 << 10;

/// A stream and pinned memory of a window's own: copies must not queue up behind a kernel that waits for them.
#[derive(Debug)]
pub(super) struct Staged {
    stream: Stream,
    pinned: PinnedBuffer<u8>,
    on_device: bool,
}

impl Staged {
    pub(super) fn new(context: &Context, on_device: bool) -> Result<Self> {
        Ok(Self {
            stream: context.stream()?,
            pinned: context.pinned(STAGE)?,
            on_device,
        })
    }

    /// # Safety
    ///
    /// As [`Span::new`], for every stream and until the host has seen this done.
    unsafe fn span(&self, address: CUdeviceptr, bytes: usize) -> Span<'_, u8> {
        // SAFETY: the caller's.
        unsafe { Span::new(address, bytes, &self.stream, self.on_device) }
    }

    /// Returns when it is done.
    ///
    /// # Safety
    ///
    /// The bytes at `address` are memory that is valid in every stream meanwhile.
    pub(super) unsafe fn write(&mut self, address: CUdeviceptr, from: &[u8]) -> Result<()> {
        if let Some(stage) = self.pinned.get_mut(..from.len()) {
            stage.copy_from_slice(from);
        }
        let staged = self.pinned.get(..from.len()).unwrap_or(from);
        // SAFETY: the caller's.
        unsafe { self.span(address, from.len()) }.copy_from(staged)
    }

    /// Returns when it is done.
    ///
    /// # Safety
    ///
    /// As [`write`](Self::write).
    pub(super) unsafe fn read(&mut self, address: CUdeviceptr, to: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's.
        let span = unsafe { Span::new(address, to.len(), &self.stream, self.on_device) };
        let Some(stage) = self.pinned.get_mut(..to.len()) else {
            return span.copy_to(to);
        };
        span.copy_to(stage)?;
        to.copy_from_slice(stage);
        Ok(())
    }
}
