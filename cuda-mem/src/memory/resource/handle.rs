//! A handle to any resource.

use std::alloc::Layout;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use cuda_driver_sys::CUdeviceptr;

use super::{MemoryProperties, MemoryResource};
use crate::base::biased::{Hold, Shared};
use crate::base::error::Result;
use crate::base::origin;
use crate::driver::device::Device;
use crate::driver::pointer::MemoryKind;
use crate::memory::pool::Pool;
use crate::stream::Stream;
use crate::stream::deferred::ResourceCall;

/// A handle to any [`MemoryResource`], cheap to clone and to share between threads. Buffers allocated from it keep
/// it alive.
///
/// ```
/// use cuda_mem::{Driver, MemoryPool, Resource};
/// use cuda_mem::memory::LimitAdaptor;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let pool = MemoryPool::builder(&device).build()?;
/// let resource = Resource::new(LimitAdaptor::new(pool, 1 << 30));
/// let buffer = resource.alloc::<f32>(&stream, 1000)?;
/// assert!(resource.alloc::<u8>(&stream, 2 << 30).is_err());
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct Resource {
    pub(crate) inner: Handle,
    /// The device that the memory belongs to, queried once.
    pub(crate) device: Option<Device>,
}

/// How a resource is kept.
#[derive(Clone)]
pub(crate) struct Handle {
    /// Lives as long as `kept`, or the program.
    resource: NonNull<dyn MemoryResource>,
    kept: Option<Kept>,
}

/// How many threads can count the buffers of a resource without contention.
const THREADS: usize = 32;

type Kept = Shared<Arc<dyn MemoryResource>, THREADS>;

// SAFETY: resources are `Send` and `Sync`, and the pointer is only used to borrow one.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub(crate) fn shared(resource: Arc<dyn MemoryResource>) -> Self {
        Self {
            // SAFETY: an `Arc` is not null.
            resource: unsafe { NonNull::new_unchecked(Arc::as_ptr(&resource).cast_mut()) },
            kept: Some(Shared::new(resource)),
        }
    }

    fn of_static(resource: &'static dyn MemoryResource) -> Self {
        Self {
            resource: NonNull::from(resource),
            kept: None,
        }
    }
}

impl Hold for Handle {
    #[inline(always)]
    fn hold(&self) -> Self {
        Self {
            resource: self.resource,
            kept: self.kept.as_ref().map(Shared::hold),
        }
    }

    #[inline(always)]
    fn release(self) {
        if let Some(kept) = self.kept {
            kept.release();
        }
    }
}

impl Deref for Handle {
    type Target = dyn MemoryResource;

    #[inline]
    fn deref(&self) -> &(dyn MemoryResource + 'static) {
        // SAFETY: it is kept, and an `Arc` does not move what it points to.
        unsafe { self.resource.as_ref() }
    }
}

impl Resource {
    /// Creates a handle to this resource. To keep access to methods of the concrete type, such as the numbers of a
    /// [`StatisticsAdaptor`](crate::memory::StatisticsAdaptor), create the handle from an [`Arc`].
    #[must_use]
    pub fn new(resource: impl MemoryResource + 'static) -> Self {
        Self::from(Arc::new(resource))
    }

    /// Creates a handle to a resource that lives as long as the program. Buffers then do no reference counting,
    /// which matters where many threads allocate from one resource.
    #[must_use]
    pub fn from_static(resource: &'static dyn MemoryResource) -> Self {
        Self::from(Handle::of_static(resource))
    }

    /// The device that the memory belongs to; `None` for host memory and managed memory.
    #[must_use]
    pub fn device(&self) -> Option<Device> {
        self.device
    }
}

impl From<Handle> for Resource {
    fn from(inner: Handle) -> Self {
        let device = inner.memory_properties().device;
        Self { inner, device }
    }
}

impl<R: MemoryResource + 'static> From<Arc<R>> for Resource {
    fn from(resource: Arc<R>) -> Self {
        Self::from(Handle::shared(resource))
    }
}

impl From<Arc<dyn MemoryResource>> for Resource {
    fn from(resource: Arc<dyn MemoryResource>) -> Self {
        Self::from(Handle::shared(resource))
    }
}

// The program calls these itself, and a resource may hold locks in its calls: meanwhile nothing is given back to it.
//
// SAFETY: everything is the resource's own doing.
unsafe impl MemoryResource for Resource {
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let _noted = origin::note_if_none();
        let _inside = ResourceCall::enter();
        self.inner.allocate(layout, stream)
    }

    #[inline]
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> Result<()> {
        let _inside = ResourceCall::enter();
        // SAFETY: the caller's.
        unsafe { self.inner.deallocate(address, layout, stream) }
    }

    unsafe fn deallocate_after(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
        others: &[&Stream],
    ) -> Result<()> {
        let _inside = ResourceCall::enter();
        // SAFETY: the caller's.
        unsafe { self.inner.deallocate_after(address, layout, stream, others) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.inner.memory_properties()
    }

    fn memory_kind(&self) -> MemoryKind {
        self.inner.memory_kind()
    }

    fn pool(&self) -> Option<&Pool> {
        self.inner.pool()
    }

    fn may_call_program(&self) -> bool {
        self.inner.may_call_program()
    }

    fn waits_to_free(&self) -> bool {
        self.inner.waits_to_free()
    }

    fn trim_to(&self, keep: u64) -> Result<()> {
        let _inside = ResourceCall::enter();
        self.inner.trim_to(keep)
    }
}

/// Two handles are equal if they refer to the same resource.
impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(&raw const *self.inner, &raw const *other.inner)
    }
}

impl Eq for Resource {}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
