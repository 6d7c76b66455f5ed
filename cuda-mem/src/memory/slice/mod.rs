//! Slices: ranges of memory that something else owns, each with the stream in whose order it is used.

mod mutable;
mod on_stream;
mod pending_uses;
mod span;
mod transfer;

pub use mutable::DeviceSliceMut;
pub use on_stream::OnStream;
pub(crate) use pending_uses::{PendingUses, wait_for_use};
pub(crate) use span::Span;
pub(crate) use transfer::pattern;

use std::fmt;
use std::ops::RangeBounds;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use crate::base::error::Result;
use crate::driver::device::Device;
use crate::stream::Stream;

/// A range of memory, for reading, in the order of a stream.
///
/// It comes from any buffer: `as_slice` takes all elements, `slice` some of them. It is bound to the buffer's stream;
/// [`read_on`](Self::read_on) binds it to another one, with the required ordering. Such a slice has the type
/// `DeviceSlice<'_, T, OnStream<'_>>`, and the other stream is waited for when it is dropped.
///
/// Creating and dividing slices makes no driver call. An argument of a kernel that only reads is `&slice`.
///
/// ```
/// # use cuda_mem::{Driver, MemoryPool};
/// # cuda_sim::use_if_no_driver();
/// # let device = Driver::load()?.device(0)?;
/// # let context = device.primary_context()?;
/// # let (stream, other) = (context.stream()?, context.stream()?);
/// # let pool = MemoryPool::builder(&device).build()?;
/// let numbers = pool.alloc_from(&stream, &[1u32, 2, 3, 4, 5])?;
/// let tail = numbers.slice(2..)?;
/// assert_eq!(tail.to_vec()?, [3, 4, 5]);
///
/// let mut copy = pool.alloc::<u32>(&other, 2)?;
/// copy.copy_from_device(&tail.slice(..2)?)?; // in the order of both streams
/// assert_eq!(copy.to_vec()?, [3, 4]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[must_use = "a slice does nothing by itself"]
pub struct DeviceSlice<'a, T: Pod, B = ()> {
    span: Span<'a, T>,
    _binding: B,
}

impl<T: Pod> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Pod> Copy for DeviceSlice<'_, T> {}

impl<'a, T: Pod> DeviceSlice<'a, T> {
    /// The span must be readable as long as the slice's lifetime lasts; nothing writes to it then, except what is
    /// ordered before.
    pub(crate) fn new(span: Span<'a, T>) -> Self {
        Self { span, _binding: () }
    }

    /// Part of the slice, as a range of elements.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the range is not within the slice.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(Self::new(self.span.part(range)?))
    }

    /// The first `mid` elements, and the others.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if there are fewer than `mid`.
    pub fn split_at(self, mid: usize) -> Result<(Self, Self)> {
        Ok((self.slice(..mid)?, self.slice(mid..)?))
    }

    /// Parts of `len` elements, in order; the last one may have fewer.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if `len` is 0.
    pub fn chunks(self, len: usize) -> Result<impl Iterator<Item = Self>> {
        Ok(self.span.chunks(len)?.map(Self::new))
    }

    /// The same memory, bound to `other`: work submitted to `other` from now on waits for the work now in the slice's
    /// stream, and once the result is dropped, the slice's stream waits for `other`. The host never waits. Memory may
    /// be bound to several streams for reading at a time, and read on its own stream too: readers do not wait for each
    /// other. The beginning costs as much as [`Stream::wait_for`], the end two queries more; nothing if `other` is the
    /// slice's stream.
    ///
    /// If the result is leaked, or the last wait fails, the memory's next use waits instead.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the device of `other` has no access to the memory;
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for memory of a graph on another stream than its own; otherwise any driver error.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn read_on(self, other: &'a Stream) -> Result<DeviceSlice<'a, T, OnStream<'a>>> {
        self.span.wait_for_pending_uses(false)?;
        let (span, binding) = self.span.lend(other, true)?;
        Ok(DeviceSlice {
            span,
            _binding: binding,
        })
    }
}

impl<'a, T: Pod, B> DeviceSlice<'a, T, B> {
    pub(crate) fn span(&self) -> Span<'_, T> {
        self.span
    }

    /// The span, which may be used until the binding is dropped.
    pub(crate) fn into_parts(self) -> (Span<'a, T>, B) {
        (self.span, self._binding)
    }

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

    /// The device address of the first element, to be read in the order of [`stream`](Self::stream); 0 if there is no
    /// memory.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.span.address
    }

    /// The same elements, in the same order.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::new(self.span)
    }

    /// Makes the slice's stream wait for streams that may still write the memory because a slice on one of them was
    /// leaked, or a wait failed. Every other method does this itself; call it before using [`as_raw`](Self::as_raw).
    /// Usually there is nothing to wait for, and no driver call is made.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn wait_for_pending_uses(&self) -> Result<()> {
        self.span.wait_for_pending_uses(false)
    }

    /// Copies the elements into a host slice of the same length. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the lengths differ, and for memory of a capture; otherwise
    /// any driver error.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn copy_to(&self, to: &mut [T]) -> Result<()> {
        self.span.wait_for_pending_uses(false)?;
        self.span.copy_to(to)
    }

    /// Copies the elements into a new vector. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// Same as [`copy_to`](Self::copy_to); [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if the host has no memory for
    /// the vector.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.span.wait_for_pending_uses(false)?;
        self.span.to_vec()
    }
}

impl<T: Pod, B> fmt::Debug for DeviceSlice<'_, T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.span.fmt_as("DeviceSlice", f)
    }
}

#[allow(
    unreachable_pub,
    reason = "named by a public trait, and older compilers do not see that"
)]
pub(crate) mod sealed {
    /// Types whose slices are valid as the slices' documentation says.
    pub trait Memory {}
}

/// Memory that work in a stream can read: buffers of every kind, slices, and host memory that a stream has.
///
/// Functions of this crate take `&impl DeviceMemory` as a source, and a launch takes `&memory` as an argument.
///
/// This trait is sealed.
pub trait DeviceMemory: sealed::Memory {
    /// The type of the elements.
    type Element: Pod;

    /// All elements.
    fn as_slice(&self) -> DeviceSlice<'_, Self::Element>;
}

/// Memory that work in a stream can write. A launch takes `&mut memory` as an argument.
///
/// ```
/// use cuda_mem::memory::DeviceMemoryMut;
///
/// fn clear(memory: &mut impl DeviceMemoryMut<Element = f32>) -> cuda_mem::Result<()> {
///     memory.as_mut_slice().fill(0.0)
/// }
///
/// # cuda_sim::use_if_no_driver();
/// # let device = cuda_mem::Driver::load()?.device(0)?;
/// # let stream = device.primary_context()?.stream()?;
/// let mut buffer = device.default_pool()?.alloc::<f32>(&stream, 100)?;
/// clear(&mut buffer)?;
/// clear(&mut buffer.slice_mut(50..)?)?;
/// # Ok::<(), cuda_mem::Error>(())
/// ```
///
/// This trait is sealed.
pub trait DeviceMemoryMut: DeviceMemory {
    /// All elements.
    fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, Self::Element>;
}

impl<T: Pod, B> sealed::Memory for DeviceSlice<'_, T, B> {}

impl<T: Pod, B> DeviceMemory for DeviceSlice<'_, T, B> {
    type Element = T;

    fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::new(self.span)
    }
}
