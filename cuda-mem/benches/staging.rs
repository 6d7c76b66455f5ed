//! Ways to send data of the host to a device, as a program does that sends a batch for each step.
//!
//! `cargo bench -p cuda-mem --bench staging [-- --json]`. Method: each way sends the same number of batches of one size,
//! each written by the host right before, to one buffer on the device; the ways take turns, and the time of a way is
//! the median over the rounds, from the first write until the device has the last batch. The blocked time is what the
//! host spends outside its own writes and the last wait.

mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::memory::PinnedResource;
use cuda_mem::{Arena, Context, DeviceBuffer, Driver, MemoryPool, ReusePolicy, Stream};
use serde_json::json;

use common::{cpu, middle, open};

const ROUNDS: usize = 15;
const BATCHES: usize = 200;
const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 8 << 20];

/// A way to send `BATCHES` batches. Returns what the host spent writing.
type Way = fn(&Bench, &mut DeviceBuffer<u8>) -> Result<Duration>;

const WAYS: [(&str, Way); 5] = [
    ("a slice, pageable", pageable),
    ("pinned memory for each batch", pinned_each),
    ("one pinned buffer", pinned_one),
    ("two pinned buffers in turns", pinned_two),
    ("arena over pinned memory", arena),
];

struct Bench {
    context: Context,
    stream: Stream,
    /// Nothing runs in it: memory allocated here is the host's at once.
    idle: Stream,
    staging: Arena,
    source: Vec<u8>,
}

impl Bench {
    fn new(driver: Driver, bytes: usize) -> Result<Self> {
        let context = driver.device(0)?.primary_context()?;
        let pinned = PinnedResource::new(driver);
        Ok(Self {
            stream: context.stream()?,
            idle: context.stream()?,
            // Not by making the idle stream wait: the host would wait for it.
            staging: Arena::builder_over(pinned)
                .reuse(ReusePolicy::ALLOW_OPPORTUNISTIC)
                .build()?,
            source: (0..bytes).map(|at| at as u8).collect(),
            context,
        })
    }

    /// The host produces a batch.
    fn write(&self, to: &mut [u8], number: usize) -> Duration {
        let begun = Instant::now();
        to.copy_from_slice(black_box(&self.source));
        to[0] = number as u8;
        begun.elapsed()
    }
}

fn pageable(bench: &Bench, target: &mut DeviceBuffer<u8>) -> Result<Duration> {
    let (mut batch, mut wrote) = (vec![0; target.len()], Duration::ZERO);
    for number in 0..BATCHES {
        wrote += bench.write(&mut batch, number);
        target.copy_from(&batch)?;
    }
    Ok(wrote)
}

fn pinned_each(bench: &Bench, target: &mut DeviceBuffer<u8>) -> Result<Duration> {
    let mut wrote = Duration::ZERO;
    for number in 0..BATCHES {
        let mut batch = bench.context.pinned::<u8>(target.len())?;
        wrote += bench.write(&mut batch, number);
        target.copy_from(&batch)?;
    }
    Ok(wrote)
}

fn pinned_one(bench: &Bench, target: &mut DeviceBuffer<u8>) -> Result<Duration> {
    let (mut batch, mut wrote) = (bench.context.pinned::<u8>(target.len())?, Duration::ZERO);
    for number in 0..BATCHES {
        wrote += bench.write(&mut batch, number);
        let flight = batch.lend(&bench.stream)?;
        flight.copy_to(target)?;
        batch = flight.take_back()?;
    }
    Ok(wrote)
}

fn pinned_two(bench: &Bench, target: &mut DeviceBuffer<u8>) -> Result<Duration> {
    let mut wrote = Duration::ZERO;
    let mut free = Some(bench.context.pinned::<u8>(target.len())?);
    let mut flight = Some(
        bench
            .context
            .pinned::<u8>(target.len())?
            .lend(&bench.stream)?,
    );
    for number in 0..BATCHES {
        let mut batch = free.take().context("a buffer is free")?;
        wrote += bench.write(&mut batch, number);
        let next = batch.lend(&bench.stream)?;
        next.copy_to(target)?;
        // Waits for this copy too: the stream is one.
        let before = flight.replace(next).context("a buffer is in flight")?;
        free = Some(before.take_back()?);
    }
    Ok(wrote)
}

fn arena(bench: &Bench, target: &mut DeviceBuffer<u8>) -> Result<Duration> {
    let mut wrote = Duration::ZERO;
    for number in 0..BATCHES {
        let mut batch = bench.staging.alloc::<u8>(&bench.idle, target.len())?;
        wrote += bench.write(batch.host_mut()?, number);
        let batch = batch.move_to(&bench.stream)?;
        target.copy_from_device(&batch)?;
    }
    Ok(wrote)
}

struct Row {
    bytes: usize,
    way: &'static str,
    /// For a batch.
    us: f64,
    blocked_us: f64,
    staged: u64,
}

fn main() -> Result<()> {
    let json = std::env::args().any(|argument| argument == "--json");
    let (driver, backend) = open()?;
    let device = driver.device(0)?;
    let pool = MemoryPool::builder(&device).build()?;
    let mut rows = Vec::new();
    for bytes in SIZES {
        let bench = Bench::new(driver, bytes)?;
        let mut target = pool.alloc::<u8>(&bench.stream, bytes)?;
        let mut times = vec![Vec::new(); WAYS.len()];
        for _ in 0..ROUNDS {
            for ((_, way), times) in WAYS.iter().zip(&mut times) {
                bench.stream.synchronize()?;
                let begun = Instant::now();
                let wrote = way(&bench, &mut target)?;
                let submitted = begun.elapsed();
                bench.stream.synchronize()?;
                times.push((begun.elapsed(), submitted.saturating_sub(wrote)));
                let last = target.slice(..1)?.to_vec()?;
                ensure!(last == [(BATCHES - 1) as u8], "the last batch is missing");
            }
        }
        for ((way, _), times) in WAYS.iter().zip(times) {
            let (all, blocked): (Vec<_>, Vec<_>) = times.into_iter().unzip();
            rows.push(Row {
                bytes,
                way,
                us: median_us(all),
                blocked_us: median_us(blocked),
                staged: bench.staging.stats().reserved_peak,
            });
        }
    }
    if json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({
                    "bytes": row.bytes, "way": row.way, "us": row.us, "blocked_us": row.blocked_us,
                    "staging_reserved_high_bytes": row.staged,
                })
            })
            .collect();
        let report = json!({
            "benchmark": "staging", "backend": backend, "device": device.name()?, "cpu": cpu(),
            "method": method(), "batches": rows,
        });
        println!("{report}");
        return Ok(());
    }
    println!("{backend}, {}, {}\n{}\n", device.name()?, cpu(), method());
    println!(
        "{:>9}  {:<30} {:>10} {:>12} {:>8}",
        "bytes", "way", "us a batch", "blocked, us", "GB/s"
    );
    for row in rows {
        println!(
            "{:>9}  {:<30} {:>10.2} {:>12.2} {:>8.2}",
            row.bytes,
            row.way,
            row.us,
            row.blocked_us,
            row.bytes as f64 / row.us / 1000.0
        );
    }
    Ok(())
}

fn method() -> String {
    format!(
        "{BATCHES} batches of each size in each way, written by the host and sent to one buffer; medians of {ROUNDS} \
         rounds in turns; blocked: what the host spends outside its writes and the last wait"
    )
}

/// Of one batch.
fn median_us(times: Vec<Duration>) -> f64 {
    let us = times
        .into_iter()
        .map(|time| time.as_secs_f64() * 1e6 / BATCHES as f64);
    middle(us.collect())
}
