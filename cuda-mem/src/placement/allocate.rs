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
    /// Allocates the memory in the order of a stream of the home device: as many elements as the requested bytes hold.
    ///
    /// Mapped memory, and plain memory that is to be exported, takes all [`size`](Self::size) bytes: whole pages that
    /// contain nothing else. Any other memory takes the elements only. That includes memory of an exported pool, which
    /// may hold more than its buffers.
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
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the requested bytes are no whole number of elements, if the
    /// stream is not of the home device, or if the topology was written by hand instead of
    /// [gathered](super::Topology::gather); otherwise any driver error.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::placement::{AccessPattern, PlacementRequest, Topology};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let devices = Driver::load()?.devices()?;
    /// let stream = devices[0].primary_context()?.stream()?;
    /// let machine = Topology::gather(&devices)?;
    ///
    /// let request = PlacementRequest::elements::<u32>(1000).access(AccessPattern::GpuOnly).zeroed();
    /// let placement = request.place(&machine)?;
    /// println!("{placement}");
    /// let numbers = placement.allocate::<u32>(&stream)?;
    /// assert_eq!(numbers.to_vec()?, [0; 1000]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[track_caller]
    pub fn allocate<T: Pod>(&self, stream: &Stream) -> Result<PlacedBuffer<T>> {
        let len = self.whole_elements(size_of::<T>() as u64)?;
        self.allocate_len(stream, len)
    }

    /// Allocates the memory with `len` elements, as [`allocate`](Self::allocate) does. They may be fewer than were
    /// requested, and more as far as [`size`](Self::size) bytes hold them.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if `len` elements are more than [`size`](Self::size) bytes, if
    /// the stream is not of the home device, or if the topology was written by hand instead of
    /// [gathered](super::Topology::gather); otherwise any driver error.
    ///
    /// ```
    /// # use cuda_mem::Driver;
    /// # use cuda_mem::placement::{PlacementRequest, Topology};
    /// # cuda_sim::use_if_no_driver();
    /// # let devices = Driver::load()?.devices()?;
    /// # let stream = devices[0].primary_context()?.stream()?;
    /// # let machine = Topology::gather(&devices)?;
    /// let placement = PlacementRequest::bytes(64 << 20).growable().place(&machine)?;
    /// let list = placement.allocate_len::<u32>(&stream, 10)?;
    /// assert_eq!(list.len(), 10);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[track_caller]
    pub fn allocate_len<T: Pod>(&self, stream: &Stream, len: usize) -> Result<PlacedBuffer<T>> {
        let home = self.home_of(stream)?;
        let bytes = bytes_of::<T>(len)? as u64;
        if bytes > self.size {
            return Err(Error::invalid(format!(
                "{len} elements are {bytes} bytes, and {} were placed",
                self.size
            )));
        }
        let users = self.users()?;
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
                let memory = match self.export {
                    Export::Collective => MappedMemory::collective(&home)?,
                    _ => {
                        let memory = MappedMemory::builder(&home);
                        let memory = memory.handle_types(self.handle_types());
                        memory.gpu_direct_rdma(self.gpu_direct)
                    }
                };
                self.take_mapped(home, memory, &users, stream, len)?
            }
            PlacementKind::VmmStriped => {
                let parts = self.stripes.iter().map(|part| self.device(*part));
                let parts = parts.collect::<Result<Vec<Device>>>()?;
                let memory = MappedMemory::builder(&home).striped_over(&parts);
                self.take_mapped(home, memory, &users, stream, len)?
            }
            PlacementKind::HostNuma { node, pool: false } => {
                let memory = MappedMemory::builder_at(driver, Location::HostNuma(node));
                let memory = memory.handle_types(self.handle_types());
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

    /// How many elements of this size the requested bytes hold.
    fn whole_elements(&self, size: u64) -> Result<usize> {
        let bytes = self.bytes;
        match bytes.checked_rem(size) {
            Some(0) => usize::try_from(bytes / size)
                .map_err(|_| Error::invalid(format!("{bytes} bytes are too many"))),
            _ => Err(Error::invalid(format!(
                "{bytes} bytes were placed, which are no whole number of elements of {size} bytes; \
                 ask by `PlacementRequest::elements`, or use `Placement::allocate_len`"
            ))),
        }
    }

    fn home_of(&self, stream: &Stream) -> Result<Device> {
        let home = self.device(self.home)?;
        if stream.device() == home {
            return Ok(home);
        }
        Err(Error::invalid(format!(
            "a stream of {}, and the home device of the placement is {home}",
            stream.device()
        )))
    }

    /// The device behind an index.
    fn device(&self, index: usize) -> Result<Device> {
        self.handles.get(index).ok_or_else(|| {
            Error::invalid(format!(
                "device {index} of this placement was written by hand, and nothing can be allocated \
                 on it; place with a topology from `Topology::gather`"
            ))
        })
    }

    fn users(&self) -> Result<Vec<Device>> {
        self.devices().map(|index| self.device(index)).collect()
    }

    fn handle_types(&self) -> HandleTypes {
        match self.export {
            Export::PosixFd => HandleTypes::POSIX_FILE_DESCRIPTOR,
            Export::Win32 => HandleTypes::WIN32,
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
            .granularity(self.page_size)
            .reserve(reserved)
            .build(self.size)?;
        match memory.into_buffer(stream, len) {
            Ok(buffer) => Ok(PlacedBuffer::mapped(buffer)),
            Err(failed) => Err(failed.error),
        }
    }
}
