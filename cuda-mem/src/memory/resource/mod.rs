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
use crate::base::telemetry::event;
use crate::driver::Driver;
use crate::driver::pointer::MemoryKind;
use crate::memory::pool::Pool;
use crate::stream::Stream;
use crate::stream::deferred::ResourceCall;
use crate::stream::join::order_outside_captures;
use crate::stream::recording;

/// The minimum alignment in bytes of every resource, even if a request asks for less.
pub const RESOURCE_ALIGNMENT: usize = 256;

/// An allocator of memory in stream order.
///
/// Sizes are given as a [`Layout`]: bytes, and an alignment in bytes. Rounding the size of a layout up to its
/// alignment cannot overflow, so a resource need not check for that.
///
/// From the allocation on, the memory may be used in the order of the stream, and by other streams that wait for
/// it. Deallocation is stream-ordered too: work already in the stream at [`deallocate`](Self::deallocate) may still
/// use the memory, and a resource that cannot free in stream order has to wait for the stream first.
///
/// Programs rarely call these two directly; [`Resource`] provides buffers built on them. Errors name a resource by
/// its [`Debug`] output, so keep that to one short line.
///
/// # Safety
///
/// Memory from [`allocate`](Self::allocate) must have at least the requested size and alignment, be aligned to at
/// least [`RESOURCE_ALIGNMENT`], and be usable by the device of the stream and as
/// [`memory_properties`](Self::memory_properties) says. Host memory must be initialised. It must not be handed out again until it has been passed to
/// [`deallocate`](Self::deallocate) and the stream has reached that point. Zero bytes have address 0.
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
    /// Allocates memory in the order of `stream`; its contents are unspecified. A request for zero bytes returns
    /// address 0 without asking upstream or the driver.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is not enough memory; the resource stays usable.
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for an unsupported alignment, and for a stream whose device
    /// cannot access the memory. Otherwise any error the resource chooses.
    #[cfg_attr(doc, doc(alias = "do_allocate"))]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr>;

    /// Deallocates memory in the order of `stream`. Does nothing for address 0.
    ///
    /// # Errors
    ///
    /// If the error [had no effect](Error::had_no_effect), the memory is still allocated, and the caller will
    /// deallocate it again later. After any other error the memory is considered lost. So do not return errors from
    /// work done after the memory is free. A panic counts as an error of the second kind.
    ///
    /// # Safety
    ///
    /// `address` must come from this resource, for this layout, and be deallocated only once. `stream` must already
    /// wait on every stream that used the memory; it need not be the stream it was allocated on.
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> Result<()>;

    /// Like [`deallocate`](Self::deallocate), for memory that several streams used: the memory is freed in the
    /// order of `stream` and after all work now in `others`. By default `stream` is made to wait for `others`. A
    /// resource that caches memory can do better: [`Arena`](crate::Arena) makes no stream wait, and does not reuse
    /// the memory until all of them are done. This serves the purpose of PyTorch's `record_stream`.
    ///
    /// # Errors
    ///
    /// Same as [`deallocate`](Self::deallocate); also an error if the streams cannot be ordered, which has no
    /// effect.
    ///
    /// # Safety
    ///
    /// Same as [`deallocate`](Self::deallocate), except that `stream` need not wait for `others`.
    #[doc(alias = "record_stream")]
    unsafe fn deallocate_after(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
        others: &[&Stream],
    ) -> Result<()> {
        for other in others {
            order_outside_captures(other.as_ref(), stream.as_ref()).map_err(Error::not_tried)?;
        }
        // SAFETY: the caller's; the other streams are waited for now.
        unsafe { self.deallocate(address, layout, stream) }
    }

    /// The kind of memory, and what can access it.
    fn memory_properties(&self) -> MemoryProperties;

    /// The kind of memory alone, which never changes. The ledger asks for each allocation; by default this asks
    /// [`memory_properties`](Self::memory_properties).
    fn memory_kind(&self) -> MemoryKind {
        self.memory_properties().kind
    }

    /// The pool that the memory ultimately comes from, for its statistics and settings; `None` if there is none.
    /// The default is `None`.
    fn pool(&self) -> Option<&Pool> {
        None
    }

    /// Whether a free may run code of the program, which may take its locks, or a request may wait for other threads. Only
    /// resources of this crate know better.
    #[doc(hidden)]
    fn may_call_program(&self) -> bool {
        true
    }

    /// Whether a free waits for its stream, as drivers do for memory that is no pool's.
    #[doc(hidden)]
    fn waits_to_free(&self) -> bool {
        false
    }

    /// Releases unused memory held by this resource and its upstreams, down to as little as possible but no less
    /// than `keep` bytes. Never waits. By default does nothing.
    ///
    /// # Errors
    ///
    /// Any driver error.
    fn trim_to(&self, keep: u64) -> Result<()> {
        let _ = keep;
        Ok(())
    }
}

