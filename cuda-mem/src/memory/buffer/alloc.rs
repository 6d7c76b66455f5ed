//! Allocation from a pool.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::DeviceBuffer;
use super::deallocator::Deallocator;
use super::listed;
use crate::base::biased::Held;
use crate::base::error::{Error, ErrorKind, OutOfMemory, Result};
use crate::base::lock::Lock;
use crate::driver::raw;
use crate::ledger::{self, LedgerKind};
use crate::memory::pool::Pool;
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
    /// [access](Self::access) to the pool.
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

    /// The memory of a buffer, without the buffer: the caller has to free it. Not generic, so it is compiled only
    /// once.
    pub(super) fn alloc_bytes(&self, stream: &Stream, bytes: usize) -> Result<CUdeviceptr> {
        if bytes == 0 || bytes >= TOO_MUCH {
            return self.answer_for_the_driver(stream, bytes);
        }
        stream.release_deferred();
        let place = self.place_in_reach(stream.device());
        let address = match self.ask_plainly(stream, bytes, place) {
            Some(Ok(address)) => address,
            refused => self.ask_thoroughly(stream, bytes, refused)?,
        };
        // Checked again: access may be revoked while no memory is handed out, which may have been the case until
        // just now.
        if !self.is_in_reach(place) {
            return self.reached_or_free(address, stream);
        }
        Ok(address)
    }

    /// Asks the driver directly if no checks are needed before; otherwise `None`. In a fork the call itself is
    /// refused.
    #[inline(always)]
    fn ask_plainly(
        &self,
        stream: &Stream,
        bytes: usize,
        place: u64,
    ) -> Option<Result<CUdeviceptr>> {
        if !self.is_in_reach(place) {
            return None;
        }
        let open = stream.as_ref().submit_plainly()?;
        // SAFETY: as in `ask`.
        Some(unsafe { raw::alloc::from_pool(open.queue(), bytes, self.as_raw()) })
    }

    /// Asks the driver, unless it has refused already, and retries once if other resources released memory.
    #[cold]
    #[inline(never)]
    fn ask_thoroughly(
        &self,
        stream: &Stream,
        bytes: usize,
        refused: Option<Result<CUdeviceptr>>,
    ) -> Result<CUdeviceptr> {
        let answer = match refused {
            Some(Err(error)) if error.kind() == ErrorKind::Forked => return Err(error),
            Some(answer) => answer.map_err(|error| explain(error, bytes, self, stream)),
            None => self.ask(stream, bytes),
        };
        match answer {
            Err(error) if reclaim::helps(&error, self.device(), stream, bytes) => {
                self.ask(stream, bytes)
            }
            answer => answer,
        }
    }

    #[cold]
    fn ask(&self, stream: &Stream, bytes: usize) -> Result<CUdeviceptr> {
        stream.as_ref().require_reach(self)?;
        let open = stream.as_ref().submit()?;
        // SAFETY: pool and stream are live and of one driver (R7: they need not be of one device);
        // whoever has the address frees it once, and lets only its stream, or one ordered with it, use it.
        unsafe { raw::alloc::from_pool(open.queue(), bytes, self.as_raw()) }
            .map_err(|error| explain(error, bytes, self, stream))
    }

    /// Handles zero bytes, and more than any machine can have.
    #[cold]
    #[inline(never)]
    fn answer_for_the_driver(&self, stream: &Stream, bytes: usize) -> Result<CUdeviceptr> {
        if bytes == 0 {
            stream.as_ref().require_reach(self)?;
            return Ok(0);
        }
        let error = too_much(bytes);
        Err(error.and_memory(|memory| *memory = report(bytes, self, stream)))
    }

    /// Returns the memory if the stream's device still has access to it, and frees it otherwise.
    #[cold]
    fn reached_or_free(&self, address: CUdeviceptr, stream: &Stream) -> Result<CUdeviceptr> {
        let reached = stream.as_ref().require_reach(self);
        if reached.is_err() {
            // SAFETY: allocated just now in this stream, and nobody has seen the address.
            crate::base::report::release("buffer", || unsafe { super::free(address, stream) });
        }
        reached.map(|()| address)
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
                unsafe { raw::alloc::from_current_pool(open.queue(), bytes) }
            };
            let answer = match ask() {
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
pub(super) fn too_large(len: usize, size: usize) -> Error {
    Error::invalid(format!(
        "{len} elements of {size} bytes are more than the address space has"
    ))
}

/// Adds the numbers to an out-of-memory error. If querying them fails, they are left out.
#[cold]
fn explain(error: Error, bytes: usize, pool: &Pool, stream: &Stream) -> Error {
    error
        .asked(|| format!("{bytes} bytes from {pool}"))
        .with_memory(|| report(bytes, pool, stream))
}

fn report(bytes: usize, pool: &Pool, stream: &Stream) -> OutOfMemory {
    let stats = pool.stats().ok();
    let device = if pool.device() == Some(stream.device()) {
        stream.context().memory_info().ok()
    } else {
        None
    };
    OutOfMemory {
        asked: bytes as u64,
        pool_used: stats.map(|stats| stats.used.current),
        pool_used_high: stats.map(|stats| stats.used.high),
        pool_reserved: stats.map(|stats| stats.reserved.current),
        pool_reserved_high: stats.map(|stats| stats.reserved.high),
        device_free: device.map(|device| device.free),
        device_total: device.map(|device| device.total),
        ..OutOfMemory::default()
    }
}

/// More bytes than any machine has: addresses have 57 bits at most. The driver is not asked for this much: for a
/// size near 2^63 it has returned success with an invalid address (R173).
const TOO_MUCH: usize = 1 << 57;

/// Out of memory, without asking the driver.
#[cold]
pub(crate) fn too_much(bytes: usize) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        format!("{bytes} bytes are more than any machine has addresses for"),
    )
    .with_asked(bytes as u64)
}
