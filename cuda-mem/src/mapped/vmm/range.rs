//! Reserved addresses without memory.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cuda_driver_sys::CUdeviceptr;

use super::mapping::Mapping;
use super::physical::PhysicalMemory;
use super::whole;
use crate::base::error::{Bytes, Error, Result, took_effect};
use crate::base::lock::Lock;
use crate::base::report::{self, HookDeferringGuard};
use crate::driver::Driver;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::stream::recording;

/// A range of reserved addresses, for memory to be mapped there. It takes no memory. A cheap handle: the addresses are
/// released when the last clone, and the last mapping in the range, is dropped. Needs CUDA 10.2.
///
/// ```
/// use cuda_mem::{Access, Driver};
/// use cuda_mem::mapped::{AddressRange, PhysicalMemory};
///
/// # cuda_sim::use_if_no_driver();
/// let driver = Driver::load()?;
/// let device = driver.device(0)?;
/// let range = AddressRange::reserve(driver, 1 << 30, 0)?;
/// let memory = PhysicalMemory::builder(&device).build(2 << 20)?;
/// let mapping = range.map(0, &memory)?;
/// mapping.set_access([(device, Access::ReadWrite)])?;
/// assert_eq!(mapping.address(), range.address());
///
/// mapping.unmap()?; // the bytes stay with the memory
/// let again = range.map(0, &memory)?; // at the same address
/// # drop(again);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct AddressRange(Arc<Inner>);

struct Inner {
    driver: Driver,
    address: CUdeviceptr,
    bytes: u64,
    granule: u64,
    /// False for a part of another object of this crate, which is listed itself.
    is_listed: bool,
    /// Current mappings: offset → bytes.
    mapped: Lock<BTreeMap<u64, u64>>,
}

