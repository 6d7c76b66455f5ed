//! Cost of each resource that calls the driver.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use cuda_mem::memory::{DirectResource, ManagedResource, PinnedResource, PrefetchAdaptor};
use cuda_mem::{Driver, MemoryPool, Resource, Stream};
use serde_json::{Value, json};

use crate::common::middle;

pub(crate) const METHOD: &str = "nanoseconds for one allocate + drop of a buffer, the stream being idle: \
     medians of 51 pairs (11 of more than 16 MiB) after 5 of warm-up; of the pool, 101 rounds of 20 pairs";

const SIZES: [usize; 4] = [256, 1 << 20, 16 << 20, 256 << 20];

pub(crate) struct Row {
    resource: &'static str,
    bytes: usize,
    pair_ns: f64,
}

/// Every resource, by name.
pub(crate) fn resources(driver: Driver) -> Result<Vec<(&'static str, Resource)>> {
    let device = driver.device(0)?;
    let managed = || ManagedResource::new(driver);
    Ok(vec![
        ("pool", Resource::new(MemoryPool::builder(&device).build()?)),
        ("direct", Resource::new(DirectResource::new(device))),
        ("pinned", Resource::new(PinnedResource::new(driver))),
        ("managed", Resource::new(managed())),
        (
            "managed with prefetch",
            Resource::new(PrefetchAdaptor::new(managed())),
        ),
    ])
}

pub(crate) fn measure(driver: Driver, stream: &Stream, quick: bool) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, resource) in resources(driver)? {
        for bytes in SIZES {
            if quick && bytes > 1 << 20 {
                continue;
            }
            let (rounds, pairs) = match name {
                "pool" => (101, 20),
                _ if bytes > 16 << 20 => (11, 1),
                _ => (51, 1),
            };
            let pair_ns = median(rounds, pairs, || {
                drop(black_box(resource.alloc::<u8>(stream, bytes)?));
                Ok(())
            })?;
            rows.push(Row {
                resource: name,
                bytes,
                pair_ns,
            });
        }
    }
    Ok(rows)
}

fn median(rounds: usize, pairs: usize, mut pair: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for round in 0..rounds + 5 {
        let start = Instant::now();
        for _ in 0..pairs {
            pair()?;
        }
        if round >= 5 {
            times.push(start.elapsed().as_nanos() as f64 / pairs as f64);
        }
    }
    Ok(middle(times))
}

pub(crate) fn json(rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| json!({ "resource": row.resource, "bytes": row.bytes, "pair_ns": row.pair_ns }))
        .collect()
}

pub(crate) fn show(rows: &[Row]) {
    println!("\nresources: {METHOD}\n");
    println!("{:<24} {:>12} {:>16}", "resource", "bytes", "pair");
    for row in rows {
        println!(
            "{:<24} {:>12} {:>13.0} ns",
            row.resource, row.bytes, row.pair_ns
        );
    }
}
