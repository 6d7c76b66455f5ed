//! Creating, querying and destroying graphs and nodes.

use std::ffi::c_uint;

use cuda_driver_sys::{CUgraph, CUgraphNode, CUgraphNodeType, CUresult};

use super::objects::finish;
use super::{Graph, Op};
use crate::export::{INVALID_VALUE, Out, exports};
use crate::state::{from_handle, state, to_handle};

fn kind(op: &Op) -> CUgraphNodeType {
    match op {
        Op::Empty => CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY,
        Op::Alloc { .. } => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        Op::Free { .. } => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE,
        Op::Fill(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET,
        Op::Copy(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
        Op::Kernel(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL,
        Op::Host(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST,
        Op::Record(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        Op::Wait(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT,
        Op::Child(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH,
    }
}

/// The kind of a node in words.
pub(super) fn kind_name(op: &Op) -> &'static str {
    match op {
        Op::Empty => "empty",
        Op::Alloc { .. } => "allocation",
        Op::Free { .. } => "free",
        Op::Fill(_) => "memset",
        Op::Copy(_) => "memcpy",
        Op::Kernel(_) => "kernel",
        Op::Host(_) => "host",
        Op::Record(_) => "event record",
        Op::Wait(_) => "event wait",
        Op::Child(_) => "graph",
    }
}

exports! {
    plain fn cuGraphCreate(_, out: Out<CUgraph>, flags: c_uint) {
        out.required()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let id = state()?.add_graph(Graph::default());
        out.write(to_handle(id))
    }

    release fn cuGraphDestroy(_, graph: CUgraph) {
        let mut state = state()?;
        let (id, graph) = state.named_graph(graph)?;
        if graph.is_owned {
            return Err(INVALID_VALUE);
        }
        if graph.is_recording {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        state.destroy_graph(id);
        finish(state);
        Ok(())
    }

    plain fn cuGraphGetNodes(_, graph: CUgraph, out: Out<CUgraphNode>, count: Out<usize>) {
        let room: usize = count.as_input().read()?;
        let mut state = state()?;
        let (_, graph) = state.named_graph(graph)?;
        let len = graph.nodes.len();
        if out.required().is_err() {
            return count.write(len);
        }
        // Elements beyond the last node are set to null.
        for index in 0..room {
            let id = graph.nodes.get(index).map(|node| node.id);
            out.at(index).write(id.map_or(std::ptr::null_mut(), to_handle))?;
        }
        count.write(len.min(room))
    }

    plain fn cuGraphNodeGetType(_, node: CUgraphNode, out: Out<CUgraphNodeType>) {
        out.required()?;
        let state = state()?;
        let (_, node) = state.graph_of(node)?;
        out.write(kind(&node.op))
    }

    release fn cuGraphDestroyNode(_, node: CUgraphNode) {
        let mut state = state()?;
        let (graph, _) = state.graph_of(node)?;
        state.refuse_with_memory(graph)?;
        let id = from_handle(node);
        let graph = state.graph(graph)?;
        if graph.is_recording {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let child = graph.node(id).map(|node| node.op.clone());
        graph.nodes.retain(|node| node.id != id);
        for node in &mut graph.nodes {
            node.after.retain(|before| *before != id);
            node.then.retain(|after| *after != id);
        }
        // A guess: its graph goes with it.
        if let Some(Op::Child(child)) = child {
            state.destroy_graph(child);
        }
        finish(state);
        Ok(())
    }
}
