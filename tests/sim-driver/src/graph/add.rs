//! Adds nodes, explicitly or by stream capture.

use std::ffi::c_void;

use cuda_driver_sys::{
    CUDA_HOST_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
    CUcontext, CUdeviceptr, CUgraph, CUgraphNode, CUhostFn, CUmemAccessDesc, CUmemLocationType,
    CUresult, location_parts,
};

use super::copies::Copied;
use super::kernels::{KernelNode, Named};
use super::{GraphId, NodeId, Op, fills};
use crate::clock::StreamId;
use crate::copy::Side;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::module::Prepared;
use crate::plane::{FilledRows, Rows};
use crate::queue::HostCall;
use crate::state::{State, from_handle, state, to_handle};

const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

/// A host node. It takes its turn in the context of the stream that it is launched on.
pub(super) fn host_op(function: CUhostFn, argument: *mut c_void) -> Answer<Op> {
    let function = function.ok_or(INVALID_VALUE)?;
    let turn = std::sync::Arc::default();
    Ok(Op::Host(HostCall {
        function,
        argument,
        turn,
    }))
}

/// Checks the parameters of an allocation node, as measured; returns its device.
pub(super) fn check_alloc(params: &CUDA_MEM_ALLOC_NODE_PARAMS, state: &State) -> Answer<usize> {
    let props = &params.poolProps;
    let (kind, id) = location_parts(props.location);
    match kind {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {}
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => return Err(NOT_SUPPORTED),
        _ => return Err(INVALID_VALUE),
    }
    let device = state.ordinal(id).map_err(|_| INVALID_VALUE)?;
    state.check_pools(device)?;
    if !matches!(props.allocType.0, 1 | 2) || props.reserved.iter().any(|byte| *byte != 0) {
        return Err(INVALID_VALUE);
    }
    match props.handleTypes.0 {
        0 => {}
        known if known & !0b1111 == 0 => return Err(NOT_SUPPORTED),
        _ => return Err(INVALID_VALUE),
    }
    let list: Vec<CUmemAccessDesc> =
        In::new(params.accessDescs).read_all(params.accessDescCount)?;
    for access in list {
        let (kind, id) = location_parts(access.location);
        if kind == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
            state.ordinal(id)?;
        }
        if access.flags.0 != 3 {
            return Err(NOT_SUPPORTED);
        }
    }
    Ok(device)
}

impl State {
    pub(super) fn add_alloc(
        &mut self,
        graph: GraphId,
        after: &[NodeId],
        size: u64,
        device: usize,
    ) -> Answer<(NodeId, u64)> {
        let before = self.graph(graph)?.with_ancestors(after);
        let address = self.place_block(graph, size, device, &before)?;
        let node = self.add_op(graph, Op::Alloc { address, size }, after)?;
        Ok((node, address))
    }

    pub(super) fn add_free(
        &mut self,
        graph: GraphId,
        after: &[NodeId],
        address: u64,
    ) -> Answer<NodeId> {
        let Some(block) = self.graphs.memory.block_mut(address) else {
            return Err(INVALID_VALUE);
        };
        let (owner, freed_by) = (block.graph, block.freed_by);
        let is_own = owner == graph;
        if freed_by.is_some() || is_own && block.freed_elsewhere {
            return Err(INVALID_VALUE);
        }
        // Measured: instantiation makes a graph's frees final, and a destroyed graph cannot get any.
        let owner = self.graphs.graphs.get(&owner).ok_or(INVALID_VALUE)?;
        if is_own && owner.instances > 0 {
            return Err(INVALID_VALUE);
        }
        let node = self.add_op(graph, Op::Free { address }, after)?;
        if let Some(block) = self.graphs.memory.block_mut(address) {
            if is_own {
                block.freed_by = Some(node);
            } else {
                block.freed_elsewhere = true;
            }
        }
        Ok(node)
    }

    /// Nodes passed by the program.
    pub(super) fn named_nodes(&self, list: In<CUgraphNode>, count: usize) -> Answer<Vec<NodeId>> {
        let nodes = list.read_all(count)?;
        Ok(nodes.into_iter().map(from_handle).collect())
    }

