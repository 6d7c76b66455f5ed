//! Executable graphs: making and destroying them.

use std::collections::BTreeSet;
use std::ffi::c_ulonglong;

use cuda_driver_sys::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphExec, CUgraphInstantiateResult, CUresult,
    CUstream, cuuint64_t,
};
use rustc_hash::FxHashSet;

use super::objects::{References, finish};
use super::{ExecId, GraphId, NodeId, Op};
use crate::clock::{Past, StreamId};
use crate::export::{Answer, Call, INVALID_VALUE, Out, exports};
use crate::queue::Mark;
use crate::state::{HandleKind, State, state, to_handle};

pub(super) const AUTO_FREE: c_ulonglong = 1;
const UPLOAD: c_ulonglong = 2;
const DEVICE_LAUNCH: c_ulonglong = 4;
const NODE_PRIORITY: c_ulonglong = 8;

/// The end of the last launch.
#[derive(Clone, Debug)]
pub(super) struct Last {
    pub(super) stream: StreamId,
    pub(super) mark: Mark,
    pub(super) past: Past,
}

/// A node of an executable graph.
#[derive(Clone, Debug)]
pub(super) struct Step {
    node: NodeId,
    pub(super) op: Op,
    /// Whether it depends on no other one.
    pub(super) is_root: bool,
}

/// An executable graph: a snapshot of a graph.
#[derive(Debug)]
pub(super) struct Exec {
    pub(super) flags: c_ulonglong,
    /// The graph and its children, whose memory it allocates.
    pub(super) graphs: Vec<GraphId>,
    pub(super) steps: Vec<Step>,
    /// Launches of one executable graph run one after another, whatever their streams.
    pub(super) last: Option<Last>,
    objects: References,
}

impl Exec {
    fn ops(&self) -> impl Iterator<Item = &Op> {
        self.steps.iter().map(|step| &step.op)
    }

    /// The operation of one of its graph's nodes.
    pub(super) fn op_of(&mut self, node: NodeId) -> Answer<&mut Op> {
        let step = self.steps.iter_mut().find(|step| step.node == node);
        step.map(|step| &mut step.op).ok_or(INVALID_VALUE)
    }

    pub(super) fn allocated(&self) -> BTreeSet<u64> {
        let allocated = self.ops().filter_map(|op| match op {
            Op::Alloc { address, .. } => Some(*address),
            _ => None,
        });
        allocated.collect()
    }

    /// Blocks that it frees but does not allocate.
    pub(super) fn freed_for_others(&self) -> FxHashSet<u64> {
        let own = self.allocated();
        let freed = self.ops().filter_map(|op| match op {
            Op::Free { address } => Some(*address),
            _ => None,
        });
        freed.filter(|address| !own.contains(address)).collect()
    }
}

/// Why a graph is not instantiated.
struct Refused {
    code: CUresult,
    why: CUgraphInstantiateResult,
    /// The node that is to blame.
    node: Option<NodeId>,
}

impl From<CUresult> for Refused {
    fn from(code: CUresult) -> Self {
        Self {
            code,
            why: CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_ERROR,
            node: None,
        }
    }
}

impl Refused {
    fn by(why: CUgraphInstantiateResult, node: NodeId) -> Self {
        Self {
            code: INVALID_VALUE,
            why,
            node: Some(node),
        }
    }
}

/// Whether the device can launch it. Measured: memsets yes, graph memory no. Documented: copies and kernels yes.
fn is_for_devices(step: &Step) -> bool {
    matches!(step.op, Op::Fill(_) | Op::Copy(_) | Op::Kernel(_))
}

impl State {
    /// The operations of a graph and its children, in an order that respects the edges. The error is a node in a cycle
    /// or after it.
    fn flattened(&self, graph: GraphId, is_root: bool) -> Result<Vec<Step>, NodeId> {
        let Some(graph) = self.graphs.graphs.get(&graph) else {
            return Ok(Vec::new());
        };
        let mut all = Vec::new();
        for node in graph.sorted()? {
            let is_root = is_root && node.after.is_empty();
            match &node.op {
                Op::Child(child) => all.extend(self.flattened(*child, is_root)?),
                op => all.push(Step {
                    node: node.id,
                    op: op.clone(),
                    is_root,
                }),
            }
        }
        Ok(all)
    }

    /// References to the objects of a graph and its children.
    fn references(&mut self, graphs: &[GraphId]) -> References {
        let mut all = References::new();
        for graph in graphs {
            let objects = self.graphs.graphs.get(graph).map(|it| it.objects.clone());
            for (id, count) in self.copy_references(&objects.unwrap_or_default()) {
                let held: &mut u32 = all.entry(id).or_default();
                *held = held.wrapping_add(count);
            }
        }
        all
    }

