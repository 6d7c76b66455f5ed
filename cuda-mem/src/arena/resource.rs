//! The arena as a resource: where requests come in.

use std::alloc::Layout;

use cuda_driver_sys::CUdeviceptr;

use super::backing;
use super::last_freed::is_small;
use super::page_map::CacheId;
use super::{Arena, Inner, UNIT, UnknownBlock, units};
use crate::base::error::Result;
use crate::base::report;
use crate::memory::pool::Pool;
use crate::memory::resource::{
    MemoryProperties, MemoryResource, Resource, forward, require_alignment,
};
use crate::stream::Stream;

// SAFETY: a block is whole units of the arena's memory, and overlaps no other block until it is freed (`tlsf`). A
// stream gets it only once it is ordered after all earlier uses: the block was freed on that stream, or the stream was
// made to wait, or the host saw those uses end (`refill`). Pages start at multiples of 256 KiB, and units are 256
// bytes.
unsafe impl MemoryResource for Inner {
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        require_alignment(self, layout)?;
        if let Some(size) = units(layout.size())
            && size != 0
            && !report::is_forked()
            && let Some(id) = self.noted_cache(stream)
            && let Some(start) = self.try_allocate(id, size)
        {
            return Ok(start * UNIT);
        }
        if self.backing.observer.is_on() {
            return self.allocate_observed(layout, stream);
        }
        self.allocate_slowly(layout, stream)
    }

    #[inline]
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let Some(size) = units(layout.size()) else {
            let start = address / UNIT;
            return Err(self.unknown(UnknownBlock { start }));
        };
        if !report::is_forked()
            && let Some(id) = self.noted_cache(stream)
            && let Some(freed) = self.deallocate_in(id, address, size)
        {
            return freed;
        }
        let past;
        let stream = if stream.context().is_primary() {
            stream
        } else {
            past = self.stream_past(stream, &[])?;
            &past
        };
        if self.backing.observer.is_on() {
            return self.deallocate_observed(address, layout, size, stream);
        }
        self.deallocate_slowly(address, size, stream)
    }

    unsafe fn deallocate_after(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
        others: &[&Stream],
    ) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let is_handed_in = |stream: &&Stream| !stream.context().is_primary();
        let is_any_handed_in = is_handed_in(&stream) || others.iter().any(is_handed_in);
        if !is_any_handed_in {
            return Self::deallocate_after(self, address, layout, stream, others);
        }
        let (handed_in, others): (Vec<&Stream>, Vec<&Stream>) =
            others.iter().copied().partition(is_handed_in);
        let past = self.stream_past(stream, &handed_in)?;
        Self::deallocate_after(self, address, layout, &past, &others)
    }

    /// A pool below may give more devices access at any time.
    fn memory_properties(&self) -> MemoryProperties {
        match &self.backing.kind {
            backing::Kind::Vmm(_) => self.properties,
            backing::Kind::Upstream(upstream) => upstream.resource().memory_properties(),
        }
    }

    fn pool(&self) -> Option<&Pool> {
        match &self.backing.kind {
            backing::Kind::Vmm(_) => None,
            backing::Kind::Upstream(upstream) => upstream.resource().pool(),
        }
    }

    fn trim_to(&self, keep: u64) -> Result<()> {
        Self::trim_to(self, keep)
    }

    fn may_call_program(&self) -> bool {
        self.backing.may_call_program()
    }
}

impl Inner {
    /// Frees a block on a stream with this cache. `None` if it is a small block of no cache.
    #[inline(always)]
    pub(super) fn deallocate_in(
        &self,
        id: CacheId,
        address: CUdeviceptr,
        size: u32,
    ) -> Option<Result<()>> {
        let start = address / UNIT;
        match self.owner_of(address, size) {
            Some(owner) if owner == id => Some(self.free_to_pages(id, start, size)),
            None if !is_small(size) => Some(self.free_large(id, start, size)),
            Some(owner) => {
                self.free_remote(owner, id, start, size);
                Some(Ok(()))
            }
            None => None,
        }
    }
}

forward!(<> Arena => |arena| *arena.0);

/// The same resource for every handle of the arena.
impl From<Arena> for Resource {
    fn from(arena: Arena) -> Self {
        arena.1
    }
}
