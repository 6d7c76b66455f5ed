//! Graph instantiation and launch.

use std::collections::BTreeSet;
use std::ffi::c_ulonglong;

use cuda_driver_sys::{CUgraph, CUgraphExec, CUresult, CUstream, cuuint64_t};
use rustc_hash::FxHashSet;

use super::{ExecId, GraphId, Op};
use crate::clock::{Past, StreamId};
use crate::copy::{By, Side};
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::queue::{Mark, Task};
use crate::state::{HandleKind, State, state, to_handle};

const AUTO_FREE: c_ulonglong = 1;
const NODE_PRIORITY: c_ulonglong = 8;

/// An executable graph: a snapshot of a graph.
#[derive(Debug)]
pub(super) struct Exec {
    flags: c_ulonglong,
    /// The graph and its children, whose memory it allocates.
    pub(super) graphs: Vec<GraphId>,
    ops: Vec<Op>,
    /// Launches of one executable graph run one after another, whatever their streams.
    last: Option<(Mark, Past)>,
}

impl Exec {
    fn allocated(&self) -> BTreeSet<u64> {
        let allocated = self.ops.iter().filter_map(|op| match op {
            Op::Alloc { address, .. } => Some(*address),
            _ => None,
        });
        allocated.collect()
    }

    /// Blocks that it frees but does not allocate.
    fn freed_for_others(&self) -> FxHashSet<u64> {
        let own = self.allocated();
        let freed = self.ops.iter().filter_map(|op| match op {
            Op::Free { address } => Some(*address),
            _ => None,
        });
        freed.filter(|address| !own.contains(address)).collect()
    }
}

impl State {
    /// The operations of a graph and its children, in an order that respects the edges.
    fn flattened(&self, graph: GraphId) -> Vec<Op> {
        let Some(graph) = self.graphs.graphs.get(&graph) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for node in &graph.nodes {
            match &node.op {
                Op::Child(child) => all.extend(self.flattened(*child)),
                op => all.push(op.clone()),
            }
        }
        all
    }

    fn instantiate(&mut self, id: GraphId, flags: c_ulonglong) -> Answer<ExecId> {
        if flags & !(AUTO_FREE | NODE_PRIORITY) != 0 {
            return Err(INVALID_VALUE);
        }
        self.current()?;
        let graph = self.graph(id)?;
        let (is_owned, instances) = (graph.is_owned, graph.instances);
        if is_owned || instances > 0 && self.has_memory(id) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let graphs = self.family(id);
        for graph in &graphs {
            self.check_graph_order(*graph);
        }
        let ops = self.flattened(id);
        // Measured: without kernels the node-priority flag is dropped. A guess: with kernels it is kept.
        let has_kernels = ops.iter().any(|op| matches!(op, Op::Kernel(_)));
        let kept = if has_kernels {
            AUTO_FREE | NODE_PRIORITY
        } else {
            AUTO_FREE
        };
        let exec = Exec {
            flags: flags & kept,
            graphs,
            ops,
            last: None,
        };
        let exec_id = self.new_handle(HandleKind::Exec);
        self.graph(id)?.instances += 1;
        self.graphs.execs.insert(exec_id, exec);
        Ok(exec_id)
    }

    fn destroy_exec(&mut self, handle: CUgraphExec) -> Answer {
        let (id, exec) = self.exec(handle)?;
        let graph = exec.graphs.first().copied();
        self.graphs.execs.remove(&id);
        if let Some(graph) = graph.and_then(|graph| self.graphs.graphs.get_mut(&graph)) {
            graph.instances -= 1;
        }
        self.orphan_backings(id);
        self.forget_graph_memory();
        Ok(())
    }

    /// Checks the conditions of a launch: its blocks from the last launch are freed, unless auto-free is set, and the
    /// other blocks that it frees are live. Returns the blocks to free automatically.
    fn check_launch(&self, exec: &Exec) -> Answer<Vec<u64>> {
        let is_live = |address: &u64| self.live_graph_block(*address).is_some();
        let left: Vec<u64> = exec.allocated().into_iter().filter(is_live).collect();
        if !left.is_empty() && exec.flags & AUTO_FREE == 0 {
            return Err(INVALID_VALUE);
        }
        if !exec.freed_for_others().iter().all(is_live) {
            return Err(INVALID_VALUE);
        }
        Ok(left)
    }

