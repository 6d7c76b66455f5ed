//! Allocation from a pool.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bytemuck::Pod;

use super::DeviceBuffer;
use super::deallocator::Deallocator;
use super::listed;
use crate::base::biased::Held;
use crate::base::error::{Error, Result};
use crate::base::lock::Lock;
use crate::driver::raw;
use crate::ledger::{self, LedgerKind};
use crate::memory::pool::{Pool, TOO_MUCH, is_refused_beside_capture, too_much};
use crate::memory::{reclaim, resource};
use crate::stream::Stream;

impl Pool {
    /// Allocates `len` elements in the order of `stream`. Their contents are unspecified. Needs CUDA 11.2.
    ///
    /// Takes one driver call and no heap allocation; zero elements, or zero-sized elements, need no call. Does not
    /// synchronise.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory), with the numbers;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the size overflows, or if the stream's device has no
    /// [access](Self::access) to the pool; [`Capturing`](crate::ErrorKind::Capturing) while this crate captures the
    /// stream; [`NotPermitted`](crate::ErrorKind::NotPermitted) after an export of the pool failed.
    ///
    /// ```
    /// # use cuda_mem::{Driver, MemoryPool};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// # let pool = MemoryPool::builder(&device).build()?;
    /// let buffer = pool.alloc::<f32>(&stream, 1 << 20)?;
    /// assert_eq!(buffer.size_bytes(), 4 << 20);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemAllocFromPoolAsync")]
    #[inline]
    #[track_caller]
    pub fn alloc<T: Pod>(&self, stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        let bytes = bytes_of::<T>(len)?;
        if let Some(resource) = self.recording_resource() {
            return resource.alloc(stream, len);
        }
        let address = self.alloc_bytes(stream, bytes)?;
        if ledger::is_on() {
            listed::insert(LedgerKind::Buffer, (address, bytes), stream, self.device());
        }
        Ok(DeviceBuffer {
            address,
            len,
            stream: Held::new(stream),
            device: self.device(),
            deallocator: ManuallyDrop::new(Deallocator::Driver),
            pending_uses: Lock::default(),
            element: PhantomData,
        })
    }

    /// Allocates `len` elements and fills them with zero bytes, both in the order of `stream`.
    ///
    /// # Errors
    ///
    /// Same as [`alloc`](Self::alloc).
    #[doc(alias = "cuMemsetD8Async")]
    #[track_caller]
    pub fn alloc_zeroed<T: Pod>(&self, stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        let mut buffer = self.alloc(stream, len)?;
        buffer.zero()?;
        Ok(buffer)
    }

    /// Allocates as many elements as `from` has and copies them in. Synchronises the stream: the
    /// slice may be changed when this returns.
    ///
    /// # Errors
    ///
    /// Same as [`alloc`](Self::alloc) and [`DeviceBuffer::copy_from`].
    #[track_caller]
    pub fn alloc_from<T: Pod>(&self, stream: &Stream, from: &[T]) -> Result<DeviceBuffer<T>> {
        let mut buffer = self.alloc(stream, from.len())?;
        buffer.copy_from(from)?;
        Ok(buffer)
    }
}

impl Stream {
    /// Allocates `len` elements in the order of this stream, from the current pool of the stream's device, even if
    /// another library created that pool. Their contents are unspecified. To choose the pool, use [`Pool::alloc`].
    /// Needs CUDA 11.2.
    ///
    /// # Errors
    ///
    /// Same as [`Pool::alloc`], but an out-of-memory error has no numbers of the pool.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let mut buffer = stream.alloc::<u32>(1000)?;
    /// buffer.fill(7)?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemAllocAsync")]
    #[track_caller]
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<DeviceBuffer<T>> {
        let bytes = bytes_of::<T>(len)?;
        if bytes >= TOO_MUCH {
            return Err(too_much(bytes));
        }
        let address = if bytes == 0 {
            0
        } else {
            self.release_deferred();
            let ask = || {
                let open = self.as_ref().submit()?;
                // SAFETY: the stream is live; the buffer frees the memory once and lets only its stream, or
                // one ordered with it, use it.
                open.relaxed_while_capturing(|queue| unsafe {
                    raw::alloc::from_current_pool(queue, bytes)
                })
            };
            let answer = match ask() {
                Err(error) if is_refused_beside_capture(&error, self) => ask(),
                answer => answer,
            };
            let answer = match answer {
                Err(error) if reclaim::helps(&error, Some(self.device()), self, bytes) => ask(),
                answer => answer,
            };
            answer.map_err(|error| {
                // In the call, where the oldest Rust lets its arguments live long enough.
                resource::explain(
                    error,
                    &format_args!("the current pool of {}", self.device()),
                    bytes,
                    self,
                )
            })?
        };
        if ledger::is_on() {
            listed::insert(
                LedgerKind::Buffer,
                (address, bytes),
                self,
                Some(self.device()),
            );
        }
        // SAFETY: allocated just now for this many elements, in this stream, from its device's current
        // pool; nobody else has the address.
        let mut buffer = unsafe { DeviceBuffer::taken(self, address, len) };
        buffer.device = Some(self.device());
        Ok(buffer)
    }
}

/// The size of `len` elements in bytes.
#[inline]
pub(crate) fn bytes_of<T>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>())
        .ok_or_else(|| too_large(len, size_of::<T>()))
}

#[cold]
pub(crate) fn too_large(len: usize, size: usize) -> Error {
    Error::invalid(format!(
        "{len} elements of {size} bytes are more than the address space has"
    ))
}
