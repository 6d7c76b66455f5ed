//! A log as turns: which thread does what, in which order.

use std::alloc::Layout;
use std::ops::Range;

use anyhow::{Context as _, Result};
use cuda_mem::memory::RESOURCE_ALIGNMENT;
use cuda_mem_trace::{Op, Trace};

/// Maximum number of operations per turn. The progress bar is updated between turns.
const LONGEST: usize = 4096;

/// One operation, with everything that a replay would otherwise look up while timed.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    Allocate {
        slot: usize,
        layout: Layout,
        stream: usize,
    },
    Free {
        slot: usize,
        /// The log's stream, if it differs from that of the allocation.
        on: Option<usize>,
    },
}

fn layout(bytes: usize) -> Result<Layout> {
    Layout::from_size_align(bytes, RESOURCE_ALIGNMENT).with_context(|| format!("{bytes} bytes"))
}

/// Consecutive operations of one thread.
#[derive(Clone)]
pub(crate) struct Turn {
    pub(crate) thread: usize,
    pub(crate) steps: Range<usize>,
}

pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) turns: Vec<Turn>,
    pub(crate) slots: usize,
    pub(crate) streams: usize,
    pub(crate) threads: usize,
    /// Number of switches to another thread.
    pub(crate) handovers: usize,
    /// Frees on a stream other than the allocation's.
    pub(crate) foreign_frees: usize,
    pub(crate) failures: usize,
    /// The most live bytes at any time.
    pub(crate) peak_asked: u64,
    /// Live bytes after each operation.
    pub(crate) asked: Vec<u64>,
}

impl Plan {
    /// The plan for the first `most` operations.
    pub(crate) fn new(trace: &Trace, most: usize) -> Result<Self> {
        let count = trace.ops.len().min(most);
        let mut plan = Self {
            steps: Vec::with_capacity(count),
            turns: Vec::new(),
            slots: trace.slots,
            streams: trace.streams,
            threads: 0,
            handovers: 0,
            foreign_frees: 0,
            failures: trace.failures,
            peak_asked: 0,
            asked: Vec::with_capacity(count),
        };
        let mut live = vec![(0_usize, 0_u64); trace.slots];
        let mut alive = 0_u64;
        for (index, (op, thread)) in trace
            .ops
            .iter()
            .zip(&trace.op_threads)
            .take(count)
            .enumerate()
        {
            let step = match *op {
                Op::Allocate {
                    slot,
                    bytes,
                    stream,
                } => {
                    live[slot] = (stream, bytes as u64);
                    alive += bytes as u64;
                    Step::Allocate {
                        slot,
                        layout: layout(bytes)?,
                        stream,
                    }
                }
                Op::Free { slot, stream } => {
                    let (home, bytes) = live[slot];
                    alive -= bytes;
                    let on = (stream != home).then_some(stream);
                    plan.foreign_frees += usize::from(on.is_some());
                    Step::Free { slot, on }
                }
            };
            plan.steps.push(step);
            plan.asked.push(alive);
            plan.peak_asked = plan.peak_asked.max(alive);
            plan.add_to_turns(index, *thread);
        }
        // Numbered in order of their first operations.
        plan.threads = plan
            .turns
            .iter()
            .map(|turn| turn.thread + 1)
            .max()
            .unwrap_or(0);
        Ok(plan)
    }

    fn add_to_turns(&mut self, index: usize, thread: usize) {
        match self.turns.last_mut() {
            Some(turn) if turn.thread == thread && turn.steps.len() < LONGEST => {
                turn.steps.end = index + 1;
            }
            last => {
                self.handovers += usize::from(last.is_some_and(|turn| turn.thread != thread));
                self.turns.push(Turn {
                    thread,
                    steps: index..index + 1,
                });
            }
        }
    }

    /// The order, in words.
    pub(crate) fn order(&self) -> String {
        if self.threads <= 1 {
            return "one thread in the log's order; no lock and no other thread is in the way"
                .to_owned();
        }
        format!(
            "{} threads, each operation on the thread of its log thread, in the log's order: one thread \
             hands over to the next, {} times a pass; a hand-over is not timed",
            self.threads, self.handovers
        )
    }
}
