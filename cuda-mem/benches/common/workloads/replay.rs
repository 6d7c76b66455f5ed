//! A recorded training run.

use std::time::Instant;

use anyhow::{Result, ensure};
use cuda_mem_trace::{Op, Trace};

use super::{Rival, Row};

pub(super) fn run<R: Rival>(
    new: &dyn Fn() -> Result<R>,
    trace: &Trace,
    show: &mut dyn FnMut(Row) -> Result<()>,
) -> Result<()> {
    ensure!(trace.streams == 1, "the log is of one stream");
    let rival = new()?;
    let stream = rival.stream()?;
    let first = pass(&rival, &stream, trace)?;
    let second = pass(&rival, &stream, trace)?;
    show(Row {
        workload: "gpt2",
        threads: 1,
        operations: trace.ops.len(),
        planned: trace.ops.len(),
        ns: Some(second),
        first_ns: Some(first),
        asked: Some(trace.peak_bytes),
        reserved: Some(rival.reserved_peak()?),
        ..Row::default()
    })
}

/// Nanoseconds per operation. Blocks live at the end are freed, untimed, and the stream is synchronised.
fn pass<R: Rival>(rival: &R, stream: &R::Stream, trace: &Trace) -> Result<f64> {
    let mut live: Vec<Option<R::Block>> = Vec::new();
    live.resize_with(trace.slots, || None);
    let start = Instant::now();
    for op in &trace.ops {
        match *op {
            Op::Allocate { slot, bytes, .. } => {
                live[slot] = Some(rival.allocate(stream, bytes)?);
            }
            Op::Free { slot, .. } => {
                if let Some(block) = live[slot].take() {
                    rival.free(stream, block)?;
                }
            }
        }
    }
    let elapsed = start.elapsed();
    for block in live.into_iter().flatten() {
        rival.free(stream, block)?;
    }
    rival.synchronize(stream)?;
    Ok(elapsed.as_nanos() as f64 / trace.ops.len() as f64)
}
