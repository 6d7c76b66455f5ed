//! Serves a recorded run's allocations from a pool and from an arena.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cuda_mem::{Arena, Device, DeviceBuffer, Error, MemoryPool, PoolStats, Resource, Stream};
use cuda_mem_trace::{Op, Trace};
use indicatif::{ProgressBar, ProgressStyle};

/// Operations between two clock reads; the progress bar is updated outside the timed part.
const BATCH: usize = 1024;

/// The log served by the driver's pool and by an arena.
pub(crate) struct Replay {
    pub(crate) operations: usize,
    /// The most live bytes in the log at any time.
    pub(crate) peak_asked: u64,
    pub(crate) pool: Served,
    pub(crate) arena: Served,
    pub(crate) stats: PoolStats,
}

/// The cost of serving the log.
pub(crate) struct Served {
    /// Starting without memory.
    pub(crate) cold: Duration,
    /// The second time, with the memory of the first.
    pub(crate) warm: Duration,
    pub(crate) peak_reserved: u64,
}

impl Replay {
    /// Bytes held per requested byte, at the peak.
    pub(crate) fn reserved_over_asked(&self, served: &Served) -> f64 {
        served.peak_reserved as f64 / self.peak_asked as f64
    }
}

pub(crate) fn run(device: Device, trace: &Trace, quiet: bool) -> Result<Replay> {
    let context = device.primary_context()?;
    let streams: Vec<Stream> = (0..trace.streams)
        .map(|_| context.stream())
        .collect::<Result<_, _>>()?;
    let bar = progress(trace.ops.len() as u64 * 4, quiet)?;

    let pool = MemoryPool::builder(&device).build()?;
    let (cold, warm) = passes(&streams, trace, &bar, |stream, bytes| {
        pool.alloc(stream, bytes)
    })?;
    let stats = pool.stats()?;
    // Only one of them holds memory at a time.
    pool.trim_to(0)?;
    let by_pool = Served {
        cold,
        warm,
        peak_reserved: stats.reserved.high,
    };

    let arena = Arena::builder(&device).build()?;
    let resource = Resource::from(arena.clone());
    let (cold, warm) = passes(&streams, trace, &bar, |stream, bytes| {
        resource.alloc(stream, bytes)
    })?;
    let by_arena = Served {
        cold,
        warm,
        peak_reserved: arena.stats().reserved_peak,
    };
    bar.finish_and_clear();
    Ok(Replay {
        operations: trace.ops.len(),
        peak_asked: trace.peak_bytes,
        pool: by_pool,
        arena: by_arena,
        stats,
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
