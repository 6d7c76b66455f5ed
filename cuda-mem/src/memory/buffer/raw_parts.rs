//! Other ends of a buffer, and the way to memory of other libraries.

use std::any::Any;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::DeviceBuffer;
use super::deallocator::{Deallocator, ExternalOwner};
use super::listed;
use crate::base::biased::Held;
use crate::base::error::{Error, Failed, Result};
use crate::base::lock::Lock;
use crate::driver::device::Device;
use crate::ledger::{self, LedgerKind};
use crate::stream::Stream;
use crate::stream::join::order;

impl<T: Pod> DeviceBuffer<T> {
    /// Frees the memory in the order of another stream, which first waits for the buffer's own. The
    /// host does not wait. For memory whose last user is `other`: the buffer's stream need not wait
    /// for it then.
    ///
    /// # Errors
    ///
    /// As [`free`](Self::free).
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let context = device.primary_context()?;
    /// # let (stream, other) = (context.stream()?, context.stream()?);
    /// let buffer = device.default_pool()?.alloc_zeroed::<u8>(&stream, 100)?;
    /// buffer.free_on(&other)?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemFreeAsync")]
    pub fn free_on(mut self, other: &Stream) -> Result<(), Failed<Self>> {
        let ordered = self
            .wait_for_pending_uses()
            .and_then(|()| order(self.stream.as_ref(), other.as_ref()));
        if let Err(error) = ordered {
            return Err(Failed::new(error, self));
        }
        // Freed there like its own: the order has just been made.
        let deallocator = std::mem::replace(&mut self.stream, Held::new(other));
        self.free().map_err(|mut failed| {
            if let Some(buffer) = &mut failed.object {
                buffer.stream = deallocator;
            }
            failed
        })
    }

