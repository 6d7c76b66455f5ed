//! Buffers: device memory that a stream's order gives and takes back.

mod loan;
mod raw_parts;

pub use loan::Loan;

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use crate::context::Context;
use crate::copy::Span;
use crate::error::{Error, Failed, OutOfMemory, Result};
use crate::event::Event;
use crate::join::order;
use crate::pool::{MemoryPool, Pool, PoolBuilder};
use crate::stream::{Stream, StreamRef};
use crate::{raw, report};

/// `len` elements of device memory, allocated in the order of a stream and freed in it.
///
/// The memory exists from the moment that the stream reaches the allocation until it reaches the
/// free, so everything done with it goes to that stream; [`on`](Self::on) lends it to another one,
/// in order. Dropping the buffer is one driver call and never waits.
///
/// The buffer keeps its pool, its stream and their context alive.
///
/// ```
/// # use cuda_mem::{Driver, MemoryPool};
/// # cuda_sim::use_if_no_driver();
/// # let device = Driver::load()?.device(0)?;
/// # let context = device.primary_context()?;
/// # let stream = context.stream()?;
/// # let pool = MemoryPool::builder(&device).build()?;
/// let mut numbers = pool.alloc::<u32>(&stream, 4)?;
/// numbers.copy_from(&[1, 2, 3, 4])?;
/// assert_eq!(numbers.to_vec()?, [1, 2, 3, 4]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
///
/// A freed buffer has no name any more:
///
/// ```compile_fail,E0382
/// # use cuda_mem::{DeviceBuffer, MemoryPool, Stream};
/// # fn example(pool: MemoryPool, stream: Stream) -> Result<(), cuda_mem::Error> {
/// let buffer = pool.alloc::<u32>(&stream, 4)?;
/// buffer.free()?;
/// buffer.to_vec()?; // error: use of moved value
/// # Ok(())
/// # }
/// ```
pub struct DeviceBuffer<T: Pod> {
    /// 0 if there are no bytes.
    address: CUdeviceptr,
    len: usize,
    stream: Stream,
    pool: Pool,
    /// Streams that may still use the memory and that ours has not waited for yet: a loan was
    /// leaked, or a wait failed. Empty but for that, and then it needs no heap; the lock is only
    /// taken through shared borrows, never to allocate or free.
    owed: Mutex<Vec<Stream>>,
    element: PhantomData<T>,
}

impl Pool {
    /// Allocates `len` elements in the order of `stream`. Their content is arbitrary. Needs CUDA 11.2.
    ///
    /// One driver call, no lock, no heap. Zero elements, or elements of no size, need no call at
    /// all. Does not synchronise.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory), with the numbers;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the size overflows or the stream is of
    /// another device than the pool.
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
    pub fn alloc<T: Pod>(&self, stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        let Some(bytes) = len.checked_mul(size_of::<T>()) else {
            return Err(too_large(len, size_of::<T>()));
        };
        if self.device() != stream.device() {
            return Err(wrong_device(self, stream));
        }
        let address = if bytes == 0 {
            0
        } else {
            let table = self.device().driver().table();
            // SAFETY: pool and stream are live and of one driver; the buffer frees the memory once
            // and lets only its stream, or one ordered with it, use it.
            unsafe { raw::alloc::from_pool(table, bytes, self.as_raw(), stream.as_raw()) }
                .map_err(|error| explain(error, bytes, self, stream))?
        };
        // SAFETY: allocated just now for this many elements, from this pool in this stream; nobody
        // else has the address.
        Ok(unsafe { DeviceBuffer::from_raw(self, stream, address, len) })
    }

    /// Allocates `len` elements and fills them with zero bytes, both in the order of `stream`.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    #[doc(alias = "cuMemsetD8Async")]
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
    /// As [`alloc`](Self::alloc) and [`DeviceBuffer::copy_from`].
    pub fn alloc_from<T: Pod>(&self, stream: &Stream, from: &[T]) -> Result<DeviceBuffer<T>> {
        let mut buffer = self.alloc(stream, from.len())?;
        buffer.copy_from(from)?;
        Ok(buffer)
    }
}

