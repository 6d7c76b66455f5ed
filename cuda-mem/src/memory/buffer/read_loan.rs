//! A buffer lent for reading, to any number of streams.

use std::fmt;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::DeviceBuffer;
use crate::base::error::Result;
use crate::base::report;
use crate::memory::copy::Span;
use crate::stream::Stream;
use crate::stream::join::order;

impl<T: Pod> DeviceBuffer<T> {
    /// Lends the buffer to `other` for reading. Like [`on`](Self::on), but the buffer may be lent to several
    /// streams at a time, and read on its own stream too: readers do not wait for each other.
    ///
    /// # Errors
    ///
    /// Same as [`on`](Self::on).
    ///
    /// ```
    /// # use cuda_mem::{Driver, MemoryPool};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let context = device.primary_context()?;
    /// # let (stream, a, b) = (context.stream()?, context.stream()?, context.stream()?);
    /// # let pool = MemoryPool::builder(&device).build()?;
    /// let mut weights = pool.alloc_from(&stream, &[1u32, 2, 3])?;
    /// {
    ///     let (on_a, on_b) = (weights.read_on(&a)?, weights.read_on(&b)?);
    ///     let mut host = [0; 3];
    ///     on_a.copy_to(&mut host)?;
    ///     on_b.copy_to(&mut host)?;
    ///     assert_eq!(weights.to_vec()?, host);
    /// }
    /// weights.fill(0)?; // comes after both
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    ///
    /// While it is lent, the buffer cannot be written:
    ///
    /// ```compile_fail,E0502
    /// # use cuda_mem::{DeviceBuffer, Stream};
    /// # fn example(mut buffer: DeviceBuffer<u32>, other: Stream) -> Result<(), cuda_mem::Error> {
    /// let there = buffer.read_on(&other)?;
    /// buffer.fill(1)?; // error: already borrowed
    /// drop(there);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn read_on<'a>(&'a self, other: &'a Stream) -> Result<ReadLoan<'a, T>> {
        self.require_reach(other)?;
        self.wait_for_writers()?;
        if *other != *self.stream && self.address != 0 {
            order(self.stream.as_ref(), other.as_ref())?;
            self.note_pending_use(other, true);
        }
        Ok(ReadLoan {
            buffer: self,
            stream: other,
        })
    }
}

/// A buffer on loan to another stream for reading, until this guard is dropped. From
/// [`DeviceBuffer::read_on`].
#[must_use = "the loan ends when the guard is dropped"]
pub struct ReadLoan<'a, T: Pod> {
    buffer: &'a DeviceBuffer<T>,
    stream: &'a Stream,
}

impl<T: Pod> ReadLoan<'_, T> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.len == 0
    }

    /// The stream that the buffer is lent to.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// The device address, to be read in the order of [`stream`](Self::stream).
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.buffer.address
    }

    /// See [`DeviceBuffer::copy_to`]; synchronises this stream.
    ///
    /// # Errors
    ///
    /// Same as [`DeviceBuffer::copy_to`].
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn copy_to(&self, to: &mut [T]) -> Result<()> {
        self.span().copy_to(to)
    }

    /// For reading only.
    pub(crate) fn span(&self) -> Span<'_, T> {
        // SAFETY: this stream waits for the buffer's, which waits for this one before the memory is
        // written or freed there: `read_on` has recorded the pending use. Nothing is written through the span.
        unsafe { self.buffer.span_in(self.stream) }
    }
}

impl<T: Pod> Drop for ReadLoan<'_, T> {
    fn drop(&mut self) {
        report::release("loan", || {
            let deallocator = &self.buffer.stream;
            if *self.stream == **deallocator || self.buffer.address == 0 {
                return Ok(());
            }
            // On failure the wait stays pending, and is made before the buffer's next use.
            order(self.stream.as_ref(), deallocator.as_ref())?;
            let mut pending_uses = self.buffer.pending_uses.lock()?;
            pending_uses.remove_first(|pending_use| {
                pending_use.reads && pending_use.stream == *self.stream
            });
            Ok(())
        });
    }
}

impl<T: Pod> fmt::Debug for ReadLoan<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadLoan")
            .field("buffer", &self.buffer)
            .field("stream", &self.stream)
            .finish()
    }
}
