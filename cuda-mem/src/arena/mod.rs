//! A sub-allocator: large pieces of memory, and parts of them without a driver call.
//!
//! An [`Arena`] is a [memory resource](crate::MemoryResource). Take one where threads allocate often, or where the
//! device has no pools. [`ArenaBuilder`] sets how it grows, reuses and releases memory, [`ArenaStats`] reports what it
//! holds, an [`ArenaPin`] keeps memory in place whose address others hold, and a [`CapturePool`] serves captured
//! streams, an [`ExternalCapturePool`] those that other code captures. [`SleepContents`] is for arenas that release all
//! physical memory and keep their addresses.

// Every stream has a cache (`stream_cache`): its last-freed blocks (`last_freed`), and pages from which small blocks
// are cut. So threads with their own streams never contend. Threads that share a stream also have small caches of their
// own (`thread_cache`). Large blocks come from the central heap (`central_heap`), where those of all streams lie side
// by side. Stream caches and the central heap are TLSF heaps (`tlsf`). A free block of the central heap has a last use
// (`last_use`). Before another stream gets the block, the arena checks that this use is done, or makes the stream wait
// (`refill`). Locks are biased to the thread that uses them most (`base::biased::lock`). The bookkeeping makes no
// driver calls and has no unsafe code; `stream_progress` and `backing` talk to the driver.

mod ahead;
mod attached_stream;
mod background;
mod backing;
mod builder;
mod cache_pages;
mod cache_table;
mod capture_pool;
mod central_heap;
mod counters;
mod external_capture_pool;
mod free;
mod grow;
mod header;
mod index;
mod last_freed;
mod last_use;
mod late_waits;
#[cfg(feature = "metrics")]
mod metrics;
mod moves;
mod moves_back;
mod observed;
mod observer;
mod page_map;
mod parked;
mod pin;
#[cfg(test)]
pub(crate) mod random;
mod recorded_events;
mod refill;
mod regions;
mod remote_queue;
mod resource;
mod size_classes;
mod sleep;
mod slow_path;
mod snapshot;
mod stats;
mod stream_cache;
mod stream_progress;
mod teardown;
mod thread_cache;
mod tlsf;
mod trim;
mod unrecorded;
mod user_size_classes;

/// The atomics of `late_waits`; a memory-model checker substitutes its own.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

pub use builder::ArenaBuilder;
use builder::Source;
pub use capture_pool::CapturePool;
pub use external_capture_pool::ExternalCapturePool;
pub use pin::ArenaPin;
pub use sleep::SleepContents;
pub use stats::{ArenaBacking, ArenaStats, FreeSpace};

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytemuck::Pod;

use crate::base::biased::lock::{self, BiasedLock};
use crate::base::biased::thread;
use crate::base::error::Result;
use crate::driver::device::Device;
use crate::ledger::{Item, LedgerKind, Recorder};
use crate::memory::buffer::DeviceBuffer;
use crate::memory::pool::{ReleaseThreshold, ReusePolicy};
use crate::memory::resource::{MemoryProperties, MemoryResource, Resource};
use crate::stream::Stream;
use crate::stream::after_wait;

use background::Background;
use backing::Backing;
use cache_table::{CacheSlot, CacheTable};
use central_heap::CentralHeap;
use counters::Counters;
use last_freed::{MEDIUM, is_small};
use late_waits::LateWaits;
use moves::Moves;
use page_map::CacheId;
use pin::Pins;
use slow_path::{SlowPath, SlowStateGuard};

/// Block sizes and addresses are multiples of this many bytes.
const UNIT: u64 = 256;
/// Memory moves between caches and the central heap in multiples of this many bytes. Each stream with small blocks has
/// at least one page, so large pages would be expensive with many streams.
const PAGE: u64 = 256 << 10;
const PAGE_UNITS: u64 = PAGE / UNIT;
/// The arena grows in multiples of this many bytes, the least that the driver maps.
const GRANULE: u64 = 2 << 20;
const GRANULE_UNITS: u64 = GRANULE / UNIT;

