//! One rank's part.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::collective::{Communicator, ReduceOp};
use cuda_mem::interop::{CaptureMode, Instantiate};
use cuda_mem::{DeviceBuffer, Resource, Stream};

use super::common::synchronize;
use super::memory::Kind;

/// What all ranks do.
pub(crate) struct Plan {
    pub(crate) sizes: Vec<u64>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) rounds: usize,
}

/// How long an all-reduce of one size takes, from memory of one kind.
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) bytes: u64,
    /// Whether the library chose the window.
    pub(crate) in_window: bool,
    /// Nanoseconds, started one by one from the host.
    pub(crate) started_ns: f64,
    /// Nanoseconds, replayed from a graph.
    pub(crate) replayed_ns: f64,
}

/// Bytes that a round moves, roughly: more operations of small sizes.
const ROUND: u64 = 64 << 20;
const MOST: u64 = 50;

pub(crate) fn rank(communicator: &Communicator, plan: &Plan) -> Result<Vec<Row>> {
    let stream = communicator.context().stream()?;
    let most = plan.sizes.last().copied().unwrap_or(0);
    let mut resources = Vec::new();
    for kind in &plan.kinds {
        resources.push((*kind, kind.resource(communicator, most)?));
    }
    let mut rows = Vec::new();
    for bytes in &plan.sizes {
        let at = || format!("{bytes} bytes");
        rows.extend(of_size(plan, communicator, &stream, &resources, *bytes).with_context(at)?);
    }
    rows.sort_by_key(|row| plan.kinds.iter().position(|kind| *kind == row.kind));
    Ok(rows)
}

/// All kinds of memory, which take turns: what else the machine does then hits all of them.
fn of_size(
    plan: &Plan,
    communicator: &Communicator,
    stream: &Stream,
    resources: &[(Kind, Resource)],
    bytes: u64,
) -> Result<Vec<Row>> {
    let len = usize::try_from(bytes / 4)?;
    let times = (ROUND / bytes.max(1)).clamp(2, MOST) as usize;
    let mut buffers = Vec::new();
    for (kind, resource) in resources {
        let mut from = resource.alloc::<f32>(stream, len)?;
        let mut to = resource.alloc::<f32>(stream, len)?;
        from.as_mut_slice().fill(communicator.rank() as f32 + 1.0)?;
        communicator.all_reduce(&from, &mut to, ReduceOp::Sum)?;
        synchronize(communicator, stream)?;
        check(communicator, &to).with_context(|| kind.name())?;
        buffers.push((from, to));
    }
    let started = rounds(plan, &mut buffers, |(from, to)| {
        let start = Instant::now();
        for _ in 0..times {
            communicator.all_reduce(from, to, ReduceOp::Sum)?;
        }
        synchronize(communicator, stream)?;
        Ok(start.elapsed().as_nanos() as f64 / times as f64)
    })?;

    let mut recorded = Vec::new();
    for (from, mut to) in buffers {
        let in_window = communicator.uses_window(&from, &to);
        to.as_mut_slice().fill(0.0)?;
        let (graph, to) = stream.capture(CaptureMode::Relaxed, |capture| {
            let (from, to) = (capture.adopt(from), capture.adopt(to));
            let (source, mut target) = (capture.buffer_mut(&from)?, capture.buffer_mut(&to)?);
            for _ in 0..times {
                communicator.all_reduce(&source, &mut target, ReduceOp::Sum)?;
            }
            Ok(to)
        })?;
        recorded.push((graph.instantiate(Instantiate::default())?, to, in_window));
    }
    let context = stream.context();
    let (start, end) = (context.timing_event()?, context.timing_event()?);
    let replayed = rounds(plan, &mut recorded, |(graph, ..)| {
        start.record(stream)?;
        graph.launch(stream)?;
        end.record(stream)?;
        synchronize(communicator, stream)?;
        Ok(f64::from(end.elapsed_ms_since(&start)?) * 1e6 / times as f64)
    })?;

    let mut rows = Vec::new();
    let times = started.into_iter().zip(replayed);
    for (((kind, _), (graph, to, in_window)), (started_ns, replayed_ns)) in
        resources.iter().zip(&recorded).zip(times)
    {
        check(communicator, graph.buffer(to)?).with_context(|| kind.name())?;
        rows.push(Row {
            kind: *kind,
            bytes,
            in_window: *in_window,
            started_ns,
            replayed_ns,
        });
    }
    Ok(rows)
}

/// The median of some rounds after a first one, for each of these, which take turns.
fn rounds<S>(
    plan: &Plan,
    all: &mut [S],
    mut round: impl FnMut(&mut S) -> Result<f64>,
) -> Result<Vec<f64>> {
    let mut times = vec![Vec::new(); all.len()];
    for turn in 0..=plan.rounds {
        for (one, times) in all.iter_mut().zip(&mut times) {
            let ns = round(one)?;
            if turn > 0 {
                times.push(ns);
            }
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(times.into_iter().map(median).collect())
}

/// Every element is the sum of what the ranks had.
fn check(communicator: &Communicator, to: &DeviceBuffer<f32>) -> Result<()> {
    let ranks = communicator.rank_count();
    let sum = (ranks * (ranks + 1) / 2) as f32;
    let wrong = to.to_vec()?.iter().position(|element| *element != sum);
    ensure!(wrong.is_none(), "element {wrong:?} is not {sum}");
    Ok(())
}