#[cold]
fn too_large(len: usize, size: usize) -> Error {
    Error::invalid(format!(
        "{len} elements of {size} bytes are more than the address space has"
    ))
}

#[cold]
fn wrong_device(pool: &Pool, stream: &Stream) -> Error {
    Error::invalid(format!(
        "the pool is on {:?} and the stream on {:?} of its driver; take a stream of the pool's device",
        pool.device(),
        stream.device()
    ))
}

/// Adds the numbers to an out-of-memory answer. They may fail too, and are left out then.
#[cold]
fn explain(error: Error, bytes: usize, pool: &Pool, stream: &Stream) -> Error {
    error
        .asked(|| format!("{bytes} bytes from {pool:?}"))
        .with_memory(|| {
            let stats = pool.stats().ok();
            let device = stream.context().memory_info().ok();
            OutOfMemory {
                asked: bytes as u64,
                pool_used: stats.map(|stats| stats.used.current),
                pool_reserved: stats.map(|stats| stats.reserved.current),
                pool_reserved_high: stats.map(|stats| stats.reserved.high),
                device_free: device.map(|device| device.free),
                device_total: device.map(|device| device.total),
            }
        })
}

impl<T: Pod> DeviceBuffer<T> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The stream in whose order the memory is used and freed.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The pool that the memory comes from.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The address on the device; 0 if there are no bytes. For kernels and other libraries, which
    /// must use it in the order of [`stream`](Self::stream). If a [`Loan`] may have been leaked, or a
    /// wait at its end may have failed, call [`settle`](Self::settle) first.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.address
    }

    /// Submits a fill of all elements with `value`, of 1, 2 or 4 bytes (others do not compile).
    /// Does not synchronise.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    #[doc(alias("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"))]
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.settle()?;
        self.span().fill(value)
    }

    /// Submits a fill of all bytes with `value`. Does not synchronise.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    #[doc(alias = "cuMemsetD8Async")]
    pub fn fill_bytes(&mut self, value: u8) -> Result<()> {
        self.settle()?;
        self.span().fill_bytes(value)
    }

    /// Submits a fill of all bytes with zero. Does not synchronise.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    #[doc(alias = "cuMemsetD8Async")]
    pub fn zero(&mut self) -> Result<()> {
        self.fill_bytes(0)
    }

    /// Copies a host slice of the same length into the buffer. Synchronises the stream: the slice
    /// may be changed when this returns.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the lengths differ; else as the driver
    /// answers.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        self.settle()?;
        self.span().copy_from(from)
    }

    /// Copies the buffer into a host slice of the same length. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// As [`copy_from`](Self::copy_from).
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn copy_to(&self, to: &mut [T]) -> Result<()> {
        self.wait_for_debts()?;
        self.span().copy_to(to)
    }

    /// Copies the buffer into a new vector. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut vec = Vec::new();
        vec.try_reserve_exact(self.len)
            .map_err(|_| Error::host_memory(self.size_bytes()))?;
        vec.resize(self.len, T::zeroed());
        self.copy_to(&mut vec)?;
        Ok(vec)
    }

    /// Submits a copy of another buffer of the same length and device, in the order of both
    /// streams. Does not synchronise.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if lengths or devices differ; else as the
    /// driver answers.
    ///
    /// ```
    /// # use cuda_mem::{Driver, MemoryPool};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let context = device.primary_context()?;
    /// # let pool = MemoryPool::builder(&device).build()?;
    /// let source = pool.alloc_from(&context.stream()?, &[1u8, 2, 3])?;
    /// let mut target = pool.alloc::<u8>(&context.stream()?, 3)?;
    /// target.copy_from_buffer(&source)?;
    /// assert_eq!(target.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemcpyDtoDAsync")]
    pub fn copy_from_buffer(&mut self, from: &DeviceBuffer<T>) -> Result<()> {
        self.span().check_len(from.len, "source")?;
        if self.pool.device() != from.pool.device() {
            return Err(Error::invalid(format!(
                "the buffer is on {:?} and the source on {:?}; a copy stays on one device",
                self.pool.device(),
                from.pool.device()
            )));
        }
        if self.address == 0 {
            return Ok(());
        }
        self.settle()?;
        from.wait_for_debts()?;
        order(from.stream.as_ref(), self.stream.as_ref())?;
        // SAFETY: our stream waits for the source's, so the source is valid at this point of it; the
        // debt below keeps it so until the copy has read it.
        let source = unsafe { Span::new(from.address, from.len, &self.stream) };
        let copied = self.span().copy_from_span(&source);
        // The source must not be changed or freed before the copy has read it.
        let ordered = order(self.stream.as_ref(), from.stream.as_ref());
        if ordered.is_err() {
            from.debts().push(self.stream.clone());
        }
        copied.and(ordered)
    }

    /// Makes the buffer's stream wait for streams that may still use the memory because a [`Loan`]
    /// was leaked, or a wait failed. Every other method does this by itself; it is for those who use
    /// [`as_raw`](Self::as_raw). Usually there is nothing to wait for, and no driver call.
    ///
    /// # Errors
    ///
    /// As the driver answers. What could not be waited for is kept for the next time.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    #[inline]
    pub fn settle(&mut self) -> Result<()> {
        let owed = self.owed.get_mut().unwrap_or_else(PoisonError::into_inner);
        while let Some(other) = owed.last() {
            order(other.as_ref(), self.stream.as_ref())?;
            owed.pop();
        }
        Ok(())
    }

    /// Frees the memory in the order of its stream, as dropping does, and says how it went. Does
    /// not synchronise.
    ///
    /// # Errors
    ///
    /// As the driver answers. The buffer comes back with the error, still allocated, unless the driver
    /// may have freed it nevertheless.
    #[doc(alias = "cuMemFreeAsync")]
    pub fn free(mut self) -> Result<(), Failed<Self>> {
        if report::is_forked() {
            return Err(Failed::new(Error::forked(), self));
        }
        match self.release() {
            Ok(()) => Ok(()),
            Err(error) if self.address == 0 => Err(Failed::lost(error)),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    /// Gives the memory back, if there is any; afterwards there is none. Only a failure that is known
    /// to have had no effect leaves it.
    #[inline]
    fn release(&mut self) -> Result<()> {
        // If this fails the memory leaks rather than be freed under another stream's work.
        self.settle()?;
        if self.address != 0 {
            let table = self.pool.device().driver().table();
            // SAFETY: the address is this buffer's, and every stream that used it was made to be
            // waited for by this one (R13).
            let freed = unsafe { raw::alloc::free(table, self.address, self.stream.as_raw()) };
            if freed
                .as_ref()
                .err()
                .is_none_or(|error| !error.had_no_effect())
            {
                self.address = 0;
            }
            return freed;
        }
        Ok(())
    }

    /// As [`settle`](Self::settle), where the debts cannot be struck off; waiting twice is harmless.
    fn wait_for_debts(&self) -> Result<()> {
        // Cloned out: the driver is not called under the lock.
        let owed = self.debts().clone();
        owed.iter()
            .try_for_each(|other| order(other.as_ref(), self.stream.as_ref()))
    }

    fn debts(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn span(&self) -> Span<'_, T> {
        // SAFETY: the memory is this buffer's from its allocation in this stream to its free there;
        // the callers have settled what other streams may still do with it, and the span borrows
        // the buffer. The driver aligns to 256 bytes or more (R15).
        unsafe { Span::new(self.address, self.len, &self.stream) }
    }
}

impl<T: Pod> Drop for DeviceBuffer<T> {
    #[inline]
    fn drop(&mut self) {
        report::release("buffer", || self.release());
    }
}

impl<T: Pod> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .field("element", &std::any::type_name::<T>())
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

// The memory itself may be used from any thread; handles are Send and Sync, and a shared borrow
// only reads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<DeviceBuffer<f32>>();
    shared::<Loan<'_, f32>>();
    shared::<MemoryPool>();
    shared::<PoolBuilder>();
    shared::<Stream>();
    shared::<StreamRef<'_>>();
    shared::<Event>();
    shared::<Context>();
};
