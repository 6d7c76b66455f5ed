//! What writes to a managed buffer in the order of streams: as for a [`DeviceBuffer`].

use bytemuck::Pod;

use super::ManagedBuffer;
use crate::base::error::Result;
use crate::memory::buffer::{DeviceBuffer, Loan};
use crate::stream::Stream;

impl<T: Pod> ManagedBuffer<T> {
    /// See [`DeviceBuffer::fill`].
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"))]
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.buffer.fill(value)
    }

    /// See [`DeviceBuffer::zero`].
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "cuMemsetD8Async")]
    pub fn zero(&mut self) -> Result<()> {
        self.buffer.zero()
    }

    /// See [`DeviceBuffer::copy_from`]. Synchronises the stream. [`host_mut`](Self::host_mut) does without the
    /// copy.
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        self.buffer.copy_from(from)
    }

    /// See [`DeviceBuffer::copy_from_buffer`].
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias("cuMemcpyDtoDAsync", "cuMemcpyPeerAsync"))]
    pub fn copy_from_buffer(&mut self, from: &DeviceBuffer<T>) -> Result<()> {
        self.buffer.copy_from_buffer(from)
    }

    /// Lends the buffer to another stream, which may be of another device. See [`DeviceBuffer::on`].
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn on<'a>(&'a mut self, other: &'a Stream) -> Result<Loan<'a, T>> {
        self.buffer.on(other)
    }

    /// See [`DeviceBuffer::wait_for_pending_uses`].
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn wait_for_pending_uses(&mut self) -> Result<()> {
        self.buffer.wait_for_pending_uses()
    }

    /// For what writes in the order of streams. It must stay the buffer that it is.
    pub(crate) fn inner(&mut self) -> &mut DeviceBuffer<T> {
        &mut self.buffer
    }
}
