//! The table of resources for a replay. A new one is a new line.

use std::ops::Deref;

use anyhow::Result;
use cuda_mem::driver::{AllocationType, Location};
use cuda_mem::memory::{DirectResource, ManagedResource, PinnedResource};
use cuda_mem::{Arena, Device, MemoryPool, MemoryResource, Pool, Resource, Usage};

/// A resource by its command-line name.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Creates a new instance, so that the first pass is cold.
    make: fn(Device) -> Result<Made>,
}

const fn kind(name: &'static str, make: fn(Device) -> Result<Made>) -> Kind {
    Kind { name, make }
}

/// A resource that is not a pool but has its own counters adds functions to read and reset them to `Made::plain`:
/// `.counted(move || Ok(Levels { … }), move || …)`.
pub(crate) const KINDS: &[Kind] = &[
    kind("pool", |device| {
        Ok(Made::pool(MemoryPool::builder(&device).build()?))
    }),
    kind("arena", |device| {
        Ok(Made::arena(Arena::builder(&device).build()?))
    }),
    kind("arena-over-pool", |device| {
        let pool = MemoryPool::builder(&device).build()?;
        Ok(Made::arena(Arena::over(pool)))
    }),
    kind("default-pool", |device| {
        let pool = device.default_pool()?;
        // It outlives each replay, and memory that it keeps would warm the next one.
        pool.trim_to(0)?;
        Ok(Made::pool(pool))
    }),
    kind("direct", |device| {
        Ok(Made::plain(DirectResource::new(device)))
    }),
    kind("managed", |device| {
        Ok(Made::plain(ManagedResource::new(device.driver())))
    }),
    kind("managed-pool", |device| {
        let at = (Location::Anywhere, AllocationType::Managed);
        let pool = MemoryPool::builder_at(device.driver(), at.0, at.1).build()?;
        Ok(Made::pool(pool))
    }),
    kind("pinned", |device| {
        Ok(Made::plain(PinnedResource::new(device.driver())))
    }),
    kind("host-pool", |device| {
        let at = (Location::Host, AllocationType::Pinned);
        let builder = MemoryPool::builder_at(device.driver(), at.0, at.1);
        Ok(Made::pool(builder.accessible_from([&device]).build()?))
    }),
];

impl Kind {
    pub(crate) fn make(&self, device: Device) -> Result<Made> {
        (self.make)(device)
    }

    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.name == name)
    }
}

/// The peak of allocated bytes, and the bytes held.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Levels {
    /// `None` if not recorded.
    pub(crate) used_high: Option<u64>,
    pub(crate) reserved: Usage,
}

type Read = Box<dyn Fn() -> Result<Levels> + Send + Sync>;
type Reset = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// A resource, with its own counters if it has any.
pub(crate) struct Made {
    pub(crate) resource: Resource,
    numbers: Option<(Read, Reset)>,
}

impl Made {
    /// A resource that does not know what it holds; its peaks are computed from the operations.
    fn plain(resource: impl MemoryResource + 'static) -> Self {
        Self {
            resource: Resource::new(resource),
            numbers: None,
        }
    }

    /// Adds counters: `read` returns them, `reset` resets the peaks to the current values.
    fn counted(
        self,
        read: impl Fn() -> Result<Levels> + Send + Sync + 'static,
        reset: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            numbers: Some((Box::new(read), Box::new(reset))),
            ..self
        }
    }

    /// A pool; the driver counts what it holds.
    fn pool(pool: impl MemoryResource + Deref<Target = Pool> + 'static) -> Self {
        let (read, reset) = (Pool::clone(&pool), Pool::clone(&pool));
        Self::plain(pool).counted(
            move || {
                let stats = read.stats()?;
                Ok(Levels {
                    used_high: Some(stats.used.high),
                    reserved: stats.reserved,
                })
            },
            move || Ok(reset.reset_high_marks()?),
        )
    }

    /// An arena; it counts what it holds and what is live.
    fn arena(arena: Arena) -> Self {
        let (read, reset) = (arena.clone(), arena.clone());
        Self::plain(arena).counted(
            move || {
                let stats = read.stats();
                Ok(Levels {
                    used_high: None,
                    reserved: Usage {
                        current: stats.reserved,
                        high: stats.reserved_peak,
                    },
                })
            },
            move || {
                reset.reset_peak();
                Ok(())
            },
        )
    }

    /// `None` if the resource has no counters.
    pub(crate) fn levels(&self) -> Result<Option<Levels>> {
        self.numbers.as_ref().map(|(read, _)| read()).transpose()
    }

    pub(crate) fn reset_high_marks(&self) -> Result<()> {
        self.numbers.as_ref().map_or(Ok(()), |(_, reset)| reset())
    }

    /// The same counters, with adaptors over the resource.
    pub(crate) fn over(self, stack: impl FnOnce(Resource) -> Result<Resource>) -> Result<Self> {
        Ok(Self {
            resource: stack(self.resource)?,
            numbers: self.numbers,
        })
    }
}