    /// Frees the memory in the order of its own stream and after all that is in `others` now, for memory that they used
    /// too. The host does not wait. The buffer's stream is made to wait for them, unless its resource
    /// [does better](crate::MemoryResource::deallocate_after): an arena makes no stream wait.
    ///
    /// # Errors
    ///
    /// As [`free`](Self::free).
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// # use cuda_mem::{Arena, Resource};
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let context = device.primary_context()?;
    /// # let (stream, copies) = (context.stream()?, context.stream()?);
    /// let resource = Resource::from(Arena::builder(&device).build()?);
    /// let weights = resource.alloc_zeroed::<f32>(&stream, 100)?;
    /// // … a library uses `weights.as_raw()` in `copies` …
    /// weights.free_after([&copies])?; // `stream` does not wait for `copies`
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("record_stream", "cuMemFreeAsync"))]
    pub fn free_after<'a>(
        mut self,
        others: impl IntoIterator<Item = &'a Stream>,
    ) -> Result<(), Failed<Self>> {
        let others: Vec<&Stream> = others.into_iter().collect();
        if !matches!(*self.deallocator, Deallocator::Resource(..)) || self.stream.is_foreign() {
            return match self.stream.join(others) {
                Ok(()) => self.free(),
                Err(error) => Err(Failed::new(error, self)),
            };
        }
        match self.release_after(&others) {
            Ok(()) => Ok(()),
            Err(error) if self.address == 0 => Err(Failed::lost(error)),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    /// Gives the buffer to another stream for good: that first waits for the buffer's own, and the memory
    /// is used and freed in its order from now on. The host does not wait. For pipelines, where [`on`](Self::on)
    /// would order the old stream behind the new one again.
    ///
    /// # Errors
    ///
    /// As [`on`](Self::on); the buffer comes back, still of its own stream.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let context = device.primary_context()?;
    /// # let (stream, next) = (context.stream()?, context.stream()?);
    /// let buffer = device.default_pool()?.alloc_from(&stream, &[1u8, 2, 3])?;
    /// let buffer = buffer.move_to(&next)?;
    /// assert_eq!(*buffer.stream(), next);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn move_to(mut self, other: &Stream) -> Result<Self, Failed<Self>> {
        match self.set_stream(other) {
            Ok(()) => Ok(self),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    /// As [`move_to`](Self::move_to), for a buffer that is part of something else.
    ///
    /// # Errors
    ///
    /// As [`on`](Self::on); the buffer stays with its own stream then.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn set_stream(&mut self, other: &Stream) -> Result<()> {
        self.require_reach(other)?;
        self.wait_for_pending_uses()?;
        order(self.stream.as_ref(), other.as_ref())?;
        self.stream = Held::new(other);
        Ok(())
    }

    /// Frees the memory and waits on the host until the buffer's stream has done so, so that every
    /// stream can have it, whatever the reuse policy.
    ///
    /// # Errors
    ///
    /// As [`free`](Self::free), and faults of earlier work in the stream; the memory is freed then.
    #[doc(alias("cuMemFreeAsync", "cuStreamSynchronize"))]
    pub fn free_sync(self) -> Result<(), Failed<Self>> {
        let stream = self.stream.clone();
        // Not `cuMemFree`: it takes pool memory too, but leaves it among the pool's used bytes (R89).
        self.free()?;
        let seen = if stream.is_foreign() {
            stream.as_ref().wait_foreign()
        } else {
            stream.synchronize()
        };
        seen.map_err(Failed::lost)
    }

    /// Gives the memory out of hand: the address, which somebody has to free. 0 if there are no bytes.
    ///
    /// # Errors
    ///
    /// As [`wait_for_pending_uses`](Self::wait_for_pending_uses), and [`InvalidValue`](crate::ErrorKind::InvalidValue) if the memory is
    /// somebody else's ([`borrow_raw`](Self::borrow_raw), another process's, a
    /// [`Resource`](crate::Resource)'s); the buffer comes back.
    ///
    /// ```
    /// use cuda_mem::DeviceBuffer;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let pool = device.default_pool()?;
    /// let address = pool.alloc_from(&stream, &[1u16, 2, 3])?.into_raw()?;
    /// // SAFETY: the address and the number come from a buffer of this stream.
    /// let buffer = unsafe { DeviceBuffer::<u16>::from_raw(&stream, address, 3) };
    /// assert_eq!(buffer.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn into_raw(mut self) -> Result<CUdeviceptr, Failed<Self>> {
        if !matches!(*self.deallocator, Deallocator::Driver) {
            let text = format!(
                "{} has an owner that has to take the memory back, so its address cannot be taken out of it",
                self.in_words()
            );
            return Err(Failed::new(Error::invalid(text), self));
        }
        if let Err(error) = self.wait_for_pending_uses() {
            return Err(Failed::new(error, self));
        }
        self.leave_ledger();
        let address = self.address;
        // Nothing left to free; the handles of pool and stream are dropped as usual.
        self.address = 0;
        Ok(address)
    }

    /// Takes over `len` elements at `address`; they are freed in the order of `stream` when the buffer
    /// is dropped. The memory may come from a pool, or from `cuMemAlloc`, which is freed in a stream's
    /// order all the same.
    ///
    /// # Safety
    ///
    /// The memory must be at least this large, aligned for `T`, within reach of the stream's device,
    /// valid at the present point of `stream`, and nobody else may free it. 0 stands for no bytes.
    #[doc(alias = "cuMemFreeAsync")]
    #[inline]
    #[track_caller]
    pub unsafe fn from_raw(stream: &Stream, address: CUdeviceptr, len: usize) -> Self {
        if ledger::is_on() {
            let bytes = len.saturating_mul(size_of::<T>());
            listed::insert(LedgerKind::Buffer, (address, bytes), stream, None);
        }
        // SAFETY: the caller's.
        unsafe { Self::taken(stream, address, len) }
    }

    /// As [`from_raw`](Self::from_raw), and the ledger is not told.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline]
    pub(super) unsafe fn taken(stream: &Stream, address: CUdeviceptr, len: usize) -> Self {
        Self {
            address,
            len: if address == 0 && size_of::<T>() != 0 {
                0
            } else {
                len
            },
            stream: Held::new(stream),
            device: None,
            deallocator: ManuallyDrop::new(Deallocator::Driver),
            pending_uses: Lock::default(),
            element: PhantomData,
        }
    }

    /// Uses `len` elements at `address` that belong to somebody else. `owner` is dropped with the
    /// buffer; a reference-counted handle of the other library is what belongs there, or `()` if the
    /// memory outlives everything anyway.
    ///
    /// Work that was submitted to `stream` may still use the memory when the owner is dropped. An owner
    /// that frees it then must do so in the order of the stream, or wait for it. If its destructor
    /// panics, so does that of the buffer.
    ///
    /// # Safety
    ///
    /// The memory must be at least this large, aligned for `T`, within reach of the stream's device, and
    /// valid from the present point of `stream` until `owner` is dropped and the stream has done what
    /// is in it then. While the buffer lives nobody else may use the memory, except in an order with
    /// the stream. 0 stands for no bytes.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use cuda_mem::DeviceBuffer;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let theirs = Arc::new(device.default_pool()?.alloc_from(&stream, &[1u16, 2, 3])?);
    /// // SAFETY: the memory is that of `theirs`, which lives as long and frees in the same stream.
    /// let view = unsafe {
    ///     DeviceBuffer::<u16>::borrow_raw(&stream, theirs.as_raw(), 3, Arc::clone(&theirs))
    /// };
    /// assert_eq!(view.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub unsafe fn borrow_raw(
        stream: &Stream,
        address: CUdeviceptr,
        len: usize,
        owner: impl Any + Send + Sync,
    ) -> Self {
        // SAFETY: the caller vouches for the memory and its owner.
        unsafe {
            Self::kept(
                stream,
                None,
                address,
                len,
                Box::new(Borrowed { _owner: owner }),
            )
        }
    }

    /// As [`borrow_raw`](Self::borrow_raw), for an owner that is told the stream, and the device whose
    /// memory it is.
    ///
    /// # Safety
    ///
    /// As there; what `keep` does when it is told must keep the rest of the promise.
    pub(crate) unsafe fn kept(
        stream: &Stream,
        device: Option<Device>,
        address: CUdeviceptr,
        len: usize,
        owner: Box<dyn ExternalOwner>,
    ) -> Self {
        // SAFETY: the caller vouches for the memory; it is not freed here.
        let mut buffer = unsafe { Self::taken(stream, address, len) };
        *buffer.deallocator = Deallocator::External(owner);
        buffer.device = device;
        buffer
    }
}

/// The owner of memory that was lent to a buffer: only kept.
struct Borrowed<O> {
    _owner: O,
}

impl<O: Send + Sync> ExternalOwner for Borrowed<O> {
    fn release(self: Box<Self>, _: &Stream) -> Result<()> {
        Ok(())
    }
}
