//! One allocation and its free, by size.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use cuda_mem::{Arena, Device, MemoryPool, MemoryResource, Resource, Stream};
use serde_json::{Value, json};

use crate::SUBJECTS;
use crate::common::middle;
use crate::subjects::{Subject, layout};

pub(crate) const METHOD: &str = "nanoseconds for one allocate + free, one thread, one stream, nothing \
     running, no synchronise: medians of 201 rounds of 1000 pairs (the pool: 100) after 20 rounds; \
     'resource' is through MemoryResource, 'buffer' makes and drops a DeviceBuffer over a handle that is \
     there as long as the program";

const ROUNDS: usize = 201;
const WARM_UP: usize = 20;
const SIZES: [usize; 9] = [
    256,
    1 << 10,
    4 << 10,
    64 << 10,
    1 << 20,
    2 << 20,
    16 << 20,
    64 << 20,
    256 << 20,
];

pub(crate) struct Row {
    subject: &'static str,
    how: &'static str,
    bytes: usize,
    pair_ns: f64,
}

/// One subject, with what its measurements need.
struct Measured {
    subject: &'static str,
    pairs: usize,
    resource: Subject,
    /// As in a program that keeps one resource for its whole life.
    leaked: &'static dyn MemoryResource,
}

pub(crate) fn measure(device: &Device, stream: &Stream) -> Result<Vec<Row>> {
    let measured = |subject| -> Result<Measured> {
        Ok(Measured {
            subject,
            pairs: if subject == "pool" { 100 } else { 1000 },
            resource: Subject::new(subject, device)?,
            leaked: match subject {
                "pool" => Box::leak(Box::new(MemoryPool::builder(device).build()?)),
                _ => Box::leak(Box::new(Arena::builder(device).build()?)),
            },
        })
    };
    let all: Result<Vec<Measured>> = SUBJECTS.into_iter().map(measured).collect();
    let all = all?;
    let mut rows = Vec::new();
    // Subjects alternate, because a shared machine has slow minutes.
    for how in ["resource", "buffer"] {
        for bytes in SIZES {
            for one in &all {
                rows.push(Row {
                    subject: one.subject,
                    how,
                    bytes,
                    pair_ns: one.pair_ns(how, bytes, stream)?,
                });
            }
        }
    }
    stream.synchronize()?;
    for one in &all {
        one.leaked.trim_to(0)?;
    }
    Ok(rows)
}

impl Measured {
    fn pair_ns(&self, how: &str, bytes: usize, stream: &Stream) -> Result<f64> {
        if how == "buffer" {
            let handle = Resource::from_static(self.leaked);
            return median(self.pairs, || {
                drop(black_box(handle.alloc::<u8>(stream, black_box(bytes))?));
                Ok(())
            });
        }
        let layout = layout(bytes)?;
        median(self.pairs, || {
            let address = black_box(&self.resource).allocate(black_box(layout), stream)?;
            // SAFETY: allocated just now, with this layout.
            unsafe { self.resource.deallocate(black_box(address), layout, stream) }
        })
    }
}

fn median(pairs: usize, mut pair: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::new();
    for round in 0..ROUNDS + WARM_UP {
        let start = Instant::now();
        for _ in 0..pairs {
            pair()?;
        }
        if round >= WARM_UP {
            times.push(start.elapsed().as_nanos() as f64 / pairs as f64);
        }
    }
    Ok(middle(times))
}

pub(crate) fn json(rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| json!({ "subject": row.subject, "how": row.how, "bytes": row.bytes, "pair_ns": row.pair_ns }))
        .collect()
}

pub(crate) fn show(rows: &[Row]) {
    println!("\npairs: {METHOD}\n");
    println!(
        "{:<8} {:<10} {:>12} {:>12}",
        "subject", "through", "bytes", "pair"
    );
    for row in rows {
        println!(
            "{:<8} {:<10} {:>12} {:>9.1} ns",
            row.subject, row.how, row.bytes, row.pair_ns
        );
    }
}
