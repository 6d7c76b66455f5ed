//! A vector on a device.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;

use crate::base::error::{Error, Result};
use crate::memory::buffer::DeviceBuffer;
use crate::memory::resource::Resource;
use crate::memory::slice::{DeviceMemory, DeviceSliceMut};
use crate::stream::Stream;

/// A growable array in device memory, allocated, copied and freed in stream order.
///
/// It dereferences to a [`DeviceBuffer`] of its elements, which provides everything else: copies, fills, slices,
/// use on other streams. For methods that consume a buffer, such as `free`, call [`into_buffer`](Self::into_buffer) first.
/// When it grows, the elements move to new memory, in stream order and without waiting, so addresses obtained
/// earlier become invalid.
///
/// Memory, including that needed for later growth, comes from the [current
/// resource](crate::Device::current_resource) of the stream's device, or from the resource passed to the functions
/// ending in `_in`. [`set_stream`](DeviceBuffer::set_stream) moves it to another stream.
///
/// ```
/// use cuda_mem::memory::DeviceVec;
///
/// # cuda_sim::use_if_no_driver();
/// # let device = cuda_mem::Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let mut numbers = DeviceVec::from_slice(&stream, &[1u32, 2, 3])?;
/// numbers.extend_from_slice(&[4, 5])?;
/// numbers.resize(7, 9)?;
/// assert_eq!(numbers.to_vec()?, [1, 2, 3, 4, 5, 9, 9]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct DeviceVec<T: Pod> {
    /// Its length is the number of elements; its memory may have capacity for more.
    buffer: DeviceBuffer<T>,
    resource: Resource,
}

impl<T: Pod> DeviceVec<T> {
    /// Creates an empty vector without allocating memory.
    ///
    /// # Errors
    ///
    /// Same as [`Device::current_resource`](crate::Device::current_resource).
    #[track_caller]
    pub fn new(stream: &Stream) -> Result<Self> {
        Self::with_capacity(stream, 0)
    }

    /// Creates an empty vector with memory for `capacity` elements. Does not synchronise.
    ///
    /// # Errors
    ///
    /// Same as [`Resource::alloc`].
    #[track_caller]
    pub fn with_capacity(stream: &Stream, capacity: usize) -> Result<Self> {
        Self::with_capacity_in(&stream.device().current_resource()?, stream, capacity)
    }

    /// Like [`with_capacity`](Self::with_capacity), but allocates from `resource`.
    ///
    /// # Errors
    ///
    /// Same as [`with_capacity`](Self::with_capacity).
    #[track_caller]
    pub fn with_capacity_in(resource: &Resource, stream: &Stream, capacity: usize) -> Result<Self> {
        let mut vec = Self::uninit_in(resource, stream, capacity)?;
        vec.buffer.set_len(0);
        Ok(vec)
    }

    /// Creates a vector of `len` elements with unspecified contents. Does not synchronise.
    ///
    /// # Errors
    ///
    /// Same as [`Resource::alloc`].
    #[track_caller]
    pub fn uninit(stream: &Stream, len: usize) -> Result<Self> {
        Self::uninit_in(&stream.device().current_resource()?, stream, len)
    }

    /// Like [`uninit`](Self::uninit), but allocates from `resource`.
    ///
    /// # Errors
    ///
    /// Same as [`uninit`](Self::uninit).
    #[track_caller]
    pub fn uninit_in(resource: &Resource, stream: &Stream, len: usize) -> Result<Self> {
        Ok(Self {
            buffer: resource.alloc(stream, len)?,
            resource: resource.clone(),
        })
    }

    /// Creates a vector of `len` elements of zero bytes. Does not synchronise.
    ///
    /// # Errors
    ///
    /// Same as [`Resource::alloc_zeroed`].
    #[track_caller]
    pub fn zeroed(stream: &Stream, len: usize) -> Result<Self> {
        Self::zeroed_in(&stream.device().current_resource()?, stream, len)
    }

    /// Like [`zeroed`](Self::zeroed), but allocates from `resource`.
    ///
    /// # Errors
    ///
    /// Same as [`zeroed`](Self::zeroed).
    #[track_caller]
    pub fn zeroed_in(resource: &Resource, stream: &Stream, len: usize) -> Result<Self> {
        let mut vec = Self::uninit_in(resource, stream, len)?;
        vec.buffer.zero()?;
        Ok(vec)
    }

