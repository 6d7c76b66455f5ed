//! Serves a recorded run's allocations from the driver and from an arena.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cuda_mem::memory::{DirectResource, Strategy};
use cuda_mem::{Arena, Device, DeviceBuffer, Error, MemoryPool, PoolStats, Resource, Stream};
use cuda_mem_trace::{Op, Trace};
use indicatif::{ProgressBar, ProgressStyle};

/// Operations between two clock reads; the progress bar is updated outside the timed part.
const BATCH: usize = 1024;

/// The log served by the driver and by an arena.
pub(crate) struct Replay {
    pub(crate) operations: usize,
    /// The most live bytes in the log at any time.
    pub(crate) peak_asked: u64,
    /// A pool, or `cuMemAlloc` on a device without pools.
    pub(crate) driver: Served,
    /// The pool's at the end.
    pub(crate) stats: Option<PoolStats>,
    pub(crate) arena: Served,
}

/// The cost of serving the log.
pub(crate) struct Served {
    /// Starting without memory.
    pub(crate) cold: Duration,
    /// The second time, with the memory of the first.
    pub(crate) warm: Duration,
    /// In bytes; `None` for `cuMemAlloc`, which does not count.
    pub(crate) peak_reserved: Option<u64>,
}

impl Replay {
    /// What served the log beside the arena.
    pub(crate) fn driver_source(&self) -> &'static str {
        match self.stats {
            Some(_) => "pool",
            None => "cuMemAlloc",
        }
    }

    /// Bytes held per requested byte, at the peak.
    pub(crate) fn reserved_over_asked(&self, served: &Served) -> Option<f64> {
        let reserved = served.peak_reserved?;
        Some(reserved as f64 / self.peak_asked as f64)
    }
}

pub(crate) fn run(
    device: Device,
    strategy: &Strategy,
    trace: &Trace,
    quiet: bool,
) -> Result<Replay> {
    let context = device.primary_context()?;
    let streams: Vec<Stream> = (0..trace.streams)
        .map(|_| context.stream())
        .collect::<Result<_, _>>()?;
    let bar = progress(trace.ops.len() as u64 * 4, quiet)?;

    let (driver, stats) = if *strategy == Strategy::Pool {
        let (served, stats) = by_pool(device, &streams, trace, &bar)?;
        (served, Some(stats))
    } else {
        let resource = Resource::new(DirectResource::new(device));
        (by_resource(&resource, &streams, trace, &bar)?, None)
    };

    let arena = Arena::builder(&device).build()?;
    let resource = Resource::from(arena.clone());
    let mut by_arena = by_resource(&resource, &streams, trace, &bar)?;
    by_arena.peak_reserved = Some(arena.stats().reserved_peak);
    bar.finish_and_clear();
    Ok(Replay {
        operations: trace.ops.len(),
        peak_asked: trace.peak_bytes,
        driver,
        stats,
        arena: by_arena,
    })
}

fn by_pool(
    device: Device,
    streams: &[Stream],
    trace: &Trace,
    bar: &ProgressBar,
) -> Result<(Served, PoolStats)> {
    let pool = MemoryPool::builder(&device).build()?;
    let (cold, warm) = passes(streams, trace, bar, |stream, bytes| {
        pool.alloc(stream, bytes)
    })?;
    let stats = pool.stats()?;
    // The arena comes next: only one of them holds memory at a time.
    pool.trim_to(0)?;
    let peak_reserved = Some(stats.reserved.high);
    let served = Served {
        cold,
        warm,
        peak_reserved,
    };
    Ok((served, stats))
}

fn by_resource(
    resource: &Resource,
    streams: &[Stream],
    trace: &Trace,
    bar: &ProgressBar,
) -> Result<Served> {
    let (cold, warm) = passes(streams, trace, bar, |stream, bytes| {
        resource.alloc(stream, bytes)
    })?;
    Ok(Served {
        cold,
        warm,
        peak_reserved: None,
    })
}

/// Replays the log twice, and waits for the streams after each time.
fn passes(
    streams: &[Stream],
    trace: &Trace,
    bar: &ProgressBar,
    alloc: impl Fn(&Stream, usize) -> Result<DeviceBuffer<u8>, Error>,
) -> Result<(Duration, Duration)> {
    let once = || {
        let spent = pass(streams, trace, bar, &alloc)?;
        for stream in streams {
            stream.synchronize()?;
        }
        anyhow::Ok(spent)
    };
    Ok((once()?, once()?))
}

/// Replays the log once, and then frees, untimed, what it leaves live.
fn pass(
    streams: &[Stream],
    trace: &Trace,
    bar: &ProgressBar,
    alloc: impl Fn(&Stream, usize) -> Result<DeviceBuffer<u8>, Error>,
) -> Result<Duration> {
    let mut live: Vec<Option<DeviceBuffer<u8>>> = Vec::new();
    live.resize_with(trace.slots, || None);
    let mut spent = Duration::ZERO;
    for (index, batch) in trace.ops.chunks(BATCH).enumerate() {
        let start = Instant::now();
        for (offset, op) in batch.iter().enumerate() {
            match *op {
                Op::Allocate {
                    slot,
                    bytes,
                    stream,
                } => {
                    let buffer = alloc(&streams[stream], bytes).with_context(|| {
                        format!("operation {} of the log", index * BATCH + offset + 1)
                    })?;
                    live[slot] = Some(buffer);
                }
                Op::Free { slot, .. } => live[slot] = None,
            }
        }
        spent += start.elapsed();
        bar.inc(batch.len() as u64);
    }
    Ok(spent)
}

fn progress(length: u64, quiet: bool) -> Result<ProgressBar> {
    if quiet {
        return Ok(ProgressBar::hidden());
    }
    let style =
        ProgressStyle::with_template("replaying {bar:40} {pos}/{len} operations, {elapsed}")?;
    Ok(ProgressBar::new(length).with_style(style))
}
