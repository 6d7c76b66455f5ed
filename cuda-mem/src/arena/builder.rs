//! Building an arena.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::background::Background;
use super::backing::{Backing, Kind, Upstream, Vmm};
use super::cache_table::CacheTable;
use super::late_waits::LateWaits;
use super::moves::Moves;
use super::pin::Pins;
use super::{Arena, Central, Inner, thread};
use crate::base::error::{Error, Result};
use crate::driver::device::Device;
use crate::ledger::{self, Recorder, nvtx};
use crate::memory::fallback::Fallback;
use crate::memory::pool::{ReleaseThreshold, ReusePolicy};
use crate::memory::reclaim;
use crate::memory::resource::{DirectResource, MemoryProperties, MemoryResource, Resource};
use crate::stream::deferred::{self, After};

/// The default slack: what an arena may hold, as a multiple of the program's peak.
const SLACK: f64 = 1.05;

/// Configures an arena; [`build`](Self::build) creates it. From [`Arena::builder`] or [`Arena::builder_over`].
///
/// ```
/// use cuda_mem::{Arena, Driver, ReusePolicy};
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let arena = Arena::builder(&device)
///     .max_bytes(8 << 30)
///     .reuse(ReusePolicy::ALLOW_OPPORTUNISTIC) // streams never wait for each other unasked
///     .build()?;
/// assert_eq!(arena.stats().reserved, 0);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until `build`"]
pub struct ArenaBuilder {
    source: Source,
    reuse: ReusePolicy,
    max: u64,
    max_share: f64,
    initial: u64,
    slack: f64,
    growth_wait: Duration,
    threshold: ReleaseThreshold,
    peers: Vec<Device>,
    fallback: Fallback,
    background: bool,
    recorder: Option<Recorder>,
}

/// Where an arena's memory comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Device(Device),
    Upstream(Resource),
}

