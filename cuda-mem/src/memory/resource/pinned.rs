//! Host memory that devices can access.

use crate::driver::device::write_flags;
use std::fmt;

use std::alloc::Layout;
use std::ffi::c_void;

use bitflags::{Flags, bitflags};
use cuda_driver_sys::CUdeviceptr;

use super::{MemoryProperties, MemoryResource, allocate_plain, require_driver, wait_and_free};
use crate::base::error::{Error, Result};
use crate::base::report;
use crate::driver::Driver;
use crate::driver::pointer::MemoryKind;
use crate::driver::raw::{self, Table};
use crate::stream::Stream;

bitflags! {
    /// How pinned memory is allocated. The default is [`PORTABLE`](Self::PORTABLE) alone.
    ///
    /// ```
    /// use cuda_mem::memory::HostFlags;
    /// assert_eq!(HostFlags::default(), HostFlags::PORTABLE);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct HostFlags: u32 {
        /// Pinned for every context of the process, not only the allocating one. With unified addressing, as on all
        /// 64-bit systems, this is always the case.
        #[doc(alias = "CU_MEMHOSTALLOC_PORTABLE")]
        const PORTABLE = 1;
        /// Mapped into the address space of the devices. With unified addressing this is always the case.
        #[doc(alias("CU_MEMHOSTALLOC_DEVICEMAP", "cudaHostAllocMapped"))]
        const MAPPED = 2;
        /// Host writes bypass the caches, so device accesses need not snoop them. Reading such memory on the host
        /// is very slow, and so is writing it in any order other than from beginning to end. On some machines
        /// copies from or to it are slower too: measure before choosing it.
        #[doc(alias("CU_MEMHOSTALLOC_WRITECOMBINED", "cudaHostAllocWriteCombined"))]
        const WRITE_COMBINED = 4;
    }
}

/// The names of its flags.
impl fmt::Display for HostFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_flags(f, self)
    }
}

impl Default for HostFlags {
    fn default() -> Self {
        Self::PORTABLE
    }
}

/// Pinned host memory from `cuMemHostAlloc`: the host and every device read and write it at one address, devices
/// over the bus. For staging, and for data that devices rarely touch. For memory that the program itself reads and
/// writes as a slice, use a [`PinnedBuffer`](crate::mapped::PinnedBuffer).
///
/// Allocation takes milliseconds for large sizes, and deallocation waits for the stream and the device.
///
/// ```
/// use cuda_mem::{Driver, Resource};
/// use cuda_mem::memory::PinnedResource;
///
/// # cuda_sim::use_if_no_driver();
/// let driver = Driver::load()?;
/// let stream = driver.device(0)?.primary_context()?.stream()?;
/// let resource = Resource::new(PinnedResource::new(driver));
/// let buffer = resource.alloc_from(&stream, &[1u8, 2, 3])?;
/// assert_eq!(buffer.to_vec()?, [1, 2, 3]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PinnedResource {
    driver: Driver,
    flags: HostFlags,
}

impl fmt::Debug for PinnedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedResource({})", self.flags)
    }
}

impl PinnedResource {
    /// Creates a resource for pinned memory of this driver, with only the flag [`PORTABLE`](HostFlags::PORTABLE).
    /// Creates no context.
    #[must_use]
    pub fn new(driver: Driver) -> Self {
        Self::with_flags(driver, HostFlags::default())
    }

    /// Creates a resource for pinned memory with these flags. Creates no context.
    ///
    /// ```
    /// use cuda_mem::{Driver, Resource};
    /// use cuda_mem::memory::{HostFlags, PinnedResource};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// let stream = driver.device(0)?.primary_context()?.stream()?;
    /// let flags = HostFlags::PORTABLE | HostFlags::WRITE_COMBINED;
    /// let resource = Resource::new(PinnedResource::with_flags(driver, flags));
    /// let buffer = resource.alloc_from(&stream, &[1u8, 2, 3])?;
    /// assert_eq!(buffer.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[must_use]
    pub fn with_flags(driver: Driver, flags: HostFlags) -> Self {
        Self { driver, flags }
    }

    /// The flags of its memory.
    #[must_use]
    pub fn flags(&self) -> HostFlags {
        self.flags
    }

    /// # Safety
    ///
    /// A context must be current.
    unsafe fn take(&self, bytes: usize) -> Result<CUdeviceptr> {
        let table = self.driver.table();
        // SAFETY: the caller's.
        let host = unsafe { raw::host::allocate(table, bytes, self.flags.bits()) }?;
        let address = host.expose_provenance() as CUdeviceptr;
        if !self.flags.contains(HostFlags::WRITE_COMBINED) {
            return Ok(address);
        }
        // Only for such memory does the driver not guarantee equal addresses. On an H200 they are (measured).
        // SAFETY: the caller's, and the memory was allocated just now.
        let found = unsafe { raw::host::device_pointer(table, host) }.and_then(|device| {
            if device == address {
                return Ok(address);
            }
            Err(Error::not_supported(format!(
                "the device knows write-combined memory by another address ({device:#x}) than the host \
                 ({address:#x}), and a resource has one; take a `PinnedBuffer`, or no WRITE_COMBINED"
            )))
        });
        if found.is_err() {
            free_unused(table, host);
        }
        found
    }
}

/// An error if there are flags unknown to this crate, because their effect is untested.
pub(crate) fn require_known<F: Flags<Bits = u32>>(flags: F, known: F) -> Result<()> {
    let unknown = flags.bits() & !known.bits();
    if unknown == 0 {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the flags {unknown:#x} are none that this crate knows; it knows {:#x}",
        known.bits()
    )))
}

/// Frees memory whose address has not been handed out yet.
fn free_unused(table: &Table, host: *mut c_void) {
    // SAFETY: the memory was allocated just now, and nobody has its address.
    report::release("pinned memory", || unsafe { raw::host::free(table, host) });
}

// SAFETY: `cuMemHostAlloc` hands out memory that nothing else uses until `cuMemFreeHost`, aligned to 512 bytes or
// more (R132), at one address for the host and for all devices (unified addressing, which all 64-bit Linux systems
// have); where the driver does not promise that, `take` has looked. Before the free the host waits for the stream.
unsafe impl MemoryResource for PinnedResource {
    #[doc(alias = "cuMemHostAlloc")]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        require_driver(self.driver, stream)?;
        require_known(self.flags, HostFlags::all())?;
        // SAFETY: the stream's context is current.
        allocate_plain(self, layout, stream, |bytes| unsafe { self.take(bytes) })
    }

    #[doc(alias("cuMemFreeHost", "cuStreamSynchronize"))]
    unsafe fn deallocate(&self, address: CUdeviceptr, _: Layout, stream: &Stream) -> Result<()> {
        let host = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the caller gives up the address, and the stream is past all that uses it.
        wait_and_free(address, stream, || unsafe {
            raw::host::free(self.driver.table(), host)
        })
    }

    fn memory_properties(&self) -> MemoryProperties {
        MemoryProperties::of_everybody(MemoryKind::Host, self.driver)
    }

    fn may_call_program(&self) -> bool {
        false
    }

    fn waits_to_free(&self) -> bool {
        true
    }
}
