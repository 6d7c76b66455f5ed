//! Checking frees before they reach upstream.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::fmt;
use std::thread::ThreadId;

use cuda_driver_sys::{CU_STREAM_PER_THREAD, CUdeviceptr};

use super::{calls_program_as_upstream, debug_over, free_through_self, from_upstream};
use crate::base::error::{Bytes, Error, Result, took_effect};
use crate::base::lock::SpinLock;
use crate::base::report;
use crate::base::table::Shards;
use crate::memory::buffer::FreeOnOther;
use crate::memory::resource::MemoryResource;
use crate::stream::Stream;

/// Checks every free, for callers that the compiler does not check: C, Python, and `unsafe` Rust.
///
/// A free of an address that is not allocated, or with another size or alignment than it was allocated with, returns
/// [`InvalidValue`](crate::ErrorKind::InvalidValue) with an explanation, and has no effect. With
/// [`with_streams`](Self::with_streams), so does a free on another stream than the allocating one.
///
/// Allocating and freeing cost a lookup in a table each, some tens of nanoseconds. A resource without this adaptor pays
/// nothing. [`TrackingAdaptor`](super::TrackingAdaptor) also knows where memory was allocated, and passes wrong frees on.
///
/// ```
/// use std::alloc::Layout;
/// use cuda_mem::{Arena, Driver, MemoryResource};
/// use cuda_mem::memory::CheckedAdaptor;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let checked = CheckedAdaptor::new(Arena::builder(&device).build()?);
/// let layout = Layout::from_size_align(1000, 256).expect("an alignment of 256 bytes");
/// let address = checked.allocate(layout, &stream)?;
/// // SAFETY: allocated above, for this layout, and unused.
/// unsafe { checked.deallocate(address, layout, &stream) }?;
/// // SAFETY: the adaptor refuses it.
/// let error = unsafe { checked.deallocate(address, layout, &stream) }.expect_err("freed twice");
/// println!("{error}");
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct CheckedAdaptor<U> {
    upstream: U,
    live: Shards<Block>,
    /// The blocks freed last, to tell a second free from a foreign address.
    freed: SpinLock<VecDeque<CUdeviceptr>>,
    has_streams: bool,
}

/// How many frees are remembered.
const REMEMBERED: usize = 1024;

/// An allocated block.
#[derive(Clone, Copy, Debug)]
struct Block {
    layout: Layout,
    stream: Identity,
}

/// Identifies a stream, through any of its handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    raw: usize,
    context: usize,
    /// Each thread has a default stream of its own, under one handle.
    thread: Option<ThreadId>,
}

impl Identity {
    fn of(stream: &Stream) -> Self {
        let is_own = stream.as_raw() == CU_STREAM_PER_THREAD;
        Self {
            raw: stream.as_raw().addr(),
            context: stream.context().as_raw().addr(),
            thread: is_own.then(|| std::thread::current().id()),
        }
    }
}

impl<U: MemoryResource> CheckedAdaptor<U> {
    /// Checks the addresses, sizes and alignments of frees.
    pub fn new(upstream: U) -> Self {
        Self {
            upstream,
            live: Shards::default(),
            freed: SpinLock::default(),
            has_streams: false,
        }
    }

    /// Also refuses frees on another stream than the allocating one. Such a free is right if that stream waits for all
    /// uses, which cannot be seen here: use [`deallocate_after`](MemoryResource::deallocate_after) with the allocating
    /// stream instead. A buffer that is dropped during a capture of its stream, or by another thread than that of its
    /// per-thread stream, is freed on another stream by this crate, which is right.
    #[must_use]
    pub fn with_streams(self) -> Self {
        Self {
            has_streams: true,
            ..self
        }
    }

    /// Where the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// The layout that a block was allocated with; `None` if no block begins there.
    #[must_use]
    pub fn layout_of(&self, address: CUdeviceptr) -> Option<Layout> {
        self.live.copied(address).map(|block| block.layout)
    }

    /// The number of live allocations.
    #[must_use]
    pub fn live_count(&self) -> usize {
        self.live.len()
    }

    /// Removes a block that is freed, unless the free is wrong.
    fn take(&self, address: CUdeviceptr, layout: Layout, stream: &Stream) -> Result<Block> {
        let wrong = |block: &Block| {
            if block.layout != layout {
                Some(wrong_layout(address, block.layout, layout))
            } else if self.has_streams
                && block.stream != Identity::of(stream)
                && !FreeOnOther::is_running()
            {
                Some(wrong_stream(address, block, stream))
            } else {
                None
            }
        };
        let taken = self.live.remove_unless(address, wrong);
        taken.unwrap_or_else(|| Err(self.explain_missing(address)))
    }

    fn free(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
        upstream: impl FnOnce(CUdeviceptr, Layout) -> Result<()>,
    ) -> Result<()> {
        // In a fork there are no tables, and upstream knows what to do.
        if address == 0 || report::is_forked() {
            return upstream(address, layout);
        }
        // Before upstream has it: from then on another thread may get the same address.
        let block = self.take(address, layout, stream)?;
        let freed = upstream(address, layout);
        if took_effect(&freed) {
            self.remember(address);
        } else {
            self.live.insert(address, block);
        }
        freed
    }

    fn remember(&self, address: CUdeviceptr) {
        if let Some(mut freed) = self.freed.lock_unless_forked() {
            if freed.len() == REMEMBERED {
                freed.pop_front();
            }
            freed.push_back(address);
        }
    }

    #[cold]
    fn explain_missing(&self, address: CUdeviceptr) -> Error {
        let was_freed = self.freed.lock_unless_forked();
        if was_freed.is_some_and(|freed| freed.contains(&address)) {
            return Error::invalid(format!(
                "{address:#x} was freed here before; it is freed twice, or belongs to another resource now"
            ));
        }
        let mut around = None;
        self.live.for_each(|start, block| {
            let offset = address.checked_sub(start);
            if offset.is_some_and(|offset| offset < block.layout.size() as u64) {
                around = Some((start, block.layout.size()));
            }
        });
        Error::invalid(match around {
            Some((start, bytes)) => format!(
                "{address:#x} is no block: it lies in the block of {} at {start:#x}",
                Bytes(bytes as u64)
            ),
            None => format!(
                "{address:#x} is not allocated from this resource: it comes from elsewhere, or was freed long ago"
            ),
        })
    }
}

#[cold]
fn wrong_layout(address: CUdeviceptr, allocated: Layout, freed: Layout) -> Error {
    Error::invalid(format!(
        "{address:#x} was allocated as {} aligned to {}, and is freed as {} aligned to {}",
        Bytes(allocated.size() as u64),
        allocated.align(),
        Bytes(freed.size() as u64),
        freed.align()
    ))
}

#[cold]
fn wrong_stream(address: CUdeviceptr, block: &Block, stream: &Stream) -> Error {
    Error::invalid(format!(
        "{address:#x} was allocated on stream {:#x} and is freed on {stream}; free it on its own stream, after the \
         others",
        block.stream.raw
    ))
}

/// Without the tables, which may be long.
impl<U: fmt::Debug> fmt::Debug for CheckedAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_over(f, "CheckedAdaptor", &self.upstream)
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl<U: MemoryResource> MemoryResource for CheckedAdaptor<U> {
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let address = self.upstream.allocate(layout, stream)?;
        if address != 0 {
            let block = Block {
                layout,
                stream: Identity::of(stream),
            };
            self.live.insert(address, block);
        }
        Ok(address)
    }

    free_through_self!();
    from_upstream!();
    calls_program_as_upstream!();
}
