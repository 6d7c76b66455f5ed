//! Device memory without a pool.

use std::fmt;

use std::alloc::Layout;

use cuda_driver_sys::CUdeviceptr;

use super::{MemoryProperties, MemoryResource, allocate_plain, wait_and_free, wrong_device};
use crate::base::error::Result;
use crate::driver::device::Device;
use crate::driver::raw;
use crate::memory::reclaim;
use crate::stream::Stream;

/// Device memory from `cuMemAlloc`, which every driver and device supports.
///
/// For devices without memory pools, and for memory that pools cannot provide: for the older inter-process sharing
/// calls and for some network cards.
///
/// Deallocation keeps stream order by waiting for the stream on the host, and the driver also waits for the whole
/// device. On an H200 an allocation and its free cost about a hundred times as much as in a pool.
///
/// ```
/// use cuda_mem::{Driver, Resource};
/// use cuda_mem::memory::DirectResource;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let resource = Resource::new(DirectResource::new(device));
/// let buffer = resource.alloc_from(&stream, &[1u8, 2, 3])?;
/// assert_eq!(buffer.to_vec()?, [1, 2, 3]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DirectResource(Device);

impl fmt::Debug for DirectResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectResource({})", self.0)
    }
}

impl DirectResource {
    /// Creates a resource for memory of this device. Creates no context: allocations use the context of their
    /// stream.
    #[must_use]
    pub fn new(device: Device) -> Self {
        Self(device)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.0
    }
}

// SAFETY: `cuMemAlloc` hands out memory that is nobody else's until `cuMemFree`, aligned to 256 bytes and
// more (R15), usable by every stream of its context at once. Before the free the host waits for the
// stream, so nothing uses it any more.
unsafe impl MemoryResource for DirectResource {
    #[doc(alias = "cuMemAlloc")]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        if stream.device() != self.0 {
            return Err(wrong_device(self, stream));
        }
        allocate_plain(self, layout, stream, |bytes| {
            reclaim::or_reclaim(self.0, || {
                // SAFETY: the stream's context is current.
                unsafe { raw::memory::on_device(self.0.driver().table(), bytes) }
            })
        })
    }

    #[doc(alias("cuMemFree", "cuStreamSynchronize"))]
    unsafe fn deallocate(&self, address: CUdeviceptr, _: Layout, stream: &Stream) -> Result<()> {
        // SAFETY: the caller gives up the address, and the stream is past all that uses it.
        wait_and_free(address, stream, || unsafe {
            raw::memory::free(self.0.driver().table(), address)
        })
    }

    fn memory_properties(&self) -> MemoryProperties {
        MemoryProperties::of_device(self.0)
    }

    fn may_call_program(&self) -> bool {
        false
    }

    fn waits_to_free(&self) -> bool {
        true
    }
}
