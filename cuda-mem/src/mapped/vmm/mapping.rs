//! Memory at an address.

use crate::memory::pool::list_of;
use std::fmt;

use cuda_driver_sys::{CUdeviceptr, CUmemAccessDesc};

use super::accesses::require_possible;
use super::physical::PhysicalMemory;
use super::range::AddressRange;
use crate::base::error::{Failed, Result};
use crate::base::report;
use crate::driver::location::Location;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::mapped::migration_stats::{self, MigrationStats};
use crate::memory::pool::Access;
use crate::stream::recording;

/// Physical memory mapped at an address. It holds both the memory and the addresses; dropping it unmaps the memory.
/// From [`AddressRange::map`].
///
/// Unmapping is not ordered with any stream and does not wait: work that uses the [address](Self::address) must be
/// complete, and known to the host to be complete, before. Safe code cannot use an address;
/// [`MappedMemory`](super::MappedMemory) makes buffers that ensure this.
pub struct Mapping {
    range: AddressRange,
    offset: u64,
    memory: PhysicalMemory,
    /// False once it was unmapped: something else may be mapped there when this is dropped.
    is_mapped: bool,
}

impl Mapping {
    #[track_caller]
    pub(super) fn new(range: AddressRange, offset: u64, memory: PhysicalMemory) -> Self {
        let mapping = Self {
            range,
            offset,
            memory,
            is_mapped: true,
        };
        if mapping.memory.is_listed() {
            ledger::insert(mapping.item());
        }
        let (driver, migrations) = (
            mapping.range.driver(),
            MigrationStats::of_map(mapping.size_bytes()),
        );
        migration_stats::note(driver, mapping.memory.location(), migrations);
        mapping
    }

    /// Without bytes: they belong to the memory and are counted there.
    fn item(&self) -> Item {
        Item::new(LedgerKind::Mapping, self.address())
            .of(self.range.driver())
            .on(self.memory.location().device())
    }

    /// Where the memory is. See the type for when it may be used.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.range.address() + self.offset
    }

    /// The size, in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &PhysicalMemory {
        &self.memory
    }

    /// Sets the access of devices, and of the host for host memory, in one driver call. Without it there is no access.
    /// Does not wait.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for host access to device memory,
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for a device of another driver. Otherwise as the driver
    /// answers, which refuses devices that are not peers. Nothing is changed then.
    #[doc(alias = "cuMemSetAccess")]
    pub fn set_access<W: Into<Location>>(
        &self,
        access: impl IntoIterator<Item = (W, Access)>,
    ) -> Result<()> {
        let access = access.into_iter().map(|(who, access)| (who.into(), access));
        self.set_listed(&access.collect::<Vec<_>>())
    }

    fn set_listed(&self, accesses: &[(Location, Access)]) -> Result<()> {
        if accesses.is_empty() {
            return Ok(());
        }
        let (driver, place) = (self.range.driver(), self.memory.location());
        for (who, _) in accesses {
            require_possible(driver, *who, place)?;
        }
        // The host before devices: if it gets access later, fills cannot cross from one mapping into the next (R172).
        let (hosts, devices): (Vec<_>, Vec<_>) = accesses
            .iter()
            .partition(|(who, _)| !matches!(who, Location::Device(_)));
        let who: Vec<CUmemAccessDesc> = hosts
            .into_iter()
            .chain(devices)
            .map(|(location, access)| CUmemAccessDesc {
                location: location.to_raw(),
                flags: access.to_raw(),
            })
            .collect();
        let table = driver.table();
        recording::relaxed_while_capturing(table, || {
            // SAFETY: this is one whole mapping (R141). Addresses are used by unsafe code only, which vouches that what
            // loses access is not in use; `MappedMemory` changes access while no buffer is made of it.
            unsafe { raw::vmm::allow(table, self.address(), self.size_bytes() as usize, &who) }
        })
        .map_err(|error| error.asked(|| format!("{self} with {}", list_of(accesses))))
    }

    /// The access of a device, or of the host.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for a device of another driver; otherwise as the driver
    /// answers.
    #[doc(alias = "cuMemGetAccess")]
    pub fn access(&self, who: impl Into<Location>) -> Result<Access> {
        let (location, driver) = (who.into(), self.range.driver());
        location.require_driver(driver, "the memory")?;
        let table = driver.table();
        // SAFETY: there is a mapping at the address.
        let raw = unsafe { raw::vmm::access(table, self.address(), location.to_raw()) }?;
        Ok(Access::from_raw(raw))
    }

    /// Unmaps the memory, as dropping does, and returns the result. Address range and memory stay usable through their
    /// other handles, and the memory keeps its contents.
    ///
    /// # Errors
    ///
    /// Any driver error. The mapping comes back with the error.
    #[doc(alias = "cuMemUnmap")]
    pub fn unmap(mut self) -> Result<(), Failed<Self>> {
        match self.take_apart() {
            Ok(()) => Ok(()),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    fn take_apart(&mut self) -> Result<()> {
        if !self.is_mapped {
            return Ok(());
        }
        let item = self.memory.is_listed().then(|| self.item());
        let ended = item.as_ref().map(ledger::remove);
        // SAFETY: addresses are used by unsafe code only, which vouches for its end before this.
        let unmapped = unsafe { self.range.unmap(self.offset) };
        if let (Err(_), Some(item), Some(ended)) = (&unmapped, item, ended) {
            ledger::restore(&item, ended);
        }
        unmapped?;
        self.is_mapped = false;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        report::release("mapping", || self.take_apart());
    }
}

/// Its address and memory, as text.
impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, mapped at {:#x}", self.memory, self.address())
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:#x}, {:?})", self.address(), self.memory)
    }
}