/// A resource that sub-allocates large pieces of memory itself. An allocation and its free take a few nanoseconds of
/// bookkeeping and no driver call, from any number of threads and streams.
///
/// Memory freed on a stream is reused there at once. When a stream has none left, it takes over memory that was freed
/// on other streams, in whole pages of 256 KiB: memory that the host knows to be done or, if the [`ReusePolicy`]
/// allows, by making the stream wait. Only then does the arena grow. It keeps its memory until it is
/// [trimmed](MemoryResource::trim_to) or its last handle is dropped, and releases free memory before it reports out of
/// memory.
///
/// Where the device has virtual memory management (CUDA 10.2), the arena maps pages into its own address ranges, so
/// that it grows without gaps. Elsewhere, and over a resource of your choice ([`over`](Self::over)), it sub-allocates
/// blocks of that resource.
///
/// In graphs and between processes: memory of an arena can be neither allocated nor freed on a stream that is being
/// captured. A graph may use it while it is allocated, and captures allocate from a
/// [`capture_pool`](Self::capture_pool). Parts of an arena cannot be exported; use pools for that.
///
/// A cloneable handle; all methods may be called from any thread.
///
/// ```
/// use cuda_mem::{Arena, Driver};
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
///
/// let arena = Arena::builder(&device).build()?;
/// let buffer = arena.alloc_from(&stream, &[1.0f32, 2.0])?;
/// assert_eq!(buffer.to_vec()?, [1.0, 2.0]);
/// drop(buffer);
///
/// let again = arena.alloc::<f32>(&stream, 2)?; // the same memory, and no driver call
/// println!("{}", arena.stats());
/// assert_eq!(arena.stats().hits, 1);
/// # drop(again);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct Arena(Arc<Inner>, Resource);

/// What all handles of an arena share.
struct Inner {
    /// Identifies the arena in the slots of streams.
    number: u32,
    device: Option<Device>,
    properties: MemoryProperties,
    reuse: ReusePolicy,
    /// Bytes of the first growth; 0 if not set, or if the device has too little memory.
    initial: AtomicU64,
    /// The arena may hold this many times the program's peak before memory moves.
    slack: f64,
    /// How long a growth beyond that may wait for the device.
    growth_wait: Duration,
    /// The highest demand of the program so far, in bytes.
    mark: AtomicU64,
    moves: Moves,
    pins: Pins,
    /// The release threshold: bytes kept when the program waits.
    threshold: AtomicU64,
    late_waits: LateWaits,
    backing: Arc<Backing>,
    caches: CacheTable,
    central: Central,
    slow_path: Arc<SlowPath>,
    /// Its own thread, if it has one.
    background: OnceLock<Background>,
}

/// The central heap behind its lock, and its counters, which are read without it. On its own cache lines, because every
/// request reads the other fields of [`Inner`].
#[derive(Debug)]
#[repr(align(128))]
struct Central {
    heap: BiasedLock<CentralHeap>,
    counters: Counters,
}

impl Central {
    fn new() -> Self {
        Self {
            heap: BiasedLock::new(thread::number(), CentralHeap::default()),
            counters: Counters::default(),
        }
    }

    #[inline]
    fn lock(&self, thread: u64) -> lock::Guard<'_, CentralHeap> {
        self.heap.lock(thread)
    }
}

/// No block in use starts at this unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UnknownBlock {
    start: u64,
}

impl Inner {
    fn item(&self) -> Item {
        Item::new(LedgerKind::Arena, u64::from(self.number)).on(self.device)
    }

    /// The stream's cache, if it is noted in the stream's slot.
    #[inline]
    fn noted_cache(&self, stream: &Stream) -> Option<CacheId> {
        // Acquire: another thread may have added the cache to the table.
        let note = stream.slot(self.number).load(Ordering::Acquire);
        ((note >> 32) as u32 == self.number).then_some(note as u32)
    }

    /// Allocates from the cache or the central heap. Before it takes from the central heap, it queries the streams on
    /// which much was freed.
    #[inline(always)]
    fn try_allocate(&self, id: CacheId, size: u32) -> Option<u64> {
        self.try_allocate_after(id, size, || self.query_freed(&mut self.slow_state()))
    }

