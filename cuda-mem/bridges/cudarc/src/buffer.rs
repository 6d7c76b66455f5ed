//! Buffers of cuda-mem that calls of cudarc take.

use std::ops::RangeBounds;
use std::sync::Arc;

use bytemuck::Pod;
use cuda_mem::{DeviceBuffer, DeviceSliceMut};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, sys};

use crate::error::{Error, Refused, Result};
use crate::pending_uses::PendingUses;
use crate::stream::{is_per_thread, is_same};
use crate::view::{BufferView, BufferViewMut};

/// A [`DeviceBuffer`] of cuda-mem, from a pool, an arena or any other resource, on a stream of cudarc. All calls of cudarc
/// that take `impl DevicePtr` or `impl DevicePtrMut` take it: copies, fills, cuBLAS.
///
/// ```
/// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
/// # driver::restart_if_no_driver();
/// use cuda_mem::{Driver, MemoryPool};
/// use cuda_mem_cudarc_bridge::{Buffer, borrow_stream};
/// use cudarc::driver::CudaContext;
///
/// let theirs = CudaContext::new(0)?.new_stream()?;
/// let pool = MemoryPool::builder(&Driver::load()?.device(0)?).build()?;
/// let mut x = Buffer::new(pool.alloc::<f32>(&borrow_stream(&theirs)?, 4)?, &theirs)?;
/// theirs.memcpy_htod(&[1.0, 2.0, 3.0, 4.0], &mut x)?;
/// assert_eq!(theirs.clone_dtoh(&x.slice(1..3)?)?, [2.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Order
///
/// The memory is used in the order of its stream, [`stream`](DeviceSlice::stream). A call of cudarc on another stream
/// orders the two, and the host does not wait:
///
/// - before, the other stream waits for what is in the buffer's stream;
/// - afterwards an event is recorded in the other stream. The buffer's stream waits for it before the memory's next use,
///   by whichever crate, and before the memory is freed. Readers do not wait for each other.
///
/// Where cudarc records no event, the host waits for the other stream at the end of the call: if its event tracking is
/// off, on a stream of another device, and on a per-thread default stream.
///
/// Code that takes the address itself, with `device_ptr` or `device_ptr_mut`, must drop the guard after the use was
/// submitted, and must not leak it. If streams cannot be ordered, the address is 0, so that a copy fails instead of running
/// out of order, and the error is in `CudaContext::check_err`.
#[derive(Debug)]
pub struct Buffer<T: Pod> {
    // Dropped before the memory, whose free then comes after them.
    uses: PendingUses,
    memory: DeviceBuffer<T>,
}

impl<T: Pod> Buffer<T> {
    /// A buffer whose stream is [borrowed](crate::borrow_stream) from cudarc, for calls of cudarc. Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`Error::OtherStream`] if the memory's stream is not `stream`, [`Error::PerThreadStream`]; with the memory.
    ///
    /// ```
    /// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
    /// # driver::restart_if_no_driver();
    /// use cuda_mem::Driver;
    /// use cuda_mem_cudarc_bridge::{Buffer, Error, borrow_stream};
    /// use cudarc::driver::CudaContext;
    ///
    /// let context = CudaContext::new(0)?;
    /// let (theirs, other) = (context.new_stream()?, context.new_stream()?);
    /// let pool = Driver::load()?.device(0)?.default_pool()?;
    /// let memory = pool.alloc::<u8>(&borrow_stream(&theirs)?, 100)?;
    ///
    /// let refused = Buffer::new(memory, &other).unwrap_err();
    /// assert!(matches!(refused.error, Error::OtherStream));
    /// let memory = refused.object.expect("nothing was done with it");
    /// let buffer = Buffer::new(memory.move_to(&borrow_stream(&other)?)?, &other)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(
        memory: DeviceBuffer<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<Self, Refused<DeviceBuffer<T>>> {
        if is_per_thread(stream) {
            return Err(Refused::new(Error::PerThreadStream, memory));
        }
        if !is_same(stream, memory.stream()) {
            return Err(Refused::new(Error::OtherStream, memory));
        }
        Ok(Self::with(memory, Arc::clone(stream)))
    }

