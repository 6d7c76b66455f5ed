//! Memory whose address stays while what is behind it comes, goes and moves.

use std::fmt;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::growable::GrowableBuffer;
use super::mapping::Mapping;
use super::physical::{PhysicalMemory, PhysicalMemoryBuilder};
use super::range::AddressRange;
use super::whole;
use crate::device::{Device, HandleTypes};
use crate::driver::Driver;
use crate::error::{Bytes, Error, Failed, Result};
use crate::location::Location;
use crate::pool::Access;
use crate::stream::Stream;
use crate::traffic::{self, Places, Traffic};
use crate::{raw, report};

/// Physical memory at an address of its own, which stays the same while memory is taken away, put back, added,
/// or moved to another place.
///
/// It is untyped and unused: [`into_buffer`](Self::into_buffer) makes a buffer of it, which gives it back when it
/// is [done](GrowableBuffer::into_memory). Dropping it unmaps and frees everything.
///
/// ```
/// use cuda_mem::{Driver, MappedMemory};
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
    parts: Vec<Part>,
    range: AddressRange,
    settings: Box<MappedMemoryBuilder>,
    granule: u64,
    journeys: Places<Location>,
}

/// One physical memory and its place. Unmapped before the memory goes, by the order of the fields.
struct Part {
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

/// What mapped memory is to be. From [`MappedMemory::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct MappedMemoryBuilder {
    driver: Driver,
    /// Several are taken in turns, each for an equal part.
    locations: Vec<Location>,
    accesses: Vec<(Location, Access)>,
    handle_types: HandleTypes,
    gpu_direct_rdma: bool,
    reserved: u64,
    /// What sizes are to be multiples of, if that was said.
    granule: Option<u64>,
}

impl MappedMemoryBuilder {
    /// Other devices that are to read and write it, or the host for memory of the host.
    pub fn accessible_from(mut self, who: impl IntoIterator<Item = Location>) -> Self {
        for location in who {
            if !self.accesses.iter().any(|(known, _)| *known == location) {
                self.accesses.push((location, Access::ReadWrite));
            }
        }
        self
    }

