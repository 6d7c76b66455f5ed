//! Creating, querying and destroying graphs and nodes.

use std::ffi::c_uint;

use cuda_driver_sys::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUdeviceptr, CUgraph, CUgraphNode, CUgraphNodeType,
    CUmemAllocationType, CUmemLocationType, CUmemPoolProps, CUresult, location,
};

use super::{Graph, Op};
use crate::export::{INVALID_VALUE, In, Out, exports};
use crate::state::{from_handle, state, to_handle};

fn kind(op: &Op) -> CUgraphNodeType {
    match op {
        Op::Empty => CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY,
        Op::Alloc { .. } => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        Op::Free { .. } => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE,
        Op::Fill { .. } | Op::FillRows(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET,
        Op::Copy(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY,
        Op::Kernel(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL,
        Op::Host(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST,
        Op::Child(_) => CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH,
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
        state.destroy_graph(id);
        Ok(())
    }

    plain fn cuGraphClone(_, out: Out<CUgraph>, graph: CUgraph) {
        out.required()?;
        let mut state = state()?;
        let (id, _) = state.named_graph(graph)?;
        state.refuse_with_memory(id)?;
        let nodes = state.graph(id)?.nodes.clone();
        let mut clone = Graph::default();
        let mut names = rustc_hash::FxHashMap::default();
        for mut node in nodes {
            if let Op::Child(_) = node.op {
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
            let new = state.new_handle(crate::state::HandleKind::Node);
            names.insert(node.id, new);
            node.id = new;
            for before in &mut node.after {
                *before = names.get(before).copied().ok_or(INVALID_VALUE)?;
            }
            clone.nodes.push(node);
        }
        let id = state.add_graph(clone);
        out.write(to_handle(id))
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

    plain fn cuGraphMemAllocNodeGetParams(
        _, node: CUgraphNode, out: Out<CUDA_MEM_ALLOC_NODE_PARAMS>
    ) {
        out.required()?;
        let state = state()?;
        let (_, node) = state.graph_of(node)?;
        let Op::Alloc { address, size } = node.op else {
            return Err(INVALID_VALUE);
        };
        let (_, block) = state.graphs.memory.block(address).ok_or(INVALID_VALUE)?;
        let device = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        out.write(CUDA_MEM_ALLOC_NODE_PARAMS {
            poolProps: CUmemPoolProps {
                allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
                location: location(device, i32::try_from(block.device).unwrap_or(0)),
                ..CUmemPoolProps::default()
            },
            bytesize: size as usize,
            dptr: address,
            ..CUDA_MEM_ALLOC_NODE_PARAMS::default()
        })
    }

    plain fn cuGraphMemFreeNodeGetParams(_, node: CUgraphNode, out: Out<CUdeviceptr>) {
        out.required()?;
        let state = state()?;
        let (_, node) = state.graph_of(node)?;
        match node.op {
            Op::Free { address } => out.write(address),
            _ => Err(INVALID_VALUE),
        }
    }

    release fn cuGraphDestroyNode(_, node: CUgraphNode) {
        let mut state = state()?;
        let (graph, _) = state.graph_of(node)?;
        state.refuse_with_memory(graph)?;
        let id = from_handle(node);
        let graph = state.graph(graph)?;
        graph.nodes.retain(|node| node.id != id);
        for node in &mut graph.nodes {
            node.after.retain(|before| *before != id);
        }
        Ok(())
    }

    plain fn cuGraphRemoveDependencies(
        _, graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize
    ) {
        let (from, to) = (from.read_all(count)?, to.read_all(count)?);
        let mut state = state()?;
        let (id, _) = state.named_graph(graph)?;
        state.refuse_with_memory(id)?;
        for (from, to) in from.into_iter().zip(to) {
            let (from, to) = (from_handle(from), from_handle(to));
            let graph = state.graph(id)?;
            let node = graph.nodes.iter_mut().find(|node| node.id == to);
            node.ok_or(INVALID_VALUE)?.after.retain(|before| *before != from);
        }
        Ok(())
    }
}
