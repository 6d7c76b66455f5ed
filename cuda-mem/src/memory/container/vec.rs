//! A vector on a device.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;

use crate::base::error::{Error, Result};
use crate::memory::buffer::DeviceBuffer;
use crate::memory::resource::Resource;
use crate::stream::Stream;

/// A growing number of elements in device memory, allocated, copied and freed in the order of a stream.
///
/// It dereferences to a [`DeviceBuffer`] of its elements, which has the rest: copies, fills, loans to
/// other streams; what consumes a buffer, such as `free`, comes after [`into_buffer`](Self::into_buffer).
/// When it grows, the elements move to new memory, in the order of the stream and without
/// waiting, so addresses that were read before are no longer its own.
///
/// Memory comes from the [current resource](crate::Device::current_resource) of the stream's device, or
/// from the one that the functions ending in `_in` are given, and so does what it needs later.
/// [`set_stream`](DeviceBuffer::set_stream) gives it to another stream.
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
    /// Shows the elements; there may be room for more.
    buffer: DeviceBuffer<T>,
    resource: Resource,
}

impl<T: Pod> DeviceVec<T> {
    /// No elements, and no memory yet.
    ///
    /// # Errors
    ///
    /// As [`Device::current_resource`](crate::Device::current_resource).
    #[track_caller]
    pub fn new(stream: &Stream) -> Result<Self> {
        Self::with_capacity(stream, 0)
    }

    /// No elements, and memory for so many. Does not synchronise.
    ///
    /// # Errors
    ///
    /// As [`Resource::alloc`].
    #[track_caller]
    pub fn with_capacity(stream: &Stream, capacity: usize) -> Result<Self> {
        Self::with_capacity_in(&stream.device().current_resource()?, stream, capacity)
    }

    /// As [`with_capacity`](Self::with_capacity), from this resource.
    ///
    /// # Errors
    ///
    /// As there.
    #[track_caller]
    pub fn with_capacity_in(resource: &Resource, stream: &Stream, capacity: usize) -> Result<Self> {
        let mut vec = Self::uninit_in(resource, stream, capacity)?;
        vec.buffer.set_len(0);
        Ok(vec)
    }

    /// So many elements of arbitrary content. Does not synchronise.
    ///
    /// # Errors
    ///
    /// As [`Resource::alloc`].
    #[track_caller]
    pub fn uninit(stream: &Stream, len: usize) -> Result<Self> {
        Self::uninit_in(&stream.device().current_resource()?, stream, len)
    }

    /// As [`uninit`](Self::uninit), from this resource.
    ///
    /// # Errors
    ///
    /// As there.
    #[track_caller]
    pub fn uninit_in(resource: &Resource, stream: &Stream, len: usize) -> Result<Self> {
        Ok(Self {
            buffer: resource.alloc(stream, len)?,
            resource: resource.clone(),
        })
    }

    /// So many elements of zero bytes. Does not synchronise.
    ///
    /// # Errors
    ///
    /// As [`Resource::alloc_zeroed`].
    #[track_caller]
    pub fn zeroed(stream: &Stream, len: usize) -> Result<Self> {
        Self::zeroed_in(&stream.device().current_resource()?, stream, len)
    }

    /// As [`zeroed`](Self::zeroed), from this resource.
    ///
    /// # Errors
    ///
    /// As there.
    #[track_caller]
    pub fn zeroed_in(resource: &Resource, stream: &Stream, len: usize) -> Result<Self> {
        let mut vec = Self::uninit_in(resource, stream, len)?;
        vec.buffer.zero()?;
        Ok(vec)
    }

    /// The elements of a host slice. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// As [`Resource::alloc_from`].
    #[track_caller]
    pub fn from_slice(stream: &Stream, from: &[T]) -> Result<Self> {
        Self::from_slice_in(&stream.device().current_resource()?, stream, from)
    }

    /// As [`from_slice`](Self::from_slice), from this resource.
    ///
    /// # Errors
    ///
    /// As there.
    #[track_caller]
    pub fn from_slice_in(resource: &Resource, stream: &Stream, from: &[T]) -> Result<Self> {
        let mut vec = Self::uninit_in(resource, stream, from.len())?;
        vec.buffer.copy_from(from)?;
        Ok(vec)
    }

    /// A copy, from the same resource and in the order of the same stream. Does not synchronise.
    ///
    /// # Errors
    ///
    /// As [`Resource::alloc`] and [`DeviceBuffer::copy_from_buffer`].
    #[track_caller]
    pub fn try_clone(&self) -> Result<Self> {
        let mut clone = Self::uninit_in(&self.resource, self.stream(), self.len())?;
        clone.buffer.copy_from_buffer(&self.buffer)?;
        Ok(clone)
    }

