//! Memory whose address stays while what is behind it comes, goes and moves.

use std::fmt;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::accesses::require_possible;
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

/// Physical memory at an address of its own, which stays the same while memory is taken away, put back, added,
/// or moved to another place.
///
/// It is untyped and unused: [`into_buffer`](Self::into_buffer) makes a buffer of it, which gives it back when it
/// is [done](GrowableBuffer::into_memory). Dropping it unmaps and frees everything.
///
/// ```
/// use cuda_mem::Driver;
/// use cuda_mem::mapped::MappedMemory;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let memory = MappedMemory::builder(&device).map(1 << 20)?;
/// let address = memory.address();
///
/// let mut numbers = memory.into_buffer::<u32>(&stream, 1000)?;
/// numbers.fill(7)?;
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

/// One physical memory and its place. Unmapped before the memory goes, by the order of the fields.
pub(super) struct Part {
    mapping: Option<Mapping>,
    offset: u64,
    memory: PhysicalMemory,
}

impl Part {
    /// Takes the memory away from its address, if it is there.
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
    /// Memory of a device, which reads and writes it.
    pub fn builder(device: &Device) -> MappedMemoryBuilder {
        Self::builder_at(device.driver(), Location::Device(*device))
            .accessible_from([Location::Device(*device)])
    }

    /// Memory of any place: a device, the host, a NUMA node. Nobody has access who is not
    /// [named](MappedMemoryBuilder::accessible_from).
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

    /// Memory at the end, with an address and access, or nothing new. What the host was allowed is left out while the
    /// memory is a device's.
    #[track_caller]
    pub(super) fn add(&mut self, location: Location, bytes: u64) -> Result<()> {
        let memory = self.settings.physical(location).create(bytes)?;
        self.put(memory)
    }