    /// Records an allocation on a captured stream.
    pub(crate) fn record_alloc(
        &mut self,
        stream: StreamId,
        size: u64,
        device: Option<usize>,
    ) -> Answer<u64> {
        let device = device.ok_or(NOT_SUPPORTED)?;
        let (graph, after) = self.recording(stream)?;
        let (node, address) = self.add_alloc(graph, &after, size, device)?;
        self.recorded(stream, node);
        Ok(address)
    }

    /// Records a free on a captured stream. Measured: only graph memory is accepted; a refused free has no effect.
    pub(crate) fn record_free(&mut self, stream: StreamId, address: u64) -> Answer {
        let (graph, after) = self.recording(stream)?;
        let node = self.add_free(graph, &after, address)?;
        self.recorded(stream, node);
        Ok(())
    }

    pub(crate) fn record_fill(&mut self, stream: StreamId, rows: FilledRows) -> Answer {
        self.record_op(stream, Op::Fill(fills::captured(rows)))
    }

    pub(crate) fn record_copy(
        &mut self,
        stream: StreamId,
        to: Side,
        from: Side,
        rows: Rows,
    ) -> Answer {
        let copied = Copied::captured(to, from, rows);
        self.record_op(stream, Op::Copy(copied))
    }

    /// A guess: a kernel of a library is read back as its function.
    pub(crate) fn record_kernel(&mut self, stream: StreamId, launch: Prepared) -> Answer {
        let node = KernelNode::new(launch, Named::Function);
        self.record_op(stream, Op::Kernel(node))
    }

    pub(crate) fn record_host(&mut self, stream: StreamId, call: HostCall) -> Answer {
        self.record_op(stream, Op::Host(call))
    }
}

exports! {
    plain fn cuGraphAddMemAllocNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        params: Out<CUDA_MEM_ALLOC_NODE_PARAMS>
    ) {
        out.required()?;
        let mut given = params.as_input().read()?;
        let mut state = state()?;
        let (graph, _) = state.named_graph(graph)?;
        let after = state.named_nodes(list, count)?;
        let device = check_alloc(&given, &state)?;
        let (node, address) = state.add_alloc(graph, &after, given.bytesize as u64, device)?;
        given.dptr = address;
        params.write(given)?;
        out.write(to_handle(node))
    }

    plain fn cuGraphAddMemFreeNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        address: CUdeviceptr
    ) {
        out.required()?;
        let mut state = state()?;
        let (graph, _) = state.named_graph(graph)?;
        let after = state.named_nodes(list, count)?;
        let node = state.add_free(graph, &after, address)?;
        out.write(to_handle(node))
    }

    plain fn cuGraphAddMemsetNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        params: In<CUDA_MEMSET_NODE_PARAMS>, context: CUcontext
    ) {
        out.required()?;
        let params = params.read()?;
        let mut state = state()?;
        let (graph, _) = state.named_graph(graph)?;
        let after = state.named_nodes(list, count)?;
        // Measured: a context in the arguments is not enough.
        state.current().map_err(|_| INVALID_VALUE)?;
        let op = state.fill_op(params, context)?;
        let node = state.add_op(graph, op, &after)?;
        out.write(to_handle(node))
    }

    plain fn cuGraphAddMemcpyNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        params: In<CUDA_MEMCPY3D>, context: CUcontext
    ) {
        out.required()?;
        let params = params.read()?;
        let mut state = state()?;
        let (graph, _) = state.named_graph(graph)?;
        let after = state.named_nodes(list, count)?;
        let op = state.copy_op(params, context)?;
        let node = state.add_op(graph, op, &after)?;
        out.write(to_handle(node))
    }

    plain fn cuGraphAddHostNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        params: In<CUDA_HOST_NODE_PARAMS>
    ) {
        out.required()?;
        let params = params.read()?;
        let op = host_op(params.fn_, params.userData)?;
        let mut state = state()?;
        let (graph, _) = state.named_graph(graph)?;
        let after = state.named_nodes(list, count)?;
        let node = state.add_op(graph, op, &after)?;
        out.write(to_handle(node))
    }

    plain fn cuGraphAddEmptyNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize
    ) {
        out.required()?;
        let mut state = state()?;
        let (graph, _) = state.named_graph(graph)?;
        let after = state.named_nodes(list, count)?;
        let node = state.add_op(graph, Op::Empty, &after)?;
        out.write(to_handle(node))
    }
}