    /// The memory's stream is this one.
    pub(crate) fn with(memory: DeviceBuffer<T>, stream: Arc<CudaStream>) -> Self {
        let uses = PendingUses::new(stream);
        Self { uses, memory }
    }

    /// The memory, for reading through cuda-mem. The buffer's stream waits for writers on other streams.
    ///
    /// # Errors
    ///
    /// Any driver error.
    ///
    /// ```
    /// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
    /// # driver::restart_if_no_driver();
    /// # use cuda_mem_cudarc_bridge::{Buffer, borrow_stream};
    /// # let context = cudarc::driver::CudaContext::new(0)?;
    /// # let (theirs, other) = (context.new_stream()?, context.new_stream()?);
    /// # let pool = cuda_mem::Driver::load()?.device(0)?.default_pool()?;
    /// let mut x = Buffer::new(pool.alloc::<u32>(&borrow_stream(&theirs)?, 3)?, &theirs)?;
    /// other.memset_zeros(&mut x)?;
    /// assert_eq!(x.memory()?.to_vec()?, [0, 0, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory(&self) -> Result<&DeviceBuffer<T>> {
        self.uses.wait(false)?;
        Ok(&self.memory)
    }

    /// The memory, for writing through cuda-mem. The buffer's stream waits for all uses on other streams.
    ///
    /// # Errors
    ///
    /// Any driver error.
    ///
    /// ```
    /// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
    /// # driver::restart_if_no_driver();
    /// # use cuda_mem_cudarc_bridge::{Buffer, borrow_stream};
    /// # let theirs = cudarc::driver::CudaContext::new(0)?.new_stream()?;
    /// # let pool = cuda_mem::Driver::load()?.device(0)?.default_pool()?;
    /// let mut x = Buffer::new(pool.alloc::<u32>(&borrow_stream(&theirs)?, 3)?, &theirs)?;
    /// x.memory_mut()?.fill(7)?;
    /// assert_eq!(theirs.clone_dtoh(&x)?, [7, 7, 7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    // No `&mut DeviceBuffer`: it could be exchanged for one of another stream.
    pub fn memory_mut(&mut self) -> Result<DeviceSliceMut<'_, T>> {
        self.uses.settle()?;
        Ok(self.memory.as_mut_slice())
    }

    /// The memory, without cudarc. Its stream waits for all uses on other streams.
    ///
    /// # Errors
    ///
    /// Any driver error, with the buffer.
    ///
    /// ```
    /// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
    /// # driver::restart_if_no_driver();
    /// # use cuda_mem_cudarc_bridge::{Buffer, borrow_stream};
    /// # let theirs = cudarc::driver::CudaContext::new(0)?.new_stream()?;
    /// # let pool = cuda_mem::Driver::load()?.device(0)?.default_pool()?;
    /// let x = Buffer::new(pool.alloc_from(&borrow_stream(&theirs)?, &[1u8, 2])?, &theirs)?;
    /// assert_eq!(x.into_memory()?.to_vec()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::result_large_err, reason = "the buffer comes back")]
    pub fn into_memory(mut self) -> Result<DeviceBuffer<T>, Refused<Self>> {
        match self.uses.settle() {
            Ok(()) => Ok(self.memory),
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    /// Makes the buffer's stream wait for all uses on other streams. Every other method does what it needs of this; call it
    /// before giving work on the memory to the buffer's stream by other means than these two crates.
    ///
    /// # Errors
    ///
    /// Any driver error.
    ///
    /// ```
    /// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
    /// # driver::restart_if_no_driver();
    /// # use cuda_mem_cudarc_bridge::{Buffer, borrow_stream};
    /// # let context = cudarc::driver::CudaContext::new(0)?;
    /// # let (theirs, other) = (context.new_stream()?, context.new_stream()?);
    /// # let pool = cuda_mem::Driver::load()?.device(0)?.default_pool()?;
    /// let mut x = Buffer::new(pool.alloc::<u8>(&borrow_stream(&theirs)?, 100)?, &theirs)?;
    /// other.memset_zeros(&mut x)?;
    /// x.wait_for_pending_uses()?;
    /// theirs.synchronize()?; // now the fill is done as well
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_for_pending_uses(&mut self) -> Result<()> {
        self.uses.settle()?;
        Ok(self.memory.wait_for_pending_uses()?)
    }

    /// All elements, for reading.
    pub fn as_view(&self) -> BufferView<'_, T> {
        BufferView::new(self.memory.as_slice(), &self.uses)
    }

    /// All elements, for writing.
    pub fn as_view_mut(&mut self) -> BufferViewMut<'_, T> {
        BufferViewMut::new(self.memory.as_mut_slice(), &self.uses)
    }

    /// Some of the elements, for reading.
    ///
    /// # Errors
    ///
    /// An [`InvalidValue`](cuda_mem::ErrorKind::InvalidValue) of cuda-mem if the range is not within the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferView<'_, T>> {
        self.as_view().slice(range)
    }

    /// Some of the elements, for writing.
    ///
    /// # Errors
    ///
    /// As [`slice`](Self::slice).
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<BufferViewMut<'_, T>> {
        let part = self.memory.slice_mut(range)?;
        Ok(BufferViewMut::new(part, &self.uses))
    }

    /// The first `mid` elements, and the others, for writing.
    ///
    /// # Errors
    ///
    /// As [`slice`](Self::slice).
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(BufferViewMut<'_, T>, BufferViewMut<'_, T>)> {
        let (low, high) = self.memory.split_at_mut(mid)?;
        let uses = &self.uses;
        Ok((
            BufferViewMut::new(low, uses),
            BufferViewMut::new(high, uses),
        ))
    }

    pub(crate) fn parts(self) -> (PendingUses, DeviceBuffer<T>) {
        (self.uses, self.memory)
    }

    pub(crate) fn of_parts(uses: PendingUses, memory: DeviceBuffer<T>) -> Self {
        Self { uses, memory }
    }
}