impl Inner {
    /// Without bytes: addresses are no memory.
    fn item(&self) -> Item {
        Item::new(LedgerKind::AddressRange, self.address).of(self.driver)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let table = self.driver.table();
        if !self.mapped.get_mut().is_empty() {
            // An unmap failed, so the driver would refuse; the addresses stay reserved with what is mapped there.
            return;
        }
        report::release("address range", || {
            let release = || {
                recording::relaxed_while_capturing(table, || {
                    // SAFETY: reserved as a whole, and nothing is mapped there (R142).
                    unsafe { raw::vmm::unreserve(table, self.address, self.bytes as usize) }
                })
            };
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

impl AddressRange {
    /// Reserves at least `bytes` of addresses, rounded up to the driver's granularity. The start is a multiple of
    /// `align`, which is 0 or a power of two; it is always a multiple of the granularity.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for zero bytes, for a size that overflows, and for any other
    /// alignment; [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is not enough address space.
    #[doc(alias = "cuMemAddressReserve")]
    #[track_caller]
    pub fn reserve(driver: Driver, bytes: u64, align: u64) -> Result<Self> {
        // The granularity is the same wherever memory is (R138): without a device there is none to ask.
        let granule = PhysicalMemory::builder(&driver.device(0)?)
            .granularity()?
            .minimum;
        Self::in_steps_of(driver, bytes, align, granule)
    }

    #[track_caller]
    pub(super) fn in_steps_of(
        driver: Driver,
        bytes: u64,
        align: u64,
        granule: u64,
    ) -> Result<Self> {
        let mut inner = Self::reserve_unlisted(driver, bytes, align, granule)?;
        inner.is_listed = true;
        ledger::insert(inner.item());
        Ok(Self(Arc::new(inner)))
    }

    /// Addresses in steps of this granule and aligned to it, for another object of this crate.
    pub(crate) fn reserve_part(driver: Driver, bytes: u64, granule: u64) -> Result<Self> {
        let inner = Self::reserve_unlisted(driver, bytes, granule, granule)?;
        Ok(Self(Arc::new(inner)))
    }

    fn reserve_unlisted(driver: Driver, bytes: u64, align: u64, granule: u64) -> Result<Inner> {
        let bytes = whole(bytes, granule)?;
        let align_size = usize::try_from(align).ok();
        let Some(align_size) = align_size.filter(|align| *align == 0 || align.is_power_of_two())
        else {
            return Err(Error::invalid(format!(
                "an alignment of {align} bytes; it can be 0 or a power of two"
            )));
        };
        let table = driver.table();
        // SAFETY: the driver is initialised, and the size is whole granules (R138).
        let address = unsafe { raw::vmm::reserve(table, bytes as usize, align_size) }
            .map_err(|error| error.asked(|| format!("addresses for {}", Bytes(bytes))))?;
        Ok(Inner {
            driver,
            address,
            bytes,
            granule,
            is_listed: false,
            mapped: Lock::default(),
        })
    }

    /// The first address.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.0.address
    }

    /// The size of the range, in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The driver that reserved them.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.0.driver
    }

    /// Maps a whole memory at the addresses that begin `offset` bytes into the range. It is not accessible yet: see
    /// [`Mapping::set_access`]. The same memory may be mapped in several places. Does not wait.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the offset is not a multiple of the granularity, the memory
    /// does not fit in the range or overlaps a mapping, and for memory of another driver. Otherwise as the driver
    /// answers.
    #[doc(alias = "cuMemMap")]
    #[track_caller]
    pub fn map(&self, offset: u64, memory: &PhysicalMemory) -> Result<Mapping> {
        // The hook may map and unmap.
        let mut mapped = self.0.mapped.lock().map(HookDeferringGuard::new)?;
        memory.require_driver(self.0.driver)?;
        let bytes = memory.size_bytes();
        self.check(&mapped, offset, bytes)?;
        let (table, address) = (self.0.driver.table(), self.0.address + offset);
        recording::relaxed_while_capturing(table, || {
            // SAFETY: the place is inside this reservation with nothing mapped there, and the handle is live. The
            // length is the memory's; that of an import is what its importer said, and the driver maps
            // no part of a memory and no more than it, but answers NOT_SUPPORTED (R140).
            unsafe { raw::vmm::map(table, address, bytes as usize, memory.as_raw()) }
        })
        .map_err(|error| error.asked(|| format!("{memory} at {offset} of {self}")))?;
        mapped.insert(offset, bytes);
        drop(mapped);
        Ok(Mapping::new(self.clone(), offset, memory.clone()))
    }

    fn check(&self, mapped: &BTreeMap<u64, u64>, offset: u64, bytes: u64) -> Result<()> {
        let Inner {
            granule,
            bytes: room,
            ..
        } = *self.0;
        let end = offset.checked_add(bytes).filter(|end| *end <= room);
        let Some(end) = end else {
            return Err(Error::invalid(format!(
                "{} at {offset} are not within a range of {}",
                Bytes(bytes),
                Bytes(room)
            )));
        };
        if !offset.is_multiple_of(granule) {
            return Err(Error::invalid(format!(
                "memory at {offset}, which is no multiple of {}",
                Bytes(granule)
            )));
        }
        match mapped.range(..end).next_back() {
            Some((at, bytes)) if at + bytes > offset => Err(Error::invalid(format!(
                "there is memory at {at} already, {} of it; unmap it first",
                Bytes(*bytes)
            ))),
            _ => Ok(()),
        }
    }

    /// Unmaps what is mapped there.
    ///
    /// # Safety
    ///
    /// It must be one whole mapping that nothing uses any more.
    pub(super) unsafe fn unmap(&self, offset: u64) -> Result<()> {
        // The hook may map and unmap.
        let mut mapped = self.0.mapped.lock().map(HookDeferringGuard::new)?;
        let Some(bytes) = mapped.get(&offset).copied() else {
            return Ok(());
        };
        let (table, address) = (self.0.driver.table(), self.0.address + offset);
        recording::relaxed_while_capturing(table, || {
            // SAFETY: one whole mapping (R142); the caller vouches that nothing uses it (R145).
            unsafe { raw::vmm::unmap(table, address, bytes as usize) }
        })?;
        mapped.remove(&offset);
        Ok(())
    }
}

/// Its size and address, as text.
impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, address) = (Bytes(self.0.bytes), self.0.address);
        write!(f, "{bytes} of addresses at {address:#x}")
    }
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "AddressRange({:#x}, {})",
            self.0.address,
            Bytes(self.0.bytes)
        )
    }
}
