//! The kinds of memory that are compared.

use std::ops::DerefMut;

use anyhow::{Result, bail};
use cuda_mem::{
    DeviceBuffer, DirectResource, HostFlags, Location, ManagedResource, MappedMemory,
    PinnedResource, Resource, Stream,
};

/// A buffer of whatever kind.
pub(crate) type Words = Box<dyn DerefMut<Target = DeviceBuffer<u32>>>;

/// Where managed memory is at the beginning of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    Device,
    Host,
}

/// A kind of memory, and how it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pool,
    Direct,
    Mapped,
    Pinned,
    WriteCombined,
    HostNode,
    ManagedOnDevice,
    ManagedOnHost,
}

pub(crate) const ALL: [Kind; 8] = [
    Kind::Pool,
    Kind::Direct,
    Kind::Mapped,
    Kind::Pinned,
    Kind::WriteCombined,
    Kind::HostNode,
    Kind::ManagedOnDevice,
    Kind::ManagedOnHost,
];

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Direct => "cuMemAlloc",
            Self::Mapped => "mapped, device",
            Self::Pinned => "pinned",
            Self::WriteCombined => "pinned, write-combined",
            Self::HostNode => "mapped, host node",
            Self::ManagedOnDevice => "managed, on the device",
            Self::ManagedOnHost => "managed, on the host",
        }
    }

    /// Whether the host reads and writes it at its address.
    pub(crate) fn is_of_host(self) -> bool {
        !matches!(self, Self::Pool | Self::Direct | Self::Mapped)
    }

    /// Where managed memory is to be before each measurement.
    pub(crate) fn home(self) -> Option<Home> {
        match self {
            Self::ManagedOnDevice => Some(Home::Device),
            Self::ManagedOnHost => Some(Home::Host),
            _ => None,
        }
    }

    pub(crate) fn allocate(self, stream: &Stream, len: usize) -> Result<Words> {
        let device = stream.device();
        let driver = device.driver();
        let resource = match self {
            Self::Pool => device.default_resource()?,
            Self::Direct => Resource::new(DirectResource::new(device)),
            Self::Pinned => Resource::new(PinnedResource::new(driver)),
            Self::WriteCombined => {
                let flags = HostFlags::PORTABLE | HostFlags::WRITE_COMBINED;
                Resource::new(PinnedResource::with_flags(driver, flags))
            }
            Self::ManagedOnDevice | Self::ManagedOnHost => {
                Resource::new(ManagedResource::new(driver))
            }
            Self::Mapped | Self::HostNode => return mapped(self, stream, len),
        };
        Ok(Box::new(HeldBuffer(resource.alloc(stream, len)?)))
    }
}

/// Its own target, so that all kinds are of one type.
struct HeldBuffer(DeviceBuffer<u32>);

impl std::ops::Deref for HeldBuffer {
    type Target = DeviceBuffer<u32>;

    fn deref(&self) -> &DeviceBuffer<u32> {
        &self.0
    }
}

impl DerefMut for HeldBuffer {
    fn deref_mut(&mut self) -> &mut DeviceBuffer<u32> {
        &mut self.0
    }
}

fn mapped(kind: Kind, stream: &Stream, len: usize) -> Result<Words> {
    let device = stream.device();
    let here = Location::Device(device);
    let node = Location::HostNuma(0);
    let builder = match kind {
        Kind::HostNode => {
            MappedMemory::builder_at(device.driver(), node).accessible_from([here, node])
        }
        _ => MappedMemory::builder(&device),
    };
    let memory = builder.map((len * size_of::<u32>()) as u64)?;
    match memory.into_buffer(stream, len) {
        Ok(buffer) => Ok(Box::new(buffer)),
        Err(failed) => bail!(failed.error),
    }
}