    /// The same of memory that is there already.
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
        mapping.set_accesses(accesses.list())?;
        let migrations = MigrationStats::of_map(memory.size_bytes());
        self.migrations.note(memory.location(), migrations);
        Ok(mapping)
    }

    /// Where it is, mapped or not.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.range.address()
    }

    /// How much memory there is, in bytes: whole granules.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.parts
            .last()
            .map_or(0, |part| part.offset + part.memory.size_bytes())
    }

    /// How much there can be at this address, in bytes.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.range.size_bytes()
    }

    /// What sizes are multiples of, in bytes.
    #[must_use]
    pub fn granularity(&self) -> u64 {
        self.granule
    }

    /// The physical memories that it is made of, in the order of their addresses.
    pub fn parts(&self) -> impl Iterator<Item = &PhysicalMemory> {
        self.parts.iter().map(|part| &part.memory)
    }

    /// Whether all of it is at its address.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.parts.iter().all(|part| part.mapping.is_some())
    }

    /// How much is at its address without a gap, from the first byte on.
    pub(super) fn mapped_bytes(&self) -> u64 {
        let there = self.parts.iter().take_while(|part| part.mapping.is_some());
        there
            .last()
            .map_or(0, |part| part.offset + part.memory.size_bytes())
    }

    /// What a device may do with it, or the host, by what was said here or
    /// [before](MappedMemoryBuilder::accessible_from). The host has access only while the memory is the host's.
    #[must_use]
    pub fn access(&self, location: Location) -> Access {
        let location = location.known(self.settings.driver);
        self.settings.accesses.of(location)
    }

    /// Says what a device may do with all of it from now on, wherever it is moved, or the host with memory of the
    /// host: while it is a device's, the host's access is set aside. Waits for nothing; whoever loses access must be
    /// done.
    ///
    /// Of memory that a device may use already, access for the host is better named
    /// [from the beginning](MappedMemoryBuilder::accessible_from): given afterwards, the driver refuses fills that cross
    /// from one [part](Self::parts) into the next, and giving it again does not help (R172). [Unmapped](Self::unmap) and
    /// [mapped](Self::map) after the change, the memory has it in the right order. Copies are not concerned.
    ///
    /// # Errors
    ///
    /// As [`Mapping::set_access`]; nothing is changed then. Memory that is not mapped is asked for at the next
    /// [`map`](Self::map).
    ///
    /// ```
    /// use cuda_mem::{Access, Driver};
    /// use cuda_mem::driver::Location;
    /// use cuda_mem::mapped::MappedMemory;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let mut memory = MappedMemory::builder(&device).map(1 << 20)?;
    /// memory.move_to(Location::HostNuma(0), &stream)?;
    /// memory.unmap()?; // so that the host gets access before the device does
    /// memory.set_access(Location::HostNuma(0), Access::ReadWrite)?;
    /// memory.map()?;
    /// assert_eq!(memory.into_buffer::<u8>(&stream, 100)?.host()?.len(), 100); // the host uses the address, too
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemSetAccess")]
    pub fn set_access(&mut self, location: Location, access: Access) -> Result<()> {
        let location = location.known(self.settings.driver);
        self.give(location, access)?;
        self.settings.accesses.set(location, access);
        Ok(())
    }

    /// Gives access to what is mapped, or changes nothing. It is not noted.
    pub(super) fn give(&self, who: Location, access: Access) -> Result<()> {
        for part in &self.parts {
            require_possible(self.settings.driver, who, part.memory.location())?;
        }
        let mapped = || self.parts.iter().filter_map(|part| part.mapping.as_ref());
        for (done, mapping) in mapped().enumerate() {
            if let Err(error) = mapping.set_access(who, access) {
                let before = self.settings.accesses.of(who);
                for mapping in mapped().take(done) {
                    report::release("access", || mapping.set_access(who, before));
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// How often memory was put behind the address (when it was made, mapped again, grown or moved), and how often
    /// all of it was moved to another place, with the bytes of both.
    #[must_use]
    pub fn migrations(&self) -> MigrationStats {
        self.migrations.total()
    }

    /// The same of one place: what was mapped of its memory, and what was moved there.
    #[must_use]
    pub fn migrations_to(&self, place: Location) -> MigrationStats {
        self.migrations.to(place.known(self.settings.driver))
    }

    /// Puts all of the memory at its address, with the access that it had. What is there stays.
    ///
    /// # Errors
    ///
    /// As the driver answers; what was mapped until then stays.
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

    /// Takes the memory away from its address, with all bytes. Nothing happens if it is not there. Whoever used the
    /// address in unsafe code must be done.
    ///
    /// # Errors
    ///
    /// As the driver answers; what was not unmapped until then stays.
    #[doc(alias = "cuMemUnmap")]
    pub fn unmap(&mut self) -> Result<()> {
        for part in &mut self.parts {
            part.unmap()?;
        }
        Ok(())
    }

    /// More memory behind the same address, so that there is so much at least. What is there stays where it is.
    /// Waits for nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) beyond what is [reserved](MappedMemoryBuilder::reserve), and
    /// for memory of several devices; else as [`MappedMemoryBuilder::map`]. Nothing is changed then.
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

    /// Gives memory back from the end, as long as so much stays. Memory goes as it came: a piece for each time that
    /// it grew. Whoever used the address in unsafe code must be done.
    ///
    /// # Errors
    ///
    /// As the driver answers; what was not given back until then stays.
    pub fn shrink_to(&mut self, bytes: u64) -> Result<()> {
        while let Some(last) = self.parts.last_mut()
            && last.offset >= bytes
            && last.offset > 0
        {
            last.unmap()?;
            self.parts.pop();
        }
        Ok(())
    }

    /// A buffer of `len` elements of it, in the order of the stream. What they are, nobody says: the memory is as
    /// it was made, or as it was left.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if there is no room for so many elements, if the address is not
    /// aligned for them, if the stream's device has no access, or is of another driver; else as [`map`](Self::map). The
    /// memory comes back.
    #[track_caller]
    pub fn into_buffer<T: Pod>(
        self,
        stream: &Stream,
        len: usize,
    ) -> Result<GrowableBuffer<T>, Failed<Self>> {
        GrowableBuffer::new(self, stream, len)
    }

    /// That the stream's device may use it, and that it is there.
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

    /// Whether threads of the host may read so many bytes at its address, or write them. Without access a touch ends
    /// the process (R160). What was given decides, and the driver must not say otherwise: asked for the host, it answers
    /// yes as soon as any device has access (R171).
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

    /// The device whose memory all of it is.
    pub(super) fn device(&self) -> Option<Device> {
        match self.settings.locations[..] {
            [location] => location.device(),
            _ => None,
        }
    }
}

impl MappedMemory {
    /// What it is, for errors.
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
