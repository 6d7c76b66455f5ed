//! An arena that tells the simulator's order sanitizer of its blocks.

use std::alloc::Layout;

use cuda_mem::memory::MemoryProperties;
use cuda_mem::{Arena, MemoryResource, Pool, Result, Stream};
use cuda_sim::control::Control;

#[derive(Debug)]
pub(crate) struct Annotated {
    pub(crate) arena: Arena,
    /// None on a GPU.
    pub(crate) control: Option<&'static Control>,
}

impl Annotated {
    fn allocated(&self, address: u64, layout: Layout, stream: &Stream) {
        if let Some(control) = self.control
            && address != 0
        {
            let bytes = layout.size() as u64;
            // A default stream is that of the context which is current.
            let _current = stream.context().bind();
            // What it finds wrong it reports.
            let _ = control.annotate_allocate(address, bytes, stream.as_raw());
        }
    }

    /// What the arena did not take back lives on.
    fn unless_refused(
        &self,
        freed: Result<()>,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> Result<()> {
        freed.inspect_err(|error| {
            if error.had_no_effect() {
                self.allocated(address, layout, stream);
            }
        })
    }

    /// Before the free, because the arena may record an event in the stream when it takes the block back.
    fn free(&self, address: u64, layout: Layout, stream: &Stream) {
        if let Some(control) = self.control
            && address != 0
        {
            let bytes = layout.size() as u64;
            let _current = stream.context().bind();
            let _ = control.annotate_free(address, bytes, stream.as_raw());
        }
    }
}

// SAFETY: all memory comes from the arena and goes back there.
unsafe impl MemoryResource for Annotated {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<u64> {
        let address = self.arena.allocate(layout, stream)?;
        self.allocated(address, layout, stream);
        Ok(address)
    }

    unsafe fn deallocate(&self, address: u64, layout: Layout, stream: &Stream) -> Result<()> {
        self.free(address, layout, stream);
        // SAFETY: the caller's.
        let freed = unsafe { self.arena.deallocate(address, layout, stream) };
        self.unless_refused(freed, address, layout, stream)
    }

    unsafe fn deallocate_after(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
        others: &[&Stream],
    ) -> Result<()> {
        // The programs use a block on one stream after the other, so the last one is the end.
        self.free(address, layout, others.last().copied().unwrap_or(stream));
        // SAFETY: the caller's.
        let freed = unsafe { self.arena.deallocate_after(address, layout, stream, others) };
        self.unless_refused(freed, address, layout, stream)
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
