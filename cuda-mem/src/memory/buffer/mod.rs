//! Buffers: device memory allocated and freed in stream order.

mod alloc;
mod copies;
mod deallocator;
mod deferred_free;
mod from_resource;
mod host_slice;
mod listed;
mod other_stream;
mod raw_parts;
mod slices;

pub(crate) use alloc::{bytes_of, too_large};
pub(crate) use deallocator::{ExternalOwner, Refused, give_back};
#[cfg(target_os = "linux")]
pub(crate) use deallocator::{Loan, ReturnAttempt};
pub(crate) use other_stream::FreeOnOther;

use deallocator::Deallocator;

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use crate::base::biased::Held;
use crate::base::error::{Error, Failed, Result, took_effect};
use crate::base::lock::Lock;
use crate::base::report;
use crate::driver::device::Device;
use crate::ledger;
use crate::memory::pool::{self, MemoryPool, PoolBuilder};
use crate::memory::slice::{
    DeviceSlice, DeviceSliceMut, OnStream, PendingUses, Span, wait_for_use,
};
use crate::stream::context::Context;
use crate::stream::event::Event;
use crate::stream::{Stream, StreamRef};

/// `len` elements of device memory, allocated and freed in the order of a stream.
///
/// The memory is valid from the point where the stream reaches the allocation until it reaches the free, so all
/// work on it is submitted to that stream; [`on`](Self::on) gives it to another stream, with the required ordering.
/// Dropping a buffer of a pool is one driver call and does not wait, unless its stream is another thread's [own
/// stream](Context::per_thread_stream): then the host waits for the context. Direct, pinned and managed resources wait
/// for the stream at each free; for a buffer of any other resource, see that resource.
///
/// The buffer keeps its stream and the stream's context alive. It holds no handle to its pool, which ends once its
/// last handle is dropped and all its memory is freed. A buffer of any other [`Resource`](crate::Resource) keeps
/// that resource alive and returns its memory there.
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
/// A freed buffer can no longer be named:
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
    stream: Held<Stream>,
    /// The device that the memory belongs to; `None` for host memory and if it is unknown.
    device: Option<Device>,
    /// What frees the memory. Never dropped automatically: memory not yet freed may be in use, so its owner must
    /// not be dropped as if it were unused.
    deallocator: ManuallyDrop<Deallocator>,
    /// Streams that may still use the memory and that ours has not waited for yet, because there is a slice on them,
    /// such a slice was leaked, or a wait failed. Otherwise empty; the lock is taken only through shared borrows, never to
    /// allocate or free.
    pending_uses: Lock<PendingUses>,
    element: PhantomData<T>,
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

    /// See [`ExternalOwner::loan`].
    #[cfg(target_os = "linux")]
    pub(crate) fn loan(&self) -> Option<Loan> {
        match &*self.deallocator {
            Deallocator::External(owner) => owner.loan(),
            _ => None,
        }
    }

    /// See [`ExternalOwner::note_return`].
    #[cfg(target_os = "linux")]
    pub(crate) fn note_return(&self, what: ReturnAttempt) {
        if let Deallocator::External(owner) = &*self.deallocator {
            owner.note_return(what);
        }
    }

    /// The stream in whose order the memory is used and freed.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The device that the memory belongs to; `None` for host memory, and if it is unknown.
    #[must_use]
    pub fn device(&self) -> Option<Device> {
        self.device
    }

    /// The device address; 0 if there is no memory. Kernels and other libraries must use it in the order of
    /// [`stream`](Self::stream). If a slice on [another stream](Self::on) may have been leaked, or the wait at its end
    /// may have failed or been put off, call [`wait_for_pending_uses`](Self::wait_for_pending_uses) first.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.address
    }

    /// Makes the buffer's stream wait for streams that may still use the memory because a slice [on](Self::on) one of
    /// them was leaked, or a wait failed. Every other method does this itself; call it before using [`as_raw`](Self::as_raw). Usually
    /// there is nothing to wait for, and no driver call is made. For the own stream of another thread, the host waits for
    /// its whole context.
    ///
    /// # Errors
    ///
    /// Any driver error; [`Capturing`](crate::ErrorKind::Capturing) while another library captures only one of two of the
    /// streams. Streams that could not be waited for are kept for the next call.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    #[inline]
    pub fn wait_for_pending_uses(&mut self) -> Result<()> {
        let pending_uses = self.pending_uses.get_mut();
        while let Some(other) = pending_uses.last() {
            wait_for_use(&other.stream, &self.stream)?;
            pending_uses.pop();
        }
        Ok(())
    }

    /// Frees the memory in the order of its stream, as dropping does, but returns the result. Synchronises as dropping
    /// does: see the type.
    ///
    /// # Errors
    ///
    /// [`Capturing`](crate::ErrorKind::Capturing) while the stream is captured; otherwise any driver error. The error
    /// contains the buffer, still allocated, unless the driver may have freed it despite the error.
    #[doc(alias = "cuMemFreeAsync")]
    pub fn free(mut self) -> Result<(), Failed<Self>> {
        if report::is_forked() {
            return Err(Failed::new(Error::forked(), self));
        }
        match self.release() {
            Ok(()) => Ok(()),
            Err(error) if !self.has_memory() => Err(Failed::lost(error)),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    /// Frees the memory, if there is any. The buffer keeps the memory only after a failure known to have had no
    /// effect.
    #[inline]
    fn release(&mut self) -> Result<()> {
        if ledger::is_on() {
            return self.release_listed();
        }
        self.release_memory()
    }

    #[inline]
    fn release_memory(&mut self) -> Result<()> {
        // If this fails, the memory is leaked rather than freed while another stream uses it.
        if let Err(error) = self.wait_for_pending_uses() {
            self.wait_for_foreign_uses(error)?;
        }
        if !matches!(*self.deallocator, Deallocator::Driver) {
            return self.give_back_memory();
        }
        if self.address == 0 {
            return Ok(());
        }
        // SAFETY: the address is this buffer's, and this stream waits for every stream that used it (R13).
        match unsafe { pool::free(self.address, &self.stream) } {
            Ok(()) => {
                self.address = 0;
                self.stream.release_deferred();
                Ok(())
            }
            Err(error) => self.free_otherwise(error),
        }
    }

    /// Freeing failed with `error`: tries other ways to free.
    #[cold]
    pub(super) fn free_otherwise(&mut self, error: Error) -> Result<()> {
        // SAFETY: the address is this buffer's, and this stream waits for every stream that used it (R13). The error
        // had no effect.
        let freed =
            unsafe { pool::free_otherwise(self.address, &self.stream, error, || self.in_words()) };
        if took_effect(&freed) {
            self.address = 0;
            self.stream.release_deferred();
        }
        freed
    }

    /// [`wait_for_pending_uses`](Self::wait_for_pending_uses) failed with `error`. If the cause is another thread's
    /// per-thread stream, which this thread cannot order work with, the host waits instead.
    #[cold]
    fn wait_for_foreign_uses(&mut self, error: Error) -> Result<()> {
        let pending_uses = self.pending_uses.get_mut();
        if !self.stream.is_foreign()
            && !pending_uses
                .iter()
                .any(|pending_use| pending_use.stream.is_foreign())
        {
            return Err(error);
        }
        while let Some(other) = pending_uses.last() {
            other.stream.as_ref().wait_foreign()?;
            pending_uses.pop();
        }
        Ok(())
    }

    /// Like [`wait_for_pending_uses`](Self::wait_for_pending_uses), for reading. Other readers are not waited for.
    pub(crate) fn wait_for_writers(&self) -> Result<()> {
        self.noted_span().wait_for_pending_uses(false)
    }

    /// All elements, with the list of pending uses.
    fn noted_span(&self) -> Span<'_, T> {
        self.span().noted_in(&self.pending_uses)
    }

    fn span(&self) -> Span<'_, T> {
        // SAFETY: the memory is this buffer's from its allocation in this stream to its free there, and the span
        // borrows the buffer. The callers wait for uses on other streams, unless the span comes with the list of
        // pending uses, and waits itself. The driver aligns to 256 bytes or more (R15).
        unsafe { Span::new(self.address, self.len, &self.stream, self.device) }
    }
}