impl ArenaBuilder {
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            reuse: ReusePolicy::DRIVER_DEFAULT,
            max: u64::MAX,
            max_share: f64::INFINITY,
            initial: 0,
            slack: SLACK,
            growth_wait: Duration::ZERO,
            threshold: ReleaseThreshold::default(),
            peers: Vec::new(),
            fallback: Fallback::default(),
            background: false,
            recorder: None,
        }
    }

    /// When memory that was freed on one stream may be reused by another. The default is whenever possible.
    ///
    /// With [`ALLOW_OPPORTUNISTIC`](ReusePolicy::ALLOW_OPPORTUNISTIC) it is reused once the host sees that the first
    /// stream is done with it. With [`ALLOW_INTERNAL_DEPENDENCIES`](ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES) the
    /// second stream may be made to wait for that instead of growing the arena. With neither, another stream gets it
    /// only once the program has seen that it is done, by [`Stream::synchronize`](crate::Stream::synchronize),
    /// [`Stream::is_done`](crate::Stream::is_done) or [`Context::synchronize`](crate::Context::synchronize). An arena
    /// does not see which events the program waits for, so
    /// [`FOLLOW_EVENT_DEPENDENCIES`](ReusePolicy::FOLLOW_EVENT_DEPENDENCIES) changes nothing.
    pub fn reuse(mut self, policy: ReusePolicy) -> Self {
        self.reuse = policy;
        self
    }

    /// The maximum bytes that the arena may hold. Allocating beyond that returns
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory). Not counted is what an arena over another resource takes for
    /// alignment: up to 2 MiB for each block of a resource that aligns to less. A
    /// [`LimitAdaptor`](crate::memory::LimitAdaptor) below the arena counts that too.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max = bytes;
        self
    }

    /// The maximum that the arena may hold, as a share of the device's total memory, if that is less than
    /// [`max_bytes`](Self::max_bytes): 0.5 is half.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver, Resource};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let arena = Arena::builder(&device).max_share(0.001).build()?;
    /// let asked = (device.total_memory()? / 500) as usize;
    /// assert!(arena.alloc::<u8>(&stream, asked).is_err());
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn max_share(mut self, share: f64) -> Self {
        self.max_share = share;
        self
    }

    /// Bytes that the arena takes with its first allocation, if the device has them. The default is a few MiB. Up to
    /// there no stream is queried or made to wait: if they cover the live memory of every stream, an arena of many
    /// streams makes no driver calls at all. They are pieces like others, and go back as those do.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver, Resource};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let arena = Arena::builder(&device).initial_bytes(256 << 20).build()?;
    /// let small = arena.alloc::<u8>(&stream, 1000)?;
    /// assert_eq!(arena.stats().reserved, 256 << 20);
    /// # drop(small);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn initial_bytes(mut self, bytes: u64) -> Self {
        self.initial = bytes;
        self
    }

    /// How many times the program's own peak the arena may hold before it moves memory. The default is 1.05. Beyond
    /// that, free and completed physical memory is mapped where a large request needs it, and only the missing part is
    /// newly created. A move takes two driver calls or none, and disturbs no running work.
    ///
    /// With 1.0 the arena holds the least memory, with [`f64::INFINITY`] no memory moves. Nothing moves where the
    /// [`reuse`](Self::reuse) policy forbids queries, nor where the arena takes blocks of another resource.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver, Resource};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let arena = Arena::builder(&device).slack(1.0).build()?;
    /// let resource = Resource::from(arena.clone());
    /// let [first, _second, third] = [64, 64, 64].map(|mib| resource.alloc::<u8>(&stream, mib << 20));
    /// drop((first, third));
    /// // No two free pieces lie side by side.
    /// let _large = resource.alloc::<u8>(&stream, 128 << 20)?;
    /// assert_eq!(arena.stats().reserved, 192 << 20);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn slack(mut self, ratio: f64) -> Self {
        self.slack = ratio;
        self
    }

    /// How long a growth beyond the [`slack`](Self::slack) may wait for the device. The default is zero: no request ever
    /// waits.
    ///
    /// Memory can move only once the work that used it is done. A program that submits work faster than the device does
    /// it therefore makes the arena grow. With a wait the request sleeps until the work that is now in the streams is
    /// done, or the time is up, and then memory moves if it can. Requests that do not grow the arena never wait, so a
    /// program whose sizes recur waits at its start only. The time is a limit for work that cannot end before the calling
    /// thread goes on.
    ///
    /// ```
    /// use std::time::Duration;
    /// use cuda_mem::{Arena, Driver};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let arena = Arena::builder(&device)
    ///     .slack(1.02)
    ///     .growth_wait(Duration::from_secs(1))
    ///     .build()?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn growth_wait(mut self, limit: Duration) -> Self {
        self.growth_wait = limit;
        self
    }

    /// How much memory the arena keeps when streams, events or contexts are synchronised; by default everything. See
    /// [`Arena::set_release_threshold`].
    pub fn release_threshold(mut self, threshold: ReleaseThreshold) -> Self {
        self.threshold = threshold;
        self
    }

    /// Whether the arena has a thread of its own. The default is no.
    ///
    /// When a large request found no free memory in one place, the thread makes another such place as the program frees
    /// memory, so that the next request need not move memory or grow. Memory beyond the [release
    /// threshold](Self::release_threshold) is also released on that thread, soon after a wait and not during it.
    ///
    /// The thread does not keep the arena alive: it ends with the last handle. It sleeps while there is nothing to do,
    /// is absent in a fork, and makes no driver call once the process exits. It does not invalidate captures of this
    /// crate, nor other libraries' captures of streams that do not use the arena. If another library begins to capture
    /// a stream while the thread queries it, that capture may be invalidated. Its work is included in the
    /// [statistics](Arena::stats). Where memory cannot move, it only releases memory beyond the threshold; see
    /// [`slack`](Self::slack).
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let arena = Arena::builder(&device).background_thread(true).build()?;
    /// assert_eq!(arena.stats().prepared, 0); // places made ahead of need
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn background_thread(mut self, has: bool) -> Self {
        self.background = has;
        self
    }

    /// Records every allocation and free of the arena, and how it grows, moves and releases memory. The default is not to
    /// record; requests then take no instruction more. A request that is recorded takes some tens of nanoseconds.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver};
    /// use cuda_mem::ledger::{Recorder, TraceAction};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let recorder = Recorder::ring(10_000);
    /// let arena = Arena::builder(&device).record(&recorder).build()?;
    /// let buffer = arena.alloc::<u8>(&stream, 1000)?;
    /// let recording = recorder.recording();
    /// let actions: Vec<TraceAction> = recording.entries().iter().map(|entry| entry.action).collect();
    /// // The arena grew, then allocated.
    /// assert!(actions.starts_with(&[TraceAction::Map, TraceAction::Allocate]));
    /// # drop(buffer);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn record(mut self, recorder: &Recorder) -> Self {
        self.recorder = Some(recorder.clone());
        self
    }

    /// Other devices whose work may use the memory.
    #[doc(alias = "cuMemSetAccess")]
    pub fn accessible_from<'a>(mut self, devices: impl IntoIterator<Item = &'a Device>) -> Self {
        self.peers.extend(devices);
        self
    }

    /// What to do where the device has no virtual memory management: take blocks of the device's [default
    /// resource](Device::default_resource), which is the default, or refuse.
    pub fn fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = fallback;
        self
    }

    /// Creates the arena. Takes no memory before the first allocation, and creates no context.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if the device has no virtual memory management, and the
    /// fallback is refused or would not reach the other devices; [`InvalidValue`](crate::ErrorKind::InvalidValue) if
    /// those are of another driver, the slack is below 1.0, the share not above 0.0, or devices or a share are set for
    /// an arena over another resource;
    /// [`Other`](crate::ErrorKind::Other) if the arena is to have a [thread](Self::background_thread) and the system
    /// has none; otherwise any driver error.
    #[doc(alias = "cuMemGetAllocationGranularity")]
    #[track_caller]
    pub fn build(self) -> Result<Arena> {
        if self.slack.is_nan() || self.slack < 1.0 {
            return Err(Error::invalid(format!(
                "a slack of {}; an arena holds at least 1.0 times what the program has",
                self.slack
            )));
        }
        if self.max_share.is_nan() || self.max_share <= 0.0 {
            return Err(Error::invalid(format!(
                "a share of {} of the device's memory; it is more than 0.0",
                self.max_share
            )));
        }
        // What waits may be arenas that ended: programs that wait through another library come by here.
        deferred::poll(After::Call);
        let (threshold, background) = (self.threshold, self.background);
        let arena = match self.source.clone() {
            Source::Device(device) => self.of_device(device)?,
            Source::Upstream(upstream) => self.of_upstream(upstream)?,
        };
        start(arena, threshold, background)
    }

    #[track_caller]
    fn of_device(self, device: Device) -> Result<Arena> {
        let (mut max, mut peers) = (self.max, self.peers);
        let total = device.total_memory()?;
        if self.max_share < 1.0 {
            max = max.min((total as f64 * self.max_share) as u64);
        }
        for peer in &peers {
            let driver = device.driver();
            driver.require_same(peer.driver(), format_args!("the arena's device and {peer}"))?;
        }
        peers.retain(|peer| *peer != device);
        let sizes = Sizes {
            initial: self.initial.min(max).min(total),
            slack: self.slack,
            growth_wait: self.growth_wait,
        };
        if peers.is_empty() && nvtx::needs_plain_memory() {
            let upstream = Resource::new(DirectResource::new(device));
            let properties = upstream.memory_properties();
            let kind = Kind::Upstream(Upstream::new(upstream, max));
            let backing = Backing::new(kind, self.recorder);
            return Ok(assemble(backing, properties, self.reuse, sizes));
        }
        if let Some(vmm) = Vmm::new(device, &peers, max)? {
            let mut properties = MemoryProperties::of_device(device);
            properties.devices = peers
                .into_iter()
                .fold(properties.devices, |set, peer| set.with(peer));
            let backing = Backing::new(Kind::Vmm(vmm), self.recorder);
            return Ok(assemble(backing, properties, self.reuse, sizes));
        }
        if self.fallback == Fallback::Refuse || !peers.is_empty() {
            return Err(Error::not_supported(format!(
                "{device} has no virtual memory management, and taking blocks of its default resource \
                 was refused or would not reach other devices"
            )));
        }
        let upstream = device.default_resource()?;
        let properties = upstream.memory_properties();
        let kind = Kind::Upstream(Upstream::new(upstream, max));
        let backing = Backing::new(kind, self.recorder);
        Ok(assemble(backing, properties, self.reuse, sizes))
    }

    #[track_caller]
    fn of_upstream(self, upstream: Resource) -> Result<Arena> {
        if !self.peers.is_empty() || self.max_share.is_finite() {
            return Err(Error::invalid(format!(
                "an arena over {upstream:?} is accessible from where that is, and has no share of a device; set \
                 `max_bytes` instead"
            )));
        }
        let properties = upstream.memory_properties();
        let sizes = Sizes {
            initial: self.initial.min(self.max),
            slack: self.slack,
            growth_wait: self.growth_wait,
        };
        let kind = Kind::Upstream(Upstream::new(upstream, self.max));
        let backing = Backing::new(kind, self.recorder);
        Ok(assemble(backing, properties, self.reuse, sizes))
    }

    #[track_caller]
    pub(super) fn over(upstream: Resource) -> Arena {
        let properties = upstream.memory_properties();
        let kind = Kind::Upstream(Upstream::new(upstream, u64::MAX));
        let backing = Backing::new(kind, None);
        let sizes = Sizes {
            initial: 0,
            slack: SLACK,
            growth_wait: Duration::ZERO,
        };
        assemble(backing, properties, ReusePolicy::DRIVER_DEFAULT, sizes)
    }
}

