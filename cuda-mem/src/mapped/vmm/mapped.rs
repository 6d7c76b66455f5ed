//! Memory with a stable address, whose physical memory can be unmapped, mapped, grown and moved.

use std::fmt;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::accesses::{can_have, require_possible};
use super::builder::MappedMemoryBuilder;
use super::growable::GrowableBuffer;
use super::mapping::Mapping;
use super::physical::PhysicalMemory;
use super::range::AddressRange;
use super::whole;
use crate::base::error::{Bytes, Error, Failed, Result};
use crate::base::report;
use crate::driver::Driver;
use crate::driver::device::Device;
use crate::driver::location::Location;
use crate::mapped::migration_stats::{MigrationStats, Places};
use crate::memory::pool::Access;
use crate::stream::Stream;

/// Physical memory at an address of its own, which stays the same while memory is unmapped, mapped again, added, or
/// moved to another location.
///
/// It is untyped and not in use: [`into_buffer`](Self::into_buffer) turns it into a buffer, and
/// [`into_memory`](GrowableBuffer::into_memory) turns the buffer back. Dropping it unmaps and frees everything.
///
/// ```
/// use cuda_mem::Driver;
/// use cuda_mem::mapped::MappedMemory;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let memory = MappedMemory::builder(&device).build(1 << 20)?;
/// let address = memory.address();
///
/// let mut numbers = memory.into_buffer::<u32>(&stream, 1000)?;
/// numbers.as_mut_slice().fill(7)?;
///
/// let mut memory = numbers.into_memory()?; // waits for the stream
/// memory.unmap()?; // nothing is at the address now, the bytes stay with the memory
/// memory.map()?;
/// assert_eq!(memory.address(), address);
/// assert_eq!(memory.into_buffer::<u32>(&stream, 1000)?.to_vec()?, [7; 1000]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct MappedMemory {
    pub(super) parts: Vec<Part>,
    range: AddressRange,
    pub(super) settings: Box<MappedMemoryBuilder>,
    pub(super) granule: u64,
    pub(super) migrations: Places<Location>,
}

/// One physical memory and its mapping. The field order unmaps it before the memory is released.
pub(super) struct Part {
    mapping: Option<Mapping>,
    offset: u64,
    memory: PhysicalMemory,
}

impl Part {
    /// Unmaps the memory, if it is mapped.
    fn unmap(&mut self) -> Result<()> {
        let Some(mapping) = self.mapping.take() else {
            return Ok(());
        };
        mapping.unmap().map_err(|mut failed| {
            self.mapping = failed.object.take();
            failed.error
        })
    }
}

impl MappedMemory {
    /// Memory of a device, which has read and write access.
    pub fn builder(device: &Device) -> MappedMemoryBuilder {
        Self::builder_at(device.driver(), Location::Device(*device))
            .accessible_from([Location::Device(*device)])
    }

    /// Memory of any location: a device, the host, a NUMA node. Only the locations
    /// [named](MappedMemoryBuilder::accessible_from) have access.
    pub fn builder_at(driver: Driver, location: Location) -> MappedMemoryBuilder {
        MappedMemoryBuilder::new(driver, location)
    }

    pub(super) fn empty(range: AddressRange, settings: MappedMemoryBuilder, granule: u64) -> Self {
        Self {
            parts: Vec::new(),
            range,
            granule,
            migrations: Places::new(),
            settings: Box::new(settings),
        }
    }

    /// Appends memory with an address and access, or changes nothing. The host's access is left out while the memory is
    /// on a device.
    #[track_caller]
    pub(super) fn add(&mut self, location: Location, bytes: u64) -> Result<()> {
        let memory = self.settings.physical(location).build(bytes)?;
        self.put(memory)
    }

    /// The same for existing memory.
    #[track_caller]
    pub(super) fn put(&mut self, memory: PhysicalMemory) -> Result<()> {
        let offset = self.size_bytes();
        let mapping = self.place(offset, &memory)?;
        self.parts.push(Part {
            mapping: Some(mapping),
            offset,
            memory,
        });
        Ok(())
    }

    #[track_caller]
    fn place(&mut self, offset: u64, memory: &PhysicalMemory) -> Result<Mapping> {
        let mapping = self.range.map(offset, memory)?;
        let accesses = self.settings.accesses.at(memory.location());
        mapping.set_access(accesses.list().iter().copied())?;
        let migrations = MigrationStats::of_map(memory.size_bytes());
        self.migrations.note(memory.location(), migrations);
        Ok(mapping)
    }

