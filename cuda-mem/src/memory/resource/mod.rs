//! Memory resources: where memory comes from, behind one interface.

mod direct;
mod handle;
mod managed;
mod pinned;
mod properties;

pub use direct::DirectResource;
pub(crate) use handle::Handle;
pub use handle::Resource;
pub use managed::ManagedResource;
pub(crate) use pinned::require_known;
pub use pinned::{HostFlags, PinnedResource};
pub use properties::{DeviceSet, MemoryProperties};

use std::alloc::Layout;
use std::fmt::Debug;
use std::sync::Arc;

use cuda_driver_sys::CUdeviceptr;

use crate::base::error::{Error, OutOfMemory, Result};
use crate::driver::Driver;
use crate::memory::pool::Pool;
use crate::stream::Stream;
use crate::stream::deferred::ResourceCall;
use crate::stream::recording;

/// The alignment in bytes that every resource keeps, whatever less is asked for.
pub const RESOURCE_ALIGNMENT: usize = 256;

/// Something that hands out memory in the order of a stream and takes it back.
///
/// Sizes come as a [`Layout`]: bytes, and an alignment in bytes. A layout cannot be so large that
/// rounding it up to its alignment overflows, so a resource need not fear that.
///
/// The memory may be used in the order of the stream from the allocation on, and by other streams that
/// were made to wait for it. That holds for taking back too: what is in the stream at
/// [`deallocate`](Self::deallocate) may still use the memory, and a resource that cannot take it back in
/// that order has to wait for the stream first.
///
/// Programs seldom call these two; [`Resource`] has what is built on them. Errors name a resource by its [`Debug`], so
/// keep that to one short line.
///
/// # Safety
///
/// Memory from [`allocate`](Self::allocate) must be at least as large and as aligned as asked, and to
/// [`RESOURCE_ALIGNMENT`], usable by the device of the stream and as [`memory_properties`](Self::memory_properties) says, and
/// nobody else's until it was given to [`deallocate`](Self::deallocate) and the stream has come to that
/// point. No bytes are address 0.
///
/// ```
/// use std::alloc::Layout;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use cuda_mem::{Driver, MemoryPool, MemoryResource, Resource, Result, Stream};
/// use cuda_mem::memory::MemoryProperties;
///
/// /// Counts the requests that another resource gets.
/// #[derive(Debug)]
/// struct Counting<U>(U, AtomicU64);
///
/// // SAFETY: all memory comes from `U` and goes back there.
/// unsafe impl<U: MemoryResource> MemoryResource for Counting<U> {
///     fn allocate(&self, layout: Layout, stream: &Stream) -> Result<u64> {
///         self.1.fetch_add(1, Ordering::Relaxed);
///         self.0.allocate(layout, stream)
///     }
///     unsafe fn deallocate(&self, address: u64, layout: Layout, stream: &Stream) -> Result<()> {
///         // SAFETY: the caller's.
///         unsafe { self.0.deallocate(address, layout, stream) }
///     }
///     fn memory_properties(&self) -> MemoryProperties {
///         self.0.memory_properties()
///     }
/// }
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let counting = Counting(MemoryPool::builder(&device).build()?, AtomicU64::new(0));
/// let resource = Resource::new(counting);
/// let buffer = resource.alloc_from(&stream, &[1.0f32, 2.0])?;
/// assert_eq!(buffer.to_vec()?, [1.0, 2.0]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub unsafe trait MemoryResource: Debug + Send + Sync {
    /// Hands out memory in the order of `stream`; its content is arbitrary. Address 0 for no bytes,
    /// without asking anybody.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is none; the resource still works then.
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for an alignment that the resource does not know, and
    /// for a stream whose device does not reach the memory. Else as the resource likes.
    #[cfg_attr(doc, doc(alias = "do_allocate"))]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr>;

    /// Takes memory back in the order of `stream`. Nothing for address 0.
    ///
    /// # Errors
    ///
    /// If the error [had no effect](Error::had_no_effect), the memory is still allocated, and is given back
    /// again later. After any other it is given up for lost. So do not answer with an error of what you do
    /// after the memory is free. A panic is an error of the second kind.
    ///
    /// # Safety
    ///
    /// `address` must come from this resource, for this layout, and be given back once. Every stream
    /// that used it must have been made to be waited for by `stream`, which need not be the one that it
    /// was allocated on.
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> Result<()>;

    /// As [`deallocate`](Self::deallocate), for memory that several streams used: it is taken back in the order of
    /// `stream` and after all that is in `others` now. By default `stream` is made to wait for them. A resource that keeps
    /// memory for reuse can do better: [`Arena`](crate::Arena) makes no stream wait, and the memory is not handed out
    /// before all of them are done. It is what PyTorch's `record_stream` is for.
    ///
    /// # Errors
    ///
    /// As there; also if the streams cannot be ordered, which has no effect.
    ///
    /// # Safety
    ///
    /// As there, but that `stream` need not have been made to wait for `others`.
    #[doc(alias = "record_stream")]
    unsafe fn deallocate_after(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
        others: &[&Stream],
    ) -> Result<()> {
        stream.join(others.iter().copied())?;
        // SAFETY: the caller's; the other streams are waited for now.
        unsafe { self.deallocate(address, layout, stream) }
    }

    /// What kind of memory it is, and who reaches it.
    fn memory_properties(&self) -> MemoryProperties;

    /// The pool that the memory comes from in the end, for its statistics and settings; `None` if it is no
    /// pool's. By default `None`.
    fn pool(&self) -> Option<&Pool> {
        None
    }

    /// Gives back what this resource and those below it keep but do not use, until they keep as little
    /// as they can but no less than `keep` bytes. Never waits. By default there is nothing to give.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    fn trim_to(&self, keep: u64) -> Result<()> {
        let _ = keep;
        Ok(())
    }
}

