//! The subjects of the comparison.

use std::alloc::Layout;

use anyhow::Result;
use cuda_mem::{Arena, Device, MemoryPool, MemoryResource, Stream};

use crate::mix::Allocator;

/// The alignment that every resource guarantees.
pub(crate) const ALIGNMENT: usize = 256;

/// A resource, whose peak of held bytes can be queried.
#[derive(Clone)]
pub(crate) enum Subject {
    Pool(MemoryPool),
    Arena(Arena),
}

impl Subject {
    /// Creates a subject: `pool`, `arena`, or `thread` for an arena with its own thread.
    pub(crate) fn new(name: &str, device: &Device) -> Result<Self> {
        Ok(match name {
            "pool" => Self::Pool(MemoryPool::builder(device).build()?),
            _ => {
                let builder = Arena::builder(device).background_thread(name == "thread");
                Self::Arena(builder.build()?)
            }
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
    /// As for `MemoryResource::deallocate`.
    #[inline]
    pub(crate) unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> Result<()> {
        match self {
            // SAFETY: the caller's promises.
            Self::Pool(pool) => unsafe { pool.deallocate(address, layout, stream) },
            // SAFETY: the caller's promises.
            Self::Arena(arena) => unsafe { arena.deallocate(address, layout, stream) },
        }?;
        Ok(())
    }
}

pub(crate) fn layout(bytes: usize) -> Result<Layout> {
    Ok(Layout::from_size_align(bytes, ALIGNMENT)?)
}

/// A block of a subject.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) layout: Layout,
}

impl Allocator for Subject {
    type Stream = Stream;
    type Block = Block;

    #[inline]
    fn allocate(&self, stream: &Stream, bytes: usize) -> Result<Block> {
        let layout = layout(bytes)?;
        let address = self.allocate(layout, stream)?;
        Ok(Block { address, layout })
    }

    #[inline]
    fn free(&self, stream: &Stream, block: Block) -> Result<()> {
        // SAFETY: the block comes from `allocate` with its layout, and is no longer used.
        unsafe { self.deallocate(block.address, block.layout, stream) }
    }
}
