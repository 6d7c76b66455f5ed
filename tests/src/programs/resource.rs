//! The model of a resource: its adaptors, limits and counts.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::arena::{ArenaBacking, CapturePool};
use cuda_mem::ledger::Recorder;
use cuda_mem::memory::{
    AlignedAdaptor, DirectResource, FailureCallbackAdaptor, LimitAdaptor, LoggingAdaptor,
    ManagedResource, PinnedResource, PrefetchAdaptor, RecordingAdaptor, RecoveryAdaptor,
    RecoveryPolicy, StatisticsAdaptor, TrackingAdaptor,
};
use cuda_mem::{Arena, Device, Error, ErrorKind, MemoryPool, MemoryResource as _, Resource};

use super::count::Count;
use super::eventually::eventually;
use super::step::{Adaptor, ArenaSpec, Base, ResourceSpec};
use crate::annotated::Annotated;
use crate::environment::Environment;

/// Drivers round the size of a pool up to a multiple of this.
const POOL_STEP: u64 = 32 << 20;

/// An adaptor that counts, and whether it counts sizes before rounding.
#[derive(Debug)]
struct Level {
    counts: Counts,
    is_exact: bool,
}

#[derive(Debug)]
enum Counts {
    Statistics(Arc<StatisticsAdaptor<Resource>>),
    Tracking(Arc<TrackingAdaptor<Resource>>),
    Limit(Arc<LimitAdaptor<Resource>>),
}

/// A resource of a program.
pub(super) struct ModelResource {
    pub(super) name: usize,
    pub(super) handle: Resource,
    pub(super) pool: Option<MemoryPool>,
    pub(super) arena: Option<Arena>,
    /// Graphs may have memory of the arena, and it may sleep.
    pub(super) is_free: bool,
    /// Its frees wait for the stream on the host.
    pub(super) waits: bool,
    /// It is a pool without adaptors, whose buffers can be turned into addresses.
    pub(super) is_plain_pool: bool,
    /// The largest alignment that it supports.
    pub(super) alignment: usize,
    pub(super) live: Arc<Count>,
    levels: Vec<Level>,
    has_limit: bool,
    max: Option<u64>,
    /// Captures and graphs take memory of the arena that the model does not count.
    capture_pool: Mutex<Option<CapturePool>>,
    has_own_thread: bool,
    described: String,
}

impl fmt::Debug for ModelResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resource {}: {}", self.name, self.described)
    }
}

impl ModelResource {
    pub(super) fn new(env: &'static Environment, name: usize, spec: &ResourceSpec) -> Result<Self> {
        let device = env.device()?;
        let (mut pool, mut arena, mut is_free) = (None, None, false);
        let mut max = None;
        let mut handle = match spec.base {
            Base::DefaultPool => Resource::new(device.default_pool()?),
            Base::Pool {
                policy,
                threshold,
                max: limit,
            } => {
                let mut builder = MemoryPool::builder(&device)
                    .reuse(policy)
                    .release_threshold(threshold);
                // Needs CUDA 12.2.
                if let Some(limit) = limit.filter(|_| env.need(12, 2).is_ok()) {
                    builder = builder.max_size(limit);
                    max = Some(limit);
                }
                let made = pool.insert(builder.build()?);
                Resource::new(made.clone())
            }
            Base::Arena(spec) => {
                max = spec.max;
                let made = arena.insert(make_arena(&device, spec)?).clone();
                let is_mapped = made.backing() == ArenaBacking::VirtualMemory;
                match env.control() {
                    Ok(control) if spec.annotated && is_mapped => Resource::new(Annotated {
                        arena: made,
                        control: Some(control),
                    }),
                    _ => {
                        is_free = !spec.annotated;
                        Resource::from(made)
                    }
                }
            }
            Base::ArenaOverPool => {
                let upstream = MemoryPool::builder(&device).build()?;
                Resource::from(arena.insert(Arena::over(upstream)).clone())
            }
            Base::ArenaOverDefault => {
                let upstream = device.default_resource()?;
                Resource::from(arena.insert(Arena::over(upstream)).clone())
            }
            Base::Direct => Resource::new(DirectResource::new(device)),
            Base::Pinned => Resource::new(PinnedResource::new(env.driver)),
            Base::Managed => Resource::new(ManagedResource::new(env.driver)),
        };
        let mut levels = Vec::new();
        for (place, adaptor) in spec.adaptors.iter().enumerate().rev() {
            let above = &spec.adaptors[..place];
            let is_exact = !above.iter().any(|it| matches!(it, Adaptor::Aligned(_)));
            let (over, counts) = adapt(*adaptor, handle)?;
            handle = over;
            levels.extend(counts.map(|counts| Level { counts, is_exact }));
        }
        levels.reverse();
        let aligned = |adaptor: &Adaptor| matches!(adaptor, Adaptor::Aligned(_));
        Ok(Self {
            name,
            handle,
            is_plain_pool: spec.adaptors.is_empty() && pool.is_some(),
            pool,
            arena,
            is_free,
            waits: matches!(spec.base, Base::Direct | Base::Pinned | Base::Managed),
            // An aligned adaptor takes any alignment.
            alignment: if spec.adaptors.iter().any(aligned) {
                usize::MAX
            } else {
                256
            },
            live: Arc::default(),
            has_limit: spec
                .adaptors
                .iter()
                .any(|adaptor| matches!(adaptor, Adaptor::Limit(_))),
            levels,
            max,
            capture_pool: Mutex::default(),
            has_own_thread: matches!(spec.base, Base::Arena(arena) if arena.background),
            described: format!("{spec:?}"),
        })
    }