    /// Its address, mapped or not.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.range.address()
    }

    /// The size of the memory, in bytes: whole granules.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.parts
            .last()
            .map_or(0, |part| part.offset + part.memory.size_bytes())
    }

    /// The maximum size at this address, in bytes.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.range.size_bytes()
    }

    /// The granularity in bytes: all sizes are multiples of it.
    #[must_use]
    pub fn granularity(&self) -> u64 {
        self.granule
    }

    /// The physical memories that it consists of, in address order.
    pub fn parts(&self) -> impl Iterator<Item = &PhysicalMemory> {
        self.parts.iter().map(|part| &part.memory)
    }

    /// Whether all of it is mapped.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.parts.iter().all(|part| part.mapping.is_some())
    }

    /// The number of bytes mapped without a gap, from the first byte on.
    pub(super) fn mapped_bytes(&self) -> u64 {
        let there = self.parts.iter().take_while(|part| part.mapping.is_some());
        there
            .last()
            .map_or(0, |part| part.offset + part.memory.size_bytes())
    }

    /// The access that a device or the host has, as set here or [before](MappedMemoryBuilder::accessible_from). The
    /// host has access only while the memory is host memory.
    #[must_use]
    pub fn access(&self, who: impl Into<Location>) -> Access {
        let location = who.into().known(self.settings.driver);
        self.settings.accesses.of(location)
    }

    /// Sets the access of devices to all of the memory, which they keep wherever the memory is moved; and the host's
    /// access to host memory, which is suspended while the memory is on a device. Does not wait; work that loses access must
    /// be complete.
    ///
    /// For memory that a device can already access, it is better to
    /// [name the host from the beginning](MappedMemoryBuilder::accessible_from): if the host gets access later, the
    /// driver refuses fills that cross from one [part](Self::parts) into the next, and setting the access again does
    /// not help (R172). [Unmapping](Self::unmap) and [mapping](Self::map) the memory after the change restores the
    /// right order. Copies are not affected.
    ///
    /// # Errors
    ///
    /// As [`Mapping::set_access`]; nothing is changed then. For memory that is not mapped, access is requested at the
    /// next [`map`](Self::map).
    ///
    /// ```
    /// use cuda_mem::{Access, Driver};
    /// use cuda_mem::driver::Location;
    /// use cuda_mem::mapped::MappedMemory;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let mut memory = MappedMemory::builder(&device).build(1 << 20)?;
    /// memory.move_to(Location::HostNuma(0), &stream)?;
    /// memory.unmap()?; // so that the host gets access before the device does
    /// memory.set_access([(Location::HostNuma(0), Access::ReadWrite)])?;
    /// memory.map()?;
    /// assert_eq!(memory.into_buffer::<u8>(&stream, 100)?.host()?.len(), 100); // the host uses the address, too
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemSetAccess")]
    pub fn set_access<W: Into<Location>>(
        &mut self,
        access: impl IntoIterator<Item = (W, Access)>,
    ) -> Result<()> {
        let mut before = Vec::new();
        for (who, access) in access {
            let who = who.into().known(self.settings.driver);
            if let Err(error) = self.give(who, access) {
                for (who, access) in before.into_iter().rev() {
                    report::release("access", || self.give(who, access));
                    self.settings.accesses.set(who, access);
                }
                return Err(error);
            }
            before.push((who, self.settings.accesses.of(who)));
            self.settings.accesses.set(who, access);
        }
        Ok(())
    }

    /// Gives access to what is mapped, or changes nothing. The access is not recorded.
    pub(super) fn give(&self, who: Location, access: Access) -> Result<()> {
        // Access that is impossible at a place need not be withdrawn there.
        let concerned =
            |part: &&Part| access != Access::None || can_have(who, part.memory.location());
        for part in self.parts.iter().filter(concerned) {
            require_possible(self.settings.driver, who, part.memory.location())?;
        }
        let parts = || self.parts.iter().filter(concerned);
        let mapped = || parts().filter_map(|part| part.mapping.as_ref());
        for (done, mapping) in mapped().enumerate() {
            if let Err(error) = mapping.set_access([(who, access)]) {
                let before = self.settings.accesses.of(who);
                for mapping in mapped().take(done) {
                    report::release("access", || mapping.set_access([(who, before)]));
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// How often memory was mapped at the address (on creation, remapping, growth or a move), and how often all of it
    /// was moved to another location, with the bytes of both.
    #[must_use]
    pub fn migrations(&self) -> MigrationStats {
        self.migrations.total()
    }

    /// The same for one location: what was mapped of its memory, and what was moved there.
    #[must_use]
    pub fn migrations_to(&self, place: Location) -> MigrationStats {
        self.migrations.to(place.known(self.settings.driver))
    }

    /// Maps all of the memory at its address, with the access that it had. The contents do not change.
    ///
    /// # Errors
    ///
    /// Any driver error; what was mapped before the error stays mapped.
    #[doc(alias = "cuMemMap")]
    #[track_caller]
    pub fn map(&mut self) -> Result<()> {
        for index in 0..self.parts.len() {
            let part = &self.parts[index];
            if part.mapping.is_none() {
                let (offset, memory) = (part.offset, part.memory.clone());
                self.parts[index].mapping = Some(self.place(offset, &memory)?);
            }
        }
        Ok(())
    }

    /// Unmaps the memory; it keeps its contents. Does nothing if it is not mapped. Unsafe code that uses the address
    /// must be done.
    ///
    /// # Errors
    ///
    /// Any driver error; what was not unmapped before the error stays mapped.
    #[doc(alias = "cuMemUnmap")]
    pub fn unmap(&mut self) -> Result<()> {
        for part in &mut self.parts {
            part.unmap()?;
        }
        Ok(())
    }

    /// Grows the memory at the same address to at least `bytes`. The existing contents stay in place. Does not wait.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) beyond what is [reserved](MappedMemoryBuilder::reserve), and
    /// for memory that is in several devices; otherwise as [`MappedMemoryBuilder::build`]. Nothing is changed then.
    #[track_caller]
    pub fn grow_to(&mut self, bytes: u64) -> Result<()> {
        let has = self.size_bytes();
        if bytes <= has {
            return self.map();
        }
        let [location] = self.settings.locations[..] else {
            return Err(Error::invalid(
                "memory that is divided does not grow".to_owned(),
            ));
        };
        let wanted = whole(bytes, self.granule)?;
        if wanted > self.reserved_bytes() {
            return Err(Error::invalid(format!(
                "{} do not fit behind addresses for {}; reserve more",
                Bytes(wanted),
                Bytes(self.reserved_bytes())
            )));
        }
        self.map()?;
        self.add(location, wanted - has)
    }

    /// Releases memory from the end, keeping at least `bytes`. Memory is released in the pieces in which it was added:
    /// one for each time that it grew. Unsafe code that uses the address must be done.
    ///
    /// # Errors
    ///
    /// Any driver error; what was not released before the error stays.
    pub fn shrink_to(&mut self, bytes: u64) -> Result<()> {
        while let Some(last) = self.parts.last_mut()
            && last.offset >= bytes
            && last.offset > 0
        {
            last.unmap()?;
            self.parts.pop();
            self.settle_locations();
        }
        Ok(())
    }

    /// Divided memory that has lost parts may be in fewer places, and can grow once it is in one.
    fn settle_locations(&mut self) {
        if self.settings.locations.len() == 1 {
            return;
        }
        let mut left = Vec::new();
        for part in &self.parts {
            let place = part.memory.location();
            if !left.contains(&place) {
                left.push(place);
            }
        }
        self.settings.locations = left;
    }

    /// A buffer of `len` elements in this memory, in the order of the stream. The contents are unspecified for new
    /// memory, and otherwise as they were left.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the memory cannot hold that many elements, if the address is
    /// not aligned for them, or if the stream's device has no access or is of another driver; otherwise as
    /// [`map`](Self::map). The memory comes back with the error.
    #[track_caller]
    pub fn into_buffer<T: Pod>(
        self,
        stream: &Stream,
        len: usize,
    ) -> Result<GrowableBuffer<T>, Failed<Self>> {
        GrowableBuffer::new(self, stream, len)
    }

    /// Checks that the stream's device has access, and that the memory is mapped.
    #[track_caller]
    pub(super) fn ready_for(&mut self, stream: &Stream) -> Result<()> {
        let device = Location::Device(stream.device());
        device.require_driver(self.settings.driver, "the memory")?;
        if self.settings.accesses.of(device) != Access::ReadWrite {
            return Err(Error::invalid(format!(
                "{device} has no access to {}; name it in `accessible_from`, or call `set_access`",
                self.in_words()
            )));
        }
        self.map()
    }

    /// Whether host threads may read, or write, this many bytes at its address. Without access a touch ends the process
    /// (R160). The access that was set decides, and the driver must not contradict it: asked for the host, the driver
    /// answers yes as soon as any device has access (R171).
    pub(super) fn is_open_to_host(&self, bytes: u64, writes: bool) -> Result<bool> {
        if self.mapped_bytes() < bytes {
            return Ok(false);
        }
        let given = |writes: bool| {
            self.settings.accesses.list().iter().any(|(who, access)| {
                let enough = *access == Access::ReadWrite || *access == Access::Read && !writes;
                who.is_host() && enough
            })
        };
        if !given(writes) {
            return Ok(false);
        }
        for part in &self.parts {
            let is_host = part.memory.location().is_host();
            let Some(mapping) = part.mapping.as_ref().filter(|_| is_host) else {
                return Ok(false);
            };
            match mapping.access(Location::Host)? {
                Access::ReadWrite => {}
                Access::Read if !writes => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The device that holds all of the memory, if there is one.
    pub(super) fn device(&self) -> Option<Device> {
        match self.settings.locations[..] {
            [location] => location.device(),
            _ => None,
        }
    }
}

impl MappedMemory {
    /// A description for errors.
    pub(super) fn in_words(&self) -> String {
        let (bytes, address) = (Bytes(self.size_bytes()), self.address());
        let places = self.settings.locations.iter().map(ToString::to_string);
        let places = places.collect::<Vec<_>>().join(" and ");
        format!("{bytes} of mapped memory at {address:#x} on {places}")
    }
}

impl fmt::Debug for MappedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedMemory")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("size", &format_args!("{}", Bytes(self.size_bytes())))
            .field("locations", &self.settings.locations)
            .field("is_mapped", &self.is_mapped())
            .finish()
    }
}