    fn instantiate(
        &mut self,
        id: GraphId,
        flags: c_ulonglong,
        known: c_ulonglong,
    ) -> Result<ExecId, Refused> {
        // Documented: a graph that devices launch is not freed at a launch.
        let excluded = AUTO_FREE | DEVICE_LAUNCH;
        if flags & !known != 0 || flags & excluded == excluded {
            return Err(INVALID_VALUE.into());
        }
        self.current()?;
        let graph = self.graph(id)?;
        let (is_owned, instances) = (graph.is_owned, graph.instances);
        if is_owned || instances > 0 && self.has_memory(id) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED.into());
        }
        let graphs = self.family(id);
        let why = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
        let steps = self.flattened(id, true);
        let steps = steps.map_err(|node| Refused::by(why, node))?;
        if !self.has_events(steps.iter().map(|step| &step.op)) {
            return Err(INVALID_VALUE.into());
        }
        if flags & DEVICE_LAUNCH != 0 {
            let why = CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED;
            if let Some(step) = steps.iter().find(|step| !is_for_devices(step)) {
                return Err(Refused::by(why, step.node));
            }
            if steps.is_empty() {
                return Err(INVALID_VALUE.into());
            }
        }
        for graph in &graphs {
            self.check_graph_order(*graph);
        }
        // Measured: an upload leaves no flag, and without kernels the node-priority flag is dropped. A guess: with
        // kernels it is kept.
        let has_kernels = steps.iter().any(|step| matches!(step.op, Op::Kernel(_)));
        let kept = if has_kernels {
            AUTO_FREE | DEVICE_LAUNCH | NODE_PRIORITY
        } else {
            AUTO_FREE | DEVICE_LAUNCH
        };
        let objects = self.references(&graphs);
        let exec = Exec {
            flags: flags & kept,
            graphs,
            steps,
            last: None,
            objects,
        };
        let exec_id = self.new_handle(HandleKind::Exec);
        self.graph(id)?.instances += 1;
        self.graphs.execs.insert(exec_id, exec);
        Ok(exec_id)
    }

    fn destroy_exec(&mut self, id: ExecId) {
        let Some(exec) = self.graphs.execs.remove(&id) else {
            return;
        };
        let graph = exec.graphs.first();
        if let Some(graph) = graph.and_then(|graph| self.graphs.graphs.get_mut(graph)) {
            graph.instances -= 1;
        }
        self.drop_references_after(exec.objects, exec.last.as_ref());
        self.orphan_backings(id);
        self.forget_graph_memory();
    }

    /// Provides the memory of an executable graph on a stream.
    fn upload(&mut self, exec: ExecId, stream: StreamId) -> Answer {
        self.begin(stream)?;
        self.back(exec, stream)?;
        self.touch_backings(exec, stream)
    }
}

fn instantiate_with(
    call: Call,
    out: Out<CUgraphExec>,
    graph: CUgraph,
    params: &CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> Result<(), Refused> {
    out.required()?;
    let mut state = state()?;
    let (graph, _) = state.named_graph(graph)?;
    let stream = if params.flags & UPLOAD == 0 {
        None
    } else {
        Some(state.resolve(params.hUploadStream, call)?)
    };
    match stream {
        Some(stream) => state.refuse_on_recorded(stream)?,
        None => state.refuse_while_recording()?,
    }
    let known = AUTO_FREE | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY;
    let exec = state.instantiate(graph, params.flags, known)?;
    if let Some(stream) = stream
        && let Err(code) = state.upload(exec, stream)
    {
        state.destroy_exec(exec);
        return Err(code.into());
    }
    out.write(to_handle(exec))?;
    Ok(())
}

exports! {
    plain fn cuGraphInstantiateWithFlags(
        _, out: Out<CUgraphExec>, graph: CUgraph, flags: c_ulonglong
    ) {
        out.required()?;
        let mut state = state()?;
        let (id, _) = state.named_graph(graph)?;
        state.refuse_while_recording()?;
        let exec = state.instantiate(id, flags, AUTO_FREE | DEVICE_LAUNCH | NODE_PRIORITY);
        out.write(to_handle(exec.map_err(|refused| refused.code)?))
    }

    plain fn cuGraphInstantiateWithParams(
        call, out: Out<CUgraphExec>, graph: CUgraph, params: Out<CUDA_GRAPH_INSTANTIATE_PARAMS>
    ) twin cuGraphInstantiateWithParams_ptsz {
        let mut given = params.as_input().read()?;
        let made = instantiate_with(call, out, graph, &given);
        let node = made.as_ref().err().and_then(|refused| refused.node);
        given.hErrNode_out = node.map_or(std::ptr::null_mut(), to_handle);
        given.result_out = match &made {
            Ok(()) => CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS,
            Err(refused) => refused.why,
        };
        params.write(given)?;
        made.map_err(|refused| refused.code)
    }

    plain fn cuGraphExecGetFlags(_, exec: CUgraphExec, out: Out<cuuint64_t>) {
        out.required()?;
        let mut state = state()?;
        let (_, exec) = state.exec(exec)?;
        out.write(exec.flags)
    }

    release fn cuGraphExecDestroy(_, exec: CUgraphExec) {
        let mut state = state()?;
        let (id, _) = state.exec(exec)?;
        state.refuse_while_recording()?;
        state.destroy_exec(id);
        finish(state);
        Ok(())
    }

    plain fn cuGraphUpload(
        call, exec: CUgraphExec, stream: CUstream
    ) twin cuGraphUpload_ptsz {
        let mut state = state()?;
        let stream = state.resolve(stream, call)?;
        let (id, _) = state.exec(exec)?;
        state.upload(id, stream)
    }
}
