//! Slices of a buffer, and its use on other streams.

use std::ops::{Deref, DerefMut, RangeBounds};

use bytemuck::Pod;

use super::DeviceBuffer;
use crate::base::error::Result;
use crate::memory::slice::{
    DeviceMemory, DeviceMemoryMut, DeviceSlice, DeviceSliceMut, OnStream, sealed,
};
use crate::stream::Stream;
use crate::stream::context::Context;
use crate::stream::join::order;

impl<T: Pod> DeviceBuffer<T> {
    /// All elements, for reading.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::new(self.noted_span())
    }

    /// All elements, for writing.
    pub fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::new(self.noted_span())
    }

    /// Some of the elements, for reading.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the range is not within the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        self.as_slice().slice(range)
    }

    /// Some of the elements, for writing.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the range is not within the buffer.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let mut x = device.default_pool()?.alloc_zeroed::<u8>(&stream, 5)?;
    /// x.slice_mut(1..3)?.fill(7)?;
    /// assert_eq!(x.to_vec()?, [0, 7, 7, 0, 0]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        Ok(DeviceSliceMut::new(self.noted_span().part(range)?))
    }

    /// The first `mid` elements, and the others. They may be used at the same time, on different streams; see
    /// [`DeviceSliceMut`].
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if there are fewer than `mid`.
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(DeviceSliceMut<'_, T>, DeviceSliceMut<'_, T>)> {
        let all = self.noted_span();
        let (low, high) = (all.part(..mid)?, all.part(mid..)?);
        Ok((DeviceSliceMut::new(low), DeviceSliceMut::new(high)))
    }

    /// Parts of `len` elements, in order; the last one may have fewer.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if `len` is 0.
    pub fn chunks(&self, len: usize) -> Result<impl Iterator<Item = DeviceSlice<'_, T>>> {
        self.as_slice().chunks(len)
    }

    /// Parts of `len` elements, in order; the last one may have fewer.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if `len` is 0.
    pub fn chunks_mut(
        &mut self,
        len: usize,
    ) -> Result<impl Iterator<Item = DeviceSliceMut<'_, T>>> {
        Ok(self.noted_span().chunks(len)?.map(DeviceSliceMut::new))
    }

    /// The buffer for use on `other`: all work submitted to `other` from now on waits for the work now in the buffer's
    /// own stream, and when the result is dropped, the buffer's stream waits for `other`. The host never waits. The
    /// beginning costs as much as [`Stream::wait_for`], the end two queries more; nothing if `other` is the buffer's
    /// own stream.
    ///
    /// If the result is leaked, its final wait fails, or another library captures one of the two streams then, the buffer
    /// waits before its next use instead, and before it is freed. Uses are [`Capturing`](crate::ErrorKind::Capturing) errors
    /// until such a capture ends.
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
    /// Meanwhile the buffer itself cannot be used:
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
    pub fn on<'a>(&'a mut self, other: &'a Stream) -> Result<DeviceSliceMut<'a, T, OnStream<'a>>> {
        self.require_reach(other)?;
        self.wait_for_pending_uses()?;
        if *other == *self.stream || self.address == 0 {
            return self.as_mut_slice().on(other);
        }
        order(self.stream.as_ref(), other.as_ref())?;
        // Without the lock, which `DeviceSliceMut::on` takes.
        let bytes = self.span().addresses();
        let number = self.pending_uses.get_mut().push(other, bytes, false);
        Ok(self.as_mut_slice().bound(other, number))
    }

    /// The buffer for reading on `other`. Like [`on`](Self::on), but the buffer may be read on several streams at a
    /// time, and on its own stream too: readers do not wait for each other.
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
    /// Meanwhile the buffer cannot be written:
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
    pub fn read_on<'a>(&'a self, other: &'a Stream) -> Result<DeviceSlice<'a, T, OnStream<'a>>> {
        self.as_slice().read_on(other)
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// `Ok` if the stream's device can read and write the memory.
    pub(super) fn require_reach(&self, other: &Stream) -> Result<()> {
        self.span().require_writing_in(other.context())
    }

    /// `Ok` if work in this context can access the memory. One driver call, unless it is the buffer's own context.
    pub(crate) fn require_reach_in(&self, other: &Context) -> Result<()> {
        self.span().require_reach_in(other)
    }
}

impl<T: Pod> sealed::Memory for DeviceBuffer<T> {}

impl<T: Pod> DeviceMemory for DeviceBuffer<T> {
    type Element = T;

    fn as_slice(&self) -> DeviceSlice<'_, T> {
        self.as_slice()
    }
}

impl<T: Pod> DeviceMemoryMut for DeviceBuffer<T> {
    fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        self.as_mut_slice()
    }
}

/// Whatever dereferences to a buffer.
impl<T: Pod, B: Deref<Target = DeviceBuffer<T>>> sealed::Memory for B {}

impl<T: Pod, B: Deref<Target = DeviceBuffer<T>>> DeviceMemory for B {
    type Element = T;

    fn as_slice(&self) -> DeviceSlice<'_, T> {
        (**self).as_slice()
    }
}

impl<T: Pod, B: DerefMut<Target = DeviceBuffer<T>>> DeviceMemoryMut for B {
    fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        (**self).as_mut_slice()
    }
}