    /// Divides the memory among several devices, in this order and in equal parts, at addresses side by side. All
    /// of them read and write all of it. Not for memory that is to grow.
    pub fn striped_over<'a>(mut self, devices: impl IntoIterator<Item = &'a Device>) -> Self {
        self.locations = devices
            .into_iter()
            .map(|device| Location::Device(*device))
            .collect();
        let all = self.locations.clone();
        self.accessible_from(all)
    }

    /// See [`PhysicalMemoryBuilder::handle_types`].
    pub fn handle_types(mut self, types: HandleTypes) -> Self {
        self.handle_types = types;
        self
    }

    /// See [`PhysicalMemoryBuilder::gpu_direct_rdma`].
    pub fn gpu_direct_rdma(mut self, wanted: bool) -> Self {
        self.gpu_direct_rdma = wanted;
        self
    }

    /// How many bytes of addresses are kept, so that the memory can grow so far without moving. They cost nothing.
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserved = bytes;
        self
    }

    /// In steps of how many bytes memory is taken, and grows: a multiple of the
    /// [least granularity](PhysicalMemoryBuilder::granularity) of all places. Unless it is set, the largest
    /// recommended one of them.
    ///
    /// ```
    /// use cuda_mem::{Driver, MappedMemory};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let memory = MappedMemory::builder(&device).granularity(16 << 20).map(1)?;
    /// assert_eq!((memory.granularity(), memory.size_bytes()), (16 << 20, 16 << 20));
    /// assert!(MappedMemory::builder(&device).granularity(100).map(1).is_err());
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn granularity(mut self, bytes: u64) -> Self {
        self.granule = Some(bytes);
        self
    }

    fn physical(&self, location: Location) -> PhysicalMemoryBuilder {
        PhysicalMemory::builder_at(self.driver, location)
            .handle_types(self.handle_types)
            .gpu_direct_rdma(self.gpu_direct_rdma)
    }

    /// The largest granularity of all places: the recommended one, unless another one was asked for.
    fn granule(&self) -> Result<u64> {
        let steps = self.locations.iter().map(|place| {
            let offered = self.physical(*place).granularity()?;
            match self.granule {
                None => Ok(offered.recommended),
                Some(asked) if asked > 0 && asked.is_multiple_of(offered.minimum) => Ok(asked),
                Some(asked) => Err(Error::invalid(format!(
                    "a granularity of {asked} bytes; memory of {place} comes in multiples of {} bytes, and best \
                     in those of {}",
                    offered.minimum, offered.recommended
                ))),
            }
        });
        let steps = steps.collect::<Result<Vec<u64>>>()?;
        steps.into_iter().max().ok_or_else(|| {
            Error::invalid("memory is to be divided among no devices; name one at least".to_owned())
        })
    }

    /// So much memory, in whole granules, mapped and accessible. Waits for nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for no bytes, and for a
    /// [granularity](Self::granularity) that a place does not offer; else as [`PhysicalMemoryBuilder::create`], [`AddressRange::reserve`] and [`Mapping::set_access`]. Nothing is left
    /// of a failure.
    #[doc(alias("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"))]
    #[track_caller]
    pub fn map(self, bytes: u64) -> Result<MappedMemory> {
        let granule = self.granule()?;
        let count = self.locations.len() as u64;
        let step = granule.checked_mul(count);
        let step = step.ok_or_else(|| Error::invalid("too many devices".to_owned()))?;
        let bytes = whole(bytes, step)?;
        let range = AddressRange::in_steps_of(self.driver, bytes.max(self.reserved), 0, granule)?;
        let mut memory = MappedMemory {
            parts: Vec::new(),
            range,
            granule,
            journeys: Places::new(),
            settings: Box::new(self),
        };
        for location in memory.settings.locations.clone() {
            memory.add(location, bytes / count)?;
        }
        Ok(memory)
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
        MappedMemoryBuilder {
            driver,
            locations: vec![location.known(driver)],
            accesses: Vec::new(),
            handle_types: HandleTypes::empty(),
            gpu_direct_rdma: false,
            reserved: 0,
            granule: None,
        }
    }

    /// Memory at the end, with an address and access, or nothing new.
    #[track_caller]
    fn add(&mut self, location: Location, bytes: u64) -> Result<()> {
        let offset = self.size_bytes();
        let memory = self.settings.physical(location).create(bytes)?;
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
        mapping.set_accesses(&self.settings.accesses)?;
        let traffic = Traffic::of_map(memory.size_bytes());
        self.journeys.note(memory.location(), traffic);
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

    /// How often memory was put behind the address (when it was made, mapped again, grown or moved), and how often
    /// all of it was moved to another place, with the bytes of both.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.journeys.total()
    }

    /// The same of one place: what was mapped of its memory, and what was moved there.
    #[must_use]
    pub fn traffic_to(&self, place: Location) -> Traffic {
        self.journeys.to(place.known(self.settings.driver))
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
            return Ok(());
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

    /// Moves all bytes to memory of another place; the address stays. Copies in the order of the stream and waits
    /// for it. Whoever used the address in unsafe code must be done.
    ///
    /// # Errors
    ///
    /// As [`MappedMemoryBuilder::map`]. Until the copy is done nothing is changed; if the new memory cannot be
    /// put at the address then, the old one is put back. If the copy was submitted and cannot be waited for, the
    /// memory is lost: it leaks, and there are no bytes left here.
    #[doc(alias("cuMemcpyAsync", "cuMemMap"))]
    #[track_caller]
    pub fn move_to(&mut self, location: Location, stream: &Stream) -> Result<()> {
        self.map()?;
        let location = location.known(self.settings.driver);
        let mut settings = MappedMemoryBuilder::clone(&self.settings);
        settings.locations = vec![location];
        settings.reserved = 0;
        // The stream's device copies, so it needs access meanwhile.
        settings = settings.accessible_from([Location::Device(stream.device())]);
        let bytes = self.size_bytes();
        let copy = settings.map(bytes)?;
        let (to, from) = (copy.address(), self.address());
        let copied = {
            // A copy may cross from one mapping into the next only while a context is current (R148).
            let _current = stream.context().bind()?;
            let (table, stream) = (stream.device().driver().table(), stream.as_raw());
            // SAFETY: both are mapped, as long as each other, and nobody uses either.
            unsafe { raw::copy::anywhere(table, to, from, bytes as usize, stream) }
        };
        let done = match copied {
            Err(error) if error.had_no_effect() => return Err(error),
            copied => copied.and_then(|()| stream.synchronize()),
        };
        if let Err(error) = done {
            // It may still run, so both its ends stay where they are, for good.
            report::failed("memory that is moved", &error);
            std::mem::forget((copy, std::mem::take(&mut self.parts)));
            return Err(error);
        }
        let mut moved = copy.parts;
        for part in &mut moved {
            part.mapping = None; // unmapped from where it was copied to
        }
        self.unmap()?;
        let old = std::mem::replace(&mut self.parts, moved);
        if let Err(error) = self.map() {
            self.unmap()?;
            self.parts = old;
            self.map()?;
            return Err(error);
        }
        self.settings.locations = vec![location];
        let traffic = Traffic::of_move(bytes);
        self.journeys.note(location, traffic);
        traffic::note(self.settings.driver, location, traffic);
        Ok(())
    }

    /// A buffer of `len` elements of it, in the order of the stream. What they are, nobody says: the memory is as
    /// it was made, or as it was left.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if there is no room for so many elements, or the stream's
    /// device has no access; else as [`map`](Self::map). The memory comes back.
    pub fn into_buffer<T: Pod>(
        self,
        stream: &Stream,
        len: usize,
    ) -> Result<GrowableBuffer<T>, Failed<Self>> {
        GrowableBuffer::new(self, stream, len)
    }

    /// That the stream's device may use it, and that it is there.
    pub(super) fn ready_for(&mut self, stream: &Stream) -> Result<()> {
        let device = Location::Device(stream.device());
        if !self.settings.accesses.iter().any(|(who, _)| *who == device) {
            return Err(Error::invalid(format!(
                "{device} has no access to {self:?}; name it in `accessible_from`"
            )));
        }
        self.map()
    }

    pub(super) fn device(&self) -> Option<Device> {
        match self.settings.locations[..] {
            [Location::Device(device)] => Some(device),
            _ => None,
        }
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
