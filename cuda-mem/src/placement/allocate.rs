//! Carrying a placement out.

use bytemuck::Pod;

use super::placed_buffer::PlacedBuffer;
use super::{Accessor, Export, Placement, PlacementKind, pools};
use crate::base::error::{Error, Result};
use crate::driver::device::{Device, HandleTypes};
use crate::driver::location::{AllocationType, Location};
use crate::mapped::managed::ManagedBuffer;
use crate::mapped::vmm::{MappedMemory, MappedMemoryBuilder};
use crate::memory::buffer::{DeviceBuffer, bytes_of};
use crate::memory::fallback::Fallback;
use crate::memory::pool::{MemoryPool, PoolBuilder};
use crate::memory::resource::{DirectResource, HostFlags, PinnedResource, Resource};
use crate::stream::Stream;

impl Placement {
    /// Allocates the memory: `len` elements, in the order of a stream of the home device. `devices` are the devices of
    /// the [`Topology`](super::Topology), in the same order.
    ///
    /// Mapped memory, and plain memory that is to be exported, takes all [`size`](Self::size) bytes: whole pages that
    /// contain nothing else. Any other memory takes `len` elements. That includes memory of an exported pool, which may
    /// hold more than its buffers.
    ///
    /// If requested, the home device fills the memory with zeros in the order of the stream. In whole pages that
    /// includes the bytes after the elements, because importers of the memory can read them.
    ///
    /// Pool memory that only the home device uses comes from the pool of the [device's default
    /// resource](Device::default_resource). Pool memory with other users, and pool memory of the host, comes from a
    /// pool that all placements with the same location and users share within a context. The first such placement
    /// creates the pool, which takes milliseconds; the context keeps it, together with memory freed to it. Exported
    /// memory has a pool of its own ([`PlacedBuffer::pool`]).
    ///
    /// Growable memory reserves addresses for at least twice its size, and for the full capacity of the home device.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if there are more elements than were placed, or the stream is
    /// not of the home device; otherwise any driver error.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::placement::{AccessPattern, Topology, PlacementRequest};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let devices = Driver::load()?.devices()?;
    /// let stream = devices[0].primary_context()?.stream()?;
    /// let machine = Topology::gather(&devices)?;
    ///
    /// let request = PlacementRequest::bytes(4000).access(AccessPattern::GpuOnly).zeroed();
    /// let placement = request.place(&machine)?;
    /// println!("{placement}");
    /// let numbers = placement.allocate::<u32>(&devices, &stream, 1000)?;
    /// assert_eq!(numbers.to_vec()?, [0; 1000]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[track_caller]
    pub fn allocate<T: Pod>(
        &self,
        devices: &[Device],
        stream: &Stream,
        len: usize,
    ) -> Result<PlacedBuffer<T>> {
        let home = self.home_of(devices, stream)?;
        let bytes = bytes_of::<T>(len)? as u64;
        if bytes > self.size {
            return Err(Error::invalid(format!(
                "{len} elements are {bytes} bytes, and {} were placed",
                self.size
            )));
        }
        let users = self.users(devices)?;
        let driver = home.driver();
        let mut placed = match self.kind {
            PlacementKind::Pool if users == [home] && self.export == Export::None => {
                let resource = home.default_resource_with(Fallback::Refuse)?;
                PlacedBuffer::of_device(resource.alloc(stream, len)?, None)
            }
            PlacementKind::Pool => {
                let builder = || MemoryPool::builder(&home);
                let pool = self.pool(stream, Location::Device(home), &users, builder)?;
                PlacedBuffer::of_device(pool.alloc(stream, len)?, Some(pool))
            }
            PlacementKind::HostPool => {
                self.take_from_host_pool(home, Location::Host, &users, stream, len)?
            }
            PlacementKind::HostNuma { node, pool: true } => {
                self.take_from_host_pool(home, Location::HostNuma(node), &users, stream, len)?
            }
            PlacementKind::Device => {
                let resource = Resource::new(DirectResource::new(home));
                PlacedBuffer::of_device(self.take_whole(&resource, stream, len)?, None)
            }
            PlacementKind::PinnedHost { write_combining } => {
                let mut flags = HostFlags::PORTABLE;
                flags.set(HostFlags::WRITE_COMBINED, write_combining);
                let resource = Resource::new(PinnedResource::with_flags(driver, flags));
                let buffer = resource.alloc(stream, len)?;
                // SAFETY: such memory has one address for the host and the devices.
                unsafe { PlacedBuffer::of_host(buffer, None) }
            }
            PlacementKind::Vmm => {
                self.take_mapped(home, MappedMemory::builder(&home), &users, stream, len)?
            }
            PlacementKind::VmmStriped => {
                let parts = self.stripes.iter().map(|part| at(devices, *part));
                let parts = parts.collect::<Result<Vec<Device>>>()?;
                let memory = MappedMemory::builder(&home).striped_over(&parts);
                self.take_mapped(home, memory, &users, stream, len)?
            }
            PlacementKind::HostNuma { node, pool: false } => {
                let memory = MappedMemory::builder_at(driver, Location::HostNuma(node));
                self.take_mapped(home, memory, &users, stream, len)?
            }
            PlacementKind::HostVmm => {
                let memory = MappedMemory::builder_at(driver, Location::Host);
                self.take_mapped(home, memory, &users, stream, len)?
            }
            PlacementKind::Managed => PlacedBuffer::managed(ManagedBuffer::uninit(stream, len)?),
        };
        if self.zeroed {
            placed.zero_all()?;
        }
        Ok(placed)
    }

