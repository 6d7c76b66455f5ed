//! The arena: a sub-allocator that takes large pieces of memory and hands out parts of them without asking
//! the driver.
//!
//! Every stream has a lane ([`lane`]): the blocks that were freed last stand in front ([`front`]), and small
//! blocks are cut from pages of the lane's own, so that threads with streams of their own never meet. Large
//! blocks come from the commons ([`commons`]), where those of all streams lie side by side. Both keep their blocks by
//! best fit ([`fit`]). A free block in the commons knows who used it last ([`stamp`]); whoever else wants it looks
//! whether that is done, or waits ([`refill`]). A lock costs its usual thread no locked instruction
//! ([`lock`]). The bookkeeping knows no driver and no unsafe code; `course` and `ground` face the driver.

mod bins;
mod builder;
mod commons;
mod counters;
mod course;
mod end;
mod fit;
mod front;
mod giving;
mod ground;
mod growth;
mod index;
mod lane;
mod lanes;
mod lock;
mod node;
mod owned_bins;
mod owners;
#[cfg(test)]
pub(crate) mod random;
mod refill;
mod slots;
mod stamp;
mod stats;
mod thread;
mod trim;
mod unmarked;

/// What the lock is made of; a checker of the memory model puts its own in place.
mod sync {
    pub(super) use std::cell::UnsafeCell;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard};

    /// One round of waiting for another thread.
    pub(super) fn relax(tries: &mut u32) {
        *tries += 1;
        // Whoever is waited for may have been put to sleep.
        if *tries < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

pub use builder::ArenaBuilder;
pub use stats::{ArenaGround, ArenaStats, FreeSpace};

use std::alloc::Layout;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cuda_driver_sys::CUdeviceptr;

use crate::barrier;
use crate::device::Device;
use crate::error::Result;
use crate::ledger::{Item, LedgerKind};
use crate::pool::{Pool, ReusePolicy};
use crate::report;
use crate::resource::{MemoryProperties, MemoryResource, Resource, require_alignment};
use crate::stream::Stream;

use commons::Commons;
use counters::Counters;
use course::Calls;
use front::is_small;
use ground::Ground;
use lanes::{CentreGuard, Hall};
use lock::Lock;
use owners::{LaneId, Owners};
use slots::{Slot, Slots};

/// Blocks are multiples of so many bytes, and so aligned.
const UNIT: u64 = 256;
/// Memory moves between lanes and the commons in multiples of so many bytes. Each stream with small blocks has
/// one page at least, so a large page would be dear where there are many streams.
const PAGE: u64 = 256 << 10;
const PAGE_UNITS: u64 = PAGE / UNIT;
/// The arena grows in multiples of so many bytes: what the driver maps at least.
const GRANULE: u64 = 2 << 20;
const GRANULE_UNITS: u64 = GRANULE / UNIT;

/// A resource that cuts up large pieces of memory itself. An allocation and its free are a few
/// nanoseconds of bookkeeping and no driver call, from as many threads and streams as there are.
///
/// Memory freed on a stream is reused there at once. When a stream has none left, memory that was
/// freed on others is taken over, in whole pages of 256 KiB: if the host sees that it is done there, or, as
/// the [`ReusePolicy`] allows, by making the stream wait. Only then the arena grows. It keeps what it has
/// until it is [trimmed](MemoryResource::trim_to) or its last handle goes, and gives it back by itself before
/// it says that memory is out.
///
/// Where the device has virtual memory management (CUDA 10.2), the arena maps pages behind addresses of
/// its own, so that it grows without gaps; elsewhere, and over a resource of your choice
/// ([`over`](Self::over)), it cuts up blocks of that.
///
/// In graphs and between processes: memory of an arena is no graph's, so it can be neither allocated nor
/// freed on a stream that is being captured; a graph may use it while it is allocated. Parts of an
/// arena cannot be exported. For both there are pools.
///
/// A handle that can be cloned; all methods may be called from any thread.
///
/// ```
/// use cuda_mem::{Arena, Driver, Resource};
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
///
/// let arena = Arena::builder(&device).build()?;
/// let resource = Resource::from(arena.clone());
/// let buffer = resource.alloc_from(&stream, &[1.0f32, 2.0])?;
/// assert_eq!(buffer.to_vec()?, [1.0, 2.0]);
/// drop(buffer);
///
/// let again = resource.alloc::<f32>(&stream, 2)?; // the same memory, and no driver call
/// println!("{}", arena.stats());
/// assert_eq!(arena.stats().hits, 1);
/// # drop(again);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct Arena(Arc<Inner>);

/// What all handles of an arena share.
struct Inner {
    /// Tells arenas apart in the notes that streams keep.
    number: u32,
    device: Option<Device>,
    properties: MemoryProperties,
    reuse: ReusePolicy,
    ground: Arc<Ground>,
    /// Whose the pages are that small blocks are cut from.
    owners: Owners,
    lanes: Slots,
    commons: Lock<Commons>,
    /// Of the commons.
    counters: Counters,
    calls: Arc<Calls>,
    /// Larger blocks do not go in front, in units.
    front_limit: AtomicU32,
    /// What is done seldom is done by one thread at a time.
    hall: Arc<Hall>,
    seldom: Seldom,
}

/// What is counted where it is seldom done.
#[derive(Debug, Default)]
struct Seldom {
    refills: AtomicU64,
    taken_over: AtomicU64,
    grown: AtomicU64,
    released: AtomicU64,
}

/// There is no block in use that starts here, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unknown {
    start: u64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Inner {
    fn item(&self) -> Item {
        Item::new(LedgerKind::Arena, u64::from(self.number)).on(self.device)
    }

    /// The stream's lane, if it is at hand.
    #[inline]
    fn lane_at_hand(&self, stream: &Stream) -> Option<LaneId> {
        let note = stream.slot(self.number).load(Ordering::Relaxed);
        ((note >> 32) as u32 == self.number).then_some(note as u32)
    }

    /// From the lane and the commons as they are.
    #[inline]
    fn at_hand(&self, id: LaneId, size: u32) -> Option<u64> {
        let me = thread::number();
        let slot = self.slot(id);
        let large = !is_small(size);
        // Of large blocks one at most stands in front, and its size is known without the lock.
        if !large || slot.counters.fronted() == u64::from(size) {
            let found = slot.lock.lock(me).allocate(size, &slot.counters);
            if found.is_some() || !large {
                return found;
            }
        }
        let mut commons = self.commons.lock(me);
        commons.allocate(size, id, &self.counters)
    }

    fn centre(&self) -> CentreGuard<'_> {
        self.hall.centre()
    }

    #[inline]
    fn slot(&self, lane: LaneId) -> &Slot {
        self.lanes.get(lane)
    }
}

