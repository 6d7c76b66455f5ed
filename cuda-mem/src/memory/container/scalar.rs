//! One element on a device.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;

use crate::base::error::Result;
use crate::memory::buffer::DeviceBuffer;
use crate::memory::resource::Resource;
use crate::stream::Stream;

/// A single element of device memory, for kernel results and counters.
///
/// It dereferences to a [`DeviceBuffer`] of one element, which provides everything else: use on other streams,
/// the address, asynchronous fills.
///
/// ```
/// use cuda_mem::memory::DeviceScalar;
///
/// # cuda_sim::use_if_no_driver();
/// # let device = cuda_mem::Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let mut sum = DeviceScalar::new(&stream, 1.5f64)?;
/// assert_eq!(sum.value()?, 1.5);
/// sum.set(2.5)?;
/// assert_eq!(sum.value()?, 2.5);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct DeviceScalar<T: Pod>(DeviceBuffer<T>);

impl<T: Pod> DeviceScalar<T> {
    /// Allocates an element from the current resource of the stream's device and sets it to `value`. Synchronises
    /// the stream.
    ///
    /// # Errors
    ///
    /// Same as [`Resource::alloc_from`].
    #[track_caller]
    pub fn new(stream: &Stream, value: T) -> Result<Self> {
        Self::new_in(&stream.device().current_resource()?, stream, value)
    }

    /// Like [`new`](Self::new), but allocates from `resource`.
    ///
    /// # Errors
    ///
    /// Same as [`new`](Self::new).
    #[track_caller]
    pub fn new_in(resource: &Resource, stream: &Stream, value: T) -> Result<Self> {
        let mut scalar = Self::uninit_in(resource, stream)?;
        scalar.set(value)?;
        Ok(scalar)
    }

    /// Allocates an element from the current resource of the stream's device and sets it to zero bytes. Does not
    /// synchronise.
    ///
    /// # Errors
    ///
    /// Same as [`Resource::alloc_zeroed`].
    #[track_caller]
    pub fn zeroed(stream: &Stream) -> Result<Self> {
        Self::zeroed_in(&stream.device().current_resource()?, stream)
    }

    /// Like [`zeroed`](Self::zeroed), but allocates from `resource`.
    ///
    /// # Errors
    ///
    /// Same as [`zeroed`](Self::zeroed).
    #[track_caller]
    pub fn zeroed_in(resource: &Resource, stream: &Stream) -> Result<Self> {
        resource.alloc_zeroed(stream, 1).map(Self)
    }

    /// Allocates an element with unspecified contents from the current resource of the stream's device. Does not
    /// synchronise.
    ///
    /// # Errors
    ///
    /// Same as [`Resource::alloc`].
    #[track_caller]
    pub fn uninit(stream: &Stream) -> Result<Self> {
        Self::uninit_in(&stream.device().current_resource()?, stream)
    }

    /// Like [`uninit`](Self::uninit), but allocates from `resource`.
    ///
    /// # Errors
    ///
    /// Same as [`uninit`](Self::uninit).
    #[track_caller]
    pub fn uninit_in(resource: &Resource, stream: &Stream) -> Result<Self> {
        resource.alloc(stream, 1).map(Self)
    }

    /// Reads the value. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn value(&self) -> Result<T> {
        let mut value = [T::zeroed()];
        self.0.copy_to(&mut value)?;
        Ok(value[0])
    }

    /// Sets the value. Synchronises the stream; [`fill`](DeviceBuffer::fill) does not, for elements of 1,
    /// 2 or 4 bytes.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn set(&mut self, value: T) -> Result<()> {
        self.0.copy_from(&[value])
    }

    /// Returns the underlying buffer of one element.
    #[must_use]
    pub fn into_buffer(self) -> DeviceBuffer<T> {
        self.0
    }
}

impl<T: Pod> Deref for DeviceScalar<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        &self.0
    }
}

impl<T: Pod> DerefMut for DeviceScalar<T> {
    fn deref_mut(&mut self) -> &mut DeviceBuffer<T> {
        &mut self.0
    }
}

impl<T: Pod> fmt::Debug for DeviceScalar<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceScalar").field(&self.0).finish()
    }
}
