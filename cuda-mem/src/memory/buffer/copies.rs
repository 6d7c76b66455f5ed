//! Fills and copies of a whole buffer, in the order of its stream.

use bytemuck::Pod;

use super::DeviceBuffer;
use crate::base::error::Result;
use crate::memory::slice::DeviceMemory;

impl<T: Pod> DeviceBuffer<T> {
    /// Submits a fill of all elements with `value`, of 1, 2 or 4 bytes (others do not compile).
    /// Does not synchronise.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"))]
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.wait_for_pending_uses()?;
        self.span().fill(value)
    }

    /// Submits a fill of all bytes with `value`. Does not synchronise.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuMemsetD8Async")]
    pub fn fill_bytes(&mut self, value: u8) -> Result<()> {
        self.wait_for_pending_uses()?;
        self.span().fill_bytes(value)
    }

    /// Submits a fill of all bytes with zero. Does not synchronise.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuMemsetD8Async")]
    pub fn zero(&mut self) -> Result<()> {
        self.fill_bytes(0)
    }

    /// Copies a host slice of the same length into the buffer. Synchronises the stream: the slice
    /// may be changed when this returns.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the lengths differ;
    /// [`Capturing`](crate::ErrorKind::Capturing) while any code captures the stream; otherwise any driver error.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        self.wait_for_pending_uses()?;
        self.span().copy_from(from)
    }

    /// Copies the buffer into a host slice of the same length. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// Same as [`copy_from`](Self::copy_from).
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn copy_to(&self, to: &mut [T]) -> Result<()> {
        self.wait_for_writers()?;
        self.span().copy_to(to)
    }

    /// Copies the buffer into a new vector. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// Same as [`copy_to`](Self::copy_to); [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if the host has no memory for
    /// the vector.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.wait_for_writers()?;
        self.span().to_vec()
    }

    /// Submits a copy of other memory of the same length, in the order of both streams: a buffer of any kind, or a
    /// slice of one. Does not synchronise, unless both are host memory: the driver copies that on the host, once the
    /// stream reaches the copy. The memory may be on another device, with or without peer access.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the lengths differ, if the memory belongs to another driver,
    /// and for memory of a capture; otherwise any driver error.
    ///
    /// ```
    /// # use cuda_mem::{Driver, MemoryPool};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let context = device.primary_context()?;
    /// # let pool = MemoryPool::builder(&device).build()?;
    /// let source = pool.alloc_from(&context.stream()?, &[1u8, 2, 3])?;
    /// let mut target = pool.alloc::<u8>(&context.stream()?, 3)?;
    /// target.copy_from_device(&source)?;
    /// assert_eq!(target.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuMemcpyDtoDAsync", "cuMemcpyPeerAsync"))]
    pub fn copy_from_device(&mut self, from: &impl DeviceMemory<Element = T>) -> Result<()> {
        self.wait_for_pending_uses()?;
        self.span().copy_from_device(&from.as_slice().span())
    }
}