impl<T: Pod> Drop for DeviceBuffer<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is the destructor.
        if !unsafe { self.end_plainly() } {
            self.end_thoroughly();
        }
    }
}

impl<T: Pod> DeviceBuffer<T> {
    #[cold]
    #[inline(never)]
    fn end_thoroughly(&mut self) {
        self.end(Self::release);
    }

    /// The body of the destructor: releases the memory and reports the outcome.
    fn end(&mut self, release: impl FnOnce(&mut Self) -> Result<()>) {
        report::release("buffer", || {
            let released = release(self).or_else(|error| self.defer_free(error));
            if let (Err(error), Deallocator::External(owner)) = (&released, &*self.deallocator) {
                owner.abandon(error);
            }
            released
        });
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// A description for error messages.
    pub(crate) fn in_words(&self) -> String {
        let element = std::any::type_name::<T>();
        format!(
            "the buffer of {} {element} at {:#x}",
            self.len, self.address
        )
    }
}

impl<T: Pod> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .field("element", &std::any::type_name::<T>())
            .field("stream", &*self.stream)
            .finish_non_exhaustive()
    }
}

// The memory itself may be used from any thread; handles are Send and Sync, and a shared borrow
// only reads.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<DeviceBuffer<f32>>();
    shared::<DeviceSlice<'_, f32, OnStream<'_>>>();
    shared::<DeviceSliceMut<'_, f32, OnStream<'_>>>();
    shared::<MemoryPool>();
    shared::<PoolBuilder>();
    shared::<Stream>();
    shared::<StreamRef<'_>>();
    shared::<Event>();
    shared::<Context>();
};
