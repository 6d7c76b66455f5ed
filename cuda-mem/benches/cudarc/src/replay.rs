//! A recorded training run.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cuda_mem_trace::{Op, Trace};
use cudarc::driver::{CudaContext, CudaSlice};
use serde_json::{Value, json};

use crate::allocate;

pub(crate) const METHOD: &str = "mean time of an operation of the recorded GPT-2 training run on one thread \
     and stream; pass 1 follows after a synchronisation of the stream, at which the default pool gives its \
     memory back unless its release threshold was raised, which cudarc does not do";

const PASSES: usize = 2;

pub(crate) struct Replay {
    operations: usize,
    ns_per_op: Vec<f64>,
}

pub(crate) fn measure(context: &Arc<CudaContext>, trace: &Trace) -> Result<Replay> {
    ensure!(trace.streams == 1, "the log is of one stream");
    let stream = context.new_stream()?;
    let mut ns_per_op = Vec::new();
    for _ in 0..PASSES {
        let mut live: Vec<Option<CudaSlice<u8>>> = Vec::new();
        live.resize_with(trace.slots, || None);
        let start = Instant::now();
        for (index, op) in trace.ops.iter().enumerate() {
            match *op {
                Op::Allocate { slot, bytes, .. } => {
                    let slice = allocate(&stream, bytes)
                        .with_context(|| format!("operation {} of the log", index + 1))?;
                    live[slot] = Some(slice);
                }
                Op::Free { slot, .. } => live[slot] = None,
            }
        }
        let spent = start.elapsed();
        ns_per_op.push(spent.as_nanos() as f64 / trace.ops.len() as f64);
        drop(live);
        stream.synchronize()?;
    }
    Ok(Replay {
        operations: trace.ops.len(),
        ns_per_op,
    })
}

impl Replay {
    pub(crate) fn json(&self) -> Value {
        json!({ "operations": self.operations, "ns_per_op": self.ns_per_op })
    }

    pub(crate) fn show(&self) {
        println!("{:>14} {:>14}", "replay, pass", "an operation");
        for (pass, ns) in self.ns_per_op.iter().enumerate() {
            println!("{pass:>14} {ns:>11.0} ns");
        }
    }
}