/// Pointers to a resource are resources too, and so is what holds one.
macro_rules! forward {
    ($(<$($generic:ident)?> $pointer:ty),* $(,)?) => {$(
        $crate::memory::resource::forward!(<$($generic)?> $pointer => |pointer| **pointer);
    )*};
    (<$($generic:ident)?> $holder:ty => |$held:ident| $resource:expr) => {
        // SAFETY: everything is the resource's own doing.
        unsafe impl<$($generic: $crate::memory::resource::MemoryResource + ?Sized)?>
            $crate::memory::resource::MemoryResource for $holder
        {
            #[inline]
            #[track_caller]
            fn allocate(
                &self,
                layout: ::std::alloc::Layout,
                stream: &$crate::stream::Stream,
            ) -> $crate::base::error::Result<::cuda_driver_sys::CUdeviceptr> {
                let $held = self;
                $crate::memory::resource::MemoryResource::allocate(&$resource, layout, stream)
            }

            #[inline]
            unsafe fn deallocate(
                &self,
                address: ::cuda_driver_sys::CUdeviceptr,
                layout: ::std::alloc::Layout,
                stream: &$crate::stream::Stream,
            ) -> $crate::base::error::Result<()> {
                let $held = self;
                // SAFETY: the caller keeps the contract of this function, which is the same.
                unsafe { $crate::memory::resource::MemoryResource::deallocate(&$resource, address, layout, stream) }
            }

            unsafe fn deallocate_after(
                &self,
                address: ::cuda_driver_sys::CUdeviceptr,
                layout: ::std::alloc::Layout,
                stream: &$crate::stream::Stream,
                others: &[&$crate::stream::Stream],
            ) -> $crate::base::error::Result<()> {
                let $held = self;
                // SAFETY: as for `deallocate`.
                unsafe { $crate::memory::resource::MemoryResource::deallocate_after(&$resource, address, layout, stream, others) }
            }

            fn memory_properties(&self) -> $crate::memory::resource::MemoryProperties {
                let $held = self;
                $crate::memory::resource::MemoryResource::memory_properties(&$resource)
            }

            fn memory_kind(&self) -> $crate::driver::pointer::MemoryKind {
                let $held = self;
                $crate::memory::resource::MemoryResource::memory_kind(&$resource)
            }

            fn pool(&self) -> Option<&$crate::memory::pool::Pool> {
                let $held = self;
                $crate::memory::resource::MemoryResource::pool(&$resource)
            }

            fn may_call_program(&self) -> bool {
                let $held = self;
                $crate::memory::resource::MemoryResource::may_call_program(&$resource)
            }

            fn waits_to_free(&self) -> bool {
                let $held = self;
                $crate::memory::resource::MemoryResource::waits_to_free(&$resource)
            }

            fn trim_to(&self, keep: u64) -> $crate::base::error::Result<()> {
                let $held = self;
                $crate::memory::resource::MemoryResource::trim_to(&$resource, keep)
            }
        }
    };
}
pub(crate) use forward;

forward!(<R> &R, <R> Arc<R>, <R> Box<R>);

/// The common part of resources that ask the driver for each block. `take` is called with the number of bytes and
/// with the stream's context current.
fn allocate_plain(
    what: &impl Debug,
    layout: Layout,
    stream: &Stream,
    take: impl Fn(usize) -> Result<CUdeviceptr>,
) -> Result<CUdeviceptr> {
    require_alignment(what, layout)?;
    // Before the free, this thread could not wait for another thread's per-thread stream.
    drop(stream.as_ref().ask()?);
    if layout.size() == 0 {
        return Ok(0);
    }
    let _current = stream.context().bind()?;
    // A resource of the program may hold a lock around this call, which memory given back to it would need.
    let _inside = ResourceCall::enter();
    recording::relaxed_while_capturing(stream.device().driver().table(), || take(layout.size()))
        .map_err(|error| explain(error, what, layout.size(), stream))
}

/// Waits for the stream, then frees. No capture is disturbed, of this stream or another: if one prevents the free,
/// this does nothing and returns an error that says so.
pub(crate) fn wait_and_free(
    address: CUdeviceptr,
    stream: &Stream,
    free: impl FnOnce() -> Result<()>,
) -> Result<()> {
    wait_by_and_free(address, stream, || stream.synchronize(), free)
}

/// As [`wait_and_free`], with another way to wait for the stream.
pub(crate) fn wait_by_and_free(
    address: CUdeviceptr,
    stream: &Stream,
    wait: impl FnOnce() -> Result<()>,
    free: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    stream.as_ref().refuse_captured(CAPTURED)?;
    // Memory that the wait would release may belong to a resource that holds a lock around this call.
    let _inside = ResourceCall::enter();
    recording::with_relaxed_capture_mode(stream.device().driver().table(), || {
        // What the wait reports is no word about the free, which is still to come.
        wait().map_err(Error::not_tried)?;
        free()
    })
}

/// Why memory outside a graph is not freed in a captured stream.
pub(crate) const CAPTURED: &str = "the buffer's stream is being captured into a graph, where only the graph's own \
                                   memory can be freed; free the buffer before or after";

/// An error if the request asks for more than the common alignment.
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

/// An error if the stream belongs to another driver.
fn require_driver(driver: Driver, stream: &Stream) -> Result<()> {
    driver.require_same(
        stream.device().driver(),
        format_args!("the resource and {stream}"),
    )
}

#[cold]
pub(crate) fn wrong_device(what: &dyn Debug, stream: &Stream) -> Error {
    Error::invalid(format!(
        "{stream} is of another device than {what:?}, which does not reach its memory"
    ))
}

/// Adds the request to the error, and the numbers of the device to an out-of-memory error.
#[cold]
pub(crate) fn explain(error: Error, what: &dyn Debug, bytes: usize, stream: &Stream) -> Error {
    let error = error
        .asked(|| format!("{bytes} bytes from {what:?}"))
        .with_memory(|| {
            let device = stream.context().memory_info().ok();
            OutOfMemory {
                asked: bytes as u64,
                device_free: device.map(|device| device.free),
                device_total: device.map(|device| device.total),
                ..OutOfMemory::default()
            }
        });
    if error.is_out_of_memory() {
        event!(WARN, error = %error, "out of memory");
    }
    error
}
