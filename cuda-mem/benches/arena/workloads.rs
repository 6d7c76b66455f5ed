//! Operations to replay: a recorded trace, and synthetic ones for several streams.

use anyhow::Result;
use cuda_mem_trace::random::random_allocations;
use cuda_mem_trace::{Op, Trace};

use crate::gpt2;

pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) ops: Vec<Op>,
    pub(crate) slots: usize,
    pub(crate) streams: usize,
    /// The most live bytes at any time.
    pub(crate) peak: u64,
}

fn from_ops(name: &str, ops: Vec<Op>) -> Workload {
    let (mut sizes, mut live, mut peak, mut streams) = (Vec::new(), 0_u64, 0, 0);
    for op in &ops {
        let used = match *op {
            Op::Allocate {
                slot,
                bytes,
                stream,
            } => {
                sizes.resize(sizes.len().max(slot + 1), 0);
                sizes[slot] = bytes as u64;
                live += bytes as u64;
                stream
            }
            Op::Free { slot, stream } => {
                live -= sizes[slot];
                stream
            }
        };
        streams = streams.max(used + 1);
        peak = peak.max(live);
    }
    Workload {
        name: name.to_owned(),
        ops,
        slots: sizes.len(),
        streams,
        peak,
    }
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// All workloads.
pub(crate) fn all() -> Result<Vec<Workload>> {
    let trace = gpt2::read()?;
    let mut all = vec![
        from_ops("GPT-2 training", trace.ops.clone()),
        from_ops(
            "GPT-2 on 4 streams",
            interleaved(&trace, 4, trace.ops.len() / 4),
        ),
        from_ops("pipeline, 4 streams", pipeline(4, 20_000)),
        from_ops("turns, 8 streams", turns(8, 40)),
        from_ops("adversary: holes", holes()),
    ];
    // Small accidents decide how tight a heap is, so there are eight sequences, each with few and with many streams.
    for streams in [8, 32] {
        for (letter, seed) in ('a'..='h').zip(11..) {
            let name = format!("server, {streams} streams, {letter}");
            all.push(from_ops(&name, server(streams, 4000, seed)));
        }
    }
    for (allocations, max_mib) in [(10_000, 64), (100_000, 4)] {
        let made = random_allocations(allocations, max_mib)?;
        all.push(from_ops(
            &format!("RMM random {allocations} x {max_mib} MiB"),
            made.trace.ops,
        ));
    }
    Ok(all)
}

/// The beginning of a trace on each of several streams, interleaved in random turns of up to 200 operations.
fn interleaved(trace: &Trace, streams: usize, length: usize) -> Vec<Op> {
    let mut draw = Draw(7);
    let mut at = vec![0; streams];
    let mut ops = Vec::new();
    while at.iter().any(|at| *at < length) {
        let stream = draw.below(streams as u64) as usize;
        let turn = draw.below(200) as usize;
        let offset = stream * trace.slots;
        for op in trace.ops[..length].iter().skip(at[stream]).take(turn) {
            ops.push(match *op {
                Op::Allocate { slot, bytes, .. } => Op::Allocate {
                    slot: slot + offset,
                    bytes,
                    stream,
                },
                Op::Free { slot, .. } => Op::Free {
                    slot: slot + offset,
                    stream,
                },
            });
        }
        at[stream] = (at[stream] + turn).min(length);
    }
    ops
}

/// Requests that each allocate some blocks on one of several streams and free them all; several are served at a time.
fn server(streams: usize, requests: usize, seed: u64) -> Vec<Op> {
    let mut draw = Draw(seed);
    let mut ops = Vec::new();
    let mut open: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut slots = 0;
    let mut free: Vec<usize> = Vec::new();
    for _ in 0..requests {
        let stream = draw.below(streams as u64) as usize;
        let mut blocks = Vec::new();
        for _ in 0..=draw.below(24) {
            // From 4 KiB to 256 MiB, log-uniform.
            let size = 4096_u64 << draw.below(16);
            let bytes = (size + draw.below(size)) as usize;
            let slot = free.pop().unwrap_or_else(|| {
                slots += 1;
                slots - 1
            });
            blocks.push(slot);
            ops.push(Op::Allocate {
                slot,
                bytes,
                stream,
            });
        }
        open.push((stream, blocks));
        while open.len() > 6 || (!open.is_empty() && draw.below(3) == 0) {
            let (stream, blocks) = open.swap_remove(draw.below(open.len() as u64) as usize);
            for slot in blocks {
                ops.push(Op::Free { slot, stream });
                free.push(slot);
            }
        }
    }
    for (stream, blocks) in open {
        ops.extend(blocks.into_iter().map(|slot| Op::Free { slot, stream }));
    }
    ops
}

/// Blocks allocated on one stream and freed on the next.
fn pipeline(streams: usize, blocks: usize) -> Vec<Op> {
    let mut draw = Draw(13);
    let mut ops = Vec::new();
    let mut queue = std::collections::VecDeque::new();
    for block in 0..blocks {
        let (slot, stream) = (block % 64, block % streams);
        if queue.len() == 64
            && let Some((slot, stream)) = queue.pop_front()
        {
            ops.push(Op::Free {
                slot,
                stream: (stream + 1) % streams,
            });
        }
        let bytes = (64 << 10) + draw.below(16 << 20) as usize;
        ops.push(Op::Allocate {
            slot,
            bytes,
            stream,
        });
        queue.push_back((slot, stream));
    }
    ops.extend(queue.into_iter().map(|(slot, stream)| Op::Free {
        slot,
        stream: (stream + 1) % streams,
    }));
    ops
}

/// Each stream in turn allocates some gigabytes and frees them.
fn turns(streams: usize, rounds: usize) -> Vec<Op> {
    let mut draw = Draw(17);
    let mut ops = Vec::new();
    for round in 0..rounds {
        let stream = round % streams;
        let blocks = 64;
        for slot in 0..blocks {
            let bytes = (1 << 20) + draw.below(127 << 20) as usize;
            ops.push(Op::Allocate {
                slot,
                bytes,
                stream,
            });
        }
        ops.extend((0..blocks).map(|slot| Op::Free { slot, stream }));
    }
    ops
}

/// Frees every second block, and then allocates blocks slightly too large for the holes.
fn holes() -> Vec<Op> {
    let mut ops = Vec::new();
    let blocks = 2000;
    let allocate = |slot, bytes| Op::Allocate {
        slot,
        bytes,
        stream: 0,
    };
    let free = |slot| Op::Free { slot, stream: 0 };
    ops.extend((0..blocks).map(|slot| allocate(slot, 1 << 20)));
    ops.extend((0..blocks).step_by(2).map(free));
    ops.extend((0..blocks / 2).map(|slot| allocate(blocks + slot, (1 << 20) + 256)));
    ops.extend((1..blocks).step_by(2).map(free));
    ops.extend((0..blocks / 2).map(|slot| allocate(2 * blocks + slot, 2 << 20)));
    ops.extend((blocks..blocks + blocks / 2).map(free));
    ops.extend((2 * blocks..2 * blocks + blocks / 2).map(free));
    ops
}
