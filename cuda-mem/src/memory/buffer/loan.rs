//! A buffer on loan to another stream.

use std::fmt;

use bytemuck::Pod;
use cuda_driver_sys::{CUdeviceptr, CUpointer_attribute};

use super::DeviceBuffer;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::report;
use crate::driver::raw;
use crate::memory::copy::Span;
use crate::stream::Stream;
use crate::stream::context::Context;
use crate::stream::join::order;

impl<T: Pod> DeviceBuffer<T> {
    /// Lends the buffer to `other`: all work submitted to `other` from now on waits for the work now in the
    /// buffer's own stream, and when the guard is dropped, the buffer's stream waits for `other`. The host never
    /// waits. Lending to the buffer's own stream costs nothing; otherwise each end is two driver calls.
    ///
    /// If the guard is leaked, or its final wait fails, the buffer waits before its next use instead, and before it
    /// is freed.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the device of `other` has no access to the memory;
    /// otherwise any driver error.
    ///
    /// ```
    /// # use cuda_mem::{Driver, MemoryPool};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let context = device.primary_context()?;
    /// # let (stream, other) = (context.stream()?, context.stream()?);
    /// # let pool = MemoryPool::builder(&device).build()?;
    /// let mut buffer = pool.alloc::<u32>(&stream, 1000)?;
    /// {
    ///     let mut there = buffer.on(&other)?; // `other` waits for `stream` here …
    ///     there.fill(7)?;
    /// }                                       // … and `stream` for `other` here
    /// assert_eq!(buffer.to_vec()?, [7; 1000]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    ///
    /// While it is lent, the buffer itself cannot be used:
    ///
    /// ```compile_fail,E0502
    /// # use cuda_mem::{DeviceBuffer, Stream};
    /// # fn example(mut buffer: DeviceBuffer<u32>, other: Stream) -> Result<(), cuda_mem::Error> {
    /// let there = buffer.on(&other)?;
    /// buffer.to_vec()?; // error: already borrowed
    /// drop(there);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn on<'a>(&'a mut self, other: &'a Stream) -> Result<Loan<'a, T>> {
        self.require_reach(other)?;
        self.wait_for_pending_uses()?;
        if *other != *self.stream && self.address != 0 {
            order(self.stream.as_ref(), other.as_ref())?;
            self.note_pending_use(other, false);
        }
        Ok(Loan {
            buffer: self,
            stream: other,
        })
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// `Ok` if the stream's device can access the memory.
    pub(super) fn require_reach(&self, other: &Stream) -> Result<()> {
        self.require_reach_in(other.context())
    }

    /// `Ok` if work in this context can access the memory. One driver call, unless it is the buffer's own context.
    pub(crate) fn require_reach_in(&self, other: &Context) -> Result<()> {
        let (ours, theirs) = (self.stream.device(), other.device());
        // Memory without a pool may be accessible in one context only, even if both contexts are on one device.
        if self.stream.context() == other || self.address == 0 && ours.driver() == theirs.driver() {
            return Ok(());
        }
        if ours.driver() == theirs.driver() {
            let _current = other.bind()?;
            let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
            let table = theirs.driver().table();
            // SAFETY: the attribute is 8 bytes wide, and the memory is not freed.
            let answer = unsafe { raw::pointer::wide(table, attribute, self.address) };
            match answer {
                Ok(_) => return Ok(()),
                // The address has no meaning on the device of the current context (measured).
                Err(error) if error.kind() == ErrorKind::InvalidValue => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::invalid(format!(
            "the buffer is used on {ours}, and {theirs} has no access to it; take a stream of the \
             buffer's device, or give access with `Pool::set_access`"
        )))
    }
}

/// A buffer on loan to another stream, until this guard is dropped. From [`DeviceBuffer::on`].
#[must_use = "the loan ends when the guard is dropped"]
pub struct Loan<'a, T: Pod> {
    buffer: &'a mut DeviceBuffer<T>,
    stream: &'a Stream,
}

impl<T: Pod> Loan<'_, T> {
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

    /// The device address, to be used in the order of [`stream`](Self::stream).
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.buffer.address
    }

    /// See [`DeviceBuffer::fill`].
    ///
    /// # Errors
    ///
    /// Same as [`DeviceBuffer::fill`].
    #[doc(alias("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"))]
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.span().fill(value)
    }

    /// See [`DeviceBuffer::fill_bytes`].
    ///
    /// # Errors
    ///
    /// Same as [`DeviceBuffer::fill_bytes`].
    #[doc(alias = "cuMemsetD8Async")]
    pub fn fill_bytes(&mut self, value: u8) -> Result<()> {
        self.span().fill_bytes(value)
    }

    /// See [`DeviceBuffer::zero`].
    ///
    /// # Errors
    ///
    /// Same as [`DeviceBuffer::zero`].
    #[doc(alias = "cuMemsetD8Async")]
    pub fn zero(&mut self) -> Result<()> {
        self.fill_bytes(0)
    }

    /// See [`DeviceBuffer::copy_from`]; synchronises this stream.
    ///
    /// # Errors
    ///
    /// Same as [`DeviceBuffer::copy_from`].
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        self.span().copy_from(from)
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

    pub(crate) fn span(&self) -> Span<'_, T> {
        // SAFETY: this stream waits for the buffer's, which waits for this one before the memory is
        // used or freed there: `on` has recorded the pending use. The span borrows the loan.
        unsafe { self.buffer.span_in(self.stream) }
    }
}

impl<T: Pod> Drop for Loan<'_, T> {
    fn drop(&mut self) {
        // On failure the wait stays pending, and is made before the buffer's next use.
        report::release("loan", || self.buffer.wait_for_pending_uses());
    }
}

impl<T: Pod> fmt::Debug for Loan<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan")
            .field("buffer", &self.buffer)
            .field("stream", &self.stream)
            .finish()
    }
}
