//! An arena that tells the simulator's order sanitizer of its blocks.

use std::alloc::Layout;

use cuda_mem::{Arena, MemoryProperties, MemoryResource, Pool, Result, Stream};
use cuda_sim::control::Control;

#[derive(Debug)]
pub(super) struct Annotated {
    pub(super) arena: Arena,
    /// None on a GPU.
    pub(super) control: Option<&'static Control>,
}

// SAFETY: all memory comes from the arena and goes back there.
unsafe impl MemoryResource for Annotated {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<u64> {
        let address = self.arena.allocate(layout, stream)?;
        if let Some(control) = self.control
            && address != 0
        {
            // What it finds wrong it reports.
            let _ = control.annotate_allocate(address, layout.size() as u64, stream.as_raw());
        }
        Ok(address)
    }

    unsafe fn deallocate(&self, address: u64, layout: Layout, stream: &Stream) -> Result<()> {
        // Before, because the arena may mark the stream when it takes the block back.
        if let Some(control) = self.control
            && address != 0
        {
            let _ = control.annotate_free(address, layout.size() as u64, stream.as_raw());
        }
        // SAFETY: the caller's.
        unsafe { self.arena.deallocate(address, layout, stream) }
    }

    unsafe fn deallocate_after(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
        others: &[&Stream],
    ) -> Result<()> {
        // The programs use a block on one stream after the other, so the last one is the end.
        let last = others.last().copied().unwrap_or(stream);
        if let Some(control) = self.control
            && address != 0
        {
            let _ = control.annotate_free(address, layout.size() as u64, last.as_raw());
        }
        // SAFETY: the caller's.
        unsafe { self.arena.deallocate_after(address, layout, stream, others) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.arena.memory_properties()
    }

    fn pool(&self) -> Option<&Pool> {
        self.arena.pool()
    }

    fn trim_to(&self, keep: u64) -> Result<()> {
        self.arena.trim_to(keep)
    }
}
