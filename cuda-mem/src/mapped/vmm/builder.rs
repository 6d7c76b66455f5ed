//! Settings of mapped memory.

use super::accesses::{Accesses, require_possible};
use super::mapped::MappedMemory;
use super::physical::{PhysicalMemory, PhysicalMemoryBuilder};
use super::range::AddressRange;
use super::whole;
use crate::base::error::{Error, Result};
use crate::driver::Driver;
use crate::driver::device::{Device, HandleTypes};
use crate::driver::location::Location;
use crate::memory::pool::Access;

/// Settings of mapped memory. From [`MappedMemory::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct MappedMemoryBuilder {
    pub(super) driver: Driver,
    /// Several locations get equal parts, in this order.
    pub(super) locations: Vec<Location>,
    pub(super) accesses: Accesses,
    handle_types: HandleTypes,
    gpu_direct_rdma: bool,
    compressible: bool,
    pub(super) reserved: u64,
    /// The granularity, if one was requested.
    pub(super) granule: Option<u64>,
}

impl MappedMemoryBuilder {
    pub(super) fn new(driver: Driver, location: Location) -> Self {
        Self {
            driver,
            locations: vec![location.known(driver)],
            accesses: Accesses::default(),
            handle_types: HandleTypes::empty(),
            gpu_direct_rdma: false,
            compressible: false,
            reserved: 0,
            granule: None,
        }
    }

    /// Other devices with read and write access, or the host for host memory. Access can also be
    /// [set](MappedMemory::set_access) later.
    pub fn accessible_from<W: Into<Location>>(mut self, who: impl IntoIterator<Item = W>) -> Self {
        for who in who {
            let who = who.into().known(self.driver);
            self.accesses.set(who, Access::ReadWrite);
        }
        self
    }

    /// Divides the memory among several devices, in this order and in equal parts, at adjacent addresses. All of them
    /// read and write all of it. Such memory cannot grow.
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

    /// See [`PhysicalMemoryBuilder::compressible`].
    pub fn compressible(mut self, wanted: bool) -> Self {
        self.compressible = wanted;
        self
    }