    fn captures(&self) -> MutexGuard<'_, Option<CapturePool>> {
        self.capture_pool
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether graphs may have memory of the arena.
    pub(super) fn has_captures(&self) -> bool {
        self.captures().is_some()
    }

    /// The pool for graphs, made on first use.
    pub(super) fn capture_pool(&self) -> Result<Option<CapturePool>> {
        let Some(arena) = self.arena.as_ref().filter(|_| self.is_free) else {
            return Ok(None);
        };
        let mut captures = self.captures();
        if captures.is_none() {
            *captures = Some(arena.capture_pool()?);
        }
        Ok(captures.clone())
    }

    /// Whether the resource may run out of memory.
    pub(super) fn may_refuse(&self) -> bool {
        self.has_limit || self.max.is_some()
    }

    /// Checks the outcome of an allocation. Returns `false` if memory was refused.
    pub(super) fn allowed(
        &self,
        bytes: usize,
        answer: Option<&Error>,
        alone: bool,
    ) -> Result<bool> {
        let live = self.live.bytes.load(Ordering::Relaxed) as u64 + bytes as u64;
        let limits = self.levels.iter().filter_map(|level| match &level.counts {
            Counts::Limit(limit) if level.is_exact => Some(limit.limit()),
            _ => None,
        });
        let exceeded = limits.min().is_some_and(|limit| live > limit);
        match answer {
            None => ensure!(!exceeded || !alone, "{self:?} gave more than its limit"),
            Some(error) => {
                ensure!(
                    error.kind() == ErrorKind::OutOfMemory && self.may_refuse(),
                    "{self:?} refused {bytes} bytes: {error}"
                );
                let is_known = self.max.is_none() && self.levels.iter().all(|it| it.is_exact);
                ensure!(
                    exceeded || !is_known || !alone,
                    "{self:?} refused {bytes} bytes within its limit: {error}"
                );
            }
        }
        Ok(answer.is_none())
    }

    /// Checks all counts against the model. No other thread may use the resource.
    pub(super) fn check(&self) -> Result<()> {
        self.check_all().with_context(|| format!("{self:?}"))
    }

    fn check_all(&self) -> Result<()> {
        let bytes = self.live.bytes.load(Ordering::Relaxed);
        let blocks = self.live.blocks.load(Ordering::Relaxed);
        for level in &self.levels {
            let (counted_bytes, counted) = match &level.counts {
                Counts::Statistics(adaptor) => {
                    let statistics = adaptor.statistics();
                    let (bytes, all) = (statistics.bytes, statistics.allocations);
                    ensure!(bytes.peak >= bytes.current, "{statistics}");
                    ensure!(all.peak >= all.current, "{statistics}");
                    (bytes.current, all.current)
                }
                Counts::Tracking(adaptor) => {
                    ensure!(adaptor.unknown_count() == 0, "unknown blocks were freed");
                    let count = adaptor.live_count() as i64;
                    let live = adaptor.live();
                    let sum = live.iter().map(|live| live.bytes as i64).sum();
                    (sum, count)
                }
                Counts::Limit(adaptor) => (adaptor.allocated() as i64, blocks),
            };
            let right = if level.is_exact {
                counted_bytes == bytes
            } else {
                counted_bytes >= bytes
            };
            ensure!(
                right && counted == blocks,
                "{bytes} bytes in {blocks} blocks are allocated, and {:?} says {counted_bytes} in {counted}",
                level.counts
            );
        }
        if let Some(pool) = &self.pool {
            let stats = pool.stats()?;
            let (used, reserved) = (stats.used, stats.reserved);
            ensure!(
                used.current >= bytes as u64
                    && used.current <= used.high
                    && reserved.current >= used.current
                    && reserved.current <= reserved.high
                    && self
                        .max
                        .is_none_or(|max| used.current <= max.next_multiple_of(POOL_STEP)),
                "{bytes} bytes are allocated: {stats}"
            );
        }
        if let Some(arena) = &self.arena {
            let check = || self.check_arena(arena, bytes as u64, blocks as u64);
            // While its background thread takes over freed blocks, the numbers may differ.
            if self.has_own_thread && eventually(|| Ok(check().is_ok()))? {
                return Ok(());
            }
            check()?;
        }
        Ok(())
    }