    fn launch(&mut self, id: ExecId, stream: StreamId) -> Answer {
        let exec = self.graphs.execs.get(&id).ok_or(INVALID_VALUE)?;
        let left = self.check_launch(exec)?;
        let (ops, last) = (exec.ops.clone(), exec.last.clone());
        self.begin(stream)?;
        if let Some((mark, past)) = last {
            self.wait_for(stream, &past, mark)?;
        }
        self.back(id, stream)?;
        for address in left {
            let at = self.clocks.tick(stream);
            self.free_graph_block(address, Some(at))?;
        }
        for op in ops {
            self.perform(id, stream, op)?;
        }
        self.touch_backings(id, stream)?;
        let last = (self.stream(stream)?.queue.mark(), self.clocks.past(stream));
        if let Some(exec) = self.graphs.execs.get_mut(&id) {
            exec.last = Some(last);
        }
        Ok(())
    }

    /// Submits one operation. If its memory is not live, it is reported and skipped: a real device would overwrite
    /// other memory, or stop.
    fn perform(&mut self, exec: ExecId, stream: StreamId, op: Op) -> Answer {
        let at = self.clocks.tick(stream);
        let task = match op {
            Op::Empty | Op::Child(_) => return Ok(()),
            Op::Alloc { address, size } => return self.begin_block(exec, address, size, at),
            Op::Free { address } => {
                return self.free_graph_block(address, Some(at)).map(|_| ());
            }
            Op::Host(call) => Task::Host(call),
            Op::Kernel(work) => return self.perform_kernel(at, stream, work),
            Op::Fill { to, pattern, count } => {
                let len = count * pattern.size();
                if self
                    .touch("memset", at, By::Stream(stream), Side::Device(to), len)
                    .is_err()
                {
                    return self.report_lost_work("memset", to, stream);
                }
                Task::Fill { to, pattern, count }
            }
            Op::FillRows(rows) => {
                let (side, len) = (Side::Device(rows.to), rows.span()?);
                if self
                    .touch("memset", at, By::Stream(stream), side, len)
                    .is_err()
                {
                    return self.report_lost_work("memset", rows.to, stream);
                }
                Task::FillRows(rows)
            }
            Op::Copy(rows) => {
                let by = By::Device(self.stream(stream)?.device);
                let (to, from) = (Side::Any(rows.to), Side::Any(rows.from));
                let source = self.touch("copy from", at, by, from, rows.source_span()?);
                let target = self.touch("copy to", at, by, to, rows.target_span()?);
                if source.is_err() || target.is_err() {
                    return self.report_lost_work("copy", rows.to, stream);
                }
                Task::Copy(rows)
            }
        };
        self.stream(stream)?.queue.push(task)
    }

    fn report_lost_work(&mut self, what: &str, to: u64, stream: StreamId) -> Answer {
        self.reports.add(format!(
            "graph: {what} at {to:#x} on stream {stream:#x} touches memory that is not there"
        ));
        Ok(())
    }
}

exports! {
    plain fn cuGraphInstantiateWithFlags(
        _, out: Out<CUgraphExec>, graph: CUgraph, flags: c_ulonglong
    ) {
        out.required()?;
        let mut state = state()?;
        let (id, _) = state.named_graph(graph)?;
        out.write(to_handle(state.instantiate(id, flags)?))
    }

    plain fn cuGraphExecGetFlags(_, exec: CUgraphExec, out: Out<cuuint64_t>) {
        out.required()?;
        let mut state = state()?;
        let (_, exec) = state.exec(exec)?;
        out.write(exec.flags)
    }

    release fn cuGraphExecDestroy(_, exec: CUgraphExec) {
        state()?.destroy_exec(exec)
    }

    plain fn cuGraphUpload(
        call, exec: CUgraphExec, stream: CUstream
    ) twin cuGraphUpload_ptsz {
        let mut state = state()?;
        let stream = state.resolve(stream, call)?;
        let (id, _) = state.exec(exec)?;
        state.begin(stream)?;
        state.back(id, stream)?;
        state.touch_backings(id, stream)
    }

    plain fn cuGraphLaunch(
        call, exec: CUgraphExec, stream: CUstream
    ) twin cuGraphLaunch_ptsz {
        let mut state = state()?;
        let stream = state.resolve(stream, call)?;
        let (id, _) = state.exec(exec)?;
        // Measured with memory; without it the driver records a child graph, which is not simulated.
        if state.is_recording(stream)? {
            return state.refuse_on_recorded(stream);
        }
        state.launch(id, stream)
    }
}
