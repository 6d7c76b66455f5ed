//! Ranges of memory for writing.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::{DeviceMemory, DeviceMemoryMut, DeviceSlice, OnStream, Span, sealed};
use crate::base::error::Result;
use crate::driver::device::Device;
use crate::stream::Stream;

/// A range of memory, for writing, in the order of a stream. Nothing else uses the range meanwhile.
///
/// It comes from any buffer: `as_mut_slice` takes all elements, `slice_mut` some of them, and `split_at_mut` divides
/// them. It is bound to the buffer's stream; [`on`](Self::on) binds it to another one, with the required ordering. Such
/// a slice has the type `DeviceSliceMut<'_, T, OnStream<'_>>`, and the other stream is waited for when it is dropped.
///
/// Creating and dividing slices makes no driver call. An argument of a kernel that writes is `&mut slice`.
///
/// Two halves, each filled in a stream of its own:
///
/// ```
/// # use cuda_mem::{Driver, MemoryPool};
/// # cuda_sim::use_if_no_driver();
/// # let device = Driver::load()?.device(0)?;
/// # let context = device.primary_context()?;
/// # let (stream, a, b) = (context.stream()?, context.stream()?, context.stream()?);
/// # let pool = MemoryPool::builder(&device).build()?;
/// let mut x = pool.alloc::<u32>(&stream, 1000)?;
/// let (low, high) = x.split_at_mut(500)?;
/// {
///     let (mut low, mut high) = (low.on(&a)?, high.on(&b)?);
///     low.fill(1)?; // at the same time …
///     high.fill(2)?; // … as this
/// } // `stream` waits for both
/// assert_eq!(x.to_vec()?[499..501], [1, 2]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
///
/// While a range is being written, nothing else can use it:
///
/// ```compile_fail,E0502
/// # use cuda_mem::DeviceBuffer;
/// # fn example(mut buffer: DeviceBuffer<u32>) -> Result<(), cuda_mem::Error> {
/// let mut part = buffer.slice_mut(..10)?;
/// buffer.to_vec()?; // error: already borrowed
/// part.fill(1)?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a slice does nothing by itself"]
pub struct DeviceSliceMut<'a, T: Pod, B = ()> {
    span: Span<'a, T>,
    _binding: B,
    exclusive: PhantomData<&'a mut T>,
}

impl<'a, T: Pod> DeviceSliceMut<'a, T> {
    /// The span must be readable and writable as long as the slice's lifetime lasts; nothing else uses it then, except
    /// what is ordered before.
    pub(crate) fn new(span: Span<'a, T>) -> Self {
        Self {
            span,
            _binding: (),
            exclusive: PhantomData,
        }
    }

    /// The same memory, bound to `other`: work submitted to `other` from now on waits for the work now in the slice's
    /// stream, and once the result is dropped, the slice's stream waits for `other`. The host never waits. The
    /// beginning costs as much as [`Stream::wait_for`], the end two queries more; nothing if `other` is the slice's
    /// stream.
    ///
    /// This takes the slice; to go on with it afterwards, bind [`as_mut_slice`](Self::as_mut_slice) instead.
    ///
    /// If the result is leaked, or the last wait fails, the memory's next use waits instead, and so does its free.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the device of `other` has no access to the memory;
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for memory of a graph on another stream than its own; otherwise any driver error.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn on(self, other: &'a Stream) -> Result<DeviceSliceMut<'a, T, OnStream<'a>>> {
        self.span.wait_for_pending_uses(true)?;
        Ok(Self::with(self.span.lend(other, false)?))
    }

    /// The span, with the exclusive access that the slice had.
    pub(crate) fn into_span(self) -> Span<'a, T> {
        self.span
    }

    /// As [`on`](Self::on), if the streams have been ordered and the use has been noted under this number.
    pub(crate) fn bound(
        self,
        other: &'a Stream,
        number: u64,
    ) -> DeviceSliceMut<'a, T, OnStream<'a>> {
        Self::with(self.span.bind(other, number))
    }

    fn with((span, binding): (Span<'a, T>, OnStream<'a>)) -> DeviceSliceMut<'a, T, OnStream<'a>> {
        DeviceSliceMut {
            span,
            _binding: binding,
            exclusive: PhantomData,
        }
    }
}