    fn check_arena(&self, arena: &Arena, bytes: u64, blocks: u64) -> Result<()> {
        let stats = arena.stats();
        let right = if self.has_captures() {
            stats.live_blocks >= blocks
        } else {
            stats.live_blocks == blocks
        };
        ensure!(
            right && stats.live >= bytes,
            "{bytes} bytes in {blocks} blocks are allocated: {stats}"
        );
        // Its background thread may run between the two readings.
        if !self.has_own_thread {
            let space = arena.free_space();
            ensure!(space.largest <= space.bytes, "{space:?}");
            ensure!(
                stats.reserved + stats.asleep >= stats.live
                    && stats.reserved <= stats.reserved_peak,
                "{stats}, {} asleep",
                stats.asleep
            );
            if let Some(max) = self.max {
                ensure!(stats.reserved <= max.next_multiple_of(2 << 20), "{stats}");
            }
        }
        Ok(())
    }

    /// Checks that nothing is left. All memory is freed, and all streams are idle.
    ///
    /// Memory used in a per-thread stream comes back one wait later: a trim finds what the arena kept for the stream, but
    /// no other thread can query the stream, so only the next wait for the context shows that its work is done.
    pub(super) fn check_end(&self, device: &Device, one_wait_later: bool) -> Result<()> {
        self.check()?;
        if self.captures().take().is_some() {
            // Its memory is used in a separate stream.
            device.primary_context()?.synchronize()?;
        }
        self.handle.trim_to(0)?;
        if let Some(pool) = &self.pool {
            let stats = pool.stats()?;
            let left = (stats.used.current, stats.reserved.current);
            ensure!(left == (0, 0), "{self:?} on {device} is left with {stats}");
        }
        if let Some(arena) = &self.arena {
            let stats = arena.stats();
            ensure!(
                (stats.live_blocks, stats.live, stats.asleep) == (0, 0, 0),
                "{self:?} is left with {stats}"
            );
            // Its background thread may hold some of it.
            let is_empty = eventually(|| {
                self.handle.trim_to(0)?;
                if one_wait_later {
                    device.primary_context()?.synchronize()?;
                }
                let is_empty = arena.stats().reserved == 0;
                ensure!(
                    is_empty || self.has_own_thread || one_wait_later,
                    "{self:?} keeps {}",
                    arena.stats()
                );
                Ok(is_empty)
            })?;
            ensure!(is_empty, "{self:?} keeps {}", arena.stats());
        }
        Ok(())
    }
}

fn make_arena(device: &Device, spec: ArenaSpec) -> cuda_mem::Result<Arena> {
    let mut builder = Arena::builder(device)
        .reuse(spec.policy)
        .slack(spec.slack)
        .release_threshold(spec.threshold)
        .initial_bytes(spec.initial)
        .background_thread(spec.background);
    if let Some(max) = spec.max {
        builder = builder.max_bytes(max);
    }
    if spec.recorded {
        builder = builder.record(&Recorder::ring(10_000));
    }
    builder.build()
}

/// The adaptor over a resource, and what it counts.
fn adapt(adaptor: Adaptor, upstream: Resource) -> Result<(Resource, Option<Counts>)> {
    Ok(match adaptor {
        Adaptor::Statistics => {
            let adaptor = Arc::new(StatisticsAdaptor::new(upstream));
            (
                Resource::from(adaptor.clone()),
                Some(Counts::Statistics(adaptor)),
            )
        }
        Adaptor::Tracking => {
            let adaptor = Arc::new(TrackingAdaptor::new(upstream));
            (
                Resource::from(adaptor.clone()),
                Some(Counts::Tracking(adaptor)),
            )
        }
        Adaptor::Limit(limit) => {
            let adaptor = Arc::new(LimitAdaptor::new(upstream, limit));
            (
                Resource::from(adaptor.clone()),
                Some(Counts::Limit(adaptor)),
            )
        }
        Adaptor::Aligned(to) => (Resource::new(AlignedAdaptor::new(upstream, to)?), None),
        Adaptor::Logging => {
            let log = LoggingAdaptor::new(upstream, std::io::sink());
            (Resource::new(log), None)
        }
        Adaptor::Recording => {
            let recorder = Recorder::ring(1000);
            let recorded = RecordingAdaptor::new(upstream, &recorder);
            (Resource::new(recorded), None)
        }
        Adaptor::FailureCallback => {
            let refusals = AtomicU64::new(0);
            let callback = move |_: u64, _: &Error| {
                // Retries every other time.
                refusals.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
            };
            (
                Resource::new(FailureCallbackAdaptor::new(upstream, callback)),
                None,
            )
        }
        Adaptor::Recovery => {
            let policy = RecoveryPolicy::new().retry().flush_caches();
            (Resource::new(RecoveryAdaptor::new(upstream, policy)), None)
        }
        Adaptor::Prefetch => (Resource::new(PrefetchAdaptor::new(upstream)), None),
    })
}
