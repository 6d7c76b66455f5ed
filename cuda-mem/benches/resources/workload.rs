//! RMM's `random_allocations` on every resource.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::memory::{LimitAdaptor, StatisticsAdaptor, TrackingAdaptor};
use cuda_mem::{DeviceBuffer, Driver, MemoryPool, Resource, Stream};
use cuda_mem_trace::Op;
use cuda_mem_trace::random::{RandomAllocations, random_allocations};
use serde_json::{Value, json};

use crate::pairs::resources;

pub(crate) const METHOD: &str = "RMM's random_allocations with its own generator (the hash shows that \
     the operations are the same): nanoseconds an operation, without kernels, on one stream and one \
     thread; the first pass on a new resource, the second right after it; peak reserved as the pool counts it";

/// Allocations, largest size in MiB, and the hash of the operations.
const WORKLOADS: [(usize, u64, u64); 6] = [
    (1000, 1, 0x02ee_e92c_b248_5f8b),
    (1000, 4, 0xffe7_0109_cacf_7227),
    (1000, 64, 0xcc3d_32c8_303d_d633),
    (1000, 4096, 0x17d1_22a6_3b11_d82b),
    (10_000, 64, 0xb83b_2b4b_edf6_d00f),
    (100_000, 4, 0x9080_61ee_32fa_499f),
];

pub(crate) struct Run {
    resource: &'static str,
    allocations: usize,
    max_mib: u64,
    first_ns: f64,
    second_ns: f64,
    peak_asked: u64,
    peak_reserved: Option<u64>,
}

pub(crate) fn measure(driver: Driver, stream: &Stream, quick: bool) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for (allocations, max_mib, hash) in WORKLOADS {
        let workload = random_allocations(allocations, max_mib)?;
        ensure!(workload.hash == hash, "another workload than RMM's");
        // New for each workload, so that the first pass is cold.
        let device = driver.device(0)?;
        let pool = MemoryPool::builder(&device).build()?;
        let mut all = resources(driver)?;
        all.retain(|(name, _)| *name != "pool");
        all.insert(0, ("pool", Resource::new(pool.clone())));
        let adapted = TrackingAdaptor::new(LimitAdaptor::new(pool.clone(), u64::MAX));
        let adapted = StatisticsAdaptor::new(adapted);
        all.insert(
            1,
            (
                "statistics, tracking, limit over pool",
                Resource::new(adapted),
            ),
        );
        for (name, resource) in all {
            if !is_run(name, allocations, max_mib, quick) {
                continue;
            }
            let of_pool = name.ends_with("pool");
            if of_pool {
                stream.synchronize()?;
                pool.trim_to(0)?;
                pool.reset_high_marks()?;
            }
            let first_ns = pass(&resource, stream, &workload)?;
            let second_ns = pass(&resource, stream, &workload)?;
            let stats = if of_pool { Some(pool.stats()?) } else { None };
            runs.push(Run {
                resource: name,
                allocations,
                max_mib,
                first_ns,
                second_ns,
                peak_asked: workload.trace.peak_bytes,
                peak_reserved: stats.map(|stats| stats.reserved.high),
            });
        }
    }
    Ok(runs)
}

/// Leaves out what takes many minutes: pinning memory costs milliseconds per few MiB.
fn is_run(resource: &str, allocations: usize, max_mib: u64, quick: bool) -> bool {
    let bulk = allocations as u64 * max_mib;
    match resource {
        _ if quick => bulk <= 4000,
        "pinned" => bulk <= 4000,
        "direct" | "managed" | "managed with prefetch" => bulk <= 64_000,
        _ => true,
    }
}

/// Nanoseconds per operation.
fn pass(resource: &Resource, stream: &Stream, workload: &RandomAllocations) -> Result<f64> {
    let mut slots: Vec<Option<DeviceBuffer<u8>>> = Vec::new();
    slots.resize_with(workload.trace.slots, || None);
    let start = Instant::now();
    for op in &workload.trace.ops {
        match *op {
            Op::Allocate { slot, bytes, .. } => {
                slots[slot] = Some(resource.alloc(stream, bytes)?);
            }
            Op::Free { slot, .. } => {
                drop(
                    slots[slot]
                        .take()
                        .context("freed before it was allocated")?,
                );
            }
        }
    }
    let elapsed = start.elapsed();
    stream.synchronize()?;
    Ok(elapsed.as_nanos() as f64 / workload.trace.ops.len() as f64)
}

pub(crate) fn json(runs: &[Run]) -> Value {
    runs.iter()
        .map(|run| {
            json!({
                "resource": run.resource,
                "allocations": run.allocations,
                "max_mib": run.max_mib,
                "first_ns": run.first_ns,
                "second_ns": run.second_ns,
                "peak_asked": run.peak_asked,
                "peak_reserved": run.peak_reserved,
            })
        })
        .collect()
}

pub(crate) fn show(runs: &[Run]) {
    println!("\nrandom allocations: {METHOD}\n");
    println!(
        "{:<38} {:>7} {:>8} {:>12} {:>12} {:>15}",
        "resource", "N", "max MiB", "first", "second", "reserved/asked"
    );
    for run in runs {
        let ratio = run.peak_reserved.map_or_else(String::new, |peak| {
            format!("{:.3}", peak as f64 / run.peak_asked as f64)
        });
        println!(
            "{:<38} {:>7} {:>8} {:>9.0} ns {:>9.0} ns {:>15}",
            run.resource, run.allocations, run.max_mib, run.first_ns, run.second_ns, ratio
        );
    }
}
