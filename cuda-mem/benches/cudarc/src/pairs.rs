//! Allocate and free by size, on one thread.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use cudarc::driver::{CudaContext, CudaStream};
use serde_json::{Value, json};

use crate::{Effort, allocate, middle};

const SIZES: [usize; 7] = [
    256,
    4 << 10,
    64 << 10,
    1 << 20,
    2 << 20,
    16 << 20,
    256 << 20,
];

pub(crate) struct Row {
    bytes: usize,
    pair_ns: f64,
}

pub(crate) fn method(effort: Effort) -> String {
    format!(
        "one thread; median of {} rounds of {} pairs after {} pairs to warm up",
        effort.rounds, effort.pairs, effort.warm_up
    )
}

pub(crate) fn measure(context: &Arc<CudaContext>, effort: Effort) -> Result<Vec<Row>> {
    let stream = context.new_stream()?;
    SIZES
        .into_iter()
        .map(|bytes| {
            run(&stream, bytes, effort.warm_up)?;
            let rounds = (0..effort.rounds)
                .map(|_| {
                    let start = Instant::now();
                    run(&stream, bytes, effort.pairs)?;
                    Ok(start.elapsed().as_nanos() as f64 / effort.pairs as f64)
                })
                .collect::<Result<Vec<f64>>>()?;
            stream.synchronize()?;
            Ok(Row {
                bytes,
                pair_ns: middle(rounds),
            })
        })
        .collect()
}

/// Runs this many pairs.
#[inline]
pub(crate) fn run(stream: &Arc<CudaStream>, bytes: usize, pairs: usize) -> Result<()> {
    for _ in 0..pairs {
        drop(black_box(allocate(stream, bytes)?));
    }
    Ok(())
}

impl Row {
    pub(crate) fn json(&self) -> Value {
        json!({ "bytes": self.bytes, "pair_ns": self.pair_ns })
    }
}

pub(crate) fn show(rows: &[Row]) {
    println!("{:>14} {:>14}", "bytes", "pair");
    for row in rows {
        println!("{:>14} {:>11.0} ns", row.bytes, row.pair_ns);
    }
}