impl<T: Pod, B> DeviceSliceMut<'_, T, B> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.span.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.span.len == 0
    }

    /// Number of bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.span.size_bytes()
    }

    /// The stream in whose order the memory is used.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.span.stream
    }

    /// The device that the memory belongs to; `None` for host memory, and if it is unknown.
    #[must_use]
    pub fn device(&self) -> Option<Device> {
        self.span.device
    }

    /// The device address of the first element, to be used in the order of [`stream`](Self::stream); 0 if there is no
    /// memory.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.span.address
    }

    /// The same elements, for writing, while this slice is borrowed.
    pub fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::new(self.span)
    }

    /// The same elements, for reading.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::new(self.span)
    }

    /// Makes the slice's stream wait for streams that may still use the memory because a slice on one of them was
    /// leaked, or a wait failed. Every other method does this itself; call it before using [`as_raw`](Self::as_raw).
    /// Usually there is nothing to wait for, and no driver call is made.
    ///
    /// Not while a slice of it is read on another stream:
    ///
    /// ```compile_fail,E0502
    /// # use cuda_mem::{DeviceBuffer, Stream};
    /// # fn example(buffer: &mut DeviceBuffer<u32>, other: Stream) -> Result<(), cuda_mem::Error> {
    /// let mut all = buffer.as_mut_slice();
    /// let reader = all.as_slice().read_on(&other)?;
    /// all.wait_for_pending_uses()?; // error: already borrowed
    /// drop(reader);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn wait_for_pending_uses(&mut self) -> Result<()> {
        self.span.wait_for_pending_uses(true)
    }

    /// Part of the slice, for reading. See [`DeviceSlice::slice`].
    ///
    /// # Errors
    ///
    /// The same errors.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        Ok(DeviceSlice::new(self.span.part(range)?))
    }

    /// Part of the slice, as a range of elements.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the range is not within the slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        Ok(DeviceSliceMut::new(self.span.part(range)?))
    }

    /// The first `mid` elements, and the others. They may be used at the same time, on different streams.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if there are fewer than `mid`.
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(DeviceSliceMut<'_, T>, DeviceSliceMut<'_, T>)> {
        let (low, high) = (self.span.part(..mid)?, self.span.part(mid..)?);
        Ok((DeviceSliceMut::new(low), DeviceSliceMut::new(high)))
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
        Ok(self.span.chunks(len)?.map(DeviceSliceMut::new))
    }

    /// Submits a fill of all elements with `value`, of 1, 2 or 4 bytes (others do not compile).
    /// Does not synchronise.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"))]
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.span.wait_for_pending_uses(true)?;
        self.span.fill(value)
    }

    /// Submits a fill of all bytes with `value`. Does not synchronise.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuMemsetD8Async")]
    pub fn fill_bytes(&mut self, value: u8) -> Result<()> {
        self.span.wait_for_pending_uses(true)?;
        self.span.fill_bytes(value)
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

    /// Copies a host slice of the same length into the memory. Synchronises the stream: the host slice may be changed
    /// when this returns.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the lengths differ, and for memory of a capture; otherwise
    /// any driver error.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        self.span.wait_for_pending_uses(true)?;
        self.span.copy_from(from)
    }

    /// Submits a copy of other memory of the same length, in the order of both streams. See
    /// [`DeviceBuffer::copy_from_device`](crate::DeviceBuffer::copy_from_device).
    ///
    /// # Errors
    ///
    /// The same errors.
    #[doc(alias("cuMemcpyDtoDAsync", "cuMemcpyPeerAsync"))]
    pub fn copy_from_device(&mut self, from: &impl DeviceMemory<Element = T>) -> Result<()> {
        self.span.wait_for_pending_uses(true)?;
        self.span.copy_from_device(&from.as_slice().span())
    }

    /// Copies the elements into a host slice of the same length. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// Same as [`copy_from`](Self::copy_from).
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn copy_to(&self, to: &mut [T]) -> Result<()> {
        self.as_slice().copy_to(to)
    }

    /// Copies the elements into a new vector. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// Same as [`copy_to`](Self::copy_to); [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if the host has no memory for
    /// the vector.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.as_slice().to_vec()
    }
}

impl<T: Pod, B> sealed::Memory for DeviceSliceMut<'_, T, B> {}

impl<T: Pod, B> DeviceMemory for DeviceSliceMut<'_, T, B> {
    type Element = T;

    fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::new(self.span)
    }
}

impl<T: Pod, B> DeviceMemoryMut for DeviceSliceMut<'_, T, B> {
    fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::new(self.span)
    }
}

impl<T: Pod, B> fmt::Debug for DeviceSliceMut<'_, T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.span.fmt_as("DeviceSliceMut", f)
    }
}
