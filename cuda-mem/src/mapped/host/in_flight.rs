//! Host memory that a stream has.

use std::fmt;
use std::mem;
use std::ptr::NonNull;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::returned::Returned;
use crate::base::error::{Error, ErrorKind, Failed, Result};
use crate::base::lock::Lock;
use crate::base::report;
use crate::memory::slice::{
    self, DeviceMemory, DeviceMemoryMut, DeviceSlice, DeviceSliceMut, PendingUses, Span,
};
use crate::stream::completion::Completion;
use crate::stream::{OrderedRelease, Stream, StreamRef, epoch};

/// Host memory that can be [lent](InFlightBuffer) to a stream: [`PinnedBuffer`](crate::mapped::PinnedBuffer), and
/// [`Registered`](crate::mapped::Registered) if it borrows nothing with a limited lifetime.
///
/// This trait is sealed.
pub trait HostMemory: sealed::Range {}

#[allow(
    unreachable_pub,
    reason = "named by a public trait, and older compilers do not see that"
)]
pub(super) mod sealed {
    use super::*;

    /// Where the memory is. It stays there until the value is dropped, even if the value is moved.
    pub trait Range: Send + Sync + 'static {
        type Element: Pod;

        fn range(&self) -> (NonNull<Self::Element>, usize);

        /// Whether devices may write there.
        fn is_writable(&self) -> bool;
    }
}

/// Host memory that a stream has, from [`PinnedBuffer::lend`](crate::mapped::PinnedBuffer::lend) or
/// [`Registered::lend`](crate::mapped::Registered::lend). Its operations are submitted to the stream, in order, and the
/// host does not wait. The host cannot access the memory meanwhile.
///
/// It can be an argument of a launch: `&mut` for kernels that write, `&` for those that only read. Kernels access the
/// memory over the bus.
///
/// While any code captures the stream, copies and fills of the memory are refused: a graph would use it at every launch,
/// when the host has it again.
///
/// Dropping it waits for the stream, and for other streams where a slice of it was leaked, and then frees the memory. Where waiting would invalidate a capture, the memory is
/// freed after the capture. Leaking this value leaks the memory.
///
/// ```
/// # use cuda_mem::{Driver, MemoryPool};
/// # cuda_sim::use_if_no_driver();
/// # let device = Driver::load()?.device(0)?;
/// # let context = device.primary_context()?;
/// # let stream = context.stream()?;
/// # let pool = MemoryPool::builder(&device).build()?;
/// let results = pool.alloc_from(&stream, &[1u32, 2, 3])?;
/// let mut staging = context.pinned::<u32>(3)?.lend(&stream)?;
/// staging.copy_from(&results)?;           // does not wait
/// // … other work of the host …
/// let staging = staging.take_back()?;     // waits
/// assert_eq!(*staging, [1, 2, 3]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
///
/// While a stream has the memory, the host cannot use it:
///
/// ```compile_fail,E0382
/// # use cuda_mem::Stream;
/// # use cuda_mem::mapped::PinnedBuffer;
/// # fn example(mut staging: PinnedBuffer<u32>, stream: Stream) -> Result<(), cuda_mem::Error> {
/// let lent = staging.lend(&stream)?;
/// staging[0] = 1; // error: use of moved value
/// # drop(lent);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it waits for the stream, and frees the memory"]
pub struct InFlightBuffer<H: HostMemory> {
    /// `None` only at the end.
    host: Option<H>,
    address: CUdeviceptr,
    stream: Stream,
    /// Other streams that may still use the memory, because a slice on them was leaked.
    pending_uses: Lock<PendingUses>,
}

impl<H: HostMemory> InFlightBuffer<H> {
    /// # Safety
    ///
    /// The memory must be its value's own, by `address` on the stream's device, or 0 for no bytes.
    pub(super) unsafe fn new(host: H, address: CUdeviceptr, stream: &Stream) -> Self {
        Self {
            host: Some(host),
            address,
            stream: stream.clone(),
            pending_uses: Lock::default(),
        }
    }

    fn range(&self) -> (NonNull<H::Element>, usize) {
        self.host
            .as_ref()
            .map_or((NonNull::dangling(), 0), H::range)
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range().1
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The stream that has the memory.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The address of the memory on the stream's device, to be used in the order of [`stream`](Self::stream); 0 if
    /// there are no bytes. It may differ from the host's.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.address
    }