    /// As [`try_allocate`](Self::try_allocate), with the function that queries the streams.
    #[inline(always)]
    fn try_allocate_after(
        &self,
        id: CacheId,
        size: u32,
        query_freed: impl FnOnce(),
    ) -> Option<u64> {
        let me = thread::number();
        let slot = self.slot(id);
        if self.caches.cuts(slot, size) {
            let found = match slot.lock.lock_by_owner(me) {
                Some(mut cache) => cache.allocate(size, &slot.counters),
                None => self.allocate_shared(id, size),
            };
            if found.is_some() {
                return found;
            }
            if self.central.lock(me).has_to_query() {
                query_freed();
            }
            return if is_small(size) {
                None
            } else {
                self.take(id, size)
            };
        }
        // At most one large block is cached, and its size can be read without the lock.
        if slot.counters.cached_large() == u64::from(size)
            && let Some(start) = slot.lock.lock(me).allocate_large(size, &slot.counters)
        {
            return Some(start);
        }
        let counters = &self.central.counters;
        if let Some(mut central) = self.central.heap.lock_by_owner(me) {
            if !central.has_to_query() {
                return central.allocate(size, id, counters);
            }
            drop(central);
            query_freed();
            return self.central.lock(me).allocate(size, id, counters);
        }
        let mut central = self.central.lock(me);
        if self.caches.is_medium(size) {
            slot.keeping
                .came((self.number, id), central.is_waited_for(), || {
                    // If streams may not wait for each other, memory that one keeps is lost to the others.
                    self.may_wait().then(|| central.take_freed_elsewhere(id))
                });
        }
        if central.has_to_query() {
            drop(central);
            query_freed();
            central = self.central.lock(me);
        }
        central.allocate(size, id, counters)
    }

    /// Allocates from a stream's cache, on a thread to which its lock is not biased.
    fn allocate_shared(&self, id: CacheId, size: u32) -> Option<u64> {
        let (me, slot) = (thread::number(), self.slot(id));
        if is_small(size)
            && let Some(own) = slot.threads.of_thread(self.number, id, me)
            && let Some(start) = own.allocate(size, me)
        {
            return Some(start);
        }
        slot.lock.lock(me).allocate(size, &slot.counters)
    }

    /// The cache from whose pages a block was cut; `None` for a block of the central heap.
    #[inline]
    fn owner_of(&self, address: u64, size: u32) -> Option<CacheId> {
        if size > MEDIUM {
            return None;
        }
        self.caches.page_map.cache_of(address)
    }

    fn slow_state(&self) -> SlowStateGuard<'_> {
        self.slow_path.lock()
    }

    #[inline]
    fn slot(&self, cache: CacheId) -> &CacheSlot {
        self.caches.get(cache)
    }
}

/// The number of units that `bytes` take. A layout has at most `isize::MAX` bytes.
#[inline]
fn units(bytes: usize) -> Option<u32> {
    u32::try_from((bytes as u64).div_ceil(UNIT)).ok()
}

impl Arena {
    /// An arena for the memory of this device. See [`ArenaBuilder`].
    pub fn builder(device: &Device) -> ArenaBuilder {
        ArenaBuilder::new(Source::Device(*device))
    }

