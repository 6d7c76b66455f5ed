//! Serving a recorded run's allocations from a pool.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cuda_mem::{Device, DeviceBuffer, MemoryPool, PoolStats, Stream};
use cuda_mem_trace::{Op, Trace};
use indicatif::{ProgressBar, ProgressStyle};

/// Operations between two looks at the clock; the progress bar moves outside the timed part.
const BATCH: usize = 1024;

/// What a replay took.
pub(crate) struct Replay {
    pub(crate) operations: usize,
    /// Starts with an empty pool.
    pub(crate) cold: Duration,
    /// The same again; the pool has its memory.
    pub(crate) warm: Duration,
    /// The most bytes that the log has alive at one moment.
    pub(crate) peak_asked: u64,
    pub(crate) stats: PoolStats,
}

impl Replay {
    /// Bytes held for each byte asked for, at the peak.
    pub(crate) fn reserved_over_asked(&self) -> f64 {
        self.stats.reserved.high as f64 / self.peak_asked as f64
    }
}

pub(crate) fn run(device: Device, trace: &Trace, quiet: bool) -> Result<Replay> {
    let context = device.primary_context()?;
    let pool = MemoryPool::builder(&device).build()?;
    let streams: Vec<Stream> = (0..trace.streams)
        .map(|_| context.stream())
        .collect::<Result<_, _>>()?;
    let bar = progress(trace.ops.len() as u64 * 2, quiet)?;
    let cold = pass(&pool, &streams, trace, &bar)?;
    for stream in &streams {
        stream.synchronize()?;
    }
    let warm = pass(&pool, &streams, trace, &bar)?;
    bar.finish_and_clear();
    Ok(Replay {
        operations: trace.ops.len(),
        cold,
        warm,
        peak_asked: trace.peak_bytes,
        stats: pool.stats()?,
    })
}

/// Replays the log once and frees, untimed, what it leaves alive.
fn pass(
    pool: &MemoryPool,
    streams: &[Stream],
    trace: &Trace,
    bar: &ProgressBar,
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
                    let buffer = pool.alloc(&streams[stream], bytes).with_context(|| {
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