    /// All elements, to be read in the order of the stream, or of another one.
    pub fn as_slice(&self) -> DeviceSlice<'_, H::Element> {
        DeviceSlice::new(self.span())
    }

    /// All elements, to be written in the order of the stream, or of another one.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) if the memory is registered as read-only.
    pub fn as_mut_slice(&mut self) -> Result<DeviceSliceMut<'_, H::Element>> {
        self.require_writable()?;
        Ok(DeviceSliceMut::new(self.span()))
    }

    fn span(&self) -> Span<'_, H::Element> {
        // SAFETY: the memory has this length and stays, unseen by the host, until this value ends, which waits for the
        // stream and for other streams in the list. Every bit pattern is a value of its elements.
        let span = unsafe { Span::new(self.address, self.len(), &self.stream, None) };
        span.noted_in(&self.pending_uses).lent()
    }

    /// Submits a copy of device memory of the same length into this memory, in the order of both streams. Does
    /// not synchronise.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) if the lengths differ, the stream's device cannot access the source,
    /// or the memory is registered as read-only; [`Capturing`](ErrorKind::Capturing) while any code captures the stream;
    /// otherwise any driver error.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn copy_from(&mut self, from: &impl DeviceMemory<Element = H::Element>) -> Result<()> {
        self.require_writable()?;
        self.span().wait_for_pending_uses(true)?;
        let (at, len) = self.range();
        let there = from.as_slice().read_on(&self.stream)?;
        there.span().check_len(len, "memory of the host")?;
        // SAFETY: the memory has this length, and stays, unseen by the host, until the stream
        // is past the copy. Every bit pattern is a value of its elements.
        unsafe { there.span().submit_to(at.as_ptr().cast()) }
    }

    /// Submits a copy of this memory into device memory of the same length, in the order of both streams. Does
    /// not synchronise.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) if the lengths differ, or the stream's device cannot access the
    /// target; [`Capturing`](ErrorKind::Capturing) while any code captures the stream; otherwise any driver error.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn copy_to(&self, to: &mut impl DeviceMemoryMut<Element = H::Element>) -> Result<()> {
        self.span().wait_for_pending_uses(false)?;
        let (at, len) = self.range();
        let there = to.as_mut_slice().on(&self.stream)?;
        let there = there.as_slice();
        there.span().check_len(len, "memory of the host")?;
        // SAFETY: the memory has this length, and stays until the stream is past the copy.
        unsafe { there.span().submit_from(at.as_ptr().cast()) }
    }

    /// `Ok` if devices may write to the memory.
    pub(crate) fn require_writable(&self) -> Result<()> {
        if self.host.as_ref().is_none_or(H::is_writable) {
            return Ok(());
        }
        Err(Error::invalid(
            "the memory is registered for devices that only read (READ_ONLY), and this writes to it; \
             register it without that flag"
                .to_owned(),
        ))
    }

    /// Whether the stream has completed all work submitted with the memory so far, and so have other streams where a
    /// slice of it was leaked. Does not wait.
    ///
    /// # Errors
    ///
    /// Any driver error, including faults of earlier asynchronous work;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if one of the streams is another thread's own, which cannot be asked.
    #[doc(alias = "cuStreamQuery")]
    pub fn is_done(&self) -> Result<bool> {
        // Cloned out: the driver is not called under the lock.
        let pending_uses = self.pending_uses.lock()?.clone();
        for pending_use in &*pending_uses {
            if !pending_use.stream.is_done()? {
                return Ok(false);
            }
        }
        self.stream.is_done()
    }

    /// Waits for the stream, and returns the memory to the host.
    ///
    /// # Errors
    ///
    /// Any driver error, including faults of earlier asynchronous work; [`Capturing`](ErrorKind::Capturing) while
    /// the stream is captured, and for another thread's per-thread stream while any stream is. The memory comes back with
    /// the error and stays in force.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn take_back(self) -> Result<H, Failed<Self>> {
        if let Err(error) = self.finish() {
            return Err(Failed::new(error, self));
        }
        self.into_host()
    }

    /// A future that returns the memory to the host once the stream has completed all work submitted with it so far.
    /// It blocks no thread; see [`Completion`](crate::stream::Completion). Dropping it before is as dropping the memory: it waits.
    ///
    /// ```
    /// # use std::task::{Context, Waker};
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     loop {
    /// #         let mut context = Context::from_waker(Waker::noop());
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return output;
    /// #         }
    /// #         std::thread::yield_now();
    /// #     }
    /// # }
    /// # use cuda_mem::{Driver, MemoryPool};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let context = device.primary_context()?;
    /// # let stream = context.stream()?;
    /// # let pool = MemoryPool::builder(&device).build()?;
    /// # block_on(async {
    /// let results = pool.alloc_from(&stream, &[1u32, 2, 3])?;
    /// let mut staging = context.pinned::<u32>(3)?.lend(&stream)?;
    /// staging.copy_from(&results)?;
    /// let staging = staging.returned().await?;
    /// assert_eq!(*staging, [1, 2, 3]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// # })?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuEventRecord", "cuEventQuery"))]
    pub fn returned(self) -> Returned<H> {
        Returned::new(self)
    }

    /// A future that is ready once all work submitted with the memory so far is done.
    pub(super) fn completion(&self) -> Result<Completion> {
        self.span().wait_for_pending_uses(true)?;
        self.stream.completion()
    }

    /// As [`take_back`](Self::take_back), when the stream is known to be done with the memory.
    pub(super) fn into_host(mut self) -> Result<H, Failed<Self>> {
        match self.host.take() {
            Some(host) => Ok(host),
            None => Err(Failed::lost(taken_back())),
        }
    }

    fn finish(&self) -> Result<()> {
        if self.address == 0 {
            return Ok(());
        }
        self.wait_for_other_streams()?;
        self.stream.as_ref().wait_unless_captured()
    }

    /// Lets the stream wait for others; where one of them is another thread's own, with which nothing can be ordered here,
    /// the host waits instead.
    fn wait_for_other_streams(&self) -> Result<()> {
        // Cloned out: the driver is not called under the lock.
        let pending_uses = self.pending_uses.lock()?.clone();
        let mut streams = pending_uses
            .iter()
            .map(|pending_use| &pending_use.stream)
            .chain([&self.stream]);
        if !streams.any(Stream::is_foreign) {
            return self.span().wait_for_pending_uses(true);
        }
        for pending_use in &*pending_uses {
            pending_use.stream.as_ref().wait_unless_captured()?;
        }
        // This value is about to end, so no slice has come meanwhile.
        let over = mem::take(&mut *self.pending_uses.lock()?);
        drop(over);
        Ok(())
    }
}