impl<T: Pod> DeviceSlice<T> for Buffer<T> {
    fn len(&self) -> usize {
        self.memory.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.uses.stream()
    }
}

impl<T: Pod> DevicePtr<T> for Buffer<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        read(&self.memory.as_slice(), &self.uses, stream)
    }
}

impl<T: Pod> DevicePtrMut<T> for Buffer<T> {
    fn device_ptr_mut<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        let lent = self
            .wait_for_pending_uses()
            .and_then(|()| self.uses.lend(stream, true));
        answer(self.memory.as_raw(), lent, stream)
    }
}

/// The address for a use that reads.
pub(crate) fn read<'a, T: Pod>(
    memory: &cuda_mem::DeviceSlice<'_, T>,
    uses: &'a PendingUses,
    stream: &'a CudaStream,
) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
    let lent = match memory.wait_for_pending_uses() {
        Ok(()) => uses.lend(stream, false),
        Err(error) => Err(error.into()),
    };
    answer(memory.as_raw(), lent, stream)
}

/// What cudarc's traits return; they have no errors.
pub(crate) fn answer<'a>(
    address: sys::CUdeviceptr,
    lent: Result<SyncOnDrop<'a>>,
    stream: &CudaStream,
) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
    match lent {
        Ok(guard) => (address, guard),
        Err(error) => {
            let context = stream.context();
            context.record_err::<()>(Err(error.to_driver_error()));
            (0, SyncOnDrop::Sync(None))
        }
    }
}
