//! The memory that PyTorch gets of each device.

use std::alloc::Layout;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cuda_mem::memory::StatisticsAdaptor;
use cuda_mem::sys::CUstream;
use cuda_mem::{
    Arena, Context, Device, Driver, Error, ErrorKind, MemoryPool, MemoryResource as _, Resource,
    Stream,
};
use once_cell::sync::OnceCell;

use super::captures::PoolId;
use super::config::{Source, config};
use super::parked::Parked;
use super::relaxed::relaxed_while_capturing;
use super::{TorchStats, blocks, captures, fractions, queries};
use crate::arena;
use crate::log_file::LogFile;
use crate::pool;
use crate::recorder::Recorder;
use crate::resource::{self, layout};
use crate::status::invalid;
use crate::stream::{is_default, known_device, ordinal, with_stream};

/// More than a process can see.
const DEVICES: usize = 64;

static MEMORY: [OnceCell<Memory>; DEVICES] = [const { OnceCell::new() }; DEVICES];

/// What serves one device.
#[derive(Debug)]
enum Served {
    /// With the limit of its options, which a fraction set later does not raise.
    Arena(Arena, u64),
    /// With an arena over it for graphs, made when it is needed.
    Pool(Resource, OnceCell<Arena>),
}

#[derive(Debug)]
pub(super) struct Memory {
    pub(super) number: c_int,
    /// The share that it was made for.
    pub(super) fraction: Option<f64>,
    device: Device,
    context: Context,
    served: Served,
    counting: StatisticsAdaptor<Resource>,
    recorder: Option<Recorder>,
    pub(super) parked: Mutex<Vec<Parked>>,
    /// To be read without the lock.
    pub(super) has_parked: AtomicBool,
    /// Allocations that did not try them, because of a capture.
    pub(super) left_parked: AtomicU64,
    retries: AtomicU64,
    failures: AtomicU64,
}

fn place(device: c_int) -> Result<&'static OnceCell<Memory>, Error> {
    let place = MEMORY.get(ordinal(device)?);
    place.ok_or_else(|| invalid(format!("device {device} of at most {DEVICES}")))
}

fn all() -> impl Iterator<Item = &'static Memory> {
    MEMORY.iter().filter_map(OnceCell::get)
}

/// Whether any code captures the stream. A default stream, which PyTorch cannot capture, is not asked.
///
/// # Safety
///
/// The stream is live.
unsafe fn is_captured(stream: CUstream) -> bool {
    // SAFETY: promised by the caller, and no default stream.
    !is_default(stream) && unsafe { queries::is_captured(stream) }.unwrap_or(false)
}

