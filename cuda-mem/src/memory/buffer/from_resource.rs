//! Buffers over any resource, and pools as resources.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::DeviceBuffer;
use super::alloc::{bytes_of, too_large};
use super::deallocator::Deallocator;
use super::listed;
use crate::base::biased::Held;
use crate::base::error::{Error, Result};
use crate::base::lock::Lock;
use crate::base::{origin, report};
use crate::driver::device::Device;
use crate::driver::location::{AllocationType, Location};
use crate::driver::pointer::MemoryKind;
use crate::ledger;
use crate::memory::pool::{Access, DefaultPool, MemoryPool, Pool};
use crate::memory::resource::{
    DeviceSet, MemoryProperties, MemoryResource, RESOURCE_ALIGNMENT, Resource, forward,
    require_alignment,
};
use crate::stream::Stream;
use crate::stream::deferred::ResourceCall;
use crate::stream::recording;

impl Resource {
    /// Allocates `len` elements in the order of `stream`. Their contents are unspecified. The buffer keeps the
    /// resource alive. Zero elements, or zero-sized elements, need no call of the resource. Does not synchronise,
    /// unless the resource documents that it does.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the size overflows or the stream's device cannot access
    /// the memory; [`OutOfMemory`](crate::ErrorKind::OutOfMemory); otherwise any error from the resource.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let resource = device.default_resource()?;
    /// let mut buffer = resource.alloc::<u32>(&stream, 1000)?;
    /// buffer.fill(7)?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn alloc<T: Pod>(&self, stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        let layout = layout_of::<T>(len)?;
        let address = self.alloc_bytes(stream, layout)?;
        Ok(DeviceBuffer {
            address,
            len,
            stream: Held::new(stream),
            device: self.device,
            deallocator: ManuallyDrop::new(Deallocator::Resource(Held::new(&self.inner), layout)),
            pending_uses: Lock::default(),
            element: PhantomData,
        })
    }

    /// The memory of a buffer, without the buffer. Not generic, so it is compiled only once.
    #[track_caller]
    fn alloc_bytes(&self, stream: &Stream, layout: Layout) -> Result<CUdeviceptr> {
        let address = if layout.size() == 0 {
            0
        } else {
            let _noted = origin::note();
            stream.release_deferred();
            stream.as_ref().refuse_recorded()?;
            let _inside = ResourceCall::enter();
            self.inner.allocate(layout, stream)?
        };
        if ledger::is_on() {
            let kind = listed::kind_from(&*self.inner);
            listed::insert(kind, (address, layout.size()), stream, self.device);
        }
        Ok(address)
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

    /// Allocates as many elements as `from` has and copies them in. Synchronises the stream: the slice
    /// may be changed when this returns.
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

/// The layout of `len` elements.
#[inline]
fn layout_of<T>(len: usize) -> Result<Layout> {
    let alignment = align_of::<T>().max(RESOURCE_ALIGNMENT);
    Layout::from_size_align(bytes_of::<T>(len)?, alignment)
        .map_err(|_| too_large(len, size_of::<T>()))
}

// SAFETY: the driver hands out memory that is nobody else's from this point of the stream to the point
// of its free (R13), aligned to 256 bytes or more (R15), to streams of devices that have access.
unsafe impl MemoryResource for Pool {
    #[doc(alias = "cuMemAllocFromPoolAsync")]
    #[inline]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        require_alignment(self, layout)?;
        // The caller may be a resource that holds a lock.
        let _inside = ResourceCall::enter();
        self.alloc_bytes(stream, layout.size())
    }

    #[doc(alias = "cuMemFreeAsync")]
    #[inline]
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> Result<()> {
        let _inside = ResourceCall::enter();
        if report::is_forked() {
            return Err(Error::forked());
        }
        // SAFETY: the address is this pool's and the caller's to free in this stream.
        let mut buffer = unsafe { DeviceBuffer::<u8>::taken(stream, address, layout.size()) };
        let freed = buffer.release_memory();
        // On failure the memory stays with the caller, so this buffer must not free it.
        buffer.address = 0;
        freed
    }

    fn memory_properties(&self) -> MemoryProperties {
        let driver = self.driver();
        let kind = match (self.location(), self.allocation_type()) {
            (_, AllocationType::Managed) => MemoryKind::Managed,
            (Location::Host | Location::HostNuma(_), _) => MemoryKind::Host,
            _ => MemoryKind::Device,
        };
        // If the driver returns an error for a device, the device counts as one without access.
        let ask = |device: &Device| {
            // Otherwise it would invalidate a capture (R110, R113).
            recording::relaxed_while_capturing(driver.table(), || self.access(device))
        };
        let reaches = |device: &Device| matches!(ask(device), Ok(Access::ReadWrite));
        let others = driver.devices().unwrap_or_default();
        let devices = self.device().into_iter();
        MemoryProperties {
            kind,
            device: self.device(),
            host: kind != MemoryKind::Device,
            devices: devices
                .chain(others.into_iter().filter(reaches))
                .fold(DeviceSet::none(driver), DeviceSet::with),
        }
    }

    fn pool(&self) -> Option<&Pool> {
        Some(self)
    }

    fn trim_to(&self, keep: u64) -> Result<()> {
        Pool::trim_to(self, keep)
    }
}

forward!(<> MemoryPool, <> DefaultPool);

/// Converts a pool handle into a resource handle.
macro_rules! handles {
    ($($pool:ty),*) => {$(
        impl From<$pool> for Resource {
            fn from(pool: $pool) -> Self {
                Self::new(pool)
            }
        }
    )*};
}

handles!(Pool, MemoryPool, DefaultPool);