impl<H: HostMemory> slice::sealed::Memory for InFlightBuffer<H> {}

impl<H: HostMemory> DeviceMemory for InFlightBuffer<H> {
    type Element = H::Element;

    fn as_slice(&self) -> DeviceSlice<'_, H::Element> {
        self.as_slice()
    }
}

#[cold]
pub(super) fn taken_back() -> Error {
    Error::invalid("the memory was taken back already".to_owned())
}

/// Memory that was dropped while its stream was captured. If it is never released, it leaks rather than being freed
/// while the stream uses it.
struct EndedLoan<H> {
    host: Option<mem::ManuallyDrop<H>>,
    /// Other streams that may still use it: the driver waits for those of one device only (R131).
    pending_uses: PendingUses,
    /// When the memory was dropped.
    epoch: u64,
}

impl<H: HostMemory> OrderedRelease for EndedLoan<H> {
    fn waits_for_stream(&self) -> bool {
        true
    }

    fn waits_for_device(&self) -> bool {
        true
    }

    fn release(&mut self, stream: StreamRef<'_>, _: Option<&Stream>) -> Result<()> {
        while let Some(pending_use) = self.pending_uses.last() {
            let other = &pending_use.stream;
            // Another thread's own stream cannot be asked; a wait for its context is one for it.
            let is_done = match other.is_foreign() {
                true => other.context().progress().done() >= self.epoch,
                false => other.as_ref().is_done_unless_captured()?,
            };
            // A later try finds it done.
            if !is_done {
                let text = format!("{} may still use host memory", pending_use.stream);
                return Err(Error::capturing(text));
            }
            self.pending_uses.pop();
        }
        stream.wait_unless_captured()?;
        drop(self.host.take().map(mem::ManuallyDrop::into_inner));
        Ok(())
    }
}

impl<H: HostMemory> Drop for InFlightBuffer<H> {
    fn drop(&mut self) {
        if self.host.is_none() {
            return;
        }
        report::release("host memory in flight", || match self.finish() {
            Ok(()) => {
                drop(self.host.take());
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Capturing => {
                let ended = EndedLoan {
                    host: self.host.take().map(mem::ManuallyDrop::new),
                    pending_uses: mem::take(self.pending_uses.get_mut()),
                    epoch: epoch::now(),
                };
                self.stream.release_later(ended);
                Ok(())
            }
            Err(error) => Err(error),
        });
        // Still there if that failed, or in a fork: the stream may use it, so it must not be freed.
        mem::forget(self.host.take());
    }
}

impl<H: HostMemory> fmt::Debug for InFlightBuffer<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlightBuffer")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len())
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
