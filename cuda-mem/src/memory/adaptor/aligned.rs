//! Larger alignments than upstream provides.

use super::debug_over;
use std::alloc::Layout;
use std::fmt;

use cuda_driver_sys::CUdeviceptr;

use super::{calls_program_as_upstream, free_through_self, from_upstream};
use crate::base::error::{Error, Result, took_effect};
use crate::base::table::Shards;
use crate::memory::resource::{MemoryResource, RESOURCE_ALIGNMENT};
use crate::stream::Stream;

/// Aligns memory to more than the 256 bytes that every resource guarantees: to the alignment of each request, and
/// to a common minimum if one is set. It requests more bytes from upstream and hands out part of them.
///
/// ```
/// use cuda_mem::{Driver, MemoryPool, Resource};
/// use cuda_mem::memory::AlignedAdaptor;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let pool = MemoryPool::builder(&device).build()?;
/// let resource = Resource::new(AlignedAdaptor::new(pool, 4096)?);
/// let buffer = resource.alloc::<u8>(&stream, 1000)?;
/// assert_eq!(buffer.as_raw() % 4096, 0);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct AlignedAdaptor<U> {
    upstream: U,
    alignment: usize,
    threshold: usize,
    /// Maps our addresses to upstream's, where they differ.
    moved: Shards<CUdeviceptr>,
}

impl<U: MemoryResource> AlignedAdaptor<U> {
    /// Aligns every allocation to at least `alignment` bytes.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) unless it is a power of two.
    pub fn new(upstream: U, alignment: usize) -> Result<Self> {
        if !alignment.is_power_of_two() {
            return Err(Error::invalid(format!(
                "an alignment is a power of two, and {alignment} is not"
            )));
        }
        Ok(Self {
            upstream,
            alignment,
            threshold: 0,
            moved: Shards::default(),
        })
    }

    /// Applies the common alignment only to allocations of at least `threshold` bytes.
    #[must_use]
    pub fn with_threshold_bytes(self, threshold: usize) -> Self {
        Self { threshold, ..self }
    }

    /// Where the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// The alignment for a request; always the same for one layout.
    #[inline]
    fn alignment_of(&self, layout: Layout) -> usize {
        if layout.size() >= self.threshold {
            layout.align().max(self.alignment)
        } else {
            layout.align()
        }
    }
}

/// A layout large enough to contain the aligned bytes, wherever upstream's memory begins.
#[inline]
fn enlarged(layout: Layout, alignment: usize) -> Result<Layout> {
    layout
        .size()
        .checked_add(alignment - RESOURCE_ALIGNMENT)
        .and_then(|bytes| Layout::from_size_align(bytes, RESOURCE_ALIGNMENT).ok())
        .ok_or_else(|| {
            Error::invalid(format!(
                "{} bytes aligned to {alignment} are more than the address space has",
                layout.size()
            ))
        })
}

/// Without the tables, which may be long.
impl<U: fmt::Debug> fmt::Debug for AlignedAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("AlignedAdaptor({})", self.alignment);
        debug_over(f, &name, &self.upstream)
    }
}

impl<U: MemoryResource> AlignedAdaptor<U> {
    #[inline]
    fn free(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        _stream: &Stream,
        upstream: impl FnOnce(CUdeviceptr, Layout) -> Result<()>,
    ) -> Result<()> {
        let alignment = self.alignment_of(layout);
        if alignment <= RESOURCE_ALIGNMENT || address == 0 {
            return upstream(address, layout);
        }
        let layout = enlarged(layout, alignment)?;
        // Before upstream has it: from then on another thread may get the same address.
        let moved = self.moved.remove(address);
        let theirs = moved.unwrap_or(address);
        let freed = upstream(theirs, layout);
        if moved.is_some() && !took_effect(&freed) {
            self.moved.insert(address, theirs);
        }
        freed
    }
}

// SAFETY: all memory comes from upstream and goes back there; what is handed out is inside it.
unsafe impl<U: MemoryResource> MemoryResource for AlignedAdaptor<U> {
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let alignment = self.alignment_of(layout);
        if alignment <= RESOURCE_ALIGNMENT || layout.size() == 0 {
            return self.upstream.allocate(layout, stream);
        }
        let address = self
            .upstream
            .allocate(enlarged(layout, alignment)?, stream)?;
        let aligned = address.next_multiple_of(alignment as u64);
        if aligned != address {
            self.moved.insert(aligned, address);
        }
        Ok(aligned)
    }

    free_through_self!();

    from_upstream!();
    calls_program_as_upstream!();
}