fn start(arena: Arena, threshold: ReleaseThreshold, background: bool) -> Result<Arena> {
    if background {
        let thread = Background::start(Arc::downgrade(&arena.0))?;
        // The arena is new, so there is no thread yet.
        let _ = arena.0.background.set(thread);
    }
    arena.set_release_threshold(threshold);
    Ok(arena)
}

/// How an arena grows.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    initial: u64,
    slack: f64,
    growth_wait: Duration,
}

#[track_caller]
fn assemble(
    backing: Backing,
    properties: MemoryProperties,
    reuse: ReusePolicy,
    sizes: Sizes,
) -> Arena {
    // From 1, because the slots of streams are initially 0.
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let central = Central::new();
    if sizes.initial > 0 {
        // Otherwise all of it would count as used by the first stream.
        central.lock(thread::number()).share(0, 0);
    }
    let inner = Inner {
        number: NEXT.fetch_add(1, Ordering::Relaxed),
        device: properties.device,
        properties,
        reuse,
        initial: AtomicU64::new(sizes.initial),
        slack: sizes.slack,
        growth_wait: sizes.growth_wait,
        mark: AtomicU64::new(0),
        moves: Moves::default(),
        pins: Pins::default(),
        threshold: AtomicU64::new(ReleaseThreshold::Never.bytes()),
        late_waits: LateWaits::default(),
        backing: Arc::new(backing),
        caches: CacheTable::default(),
        central,
        slow_path: Arc::default(),
        background: OnceLock::new(),
    };
    ledger::insert(inner.item());
    let inner = Arc::new(inner);
    let holder: Weak<Inner> = Arc::downgrade(&inner);
    reclaim::add(holder);
    let shared: Arc<dyn MemoryResource> = Arc::clone(&inner) as _;
    Arena(inner, Resource::from(shared))
}