    /// Creates a vector from the elements of a host slice. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// Same as [`Resource::alloc_from`].
    #[track_caller]
    pub fn from_slice(stream: &Stream, from: &[T]) -> Result<Self> {
        Self::from_slice_in(&stream.device().current_resource()?, stream, from)
    }

    /// Like [`from_slice`](Self::from_slice), but allocates from `resource`.
    ///
    /// # Errors
    ///
    /// Same as [`from_slice`](Self::from_slice).
    #[track_caller]
    pub fn from_slice_in(resource: &Resource, stream: &Stream, from: &[T]) -> Result<Self> {
        let mut vec = Self::uninit_in(resource, stream, from.len())?;
        vec.buffer.copy_from(from)?;
        Ok(vec)
    }

    /// Copies the vector, using the same resource and the same stream. Does not synchronise.
    ///
    /// # Errors
    ///
    /// Same as [`Resource::alloc`] and [`DeviceBuffer::copy_from_device`].
    #[track_caller]
    pub fn try_clone(&self) -> Result<Self> {
        let mut clone = Self::uninit_in(&self.resource, self.stream(), self.len())?;
        clone.buffer.copy_from_device(&self.buffer)?;
        Ok(clone)
    }

    /// The number of elements that fit without reallocating.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buffer.room()
    }

    /// The resource that the memory comes from.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Reserves capacity for at least `additional` more elements, and usually for more, so that adding elements one
    /// by one rarely reallocates. Does not synchronise. If the larger request is out of memory, it retries with
    /// exactly what is needed. Recovery policies and callbacks of the resource run for the first request too; with
    /// those, prefer [`reserve_exact`](Self::reserve_exact).
    ///
    /// # Errors
    ///
    /// Same as [`Resource::alloc`]; on error the vector is unchanged.
    #[track_caller]
    pub fn reserve(&mut self, additional: usize) -> Result<()> {
        let needed = self.len_with(additional)?;
        if needed <= self.capacity() {
            return Ok(());
        }
        let roomy = needed.max(self.capacity().saturating_mul(2));
        match self.move_to_room(roomy) {
            // The smaller request may still succeed.
            Err(error) if roomy > needed && error.is_out_of_memory() => self.move_to_room(needed),
            moved => moved,
        }
    }

    /// Reserves capacity for exactly `additional` more elements, unless it is already there. Does not synchronise.
    ///
    /// # Errors
    ///
    /// Same as [`reserve`](Self::reserve).
    #[track_caller]
    pub fn reserve_exact(&mut self, additional: usize) -> Result<()> {
        let needed = self.len_with(additional)?;
        if needed <= self.capacity() {
            return Ok(());
        }
        self.move_to_room(needed)
    }

    /// Frees unused capacity: the elements move to memory of exactly their size. Does not synchronise.
    ///
    /// # Errors
    ///
    /// Same as [`reserve`](Self::reserve).
    #[track_caller]
    pub fn shrink_to_fit(&mut self) -> Result<()> {
        self.shrink_to(0)
    }

    /// Like [`shrink_to_fit`](Self::shrink_to_fit), but keeps capacity for `capacity` elements.
    ///
    /// # Errors
    ///
    /// Same as [`shrink_to_fit`](Self::shrink_to_fit).
    #[track_caller]
    pub fn shrink_to(&mut self, capacity: usize) -> Result<()> {
        let wanted = capacity.max(self.len());
        if wanted >= self.capacity() {
            return Ok(());
        }
        self.move_to_room(wanted)
    }

    /// Changes the number of elements, reallocating to exactly `len` if the capacity is too small. New elements are
    /// set to `value`, of 1, 2 or 4 bytes (other sizes do not compile). Does not synchronise.
    ///
    /// # Errors
    ///
    /// Same as [`reserve`](Self::reserve) and [`DeviceBuffer::fill`].
    #[doc(alias("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"))]
    #[track_caller]
    pub fn resize(&mut self, len: usize, value: T) -> Result<()> {
        self.resize_with(len, |mut new| new.fill(value))
    }

    /// Changes the number of elements; new elements are zero bytes. Does not synchronise.
    ///
    /// # Errors
    ///
    /// Same as [`resize`](Self::resize).
    #[doc(alias = "cuMemsetD8Async")]
    #[track_caller]
    pub fn resize_zeroed(&mut self, len: usize) -> Result<()> {
        self.resize_with(len, |mut new| new.zero())
    }

    /// Changes the number of elements; the contents of new elements are unspecified. Does not synchronise.
    ///
    /// # Errors
    ///
    /// Same as [`reserve`](Self::reserve).
    #[track_caller]
    pub fn resize_uninit(&mut self, len: usize) -> Result<()> {
        self.resize_with(len, |_| Ok(()))
    }

    /// The number of elements changes only if `init` initialises the new ones successfully.
    #[track_caller]
    fn resize_with(
        &mut self,
        len: usize,
        init: impl FnOnce(DeviceSliceMut<'_, T>) -> Result<()>,
    ) -> Result<()> {
        let before = self.len();
        if len > before {
            self.reserve_exact(len - before)?;
        }
        self.buffer.set_len(len);
        if len > before
            && let Err(error) = self.buffer.slice_mut(before..).and_then(init)
        {
            self.buffer.set_len(before);
            return Err(error);
        }
        Ok(())
    }

    /// Shortens the vector to `len` elements, if it has more. The capacity is unchanged.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.buffer.set_len(len);
        }
    }

    /// Removes all elements. The capacity is unchanged.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Appends the elements of a host slice. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// Same as [`reserve`](Self::reserve) and [`DeviceBuffer::copy_from`].
    #[doc(alias = "cuMemcpyHtoDAsync")]
    #[track_caller]
    pub fn extend_from_slice(&mut self, from: &[T]) -> Result<()> {
        let len = self.len_with(from.len())?;
        self.reserve(from.len())?;
        self.resize_with(len, |mut new| new.copy_from(from))
    }

    /// Appends the elements of other memory, in the order of both streams. Does not synchronise.
    ///
    /// # Errors
    ///
    /// Same as [`reserve`](Self::reserve) and [`DeviceBuffer::copy_from_device`].
    #[doc(alias = "cuMemcpyDtoDAsync")]
    #[track_caller]
    pub fn extend_from_device(&mut self, from: &impl DeviceMemory<Element = T>) -> Result<()> {
        let additional = from.as_slice().len();
        let len = self.len_with(additional)?;
        self.reserve(additional)?;
        self.resize_with(len, |mut new| new.copy_from_device(from))
    }

    /// Reads one element. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the index is out of bounds; otherwise any error from the
    /// driver.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn element(&self, index: usize) -> Result<T> {
        let mut element = [T::zeroed()];
        self.buffer.slice(index..=index)?.copy_to(&mut element)?;
        Ok(element[0])
    }

    /// Sets one element. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// Same as [`element`](Self::element).
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn set_element(&mut self, index: usize, value: T) -> Result<()> {
        self.buffer.slice_mut(index..=index)?.copy_from(&[value])
    }

    /// Converts the vector into a buffer of its elements. Unused capacity stays allocated until the buffer is
    /// freed.
    #[must_use]
    pub fn into_buffer(self) -> DeviceBuffer<T> {
        self.buffer
    }

    fn len_with(&self, additional: usize) -> Result<usize> {
        self.len().checked_add(additional).ok_or_else(|| {
            Error::invalid(format!(
                "{additional} elements more than {} cannot be counted",
                self.len()
            ))
        })
    }

    /// Moves the elements to new memory for `room` elements, at least the current length.
    #[track_caller]
    fn move_to_room(&mut self, room: usize) -> Result<()> {
        let mut moved = self.resource.alloc(self.stream(), room)?;
        moved.set_len(self.len());
        moved.copy_from_device(&self.buffer)?;
        // The old memory is freed in the order of the stream, behind the copy.
        self.buffer = moved;
        Ok(())
    }
}

impl<T: Pod> Deref for DeviceVec<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }
}

impl<T: Pod> DerefMut for DeviceVec<T> {
    fn deref_mut(&mut self) -> &mut DeviceBuffer<T> {
        &mut self.buffer
    }
}

impl<T: Pod> fmt::Debug for DeviceVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceVec")
            .field("buffer", &self.buffer)
            .field("capacity", &self.capacity())
            .field("resource", &self.resource)
            .finish()
    }
}
