//! Parts of buffers.

use std::ops::RangeBounds;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, sys};

use crate::buffer::{answer, read};
use crate::error::Result;
use crate::pending_uses::PendingUses;

/// A range of a [`Buffer`](crate::Buffer), for reading, as `CudaView` is one of a `CudaSlice`.
///
/// ```
/// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
/// # driver::restart_if_no_driver();
/// # use cuda_mem_cudarc_bridge::{Buffer, borrow_stream};
/// # let theirs = cudarc::driver::CudaContext::new(0)?.new_stream()?;
/// # let pool = cuda_mem::Driver::load()?.device(0)?.default_pool()?;
/// let x = Buffer::new(pool.alloc_from(&borrow_stream(&theirs)?, &[1u8, 2, 3, 4])?, &theirs)?;
/// let (low, high) = x.as_view().split_at(1)?;
/// assert_eq!(theirs.clone_dtoh(&low)?, [1]);
/// assert_eq!(theirs.clone_dtoh(&high.slice(1..)?)?, [3, 4]);
/// assert!(x.slice(2..9).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a view does nothing by itself"]
pub struct BufferView<'a, T: Pod> {
    memory: cuda_mem::DeviceSlice<'a, T>,
    uses: &'a PendingUses,
}

impl<'a, T: Pod> BufferView<'a, T> {
    pub(crate) fn new(memory: cuda_mem::DeviceSlice<'a, T>, uses: &'a PendingUses) -> Self {
        Self { memory, uses }
    }

    /// Part of the view.
    ///
    /// # Errors
    ///
    /// An [`InvalidValue`](cuda_mem::ErrorKind::InvalidValue) of cuda-mem if the range is not within the view.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(Self::new(self.memory.slice(range)?, self.uses))
    }

    /// The first `mid` elements, and the others.
    ///
    /// # Errors
    ///
    /// As [`slice`](Self::slice).
    pub fn split_at(self, mid: usize) -> Result<(Self, Self)> {
        Ok((self.slice(..mid)?, self.slice(mid..)?))
    }
}

impl<T: Pod> DeviceSlice<T> for BufferView<'_, T> {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.uses.stream()
    }
}

impl<T: Pod> DevicePtr<T> for BufferView<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        read(&self.memory, self.uses, stream)
    }
}

/// A range of a [`Buffer`](crate::Buffer), for writing, as `CudaViewMut` is one of a `CudaSlice`.
///
/// The views of a buffer share its list of uses, as those of a `CudaSlice` share its events: writes to two parts on two
/// streams run one after the other. Slices of cuda-mem, from [`Buffer::memory_mut`](crate::Buffer::memory_mut), can be
/// written at the same time.
///
/// ```
/// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
/// # driver::restart_if_no_driver();
/// # use cuda_mem_cudarc_bridge::{Buffer, borrow_stream};
/// # let theirs = cudarc::driver::CudaContext::new(0)?.new_stream()?;
/// # let pool = cuda_mem::Driver::load()?.device(0)?.default_pool()?;
/// let mut x = Buffer::new(pool.alloc_from(&borrow_stream(&theirs)?, &[1u8; 4])?, &theirs)?;
/// let (mut low, mut high) = x.split_at_mut(2)?;
/// theirs.memcpy_htod(&[2, 3], &mut low)?;
/// theirs.memset_zeros(&mut high.slice_mut(1..)?)?;
/// assert_eq!(theirs.clone_dtoh(&x)?, [2, 3, 1, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a view does nothing by itself"]
pub struct BufferViewMut<'a, T: Pod> {
    memory: cuda_mem::DeviceSliceMut<'a, T>,
    uses: &'a PendingUses,
}

impl<'a, T: Pod> BufferViewMut<'a, T> {
    pub(crate) fn new(memory: cuda_mem::DeviceSliceMut<'a, T>, uses: &'a PendingUses) -> Self {
        Self { memory, uses }
    }

    /// The same elements, for reading.
    pub fn as_view(&self) -> BufferView<'_, T> {
        BufferView::new(self.memory.as_slice(), self.uses)
    }

    /// Part of the view, for reading.
    ///
    /// # Errors
    ///
    /// As [`BufferView::slice`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferView<'_, T>> {
        self.as_view().slice(range)
    }

    /// Part of the view, for writing.
    ///
    /// # Errors
    ///
    /// As [`BufferView::slice`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<BufferViewMut<'_, T>> {
        Ok(BufferViewMut::new(self.memory.slice_mut(range)?, self.uses))
    }

    /// The first `mid` elements, and the others.
    ///
    /// # Errors
    ///
    /// As [`BufferView::slice`].
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(BufferViewMut<'_, T>, BufferViewMut<'_, T>)> {
        let (low, high) = self.memory.split_at_mut(mid)?;
        Ok((
            BufferViewMut::new(low, self.uses),
            BufferViewMut::new(high, self.uses),
        ))
    }
}

impl<T: Pod> DeviceSlice<T> for BufferViewMut<'_, T> {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.uses.stream()
    }
}

impl<T: Pod> DevicePtr<T> for BufferViewMut<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        read(&self.memory.as_slice(), self.uses, stream)
    }
}

impl<T: Pod> DevicePtrMut<T> for BufferViewMut<'_, T> {
    fn device_ptr_mut<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        let lent = match self.memory.wait_for_pending_uses() {
            // The list is shared with other views, so nothing can be forgotten here.
            Ok(()) => self.uses.lend(stream, true),
            Err(error) => Err(error.into()),
        };
        answer(self.memory.as_raw(), lent, stream)
    }
}