/// How many units so many bytes take. Layouts are at most half of what a `usize` says.
#[inline]
fn units(bytes: usize) -> Option<u32> {
    u32::try_from((bytes as u64).div_ceil(UNIT)).ok()
}

impl Arena {
    /// An arena for the memory of this device. See [`ArenaBuilder`].
    pub fn builder(device: &Device) -> ArenaBuilder {
        ArenaBuilder::new(*device)
    }

    /// An arena that cuts up blocks of another resource, such as pinned or managed memory. The resource must
    /// live as long, and is given its blocks back when the arena is trimmed or ends. While the arena has any
    /// of them, it keeps the context of the stream that the first was for.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver, PinnedResource, Resource};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// let stream = driver.device(0)?.primary_context()?.stream()?;
    /// let pinned = Arena::over(PinnedResource::new(driver));
    /// let staging = Resource::from(pinned).alloc::<u8>(&stream, 1 << 20)?;
    /// # drop(staging);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn over(upstream: impl MemoryResource + 'static) -> Self {
        ArenaBuilder::over(Resource::new(upstream))
    }

    /// Two handles are of one arena.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

// SAFETY: a block is whole units of memory that the arena has, and is in no other block until it was given
// back (`fit`). It becomes its stream's once all earlier users are before that point of the stream: it was
// given back in the order of that stream, or the stream was made to wait, or the host saw the end (`refill`).
// Pages start at multiples of 256 KiB, and units are 256 bytes.
unsafe impl MemoryResource for Arena {
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let inner = &*self.0;
        require_alignment(self, layout)?;
        if let Some(size) = units(layout.size())
            && size != 0
            && !report::is_forked()
            && let Some(id) = inner.lane_at_hand(stream)
            && let Some(start) = inner.at_hand(id, size)
        {
            return Ok(start * UNIT);
        }
        inner.allocate_slowly(layout, stream)
    }

    #[inline]
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> Result<()> {
        let inner = &*self.0;
        if address == 0 {
            return Ok(());
        }
        let Some(size) = units(layout.size()) else {
            let start = address / UNIT;
            return Err(inner.unknown(Unknown { start }));
        };
        if !report::is_forked()
            && let Some(id) = inner.lane_at_hand(stream)
            && (!is_small(size) || inner.owners.of(address) == Some(id))
        {
            return inner.free_at_hand(id, address / UNIT, size);
        }
        inner.deallocate_slowly(address, size, stream)
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.0.properties
    }

    fn pool(&self) -> Option<&Pool> {
        match &*self.0.ground {
            Ground::Vmm(_) => None,
            Ground::Upstream(upstream) => upstream.resource().pool(),
        }
    }

    fn trim_to(&self, keep: u64) -> Result<()> {
        self.0.trim_to(keep)
    }
}

impl From<Arena> for Resource {
    fn from(arena: Arena) -> Self {
        Self::new(arena)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "arena {} ({})", self.number, self.source())
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({}, {})", self.number, self.source())
    }
}
