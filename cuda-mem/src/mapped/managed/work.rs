//! Writes to a managed buffer in stream order, as for a [`DeviceBuffer`].

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
    /// The same errors.
    #[doc(alias("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"))]
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.buffer.fill(value)
    }

    /// See [`DeviceBuffer::zero`].
    ///
    /// # Errors
    ///
    /// The same errors.
    #[doc(alias = "cuMemsetD8Async")]
    pub fn zero(&mut self) -> Result<()> {
        self.buffer.zero()
    }

    /// See [`DeviceBuffer::copy_from`]. Synchronises the stream. [`host_mut`](Self::host_mut) avoids the copy.
    ///
    /// # Errors
    ///
    /// The same errors.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        self.buffer.copy_from(from)
    }

    /// See [`DeviceBuffer::copy_from_buffer`].
    ///
    /// # Errors
    ///
    /// The same errors.
    #[doc(alias("cuMemcpyDtoDAsync", "cuMemcpyPeerAsync"))]
    pub fn copy_from_buffer(&mut self, from: &DeviceBuffer<T>) -> Result<()> {
        self.buffer.copy_from_buffer(from)
    }

    /// Lends the buffer to another stream, possibly of another device. See [`DeviceBuffer::on`].
    ///
    /// # Errors
    ///
    /// The same errors.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn on<'a>(&'a mut self, other: &'a Stream) -> Result<Loan<'a, T>> {
        self.buffer.on(other)
    }

    /// See [`DeviceBuffer::wait_for_pending_uses`].
    ///
    /// # Errors
    ///
    /// The same errors.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn wait_for_pending_uses(&mut self) -> Result<()> {
        self.buffer.wait_for_pending_uses()
    }

    /// For operations that write in stream order. Callers must not replace the buffer by another one.
    pub(crate) fn inner(&mut self) -> &mut DeviceBuffer<T> {
        &mut self.buffer
    }
}
