//! The kinds of memory compared.

use anyhow::{Result, bail};
use cuda_mem::driver::{AllocationType, Location};
use cuda_mem::mapped::{MappedMemory, MappedMemoryBuilder};
use cuda_mem::memory::{DirectResource, HostFlags, ManagedResource, PinnedResource};
use cuda_mem::{Device, DeviceBuffer, MemoryPool, Resource, Stream};

/// A buffer of any kind.
pub(crate) type Words = DeviceBuffer<u32>;

/// Where managed memory resides at the start of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    Device,
    Host,
}

/// A kind of memory, and how it is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pool,
    Direct,
    Mapped,
    Striped,
    Pinned,
    WriteCombined,
    HostNode,
    Host,
    HostNodePool,
    HostPool,
    ManagedOnDevice,
    ManagedOnHost,
}

pub(crate) const ALL: [Kind; 12] = [
    Kind::Pool,
    Kind::Direct,
    Kind::Mapped,
    Kind::Striped,
    Kind::Pinned,
    Kind::WriteCombined,
    Kind::HostNode,
    Kind::Host,
    Kind::HostNodePool,
    Kind::HostPool,
    Kind::ManagedOnDevice,
    Kind::ManagedOnHost,
];

/// A source of one kind of memory.
pub(crate) enum Source {
    Resource(Resource),
    Mapped(MappedMemoryBuilder),
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Direct => "cuMemAlloc",
            Self::Mapped => "mapped, device",
            Self::Striped => "mapped, two devices",
            Self::Pinned => "pinned",
            Self::WriteCombined => "pinned, write-combined",
            Self::HostNode => "mapped, host node",
            Self::Host => "mapped, host",
            Self::HostNodePool => "pool, host node",
            Self::HostPool => "pool, host",
            Self::ManagedOnDevice => "managed, found on the device",
            Self::ManagedOnHost => "managed, found on the host",
        }
    }

    /// Whether the host can access it at its address.
    pub(crate) fn is_of_host(self) -> bool {
        !matches!(
            self,
            Self::Pool | Self::Direct | Self::Mapped | Self::Striped
        )
    }

    /// Where managed memory must reside before each measurement.
    pub(crate) fn home(self) -> Option<Home> {
        match self {
            Self::ManagedOnDevice => Some(Home::Device),
            Self::ManagedOnHost => Some(Home::Host),
            _ => None,
        }
    }

    /// The source of such memory for a device; an error if the machine has none.
    pub(crate) fn open(self, device: &Device) -> Result<Source> {
        let driver = device.driver();
        let here = Location::Device(*device);
        let node = Location::HostNuma(0);
        let of_host =
            |place| MappedMemory::builder_at(driver, place).accessible_from([here, place]);
        let pool_at = |place| {
            let pool = MemoryPool::builder_at(driver, place, AllocationType::Pinned);
            pool.accessible_from([device]).build().map(Resource::from)
        };
        Ok(match self {
            Self::Pool => Source::Resource(device.default_resource()?),
            Self::Direct => Source::Resource(Resource::new(DirectResource::new(*device))),
            Self::Pinned => Source::Resource(Resource::new(PinnedResource::new(driver))),
            Self::WriteCombined => {
                let flags = HostFlags::PORTABLE | HostFlags::WRITE_COMBINED;
                Source::Resource(Resource::new(PinnedResource::with_flags(driver, flags)))
            }
            Self::HostNodePool => Source::Resource(pool_at(node)?),
            Self::HostPool => Source::Resource(pool_at(Location::Host)?),
            Self::ManagedOnDevice | Self::ManagedOnHost => {
                Source::Resource(Resource::new(ManagedResource::new(driver)))
            }
            Self::Mapped => Source::Mapped(MappedMemory::builder(device)),
            Self::HostNode => Source::Mapped(of_host(node)),
            Self::Host => Source::Mapped(of_host(Location::Host)),
            Self::Striped => {
                let [first, second, ..] = &driver.devices()?[..] else {
                    bail!("there is one device");
                };
                if !first.can_access_peer(second)? {
                    bail!("the devices do not reach each other");
                }
                Source::Mapped(MappedMemory::builder(device).striped_over([first, second]))
            }
        })
    }
}

impl Source {
    pub(crate) fn allocate(&self, stream: &Stream, len: usize) -> Result<Words> {
        match self {
            Self::Resource(resource) => Ok(resource.alloc(stream, len)?),
            Self::Mapped(builder) => {
                let memory = builder.clone().build((len * size_of::<u32>()) as u64)?;
                match memory.into_buffer(stream, len) {
                    Ok(buffer) => Ok(buffer.into_buffer()),
                    Err(failed) => bail!(failed.error),
                }
            }
        }
    }
}
