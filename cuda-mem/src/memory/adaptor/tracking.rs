//! Tracking live allocations and their origins.

use super::debug_over;
use std::alloc::Layout;
use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_driver_sys::CUdeviceptr;

use super::{calls_program_as_upstream, free_through_self, from_upstream};
use crate::base::biased::thread;
use crate::base::error::{Bytes, Result, took_effect};
use crate::base::origin;
use crate::base::table::Shards;
use crate::memory::resource::MemoryResource;
use crate::stream::Stream;

/// Records every live allocation and the place in the program that made it.
///
/// The place is the line that called this crate's allocating function. Full backtraces are captured on request;
/// each costs microseconds.
///
/// ```
/// use std::sync::Arc;
/// use cuda_mem::{Driver, MemoryPool, Resource};
/// use cuda_mem::memory::TrackingAdaptor;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let tracked = Arc::new(TrackingAdaptor::new(MemoryPool::builder(&device).build()?));
/// let resource = Resource::from(tracked.clone());
/// let buffer = resource.alloc::<u8>(&stream, 1000)?; // this line
/// let live = tracked.live();
/// assert_eq!(live.len(), 1);
/// assert_eq!((live[0].address, live[0].bytes), (buffer.as_raw(), 1000));
/// println!("{}", live[0]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct TrackingAdaptor<U> {
    upstream: U,
    live: Shards<Record>,
    /// Stored separately, so that programs without backtraces do not pay for them.
    backtraces: Option<Shards<Arc<Backtrace>>>,
    unknown: AtomicU64,
}

/// The record of an allocation.
#[derive(Clone, Copy, Debug)]
struct Record {
    bytes: usize,
    thread: u64,
    origin: &'static Location<'static>,
}

/// An allocation that has not been freed. From [`TrackingAdaptor::live`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LiveAllocation {
    /// Its address.
    pub address: CUdeviceptr,
    /// The requested bytes.
    pub bytes: usize,
    /// The number of the allocating thread, counted from 1 in order of first use.
    pub thread: u64,
    /// The line of the program that allocated.
    pub origin: &'static Location<'static>,
    /// The backtrace, if enabled.
    pub backtrace: Option<Arc<Backtrace>>,
}

/// One line: `1000 B at 0x7f2d00000000, from src/main.rs:12:5, thread 1`.
impl fmt::Display for LiveAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at {:#x}, from {}, thread {}",
            Bytes(self.bytes as u64),
            self.address,
            self.origin,
            self.thread
        )
    }
}

impl<U: MemoryResource> TrackingAdaptor<U> {
    /// Tracks allocations of `upstream`, with the line that requested each.
    pub fn new(upstream: U) -> Self {
        Self {
            upstream,
            live: Shards::default(),
            backtraces: None,
            unknown: AtomicU64::new(0),
        }
    }

    /// Also captures a backtrace of each allocation.
    #[must_use]
    pub fn with_backtraces(self) -> Self {
        Self {
            backtraces: Some(Shards::default()),
            ..self
        }
    }

    /// Where the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// The live allocations, by address. Not a consistent snapshot while other threads allocate or free.
    #[must_use]
    pub fn live(&self) -> Vec<LiveAllocation> {
        let mut live = Vec::with_capacity(self.live.len());
        self.live.for_each(|address, record| {
            live.push(LiveAllocation {
                address,
                bytes: record.bytes,
                thread: record.thread,
                origin: record.origin,
                backtrace: None,
            });
        });
        if let Some(backtraces) = &self.backtraces {
            let mut by_address = HashMap::new();
            backtraces.for_each(|address, backtrace| {
                by_address.insert(address, Arc::clone(backtrace));
            });
            for allocation in &mut live {
                allocation.backtrace = by_address.remove(&allocation.address);
            }
        }
        live.sort_unstable_by_key(|allocation| allocation.address);
        live
    }

    /// The number of live allocations.
    #[must_use]
    pub fn live_count(&self) -> usize {
        self.live.len()
    }

    /// The number of frees of memory that did not come from this adaptor. They are passed on to upstream.
    #[must_use]
    pub fn unknown_count(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }
}

/// Without the tables, which may be long.
impl<U: fmt::Debug> fmt::Debug for TrackingAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_over(f, "TrackingAdaptor", &self.upstream)
    }
}

impl<U: MemoryResource> TrackingAdaptor<U> {
    #[inline]
    fn free(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        _stream: &Stream,
        upstream: impl FnOnce(CUdeviceptr, Layout) -> Result<()>,
    ) -> Result<()> {
        // Before upstream has it: from then on another thread may get the same address.
        let record = self.live.remove(address);
        let backtraces = self.backtraces.as_ref();
        let backtrace = backtraces.and_then(|backtraces| backtraces.remove(address));
        if record.is_none() && address != 0 {
            self.unknown.fetch_add(1, Ordering::Relaxed);
        }
        let freed = upstream(address, layout);
        if let Some(record) = record
            && !took_effect(&freed)
        {
            self.live.insert(address, record);
            if let (Some(backtraces), Some(backtrace)) = (backtraces, backtrace) {
                backtraces.insert(address, backtrace);
            }
        }
        freed
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl<U: MemoryResource> MemoryResource for TrackingAdaptor<U> {
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let address = self.upstream.allocate(layout, stream)?;
        if address != 0 {
            let record = Record {
                bytes: layout.size(),
                thread: thread::own(),
                origin: origin::current(),
            };
            self.live.insert(address, record);
            if let Some(backtraces) = &self.backtraces {
                backtraces.insert(address, Arc::new(Backtrace::force_capture()));
            }
        }
        Ok(address)
    }

    free_through_self!();

    from_upstream!();
    calls_program_as_upstream!();
}
