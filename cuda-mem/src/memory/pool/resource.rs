//! Pools as resources.

use std::alloc::Layout;

use cuda_driver_sys::CUdeviceptr;

use super::free::{free, free_otherwise};
use super::{Access, DefaultPool, MemoryPool, Pool};
use crate::base::error::{Result, took_effect};
use crate::driver::device::Device;
use crate::driver::location::{AllocationType, Location};
use crate::driver::pointer::MemoryKind;
use crate::memory::resource::{
    DeviceSet, MemoryProperties, MemoryResource, Resource, forward, require_alignment,
};
use crate::stream::Stream;
use crate::stream::deferred::ResourceCall;

// SAFETY: memory from the driver belongs to no other allocation between this point of the stream and the point
// of its free (R13), aligned to 256 bytes or more (R15), to streams of devices that have access.
unsafe impl MemoryResource for Pool {
    #[doc(alias = "cuMemAllocFromPoolAsync")]
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        require_alignment(self, layout)?;
        // The caller may be a resource that holds a lock.
        let _inside = ResourceCall::enter();
        let answer = self.alloc_bytes(stream, layout.size());
        if let Some(recorded) = self.recorded() {
            recorded.answered(&answer, layout.size(), stream);
        }
        answer
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
        if address == 0 {
            return Ok(());
        }
        // From the free on, another thread may get the memory.
        let recorded = self
            .recorded()
            .and_then(|recorded| Some((recorded, recorded.frees(address, layout.size(), stream)?)));
        // SAFETY: the address is this pool's and the caller's to free in this stream.
        let freed = match unsafe { free(address, stream) } {
            Ok(()) => return Ok(()),
            // SAFETY: as above, and the error had no effect.
            Err(error) => unsafe {
                free_otherwise(address, stream, error, || {
                    format!("{} bytes at {address:#x}", layout.size())
                })
            },
        };
        if let Some((recorded, live)) = recorded
            && !took_effect(&freed)
        {
            recorded.restore(address, live);
        }
        freed
    }

    fn memory_kind(&self) -> MemoryKind {
        match (self.location(), self.allocation_type()) {
            (_, AllocationType::Managed) => MemoryKind::Managed,
            (Location::Host | Location::HostNuma(_), _) => MemoryKind::Host,
            _ => MemoryKind::Device,
        }
    }

    /// Asks the driver once for each device.
    fn memory_properties(&self) -> MemoryProperties {
        let (driver, kind) = (self.driver(), self.memory_kind());
        // If the driver returns an error for a device, the device counts as one without access.
        let reaches = |device: &Device| matches!(self.access(device), Ok(Access::ReadWrite));
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

    fn may_call_program(&self) -> bool {
        false
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