impl Memory {
    pub(super) fn of(device: c_int) -> Result<&'static Self, Error> {
        let place = place(device)?;
        match place.get() {
            Some(memory) => Ok(memory),
            None => {
                let memory = place.get_or_try_init(|| Self::new(device))?;
                fractions::catch_up(memory)?;
                Ok(memory)
            }
        }
    }

    pub(super) fn if_used(device: c_int) -> Result<Option<&'static Self>, Error> {
        Ok(place(device)?.get())
    }

    #[cold]
    fn new(number: c_int) -> Result<Self, Error> {
        let config = config()?;
        let device = Driver::load()?.device(ordinal(number)?)?;
        let context = device.primary_context()?;
        let fraction = fractions::of(number);
        let max = fraction.map_or(Ok(u64::MAX), |fraction| fractions::share(&device, fraction))?;
        let recorder = match &config.record {
            None => None,
            Some(path) => {
                let file = LogFile::of_device(path, ordinal(number)?)?;
                Some(Recorder::to_file(file))
            }
        };
        let own = recorder.as_ref().map(Recorder::recorder);
        let recorded_by = own.or(config.recorder.as_ref());
        let (served, resource) = match config.source {
            Source::Arena(options) => {
                let mut builder = Arena::builder(&device);
                if let Some(recorder) = recorded_by {
                    builder = builder.record(recorder);
                }
                // SAFETY: the options name no recorder any more.
                let arena = unsafe { arena::configure(builder, &options) }?;
                let limit = arena.max_bytes();
                arena.set_max_bytes(limit.min(max));
                (Served::Arena(arena.clone(), limit), Resource::from(arena))
            }
            Source::Pool(options) => {
                let mut options = options;
                if max < u64::MAX {
                    let limit = if options.max_bytes == 0 {
                        u64::MAX
                    } else {
                        options.max_bytes
                    };
                    options.max_bytes = limit.min(max);
                }
                let mut builder = MemoryPool::builder(&device);
                if let Some(recorder) = recorded_by {
                    builder = builder.record(recorder);
                }
                // SAFETY: as above.
                let pool = unsafe { pool::configure(builder, &options) }?;
                let pool = Resource::from(pool);
                (Served::Pool(pool.clone(), OnceCell::new()), pool)
            }
        };
        Ok(Self {
            number,
            fraction,
            device,
            context,
            served,
            counting: StatisticsAdaptor::new(resource),
            recorder,
            parked: Mutex::default(),
            has_parked: AtomicBool::new(false),
            left_parked: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        })
    }

    /// # Safety
    ///
    /// As for `cudamem_torch_alloc`.
    pub(super) unsafe fn allocate(
        &self,
        bytes: usize,
        stream: CUstream,
        capture: Option<PoolId>,
    ) -> Result<u64, Error> {
        if bytes == 0 {
            return Ok(0);
        }
        if self.has_parked.load(Ordering::Relaxed) && self.may_try_parked() {
            self.free_parked();
        }
        let layout = layout(bytes, 0)?;
        let allocate = |stream: &Stream| {
            if let Some(id) = capture {
                return captures::allocate(self, id, bytes, stream);
            }
            match self.counting.allocate(layout, stream) {
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                    self.allocate_again(layout, stream, error)
                }
                answer => answer,
            }
        };
        let allocated = self.beside_captures(|| {
            // SAFETY: promised by the caller, in the words of the section above.
            unsafe { with_stream(self.number, stream, allocate) }
        });
        match &allocated {
            Ok(address) => blocks::forget(*address),
            Err(_) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        allocated
    }

    /// PyTorch's own allocator waits for the device, too, before it gives up.
    #[cold]
    fn allocate_again(&self, layout: Layout, stream: &Stream, error: Error) -> Result<u64, Error> {
        match self.collect() {
            Ok(true) => {}
            Ok(false) | Err(_) => return Err(error),
        }
        self.retries.fetch_add(1, Ordering::Relaxed);
        self.counting.allocate(layout, stream)
    }

    /// # Safety
    ///
    /// As for `cudamem_torch_free`.
    pub(super) unsafe fn deallocate(
        &self,
        address: u64,
        bytes: usize,
        stream: CUstream,
    ) -> Result<(), Error> {
        let others = blocks::take(address, stream);
        if captures::deallocate(self, address, stream, !others.is_empty())? {
            return Ok(());
        }
        let layout = layout(bytes, 0)?;
        // SAFETY: promised by the caller, in the words of the section above.
        let freed = unsafe { self.free(address, layout, stream, &others) };
        match freed {
            Err(error) if error.kind() == ErrorKind::Capturing && error.had_no_effect() => {
                self.park(Parked {
                    address,
                    layout,
                    stream: stream.expose_provenance(),
                    others: others
                        .iter()
                        .map(|stream| stream.expose_provenance())
                        .collect(),
                });
                Ok(())
            }
            freed => freed,
        }
    }

    /// The device of a stream that was recorded for a block of this one. On a guess the stream would count as of that device
    /// from then on.
    ///
    /// # Safety
    ///
    /// The stream is live.
    unsafe fn device_of(&self, stream: CUstream) -> Result<c_int, Error> {
        if is_default(stream) {
            return Ok(self.number);
        }
        // SAFETY: promised by the caller, and no default stream.
        let told = unsafe { queries::device_of(stream) };
        // Another stream may have had the handle before.
        let found = told.or_else(|| known_device(stream));
        found.ok_or_else(|| {
            invalid(format!(
                "the driver does not say of which device the recorded stream {stream:p} is"
            ))
        })
    }

    /// # Safety
    ///
    /// As for `cudamem_torch_free`; the other streams are live.
    pub(super) unsafe fn free(
        &self,
        address: u64,
        layout: Layout,
        stream: CUstream,
        others: &[CUstream],
    ) -> Result<(), Error> {
        if others.is_empty() {
            // SAFETY: promised by the caller, in the words of the section above.
            let free =
                |stream: &Stream| unsafe { self.counting.deallocate(address, layout, stream) };
            return self.beside_captures(|| {
                // SAFETY: as above.
                unsafe { with_stream(self.number, stream, free) }
            });
        }
        // SAFETY: as above.
        let is_captured = unsafe { is_captured(stream) };
        let (mut used, mut elsewhere) = (Vec::new(), Vec::new());
        for other in others {
            // SAFETY: as above.
            let device = unsafe { self.device_of(*other) }?;
            // SAFETY: as above.
            let stream = unsafe { with_stream(device, *other, |stream| Ok(stream.clone())) }?;
            match device == self.number {
                true => used.push(stream),
                // Or else one of the two would be drawn into the graph of the other, or spoil it.
                // SAFETY: as above.
                false if unsafe { self::is_captured(*other) } != is_captured => {
                    let text = "a stream that used the block is captured";
                    return Err(Error::new(ErrorKind::Capturing, text));
                }
                false => elsewhere.push(stream),
            }
        }
        let used: Vec<&Stream> = used.iter().collect();
        let free = |stream: &Stream| {
            // An arena keeps its memory for streams of its own device.
            stream.join(&elsewhere)?;
            // SAFETY: as above.
            unsafe {
                self.counting
                    .deallocate_after(address, layout, stream, &used)
            }
        };
        self.beside_captures(|| {
            // SAFETY: as above.
            unsafe { with_stream(self.number, stream, free) }
        })
    }

    /// Makes calls that allocate or free. Those of an arena spoil no capture by themselves.
    fn beside_captures<T>(&self, calls: impl FnOnce() -> T) -> T {
        match &self.served {
            Served::Arena(..) => calls(),
            Served::Pool(..) => relaxed_while_capturing(calls),
        }
    }

    /// Waits for the device and takes back what was not free before. Returns whether it waited.
    fn collect(&self) -> Result<bool, Error> {
        let waited = captures::collect(self)?;
        if waited {
            self.free_parked();
            if let Served::Pool(_, arena) = &self.served
                && let Some(arena) = arena.get()
            {
                arena.trim_to(0)?;
            }
        }
        Ok(waited)
    }

    /// The arena for graphs.
    pub(super) fn graph_arena(&self) -> &Arena {
        match &self.served {
            Served::Arena(arena, _) => arena,
            Served::Pool(pool, arena) => arena.get_or_init(|| Arena::over(pool.clone())),
        }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn stats(&self) -> Result<TorchStats, Error> {
        let counts = self.counting.statistics();
        let (reserved, reserved_peak) = match &self.served {
            Served::Arena(arena, _) => {
                let stats = arena.stats();
                (stats.reserved, stats.reserved_peak)
            }
            Served::Pool(resource, _) => match resource.pool() {
                Some(pool) => {
                    let stats = pool.stats()?;
                    (stats.reserved.current, stats.reserved.high)
                }
                None => (0, 0),
            },
        };
        let (graphs_reserved, graphs_allocated) = captures::bytes(self);
        let positive = |number: i64| number.max(0).cast_unsigned();
        Ok(TorchStats {
            allocated: positive(counts.bytes.current),
            allocated_peak: positive(counts.bytes.peak),
            allocated_total: counts.bytes.total,
            allocations: positive(counts.allocations.current),
            allocations_peak: positive(counts.allocations.peak),
            allocations_total: counts.allocations.total,
            reserved,
            reserved_peak,
            graphs_reserved,
            graphs_allocated,
            retries: self.retries.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        })
    }

    pub(super) fn reset_peaks(&self) -> Result<(), Error> {
        self.counting.reset_peaks();
        match &self.served {
            Served::Arena(arena, _) => arena.reset_peak(),
            Served::Pool(resource, _) => {
                if let Some(pool) = resource.pool() {
                    pool.reset_high_marks()?;
                }
            }
        }
        Ok(())
    }

    /// Limits what is held to a share of the device's memory, and to the limit of the options.
    pub(super) fn limit_to(&self, fraction: f64) -> Result<(), Error> {
        match &self.served {
            Served::Arena(arena, limit) => {
                arena.set_max_bytes(fractions::share(&self.device, fraction)?.min(*limit));
                Ok(())
            }
            Served::Pool(..) => {
                let text = "the maximum size of a pool is chosen when it is created; set the fraction before the first \
                            allocation";
                Err(Error::new(ErrorKind::NotSupported, text))
            }
        }
    }

    /// What serves the device, without PyTorch's counts.
    pub(super) fn resource(&self) -> (Resource, resource::Source) {
        match &self.served {
            Served::Arena(arena, _) => {
                (arena.clone().into(), resource::Source::Arena(arena.clone()))
            }
            Served::Pool(pool, _) => (pool.clone(), resource::Source::Pool),
        }
    }
}

pub(super) fn reset() -> Result<(), Error> {
    let mut outcome = Ok(());
    for memory in all() {
        // Nothing can be given back while the device cannot be waited for.
        let emptied = memory.collect().and_then(|waited| match waited {
            true => memory.counting.trim_to(0),
            false => Ok(()),
        });
        outcome = outcome.and(emptied);
    }
    outcome
}

pub(super) fn piece_at(address: u64) -> Option<Range<u64>> {
    all().find_map(|memory| match &memory.served {
        Served::Arena(arena, _) => arena.piece_at(address),
        Served::Pool(..) => None,
    })
}

/// Whether memory at an address may be ours.
pub(super) fn may_have(address: u64) -> bool {
    all().any(|memory| match &memory.served {
        // What is asleep is in no piece.
        Served::Arena(arena, _) => arena.piece_at(address).is_some() || arena.stats().asleep > 0,
        // A pool does not know its blocks.
        Served::Pool(..) => true,
    })
}

pub(super) fn end_record() -> Result<(), Error> {
    let mut outcome = Ok(());
    for recorder in all().filter_map(|memory| memory.recorder.as_ref()) {
        // One that cannot be written leaves the others complete.
        outcome = outcome.and(recorder.end());
    }
    outcome
}
