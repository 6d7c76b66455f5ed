//! Memory that moves between host and devices.

use std::fmt;

use std::alloc::Layout;

use cuda_driver_sys::CUdeviceptr;

use super::{MemoryProperties, MemoryResource, allocate_plain, require_driver, wait_and_free};
use crate::base::error::Result;
use crate::driver::Driver;
use crate::driver::pointer::MemoryKind;
use crate::driver::raw;
use crate::stream::Stream;

/// Managed memory from `cuMemAllocManaged`: the host and all devices use it at one address, and pages migrate to
/// the processor that touches them. Allocations may exceed the memory of a device.
///
/// An allocation neither moves data nor takes physical memory; a
/// [`PrefetchAdaptor`](crate::memory::PrefetchAdaptor) moves it to the stream's device at once. Deallocation waits
/// for the stream and the device.
///
/// ```
/// use cuda_mem::{Driver, Resource};
/// use cuda_mem::memory::ManagedResource;
///
/// # cuda_sim::use_if_no_driver();
/// let driver = Driver::load()?;
/// let stream = driver.device(0)?.primary_context()?.stream()?;
/// let resource = Resource::new(ManagedResource::new(driver));
/// let buffer = resource.alloc_from(&stream, &[1u8, 2, 3])?;
/// assert_eq!(buffer.to_vec()?, [1, 2, 3]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ManagedResource(Driver);

impl fmt::Debug for ManagedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ManagedResource")
    }
}

impl ManagedResource {
    /// Creates a resource for managed memory of this driver. Creates no context.
    #[must_use]
    pub fn new(driver: Driver) -> Self {
        Self(driver)
    }
}

// SAFETY: `cuMemAllocManaged` hands out memory that is nobody else's until `cuMemFree`, aligned to 256
// bytes and more, and attached to no stream. Before the free the host waits for the stream.
unsafe impl MemoryResource for ManagedResource {
    #[doc(alias = "cuMemAllocManaged")]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        require_driver(self.0, stream)?;
        // SAFETY: the stream's context is current.
        allocate_plain(self, layout, stream, |bytes| unsafe {
            raw::memory::managed(self.0.table(), bytes)
        })
    }

    #[doc(alias("cuMemFree", "cuStreamSynchronize"))]
    unsafe fn deallocate(&self, address: CUdeviceptr, _: Layout, stream: &Stream) -> Result<()> {
        // SAFETY: the caller gives up the address, and the stream is past all that uses it.
        wait_and_free(address, stream, || unsafe {
            raw::memory::free(self.0.table(), address)
        })
    }

    fn memory_properties(&self) -> MemoryProperties {
        MemoryProperties::of_everybody(MemoryKind::Managed, self.0)
    }

    fn may_call_program(&self) -> bool {
        false
    }

    fn waits_to_free(&self) -> bool {
        true
    }
}
