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

/// Physical memory behind addresses. It holds both; dropping it takes them apart. From
/// [`AddressRange::map`].
///
/// Unmapping is in no stream's order and waits for nothing: work that uses the [address](Self::address) must be
/// done, and seen by the host, before. Safe code cannot use an address; [`MappedMemory`](super::MappedMemory)
/// makes buffers that see to it.
pub struct Mapping {
    range: AddressRange,
    offset: u64,
    memory: PhysicalMemory,
    /// Something else may be mapped there by the time that this is dropped.
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

    /// Without bytes, which are the memory's and counted there.
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

    /// How much it is.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &PhysicalMemory {
        &self.memory
    }

    /// Says what a device may do with it, or the host with memory of the host. Nobody may do anything before.
    /// Waits for nothing.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for the host and memory of a device,
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for a device of another driver. Else as the driver answers,
    /// which refuses devices that are no peers.
    #[doc(alias = "cuMemSetAccess")]
    pub fn set_access(&self, location: Location, access: Access) -> Result<()> {
        self.set_accesses(&[(location, access)])
    }

    /// The same for several, in one driver call.
    ///
    /// # Errors
    ///
    /// As there. All of it or nothing.
    #[doc(alias = "cuMemSetAccess")]
    pub fn set_accesses(&self, accesses: &[(Location, Access)]) -> Result<()> {
        if accesses.is_empty() {
            return Ok(());
        }
        let (driver, place) = (self.range.driver(), self.memory.location());
        for (who, _) in accesses {
            require_possible(driver, *who, place)?;
        }
        // The host before devices: given later, fills do not cross from one mapping into the next (R172).
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

    /// What a device may do with it, or the host.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for a device of another driver; else as the driver answers.
    #[doc(alias = "cuMemGetAccess")]
    pub fn access(&self, location: Location) -> Result<Access> {
        let driver = self.range.driver();
        location.require_driver(driver, "the memory")?;
        let table = driver.table();
        // SAFETY: there is a mapping at the address.
        let raw = unsafe { raw::vmm::access(table, self.address(), location.to_raw()) }?;
        Ok(Access::from_raw(raw))
    }

    /// Takes address and memory apart, as dropping does, and says how it went. Both stay usable by their other
    /// handles, and the bytes stay with the memory.
    ///
    /// # Errors
    ///
    /// As the driver answers. The mapping comes back then.
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

/// Its address and memory, in words.
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
