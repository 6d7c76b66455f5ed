//! The resources that can be replayed over: one table. A new one is a line of it.

use std::ops::Deref;

use anyhow::Result;
use cuda_mem::driver::{AllocationType, Location};
use cuda_mem::memory::{DirectResource, ManagedResource, PinnedResource};
use cuda_mem::{Arena, Device, MemoryPool, MemoryResource, Pool, Resource, Usage};

/// A resource by its name on the command line.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Makes it anew, so that a first pass is cold.
    make: fn(Device) -> Result<Made>,
}

const fn kind(name: &'static str, make: fn(Device) -> Result<Made>) -> Kind {
    Kind { name, make }
}

/// What is not a pool and counts for itself adds to `Made::plain` what reads and resets its numbers:
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
        // It outlives each replay; what it keeps would warm the next one.
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
        Ok(Made::pool(builder.accessible_from(&device).build()?))
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

/// The highest number of bytes handed out, and the bytes held.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Levels {
    /// `None` if nobody keeps it.
    pub(crate) used_high: Option<u64>,
    pub(crate) reserved: Usage,
}

type Read = Box<dyn Fn() -> Result<Levels> + Send + Sync>;
type Reset = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// A resource, and its own numbers if it has any.
pub(crate) struct Made {
    pub(crate) resource: Resource,
    numbers: Option<(Read, Reset)>,
}

impl Made {
    /// A resource that does not know what it holds: that is computed from the operations.
    fn plain(resource: impl MemoryResource + 'static) -> Self {
        Self {
            resource: Resource::new(resource),
            numbers: None,
        }
    }

    /// With numbers: `read` tells them, `reset` makes the high ones the current ones.
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

    /// The driver counts what its pools hold.
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

    /// An arena counts what it holds, and what is alive now.
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

    /// `None` if the resource does not know.
    pub(crate) fn levels(&self) -> Result<Option<Levels>> {
        self.numbers.as_ref().map(|(read, _)| read()).transpose()
    }

    pub(crate) fn reset_high_marks(&self) -> Result<()> {
        self.numbers.as_ref().map_or(Ok(()), |(_, reset)| reset())
    }

    /// The same numbers, with adaptors in between.
    pub(crate) fn over(self, stack: impl FnOnce(Resource) -> Result<Resource>) -> Result<Self> {
        Ok(Self {
            resource: stack(self.resource)?,
            numbers: self.numbers,
        })
    }
}