/// What points to a resource is one too.
macro_rules! forward {
    ($(<$($generic:ident)?> $pointer:ty),* $(,)?) => {$(
        // SAFETY: everything is the resource's own doing.
        unsafe impl<$($generic: $crate::memory::resource::MemoryResource + ?Sized)?>
            $crate::memory::resource::MemoryResource for $pointer
        {
            #[inline]
            #[track_caller]
            fn allocate(
                &self,
                layout: ::std::alloc::Layout,
                stream: &$crate::stream::Stream,
            ) -> $crate::base::error::Result<::cuda_driver_sys::CUdeviceptr> {
                (**self).allocate(layout, stream)
            }

            #[inline]
            unsafe fn deallocate(
                &self,
                address: ::cuda_driver_sys::CUdeviceptr,
                layout: ::std::alloc::Layout,
                stream: &$crate::stream::Stream,
            ) -> $crate::base::error::Result<()> {
                // SAFETY: the caller keeps the contract of this function, which is the same.
                unsafe { (**self).deallocate(address, layout, stream) }
            }

            unsafe fn deallocate_after(
                &self,
                address: ::cuda_driver_sys::CUdeviceptr,
                layout: ::std::alloc::Layout,
                stream: &$crate::stream::Stream,
                others: &[&$crate::stream::Stream],
            ) -> $crate::base::error::Result<()> {
                // SAFETY: as for `deallocate`.
                unsafe { (**self).deallocate_after(address, layout, stream, others) }
            }

            fn memory_properties(&self) -> $crate::memory::resource::MemoryProperties {
                (**self).memory_properties()
            }

            fn pool(&self) -> Option<&$crate::memory::pool::Pool> {
                $crate::memory::resource::MemoryResource::pool(&**self)
            }

            fn trim_to(&self, keep: u64) -> $crate::base::error::Result<()> {
                $crate::memory::resource::MemoryResource::trim_to(&**self, keep)
            }
        }
    )*};
}
pub(crate) use forward;

forward!(<R> &R, <R> Arc<R>, <R> Box<R>);

/// What the resources that ask the driver for each block have in common: `take` gets the bytes, with the
/// stream's context current.
fn allocate_plain(
    what: &impl Debug,
    layout: Layout,
    stream: &Stream,
    take: impl Fn(usize) -> Result<CUdeviceptr>,
) -> Result<CUdeviceptr> {
    require_alignment(what, layout)?;
    // Nobody could wait for another thread's own stream before the free.
    drop(stream.as_ref().ask()?);
    if layout.size() == 0 {
        return Ok(0);
    }
    let _current = stream.context().bind()?;
    take(layout.size()).map_err(|error| explain(error, what, layout.size(), stream))
}

/// Waits for the stream, and frees then. A capture, of this stream or another one, is not disturbed: if it
/// is in the way, nothing is done and the answer says so.
fn wait_and_free(
    address: CUdeviceptr,
    stream: &Stream,
    free: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    stream.as_ref().refuse_captured(CAPTURED)?;
    // What the wait would give back may belong to a resource that holds a lock around this call.
    let _inside = ResourceCall::enter();
    recording::with_relaxed_capture_mode(stream.device().driver().table(), || {
        stream.synchronize()?;
        free()
    })
}

/// Why memory of no graph is not freed in a captured stream.
pub(crate) const CAPTURED: &str = "the buffer's stream is being captured into a graph, where only the graph's own \
                                   memory can be freed; free the buffer before or after";

/// An error if more than the common alignment is asked for.
#[inline]
pub(crate) fn require_alignment(what: &dyn Debug, layout: Layout) -> Result<()> {
    if layout.align() <= RESOURCE_ALIGNMENT {
        return Ok(());
    }
    Err(misaligned(what, layout))
}

#[cold]
fn misaligned(what: &dyn Debug, layout: Layout) -> Error {
    Error::invalid(format!(
        "{what:?} aligns to {RESOURCE_ALIGNMENT} bytes, and {} were asked for; put an `AlignedAdaptor` over it",
        layout.align()
    ))
}

/// An error if the stream is of another driver.
fn require_driver(driver: Driver, stream: &Stream) -> Result<()> {
    driver.require_same(
        stream.device().driver(),
        format_args!("the resource and {stream}"),
    )
}

#[cold]
fn wrong_device(what: &dyn Debug, stream: &Stream) -> Error {
    Error::invalid(format!(
        "{stream} is of another device than {what:?}, which does not reach its memory"
    ))
}

/// Adds what was asked for, and to an out-of-memory answer the numbers of the device.
#[cold]
pub(crate) fn explain(error: Error, what: &dyn Debug, bytes: usize, stream: &Stream) -> Error {
    error
        .asked(|| format!("{bytes} bytes from {what:?}"))
        .with_memory(|| {
            let device = stream.context().memory_info().ok();
            OutOfMemory {
                asked: bytes as u64,
                device_free: device.map(|device| device.free),
                device_total: device.map(|device| device.total),
                ..OutOfMemory::default()
            }
        })
}