    /// The number of bytes of addresses to reserve, so that the memory can grow to that size without moving. Reserved
    /// addresses take no memory.
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserved = bytes;
        self
    }

    /// The step in bytes in which memory is allocated and grows: a multiple of the
    /// [least granularity](PhysicalMemoryBuilder::granularity) of all locations. The default is the largest recommended
    /// granularity among them.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::mapped::MappedMemory;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let memory = MappedMemory::builder(&device).granularity(16 << 20).build(1)?;
    /// assert_eq!((memory.granularity(), memory.size_bytes()), (16 << 20, 16 << 20));
    /// assert!(MappedMemory::builder(&device).granularity(100).build(1).is_err());
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn granularity(mut self, bytes: u64) -> Self {
        self.granule = Some(bytes);
        self
    }

    pub(super) fn physical(&self, location: Location) -> PhysicalMemoryBuilder {
        PhysicalMemory::builder_at(self.driver, location)
            .handle_types(self.handle_types)
            .gpu_direct_rdma(self.gpu_direct_rdma)
            .compressible(self.compressible)
    }

    /// The largest granularity of all locations: the recommended one, unless another one was requested.
    pub(super) fn granule(&self) -> Result<u64> {
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

    /// `Ok` if everything is of one driver, and every requested access is possible.
    fn check(&self) -> Result<()> {
        for place in &self.locations {
            place.require_driver(self.driver, "the memory")?;
            for who in self.accesses.who() {
                require_possible(self.driver, who, *place)?;
            }
        }
        Ok(())
    }

    /// Allocates at least `bytes` of memory, in whole granules, mapped and accessible. Does not wait.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for zero bytes, for a [granularity](Self::granularity) that a
    /// location does not offer, and for a device of another driver; otherwise as [`PhysicalMemoryBuilder::build`],
    /// [`AddressRange::reserve`] and [`Mapping::set_access`](super::Mapping::set_access). A failure leaves nothing
    /// behind.
    #[doc(alias("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"))]
    #[track_caller]
    pub fn build(self, bytes: u64) -> Result<MappedMemory> {
        self.check()?;
        let granule = self.granule()?;
        let count = self.locations.len() as u64;
        let step = granule.checked_mul(count);
        let step = step.ok_or_else(|| Error::invalid("too many devices".to_owned()))?;
        let bytes = whole(bytes, step)?;
        let range = AddressRange::in_steps_of(self.driver, bytes.max(self.reserved), 0, granule)?;
        let locations = self.locations.clone();
        let mut memory = MappedMemory::empty(range, self, granule);
        for location in locations {
            memory.add(location, bytes / count)?;
        }
        Ok(memory)
    }

    /// Maps existing device memory, at adjacent addresses in this order, and makes it accessible: memory that
    /// another process exported, or that is also mapped elsewhere. All mappings see the
    /// same bytes, and nothing orders work on one mapping with work on the others. Does not wait.
    ///
    /// The parts determine the location. The settings of new memory, such as its handle types, apply to memory that is
    /// added later or that the contents are moved to; that memory is not shared.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for no parts, for parts of another driver, and for sizes that
    /// are not multiples of the granularity; [`NotSupported`](crate::ErrorKind::NotSupported) for host memory: its
    /// owner may have it as a slice, which nothing else may write to meanwhile, so unsafe code has to
    /// [map](AddressRange::map) it. Otherwise as [`build`](Self::build), and as the driver answers if an imported memory is
    /// not as large as its importer said.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::driver::HandleTypes;
    /// use cuda_mem::mapped::{MappedMemory, PhysicalMemory};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// let device = driver.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let memory = MappedMemory::builder(&device)
    ///     .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
    ///     .build(1 << 20)?;
    /// let mut x = memory.into_buffer::<u32>(&stream, 1000)?;
    /// x.as_mut_slice().fill(7)?;
    /// stream.synchronize()?;
    ///
    /// // In another process, to which the descriptors and sizes went:
    /// let mut parts = Vec::new();
    /// for (descriptor, bytes) in x.export_fds()? {
    ///     parts.push(PhysicalMemory::import_fd(driver, descriptor, bytes)?);
    /// }
    /// let same = MappedMemory::builder(&device).build_from(parts)?;
    /// assert_eq!(same.into_buffer::<u32>(&stream, 1000)?.to_vec()?, [7; 1000]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"))]
    #[track_caller]
    pub fn build_from(
        mut self,
        parts: impl IntoIterator<Item = PhysicalMemory>,
    ) -> Result<MappedMemory> {
        let parts: Vec<PhysicalMemory> = parts.into_iter().collect();
        self.locations.clear();
        for part in &parts {
            part.require_driver(self.driver)?;
            let place = part.location();
            if place.device().is_none() {
                return Err(Error::not_supported(format!(
                    "{part} is not of a device; map it in unsafe code, with `AddressRange::map`"
                )));
            }
            if !self.locations.contains(&place) {
                self.locations.push(place);
            }
        }
        if parts.is_empty() {
            return Err(Error::invalid(
                "there are no parts to map; name one at least".to_owned(),
            ));
        }
        self.check()?;
        let granule = self.granule_of(&parts)?;
        let mut bytes: u64 = 0;
        for part in &parts {
            bytes = bytes.saturating_add(part.size_bytes());
        }
        let range = AddressRange::in_steps_of(self.driver, bytes.max(self.reserved), 0, granule)?;
        let mut memory = MappedMemory::empty(range, self, granule);
        for part in parts {
            memory.put(part)?;
        }
        Ok(memory)
    }

    /// The granularity for the locations of these parts: the least one, if the parts are not multiples of the
    /// recommended one and none was requested.
    fn granule_of(&self, parts: &[PhysicalMemory]) -> Result<u64> {
        let odd = |granule: u64| {
            let mut sizes = parts.iter().map(PhysicalMemory::size_bytes);
            sizes.find(|bytes| !bytes.is_multiple_of(granule))
        };
        let mut granule = self.granule()?;
        if self.granule.is_none() && odd(granule).is_some() {
            granule = 1;
            for place in &self.locations {
                granule = granule.max(self.physical(*place).granularity()?.minimum);
            }
        }
        match odd(granule) {
            None => Ok(granule),
            Some(bytes) => Err(Error::invalid(format!(
                "a part of {bytes} bytes, which are no multiple of the granularity of {granule}"
            ))),
        }
    }
}
