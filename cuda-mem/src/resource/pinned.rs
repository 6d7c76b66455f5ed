//! Memory of the host that devices reach.

use std::alloc::Layout;

use cuda_driver_sys::CUdeviceptr;

use super::{MemoryProperties, MemoryResource, allocate_plain, require_driver, wait_and_free};
use crate::driver::Driver;
use crate::error::Result;
use crate::pointer::MemoryKind;
use crate::raw;
use crate::stream::Stream;

/// Pinned memory of the host from `cuMemHostAlloc`: every device reads and writes it over the bus, and so
/// does the host, at one address. For staging, and for what devices touch seldom.
///
/// Allocating takes milliseconds for large sizes, and taking back waits for the stream and the device.
///
/// ```
/// use cuda_mem::{Driver, PinnedResource, Resource};
///
/// # cuda_sim::use_if_no_driver();
/// let driver = Driver::load()?;
/// let stream = driver.device(0)?.primary_context()?.stream()?;
/// let resource = Resource::new(PinnedResource::new(driver));
/// let buffer = resource.alloc_from(&stream, &[1u8, 2, 3])?;
/// assert_eq!(buffer.to_vec()?, [1, 2, 3]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinnedResource(Driver);

impl PinnedResource {
    /// Pinned memory of this driver's. Makes nothing.
    #[must_use]
    pub fn new(driver: Driver) -> Self {
        Self(driver)
    }
}

// SAFETY: `cuMemHostAlloc` hands out memory that is nobody else's until `cuMemFreeHost`, aligned to 512 bytes or more (R132),
// at one address for the host and, being portable, for all devices (unified addressing, which all
// 64-bit Linux systems have). Before the free the host waits for the stream.
unsafe impl MemoryResource for PinnedResource {
    #[doc(alias = "cuMemHostAlloc")]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        require_driver(self.0, stream)?;
        // SAFETY: the stream's context is current.
        allocate_plain(self, layout, stream, |bytes| unsafe {
            raw::memory::on_host(self.0.table(), bytes)
        })
    }

    #[doc(alias("cuMemFreeHost", "cuStreamSynchronize"))]
    unsafe fn deallocate(&self, address: CUdeviceptr, _: Layout, stream: &Stream) -> Result<()> {
        // SAFETY: the caller gives up the address, and the stream is past all that uses it.
        wait_and_free(address, stream, || unsafe {
            raw::memory::free_host(self.0.table(), address)
        })
    }

    fn memory_properties(&self) -> MemoryProperties {
        MemoryProperties::of_everybody(MemoryKind::Host, self.0)
    }
}
