//! Physical memory without an address.

use std::fmt;
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
#[cfg(windows)]
use std::os::windows::io::{AsHandle, AsRawHandle as _, OwnedHandle};
use std::sync::Arc;

use cuda_driver_sys::{
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUresult, CudaVersion,
};

use super::whole;
use crate::base::error::{Bytes, Error, ErrorKind, Result, took_effect};
use crate::base::report;
use crate::driver::Driver;
use crate::driver::device::{Device, HandleTypes};
use crate::driver::location::Location;
use crate::driver::{raw, security};
use crate::ledger::{self, Item, LedgerKind};
use crate::memory::reclaim;
use crate::stream::recording;

/// Physical memory of a device or of the host. It has no address until it is [mapped](super::AddressRange::map).
///
/// A cheap handle: clones share the memory, which is freed when the last clone and the last mapping of it are dropped.
/// Needs CUDA 10.2; memory of a NUMA node needs 12.2, of the host 13.0.
///
/// ```
/// use cuda_mem::Driver;
/// use cuda_mem::mapped::PhysicalMemory;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let memory = PhysicalMemory::builder(&device).build(1000)?;
/// assert!(memory.size_bytes() >= 1000); // whole granules
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct PhysicalMemory(Arc<Inner>);

struct Inner {
    driver: Driver,
    raw: CUmemGenericAllocationHandle,
    bytes: u64,
    location: Location,
    /// False for a part of another object of this crate, which is listed itself.
    is_listed: bool,
}

impl Inner {
    fn item(&self) -> Item {
        Item::new(LedgerKind::PhysicalMemory, self.raw)
            .of(self.driver)
            .on(self.location.device())
            .bytes(self.bytes as usize)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        report::release("physical memory", || {
            // SAFETY: made by `create` or `import`, and released once.
            let release = || unsafe { release(self.driver, self.raw) };
            if !self.is_listed {
                return release();
            }
            let item = self.item();
            let ended = ledger::remove(&item);
            let released = release();
            if !took_effect(&released) {
                ledger::restore(&item, ended);
            }
            released
        });
    }
}

/// What is mapped stays (R143).
///
/// # Safety
///
/// The handle must be live, and nobody may use it from now on.
unsafe fn release(driver: Driver, raw: CUmemGenericAllocationHandle) -> Result<()> {
    let table = driver.table();
    recording::relaxed_while_capturing(table, || {
        // SAFETY: the caller's.
        unsafe { raw::vmm::release(table, raw) }
    })
}

/// Where imported memory is, if it can have this size.
///
/// # Safety
///
/// The handle must be live.
#[cfg(any(target_os = "linux", windows))]
unsafe fn location_of(
    driver: Driver,
    raw: CUmemGenericAllocationHandle,
    bytes: u64,
) -> Result<Location> {
    let table = driver.table();
    // SAFETY: the caller's.
    let prop = unsafe { raw::vmm::properties(table, raw) }?;
    // SAFETY: the driver is initialised.
    let granule = unsafe { raw::vmm::granularity(table, &prop) }?.max(1) as u64;
    if !bytes.is_multiple_of(granule) {
        return Err(Error::invalid(format!(
            "the memory cannot be {bytes} bytes, as was said: that is no multiple of its granularity, {granule}"
        )));
    }
    let (kind, id) = cuda_driver_sys::location_parts(prop.location);
    Ok(Location::from_raw(driver, kind, id))
}

/// The granularity of memory sizes, in bytes. Queried from the driver, never assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granularity {
    /// The smallest unit that can be mapped.
    pub minimum: u64,
    /// The unit for best performance.
    pub recommended: u64,
}

/// Settings of physical memory. From [`PhysicalMemory::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct PhysicalMemoryBuilder {
    driver: Driver,
    location: Location,
    handle_types: HandleTypes,
    gpu_direct_rdma: bool,
    compressible: bool,
}

impl PhysicalMemoryBuilder {
    /// The kinds of handle through which the memory may be shared. None by default.
    #[doc(alias = "requestedHandleTypes")]
    pub fn handle_types(mut self, types: HandleTypes) -> Self {
        self.handle_types = types;
        self
    }

    /// Whether network cards and other devices will access it directly. The device's support is reported by
    /// `rdma_with_mapped_memory` of [`Device::gpu_direct`](crate::Device::gpu_direct) (attribute 110); support for its
    /// ordinary memory (attribute 116) does not imply it.
    #[doc(alias = "gpuDirectRDMACapable")]
    pub fn gpu_direct_rdma(mut self, wanted: bool) -> Self {
        self.gpu_direct_rdma = wanted;
        self
    }

    /// Whether the device may store it compressed, which saves bandwidth for compressible data.
    #[doc(alias = "CU_MEM_ALLOCATION_COMP_GENERIC")]
    pub fn compressible(mut self, wanted: bool) -> Self {
        self.compressible = wanted;
        self
    }

