//! Other ways to end a buffer, and conversions from and to raw memory of other libraries.

use std::any::Any;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::DeviceBuffer;
use super::deallocator::{Deallocator, ExternalOwner, Refused};
use super::listed;
use crate::base::biased::Held;
use crate::base::error::{Error, Failed, Result};
use crate::base::lock::Lock;
use crate::base::report;
use crate::driver::device::Device;
use crate::ledger::{self, LedgerKind};
use crate::stream::Stream;
use crate::stream::join::{order, order_outside_captures};

impl<T: Pod> DeviceBuffer<T> {
    /// Frees the memory in the order of another stream, which first waits for the buffer's own. The host does not
    /// wait. For memory last used by `other`: the buffer's stream then need not wait for it.
    ///
    /// # Errors
    ///
    /// Same as [`free`](Self::free).
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
            .and_then(|()| order_outside_captures(self.stream.as_ref(), other.as_ref()));
        if let Err(error) = ordered {
            return Err(Failed::new(error, self));
        }
        // Freed on `other` like its own memory: the streams have just been ordered.
        let deallocator = std::mem::replace(&mut self.stream, Held::new(other));
        self.free().map_err(|mut failed| {
            if let Some(buffer) = &mut failed.object {
                buffer.stream = deallocator;
            }
            failed
        })
    }

    /// Frees the memory in the order of its own stream and after all work now in `others`, for memory that those
    /// streams used too. The host does not wait, unless the buffer's stream is another thread's own. The buffer's
    /// stream is made to wait for them, unless its resource
    /// [does better](crate::MemoryResource::deallocate_after): an arena makes no stream wait.
    ///
    /// # Errors
    ///
    /// Same as [`free`](Self::free); [`Capturing`](crate::ErrorKind::Capturing) while only one of two of the streams is
    /// captured. A buffer that comes back is freed after `others`, whenever it ends.
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
        if report::is_forked() {
            return Err(Failed::new(Error::forked(), self));
        }
        let others: Vec<&Stream> = others.into_iter().collect();
        let is_foreign = self.stream.is_foreign();
        if !matches!(*self.deallocator, Deallocator::Resource(..)) || is_foreign {
            let mut streams = others.iter().map(|other| other.as_ref());
            let ordered = if is_foreign {
                // Nothing can be ordered with that stream here.
                streams.try_for_each(|other| other.wait_unless_captured())
            } else {
                streams.try_for_each(|other| order_outside_captures(other, self.stream.as_ref()))
            };
            return match ordered {
                Ok(()) => self.free(),
                Err(error) => Err(self.not_freed_after(&others, error)),
            };
        }
        match self.release_after(&others) {
            Ok(()) => Ok(()),
            Err(error) if self.address == 0 => Err(Failed::lost(error)),
            Err(error) => Err(self.not_freed_after(&others, error)),
        }
    }

    /// The buffer goes back to the caller, and its end comes after the other streams, too.
    #[cold]
    fn not_freed_after(self, others: &[&Stream], error: Error) -> Failed<Self> {
        others.iter().for_each(|other| self.note_use_by(other));
        Failed::new(error, self)
    }

    /// Moves the buffer to another stream permanently: `other` first waits for the buffer's own stream, and from
    /// then on the memory is used and freed in the order of `other`. The host does not wait. For pipelines, where
    /// [`on`](Self::on) would make the old stream wait for the new one.
    ///
    /// # Errors
    ///
    /// Same as [`on`](Self::on); the error contains the buffer, still on its own stream.
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

    /// Like [`move_to`](Self::move_to), for a buffer that is part of another value.
    ///
    /// # Errors
    ///
    /// Same as [`on`](Self::on); on error the buffer stays on its own stream.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn set_stream(&mut self, other: &Stream) -> Result<()> {
        self.require_reach(other)?;
        self.wait_for_pending_uses()?;
        order(self.stream.as_ref(), other.as_ref())?;
        self.stream = Held::new(other);
        Ok(())
    }

    /// Frees the memory and waits on the host until the buffer's stream has done so, so that any stream can reuse
    /// it, whatever the reuse policy.
    ///
    /// # Errors
    ///
    /// Same as [`free`](Self::free), and faults of earlier work in the stream; in that case the memory is freed.
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

    /// Releases ownership of the memory and returns its address, which the caller must free. 0 if there are no
    /// bytes.
    ///
    /// # Errors
    ///
    /// Same as [`wait_for_pending_uses`](Self::wait_for_pending_uses), and
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the memory is not owned by the buffer
    /// ([`borrow_raw`](Self::borrow_raw), another process, a [`Resource`](crate::Resource)); the error contains the
    /// buffer.
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

    /// Takes ownership of `len` elements at `address`; they are freed in the order of `stream` when the buffer is
    /// dropped. The memory may come from a pool or from `cuMemAlloc`; both are freed in stream order.
    ///
    /// # Safety
    ///
    /// The memory must be at least this large, aligned for `T`, accessible to the stream's device, and valid at the
    /// current point of `stream`, and nothing else may free it. Address 0 means no bytes.
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

    /// Like [`from_raw`](Self::from_raw), but does not add the memory to the ledger.
    ///
    /// # Safety
    ///
    /// Same as [`from_raw`](Self::from_raw).
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

    /// Uses `len` elements at `address` without owning them. `owner` is dropped with the buffer: pass a
    /// reference-counted handle of the other library, or `()` if the memory outlives all uses anyway.
    ///
    /// Work submitted to `stream` may still use the memory when `owner` is dropped. An owner that frees the memory
    /// must do so in the order of the stream, or wait for it. If its destructor panics, so does that of the buffer.
    ///
    /// # Safety
    ///
    /// The memory must be at least this large, aligned for `T`, accessible to the stream's device, and valid from
    /// the current point of `stream` until `owner` is dropped and the stream has finished the work submitted by
    /// then. While the buffer lives, nothing else may use the memory, except when ordered with the stream. Address
    /// 0 means no bytes.
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

    /// Like [`borrow_raw`](Self::borrow_raw), for an owner that is given the stream, and with the device that the
    /// memory belongs to.
    ///
    /// # Safety
    ///
    /// Same as [`borrow_raw`](Self::borrow_raw); `keep`, when notified, must uphold the rest of these requirements.
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

/// Keeps the owner of borrowed memory alive.
struct Borrowed<O> {
    _owner: O,
}

impl<O: Send + Sync> ExternalOwner for Borrowed<O> {
    fn release(self: Box<Self>, _: &Stream) -> Result<(), Refused> {
        Ok(())
    }
}
