//! What is compared.

use std::alloc::Layout;

use anyhow::Result;
use cuda_mem::{Arena, Device, MemoryPool, MemoryResource, Stream};

/// Whether a row is measured: all are, unless `CUDA_MEM_BENCH_ONLY` is a part of the names of some.
pub(crate) fn is_asked_for(name: &str) -> bool {
    std::env::var("CUDA_MEM_BENCH_ONLY").map_or(true, |only| name.contains(&only))
}

/// The alignment that every resource keeps.
pub(crate) const ALIGNMENT: usize = 256;

/// A resource, and how much it holds at most.
#[derive(Clone)]
pub(crate) enum Subject {
    Pool(MemoryPool),
    Arena(Arena),
}

pub(crate) const NAMES: [&str; 2] = ["pool", "arena"];

impl Subject {
    /// A new one.
    pub(crate) fn new(name: &str, device: &Device) -> Result<Self> {
        Ok(match name {
            "pool" => Self::Pool(MemoryPool::builder(device).build()?),
            _ => Self::Arena(Arena::builder(device).build()?),
        })
    }

    pub(crate) fn peak_reserved(&self) -> Result<u64> {
        Ok(match self {
            Self::Pool(pool) => pool.stats()?.reserved.high,
            Self::Arena(arena) => arena.stats().reserved_peak,
        })
    }

    #[inline]
    pub(crate) fn allocate(&self, layout: Layout, stream: &Stream) -> Result<u64> {
        Ok(match self {
            Self::Pool(pool) => pool.allocate(layout, stream),
            Self::Arena(arena) => arena.allocate(layout, stream),
        }?)
    }

    /// # Safety
    ///
    /// As `MemoryResource::deallocate`.
    #[inline]
    pub(crate) unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> Result<()> {
        match self {
            // SAFETY: the caller's.
            Self::Pool(pool) => unsafe { pool.deallocate(address, layout, stream) },
            // SAFETY: the caller's.
            Self::Arena(arena) => unsafe { arena.deallocate(address, layout, stream) },
        }?;
        Ok(())
    }
}

pub(crate) fn layout(bytes: usize) -> Result<Layout> {
    Ok(Layout::from_size_align(bytes, ALIGNMENT)?)
}