    fn prop(&self) -> CUmemAllocationProp {
        let mut prop = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: CUmemAllocationHandleType(self.handle_types.bits()),
            location: self.location.to_raw(),
            win32HandleMetaData: security::of_memory(self.handle_types),
            ..CUmemAllocationProp::default()
        };
        prop.allocFlags.gpuDirectRDMACapable = self.gpu_direct_rdma.into();
        prop.allocFlags.compressionType = self.compressible.into();
        prop
    }

    /// The granularity of such memory.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for a device of another driver; otherwise as the driver
    /// answers.
    #[doc(alias = "cuMemGetAllocationGranularity")]
    pub fn granularity(&self) -> Result<Granularity> {
        self.location.require_driver(self.driver, "the memory")?;
        let (table, prop) = (self.driver.table(), self.prop());
        // SAFETY: the driver is initialised.
        let minimum = unsafe { raw::vmm::granularity(table, &prop) }?;
        // SAFETY: as above.
        let recommended = unsafe { raw::vmm::recommended_granularity(table, &prop) }?;
        // No driver returns 0; if one did, nothing could be a multiple of it.
        Ok(Granularity {
            minimum: minimum.max(1) as u64,
            recommended: recommended.max(minimum).max(1) as u64,
        })
    }

    /// Allocates at least `bytes` of memory, rounded up to the least granularity. Contents are unspecified: zero, or
    /// what was there before.
    ///
    /// Does not wait.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for zero bytes, for a size that overflows, and for a device of
    /// another driver; [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is not enough memory;
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for a location that needs a newer driver. Otherwise as the
    /// driver answers: a NUMA node that does not exist is an invalid value.
    #[doc(alias = "cuMemCreate")]
    #[track_caller]
    pub fn build(&self, bytes: u64) -> Result<PhysicalMemory> {
        let (what, since) = match self.location {
            Location::Host => ("physical memory of the host", CudaVersion::new(13, 0)),
            Location::HostNuma(_) => ("physical memory of a NUMA node", CudaVersion::new(12, 2)),
            _ => ("physical memory", CudaVersion::new(10, 2)),
        };
        self.driver.require_version(what, since)?;
        let bytes = whole(bytes, self.granularity()?.minimum)?;
        let mut memory = self.create_unlisted(bytes)?;
        memory.is_listed = true;
        ledger::insert(memory.item());
        Ok(PhysicalMemory(Arc::new(memory)))
    }

    /// As [`create`](Self::create), for a size that is a multiple of the granularity, with a driver that supports the
    /// location, and for another object of this crate.
    pub(crate) fn create_part(&self, bytes: u64) -> Result<PhysicalMemory> {
        Ok(PhysicalMemory(Arc::new(self.create_unlisted(bytes)?)))
    }

    fn create_unlisted(&self, bytes: u64) -> Result<Inner> {
        let (table, prop) = (self.driver.table(), self.prop());
        let create = || {
            recording::relaxed_while_capturing(table, || {
                // SAFETY: the driver is initialised, and the size is whole granules (R139).
                unsafe { raw::vmm::create(table, bytes as usize, &prop) }
            })
        };
        let raw = match self.location {
            Location::Device(device) => reclaim::or_reclaim(device, create),
            _ => create(),
        };
        let raw = raw.map_err(|error| {
            error.asked(|| format!("{} of physical memory, {}", Bytes(bytes), self.location))
        })?;
        Ok(Inner {
            driver: self.driver,
            raw,
            bytes,
            location: self.location,
            is_listed: false,
        })
    }
}

impl PhysicalMemory {
    /// Memory of a device.
    pub fn builder(device: &Device) -> PhysicalMemoryBuilder {
        Self::builder_at(device.driver(), Location::Device(*device))
    }

    /// Memory of any location: a device, the host, a NUMA node.
    pub fn builder_at(driver: Driver, location: Location) -> PhysicalMemoryBuilder {
        PhysicalMemoryBuilder {
            driver,
            location: location.known(driver),
            handle_types: HandleTypes::empty(),
            gpu_direct_rdma: false,
            compressible: false,
        }
    }

    /// The size, in bytes: whole granules.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Where it is.
    #[must_use]
    pub fn location(&self) -> Location {
        self.0.location
    }