    /// How many elements there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buffer.room()
    }

    /// Where the memory comes from.
    #[must_use]
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Makes room for so many more elements, or for some more than that, so that adding one by one moves
    /// the elements seldom. Does not synchronise. If there is no memory for more, it asks for what is needed;
    /// remedies and callbacks of the resource are asked for the first request too, so with those,
    /// [`reserve_exact`](Self::reserve_exact) is the better choice.
    ///
    /// # Errors
    ///
    /// As [`Resource::alloc`]; nothing has changed then.
    #[track_caller]
    pub fn reserve(&mut self, additional: usize) -> Result<()> {
        let needed = self.len_with(additional)?;
        if needed <= self.capacity() {
            return Ok(());
        }
        let roomy = needed.max(self.capacity().saturating_mul(2));
        match self.move_to_room(roomy) {
            // Less may be there.
            Err(error) if roomy > needed && error.is_out_of_memory() => self.move_to_room(needed),
            moved => moved,
        }
    }

    /// Makes room for exactly so many more elements, unless there is. Does not synchronise.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    #[track_caller]
    pub fn reserve_exact(&mut self, additional: usize) -> Result<()> {
        let needed = self.len_with(additional)?;
        if needed <= self.capacity() {
            return Ok(());
        }
        self.move_to_room(needed)
    }

    /// Gives back room that no element needs: the elements move to memory of their size. Does not
    /// synchronise.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    #[track_caller]
    pub fn shrink_to_fit(&mut self) -> Result<()> {
        self.shrink_to(0)
    }

    /// As [`shrink_to_fit`](Self::shrink_to_fit), but leaves room for `capacity` elements.
    ///
    /// # Errors
    ///
    /// As there.
    #[track_caller]
    pub fn shrink_to(&mut self, capacity: usize) -> Result<()> {
        let wanted = capacity.max(self.len());
        if wanted >= self.capacity() {
            return Ok(());
        }
        self.move_to_room(wanted)
    }

    /// Changes the number of elements, with room for exactly so many if there is not room yet; new ones have
    /// this value, of 1, 2 or 4 bytes (others do not compile). Does not synchronise.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve) and [`DeviceBuffer::fill`].
    #[doc(alias("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"))]
    #[track_caller]
    pub fn resize(&mut self, len: usize, value: T) -> Result<()> {
        self.resize_with(len, |tail, from| tail.fill_from(from, value))
    }

    /// Changes the number of elements; new ones are zero bytes. Does not synchronise.
    ///
    /// # Errors
    ///
    /// As [`resize`](Self::resize).
    #[doc(alias = "cuMemsetD8Async")]
    #[track_caller]
    pub fn resize_zeroed(&mut self, len: usize) -> Result<()> {
        self.resize_with(len, DeviceBuffer::zero_from)
    }

    /// Changes the number of elements; new ones are arbitrary. Does not synchronise.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    #[track_caller]
    pub fn resize_uninit(&mut self, len: usize) -> Result<()> {
        self.resize_with(len, |_, _| Ok(()))
    }

    /// The number of elements only changes if `init` does its part of the new ones.
    #[track_caller]
    fn resize_with(
        &mut self,
        len: usize,
        init: impl FnOnce(&mut DeviceBuffer<T>, usize) -> Result<()>,
    ) -> Result<()> {
        let before = self.len();
        if len > before {
            self.reserve_exact(len - before)?;
        }
        self.buffer.set_len(len);
        if len > before
            && let Err(error) = init(&mut self.buffer, before)
        {
            self.buffer.set_len(before);
            return Err(error);
        }
        Ok(())
    }

    /// Leaves so many elements, if there are more. The room stays.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.buffer.set_len(len);
        }
    }

    /// Leaves no elements. The room stays.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Adds the elements of a host slice. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve) and [`DeviceBuffer::copy_from`].
    #[doc(alias = "cuMemcpyHtoDAsync")]
    #[track_caller]
    pub fn extend_from_slice(&mut self, from: &[T]) -> Result<()> {
        let len = self.len_with(from.len())?;
        self.reserve(from.len())?;
        self.resize_with(len, |buffer, start| buffer.copy_part_from(start, from))
    }

    /// Adds the elements of a buffer, in the order of both streams. Does not synchronise.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve) and [`DeviceBuffer::copy_from_buffer`].
    #[doc(alias = "cuMemcpyDtoDAsync")]
    #[track_caller]
    pub fn extend_from_buffer(&mut self, from: &DeviceBuffer<T>) -> Result<()> {
        let len = self.len_with(from.len())?;
        self.reserve(from.len())?;
        self.resize_with(len, |buffer, start| {
            buffer.copy_part_from_buffer(start, from)
        })
    }

    /// Reads one element. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if there is no such element; else as the driver
    /// answers.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn element(&self, index: usize) -> Result<T> {
        let mut element = [T::zeroed()];
        self.buffer.copy_part_to(index, &mut element)?;
        Ok(element[0])
    }

    /// Sets one element. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// As [`element`](Self::element).
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn set_element(&mut self, index: usize, value: T) -> Result<()> {
        self.buffer.copy_part_from(index, &[value])
    }

    /// The elements as a buffer. Room for more stays with it, unseen, until it is freed.
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

    /// Moves the elements to new memory for `room` of them, no fewer than there are.
    #[track_caller]
    fn move_to_room(&mut self, room: usize) -> Result<()> {
        let mut moved = self.resource.alloc(self.stream(), room)?;
        moved.set_len(self.len());
        moved.copy_from_buffer(&self.buffer)?;
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