    /// An arena that sub-allocates blocks of another resource, with settings. See [`over`](Self::over).
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver, ReusePolicy};
    /// use cuda_mem::memory::PinnedResource;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// let staging = Arena::builder_over(PinnedResource::new(driver))
    ///     .reuse(ReusePolicy::ALLOW_OPPORTUNISTIC) // only what the host knows to be done
    ///     .max_bytes(1 << 30)
    ///     .build()?;
    /// # drop(staging);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn builder_over(upstream: impl MemoryResource + 'static) -> ArenaBuilder {
        ArenaBuilder::new(Source::Upstream(Resource::new(upstream)))
    }

    /// An arena that sub-allocates blocks of another resource, such as pinned or managed memory. The resource must live
    /// as long as the arena, and gets its blocks back when the arena is trimmed or dropped. While the arena has any of
    /// them, it keeps the context of the stream of the first allocation.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver};
    /// use cuda_mem::memory::PinnedResource;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// let stream = driver.device(0)?.primary_context()?.stream()?;
    /// let pinned = Arena::over(PinnedResource::new(driver));
    /// let staging = pinned.alloc::<u8>(&stream, 1 << 20)?;
    /// # drop(staging);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn over(upstream: impl MemoryResource + 'static) -> Self {
        ArenaBuilder::over(Resource::new(upstream))
    }

    /// Allocates `len` elements in the order of `stream`. Their contents are unspecified. Usually makes no driver call.
    /// Does not synchronise. The buffer keeps the arena alive.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory), with the numbers of the arena;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the size overflows, or if the stream's device has no access
    /// to the memory; [`NotSupported`](crate::ErrorKind::NotSupported) if the stream's context was handed in with
    /// [`Driver::context_from_raw`](crate::Driver::context_from_raw);
    /// [`Capturing`](crate::ErrorKind::Capturing) while the stream is captured: see
    /// [`capture_pool`](Self::capture_pool).
    #[inline]
    #[track_caller]
    pub fn alloc<T: Pod>(&self, stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        self.1.alloc(stream, len)
    }

    /// Allocates `len` elements and fills them with zero bytes, both in the order of `stream`.
    ///
    /// # Errors
    ///
    /// Same as [`alloc`](Self::alloc).
    #[doc(alias = "cuMemsetD8Async")]
    #[track_caller]
    pub fn alloc_zeroed<T: Pod>(&self, stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        self.1.alloc_zeroed(stream, len)
    }

    /// Allocates as many elements as `from` has and copies them in. Synchronises the stream: the slice may be changed
    /// when this returns.
    ///
    /// # Errors
    ///
    /// Same as [`alloc`](Self::alloc) and [`DeviceBuffer::copy_from`].
    #[track_caller]
    pub fn alloc_from<T: Pod>(&self, stream: &Stream, from: &[T]) -> Result<DeviceBuffer<T>> {
        self.1.alloc_from(stream, from)
    }

    /// How much memory the arena keeps when the program waits.
    #[must_use]
    pub fn release_threshold(&self) -> ReleaseThreshold {
        ReleaseThreshold::from_bytes(self.0.threshold.load(Ordering::Relaxed))
    }

    /// Sets how much memory the arena keeps. Completed free memory beyond that is released to the device at the next
    /// synchronisation of a stream, an event or a context through this crate, not immediately; see
    /// [`trim_to`](MemoryResource::trim_to). A pool's threshold works [the same](crate::Pool::set_release_threshold).
    ///
    /// Memory is released in whole pieces, as the arena grew, so a block in use keeps its whole piece.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver, ReleaseThreshold};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let arena = Arena::builder(&device).build()?;
    /// drop(arena.alloc::<u8>(&stream, 100 << 20)?);
    /// arena.set_release_threshold(ReleaseThreshold::Bytes(0));
    /// stream.synchronize()?;
    /// assert_eq!(arena.stats().reserved, 0);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn set_release_threshold(&self, threshold: ReleaseThreshold) {
        self.0.threshold.store(threshold.bytes(), Ordering::Relaxed);
        if threshold != ReleaseThreshold::Never {
            let inner: Weak<Inner> = Arc::downgrade(&self.0);
            after_wait::add(inner);
        }
    }

    /// The maximum bytes that the arena may hold; `u64::MAX` if there is none.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.0.backing.reserved().max()
    }

    /// Sets the maximum bytes that the arena may hold, as [`ArenaBuilder::max_bytes`] does. What it holds beyond a lower
    /// maximum stays until it is released, as by [`trim_to`](MemoryResource::trim_to).
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let arena = Arena::builder(&device).build()?;
    /// arena.set_max_bytes(8 << 20);
    /// assert!(arena.alloc::<u8>(&stream, 16 << 20).is_err());
    /// arena.set_max_bytes(u64::MAX);
    /// let buffer = arena.alloc::<u8>(&stream, 16 << 20)?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn set_max_bytes(&self, bytes: u64) {
        self.0.backing.reserved().set_max(bytes);
    }

    /// What [records](ArenaBuilder::record) the arena, if it is recorded.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.0.backing.observer.recorder()
    }

    /// Whether two handles refer to the same arena.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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
