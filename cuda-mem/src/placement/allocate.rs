//! Carrying a placement out.

use std::fmt;
use std::ops::Deref;

use bytemuck::Pod;

use super::{Export, Grant, Placement, PlacementKind};
use crate::buffer::{DeviceBuffer, bytes_of};
use crate::device::{Device, HandleTypes};
use crate::error::{Error, Result};
use crate::location::{AllocationType, Location};
use crate::managed::ManagedBuffer;
use crate::pool::{MemoryPool, PoolBuilder};
use crate::resource::{DirectResource, HostFlags, PinnedResource, Resource};
use crate::stream::Stream;
use crate::vmm::{GrowableBuffer, MappedMemory, MappedMemoryBuilder};

/// Memory that a [`Placement`] decided on. Whatever it is, it can be read as a [`DeviceBuffer`]; to write it, take
/// the buffer that is in it.
#[non_exhaustive]
pub enum Placed<T: Pod> {
    /// Of a pool, of `cuMemAlloc`, or pinned.
    Buffer(DeviceBuffer<T>),
    /// Mapped physical memory, which may grow in place.
    Growable(GrowableBuffer<T>),
    /// Managed memory.
    Managed(ManagedBuffer<T>),
}

impl Placement {
    /// Allocates it: `len` elements, in the order of a stream of the home device. `devices` are those of the
    /// [`Machine`](super::Machine), in the same order. Zeroed if the request said so.
    ///
    /// Pools are made for this one buffer, and end with it; a program that allocates often makes its pool once, as
    /// the placement says.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the elements are more than was placed, or the stream is
    /// not of the home device; [`NotSupported`](crate::ErrorKind::NotSupported) for plain memory that other devices
    /// are to use, for which this crate enables nobody. Else as the driver answers.
    ///
    /// ```
    /// use cuda_mem::{AccessPattern, Driver, Machine, PlacementRequest};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let devices = Driver::load()?.devices()?;
    /// let stream = devices[0].primary_context()?.stream()?;
    /// let machine = Machine::gather(&devices)?;
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
    ) -> Result<Placed<T>> {
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
            PlacementKind::Pool => {
                self.take_from_pool(MemoryPool::builder(&home), &users, stream, len)?
            }
            PlacementKind::HostPool => {
                let pool = MemoryPool::builder_at(driver, Location::Host, AllocationType::Pinned);
                self.take_from_pool(pool, &users, stream, len)?
            }
            PlacementKind::HostNuma { node, pool: true } => {
                let node = Location::HostNuma(node);
                let pool = MemoryPool::builder_at(driver, node, AllocationType::Pinned);
                self.take_from_pool(pool, &users, stream, len)?
            }
            PlacementKind::Device if users == [home] => {
                let resource = Resource::new(DirectResource::new(home));
                Placed::Buffer(resource.alloc(stream, len)?)
            }
            PlacementKind::Device => {
                return Err(Error::not_supported(format!(
                    "{self}: this crate gives no device access to another's plain memory; make the \
                     request for memory that is long-lived and exported as a descriptor, or of a pool"
                )));
            }
            PlacementKind::PinnedHost { write_combining } => {
                let mut flags = HostFlags::PORTABLE;
                flags.set(HostFlags::WRITE_COMBINED, write_combining);
                let resource = Resource::new(PinnedResource::with_flags(driver, flags));
                Placed::Buffer(resource.alloc(stream, len)?)
            }
            PlacementKind::Vmm => {
                // Addresses cost nothing, and with them it can grow as far as the device goes.
                let memory = MappedMemory::builder(&home).reserve(home.total_memory()?);
                self.take_mapped(memory, &users, stream, len)?
            }
            PlacementKind::VmmStriped => {
                let parts = self.stripes.iter().map(|part| at(devices, *part));
                let parts = parts.collect::<Result<Vec<Device>>>()?;
                let memory = MappedMemory::builder(&home).striped_over(&parts);
                self.take_mapped(memory, &users, stream, len)?
            }
            PlacementKind::HostNuma { node, pool: false } => {
                let memory = MappedMemory::builder_at(driver, Location::HostNuma(node));
                self.take_mapped(memory, &users, stream, len)?
            }
            PlacementKind::HostVmm => {
                let memory = MappedMemory::builder_at(driver, Location::Host);
                self.take_mapped(memory, &users, stream, len)?
            }
            PlacementKind::Managed => Placed::Managed(ManagedBuffer::uninit(stream, len)?),
        };
        if self.zeroing.is_some() {
            placed.zero()?;
        }
        Ok(placed)
    }

    fn home_of(&self, devices: &[Device], stream: &Stream) -> Result<Device> {
        let home = at(devices, self.home)?;
        if stream.device() == home {
            return Ok(home);
        }
        Err(Error::invalid(format!(
            "a stream of {:?}, and the home device of the placement is {home:?}",
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

    #[track_caller]
    fn take_from_pool<T: Pod>(
        &self,
        mut pool: PoolBuilder,
        users: &[Device],
        stream: &Stream,
        len: usize,
    ) -> Result<Placed<T>> {
        for device in users {
            pool = pool.accessible_from(device);
        }
        let pool = pool.handle_types(self.handle_types()).build()?;
        Ok(Placed::Buffer(pool.alloc(stream, len)?))
    }

    #[track_caller]
    fn take_mapped<T: Pod>(
        &self,
        memory: MappedMemoryBuilder,
        users: &[Device],
        stream: &Stream,
        len: usize,
    ) -> Result<Placed<T>> {
        let host = self.grants.contains(&Grant::Host).then_some(Location::Host);
        let memory = memory
            .accessible_from(users.iter().copied().map(Location::Device).chain(host))
            .handle_types(self.handle_types())
            .gpu_direct_rdma(self.gpu_direct)
            .map(self.size)?;
        match memory.into_buffer(stream, len) {
            Ok(buffer) => Ok(Placed::Growable(buffer)),
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

impl<T: Pod> Placed<T> {
    /// Makes all of it zero, in the order of its stream.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    #[doc(alias = "cuMemsetD8Async")]
    pub fn zero(&mut self) -> Result<()> {
        match self {
            Self::Buffer(buffer) => buffer.zero(),
            Self::Growable(buffer) => buffer.zero(),
            Self::Managed(buffer) => buffer.zero(),
        }
    }

    /// Copies from ordinary memory, as [`DeviceBuffer::copy_from`] does.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        match self {
            Self::Buffer(buffer) => buffer.copy_from(from),
            Self::Growable(buffer) => buffer.copy_from(from),
            Self::Managed(buffer) => buffer.copy_from(from),
        }
    }
}

impl<T: Pod> Deref for Placed<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Growable(buffer) => buffer,
            Self::Managed(buffer) => buffer,
        }
    }
}

impl<T: Pod> fmt::Debug for Placed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Buffer(_) => "Buffer",
            Self::Growable(_) => "Growable",
            Self::Managed(_) => "Managed",
        };
        f.debug_tuple(name).field(&**self).finish()
    }
}