    /// The driver that allocated it.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.0.driver
    }

    /// The driver's handle. It is valid as long as this memory, or a clone, lives.
    #[must_use]
    pub fn as_raw(&self) -> CUmemGenericAllocationHandle {
        self.0.raw
    }

    /// A descriptor through which another process can import the same memory; see [`import_fd`](Self::import_fd).
    ///
    /// # Errors
    ///
    /// Any driver error: an invalid value if the memory was not
    /// [made for that](PhysicalMemoryBuilder::handle_types), and for memory that was imported.
    #[cfg(target_os = "linux")]
    #[doc(alias = "cuMemExportToShareableHandle")]
    pub fn export_fd(&self) -> Result<OwnedFd> {
        // SAFETY: the handle is live.
        unsafe { raw::vmm::export_fd(self.0.driver.table(), self.0.raw) }
            .map_err(|error| error.asked(|| format!("a descriptor of {self}")))
    }

    /// A handle through which another process can import the same memory; see [`import_handle`](Self::import_handle). The
    /// memory must have been made with [`HandleTypes::WIN32`].
    ///
    /// It is a handle of this process. To be of use in another one, it has to be duplicated into it: by `DuplicateHandle`
    /// of Windows, here or there. Processes of the same user may open it.
    ///
    /// # Errors
    ///
    /// Any driver error: an invalid value if the memory was not
    /// [made for that](PhysicalMemoryBuilder::handle_types), and for memory that was imported.
    #[cfg(windows)]
    #[doc(alias = "cuMemExportToShareableHandle")]
    pub fn export_handle(&self) -> Result<OwnedHandle> {
        // SAFETY: the handle is live.
        unsafe { raw::vmm::export_handle(self.0.driver.table(), self.0.raw) }
            .map_err(|error| error.asked(|| format!("a handle of {self}")))
    }

    /// Imports memory that another process exported as this handle, which must be one of this process, into which it was
    /// duplicated. It is not taken over. `bytes` is the size of the memory there, which the handle does not contain; the
    /// driver maps no other size.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for zero bytes, for a size that is no multiple of the granularity,
    /// or for a handle of something else;
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for that of a pool; otherwise any driver error.
    #[cfg(windows)]
    #[doc(alias = "cuMemImportFromShareableHandle")]
    #[track_caller]
    pub fn import_handle(driver: Driver, handle: impl AsHandle, bytes: u64) -> Result<Self> {
        // SAFETY: the driver is initialised, and looks at the handle only during the call.
        Self::import(driver, bytes, || unsafe {
            raw::vmm::import_handle(driver.table(), handle.as_handle().as_raw_handle())
        })
    }

    /// Imports memory that another process exported as this descriptor. `bytes` is its size there, which the descriptor
    /// does not contain; the driver maps no other size.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for zero bytes, for a size that is no multiple of the granularity,
    /// or for a descriptor of something else;
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for that of a pool; otherwise any driver error.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::driver::HandleTypes;
    /// use cuda_mem::mapped::PhysicalMemory;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// let memory = PhysicalMemory::builder(&driver.device(0)?)
    ///     .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
    ///     .build(1 << 20)?;
    /// let descriptor = memory.export_fd()?; // to another process, with the size
    /// let same = PhysicalMemory::import_fd(driver, descriptor, memory.size_bytes())?;
    /// assert_eq!(same.location(), memory.location());
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[cfg(target_os = "linux")]
    #[doc(alias = "cuMemImportFromShareableHandle")]
    #[track_caller]
    pub fn import_fd(driver: Driver, descriptor: impl AsFd, bytes: u64) -> Result<Self> {
        // SAFETY: the driver is initialised, and looks at the descriptor only during the call.
        Self::import(driver, bytes, || unsafe {
            raw::vmm::import_fd(driver.table(), descriptor.as_fd().as_raw_fd())
        })
    }

    #[cfg(any(target_os = "linux", windows))]
    #[track_caller]
    fn import(
        driver: Driver,
        bytes: u64,
        import: impl FnOnce() -> Result<CUmemGenericAllocationHandle>,
    ) -> Result<Self> {
        let bytes = whole(bytes, 1)?;
        let raw = import().map_err(|error| {
            error
                .meaning(
                    CUresult::CUDA_ERROR_UNKNOWN,
                    ErrorKind::InvalidValue,
                    "what was given is not of physical memory",
                )
                .asked(|| "memory of another process".to_owned())
        })?;
        // SAFETY: the handle was made just now.
        let location = match unsafe { location_of(driver, raw, bytes) } {
            Ok(location) => location,
            Err(error) => {
                // SAFETY: as above, and nobody else has it.
                report::release("physical memory", || unsafe { release(driver, raw) });
                return Err(error);
            }
        };
        let inner = Inner {
            driver,
            raw,
            bytes,
            location,
            is_listed: true,
        };
        ledger::insert(inner.item());
        Ok(Self(Arc::new(inner)))
    }

    /// Whether the ledger lists it and its mappings.
    pub(super) fn is_listed(&self) -> bool {
        self.0.is_listed
    }

    pub(super) fn require_driver(&self, driver: Driver) -> Result<()> {
        if self.0.driver == driver {
            Ok(())
        } else {
            Err(Error::invalid(
                "the memory and the addresses are of two drivers".to_owned(),
            ))
        }
    }
}

/// Its size and location, as text.
impl fmt::Display for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, place) = (Bytes(self.0.bytes), self.0.location);
        write!(f, "{bytes} of physical memory on {place}")
    }
}

impl fmt::Debug for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PhysicalMemory({}, {})",
            Bytes(self.0.bytes),
            self.0.location
        )
    }
}