    fn home_of(&self, devices: &[Device], stream: &Stream) -> Result<Device> {
        let home = at(devices, self.home)?;
        if stream.device() == home {
            return Ok(home);
        }
        Err(Error::invalid(format!(
            "a stream of {}, and the home device of the placement is {home}",
            stream.device()
        )))
    }

    fn users(&self, devices: &[Device]) -> Result<Vec<Device>> {
        self.devices().map(|device| at(devices, device)).collect()
    }

    fn handle_types(&self) -> HandleTypes {
        match self.export {
            Export::PosixFd => HandleTypes::POSIX_FILE_DESCRIPTOR,
            Export::Fabric => HandleTypes::FABRIC,
            _ => HandleTypes::empty(),
        }
    }

    /// One for this buffer alone if it is exported: an importer of the pool sees all of it.
    fn pool(
        &self,
        stream: &Stream,
        place: Location,
        users: &[Device],
        builder: impl FnOnce() -> PoolBuilder,
    ) -> Result<MemoryPool> {
        if self.export == Export::None {
            return pools::shared(stream.context(), place, users, builder);
        }
        pools::made_for(users, builder().handle_types(self.handle_types()))
    }

    #[track_caller]
    fn take_from_host_pool<T: Pod>(
        &self,
        home: Device,
        place: Location,
        users: &[Device],
        stream: &Stream,
        len: usize,
    ) -> Result<PlacedBuffer<T>> {
        let builder = || MemoryPool::builder_at(home.driver(), place, AllocationType::Pinned);
        let pool = self.pool(stream, place, users, builder)?;
        let buffer = Resource::from(pool.clone()).alloc(stream, len)?;
        // SAFETY: the host reaches memory of its own pools at the address of the devices, from the moment that the
        // stream has allocated it.
        Ok(unsafe { PlacedBuffer::of_host(buffer, Some(pool)) })
    }

    /// A buffer of `len` elements. If exported, it holds [`size`](Self::size) bytes, so nothing else is in its pages.
    #[track_caller]
    fn take_whole<T: Pod>(
        &self,
        resource: &Resource,
        stream: &Stream,
        len: usize,
    ) -> Result<DeviceBuffer<T>> {
        let room = match (self.export, size_of::<T>() as u64) {
            (Export::None, _) | (_, 0) => len,
            (_, element) => usize::try_from(self.size.div_ceil(element))
                .map_err(|_| Error::invalid(format!("{} bytes are too many", self.size)))?,
        };
        let mut buffer = resource.alloc(stream, room)?;
        buffer.set_len(len);
        Ok(buffer)
    }

    #[track_caller]
    fn take_mapped<T: Pod>(
        &self,
        home: Device,
        memory: MappedMemoryBuilder,
        users: &[Device],
        stream: &Stream,
        len: usize,
    ) -> Result<PlacedBuffer<T>> {
        let host = self
            .grants
            .contains(&Accessor::Host)
            .then_some(Location::Host);
        let reserved = match self.growable {
            true => home.total_memory()?.max(self.size.saturating_mul(2)),
            false => 0,
        };
        let memory = memory
            .accessible_from(users.iter().copied().map(Location::Device).chain(host))
            .handle_types(self.handle_types())
            .gpu_direct_rdma(self.gpu_direct)
            .granularity(self.page_size)
            .reserve(reserved)
            .map(self.size)?;
        match memory.into_buffer(stream, len) {
            Ok(buffer) => Ok(PlacedBuffer::mapped(buffer)),
            Err(failed) => Err(failed.error),
        }
    }
}

fn at(devices: &[Device], index: usize) -> Result<Device> {
    devices.get(index).copied().ok_or_else(|| {
        Error::invalid(format!(
            "the placement names device {index}, and {} were given; give those of the machine",
            devices.len()
        ))
    })
}
