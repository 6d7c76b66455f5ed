//! Adds nodes, explicitly or by stream capture.

use cuda_driver_sys::{
    CUDA_HOST_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
    CUcontext, CUdeviceptr, CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeParams,
    CUgraphNodeType, CUmemAccessDesc, CUmemLocationType, CUresult, location_parts,
};

use super::{GraphId, NodeId, Op};
use crate::clock::StreamId;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::module::Work;
use crate::plane::{FilledRows, Rows};
use crate::queue::{HostCall, Pattern};
use crate::state::{State, from_handle, state, to_handle};

const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;
const DEVICE_MEMORY: u32 = 2;

/// Checks the parameters of an allocation node, as measured; returns its device.
fn check_alloc(params: &CUDA_MEM_ALLOC_NODE_PARAMS, state: &State) -> Answer<usize> {
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
    fn add_alloc(
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

    fn add_free(&mut self, graph: GraphId, after: &[NodeId], address: u64) -> Answer<NodeId> {
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
    fn named_nodes(&self, list: In<CUgraphNode>, count: usize) -> Answer<Vec<NodeId>> {
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

    pub(crate) fn record_fill(
        &mut self,
        stream: StreamId,
        to: u64,
        pattern: Pattern,
        count: usize,
    ) -> Answer {
        self.record_op(stream, Op::Fill { to, pattern, count })
    }

    pub(crate) fn record_filled_rows(&mut self, stream: StreamId, rows: FilledRows) -> Answer {
        self.record_op(stream, Op::FillRows(rows))
    }

    pub(crate) fn record_copy(&mut self, stream: StreamId, rows: Rows) -> Answer {
        self.record_op(stream, Op::Copy(rows))
    }

    pub(crate) fn record_kernel(&mut self, stream: StreamId, work: Work) -> Answer {
        self.record_op(stream, Op::Kernel(work))
    }

    pub(crate) fn record_host(&mut self, stream: StreamId, call: HostCall) -> Answer {
        self.record_op(stream, Op::Host(call))
    }

    /// INVALID_VALUE unless the device has memory for all these bytes, in any graph.
    fn check_range(&mut self, address: u64, len: u64) -> Answer {
        if let Some((start, block)) = self.graphs.memory.block(address) {
            let is_inside = address + len <= start + block.size;
            return if is_inside {
                Ok(())
            } else {
                Err(INVALID_VALUE)
            };
        }
        match self.range_of(address) {
            Some((start, size)) if address + len <= start + size => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    fn add_child(&mut self, parent: GraphId, after: &[NodeId], child: GraphId) -> Answer<NodeId> {
        let graph = self.graph(child)?;
        if graph.is_owned || graph.instances > 0 || child == parent {
            return Err(NOT_SUPPORTED);
        }
        let node = self.add_op(parent, Op::Child(child), after)?;
        self.graph(child)?.is_owned = true;
        Ok(node)
    }
}

/// Adds a node of the kind in the parameters.
fn add_any(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    list: In<CUgraphNode>,
    count: usize,
    params: Out<CUgraphNodeParams>,
) -> Answer {
    out.required()?;
    let mut given = params.as_input().read()?;
    let mut state = state()?;
    let (graph, _) = state.named_graph(graph)?;
    let after = state.named_nodes(list, count)?;
    let node = match given.type_ {
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => state.add_op(graph, Op::Empty, &after)?,
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            // SAFETY: the caller guarantees that the kind says which field is set.
            let wanted = unsafe { given.__bindgen_anon_1.alloc };
            let wanted = CUDA_MEM_ALLOC_NODE_PARAMS {
                poolProps: wanted.poolProps,
                accessDescs: wanted.accessDescs,
                accessDescCount: wanted.accessDescCount,
                bytesize: wanted.bytesize,
                dptr: 0,
            };
            let device = check_alloc(&wanted, &state)?;
            let (node, address) = state.add_alloc(graph, &after, wanted.bytesize as u64, device)?;
            given.__bindgen_anon_1.alloc.dptr = address;
            params.write(given)?;
            node
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => {
            // SAFETY: as above.
            let address = unsafe { given.__bindgen_anon_1.free.dptr };
            state.add_free(graph, &after, address)?
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH => {
            // SAFETY: as above.
            let child = unsafe { given.__bindgen_anon_1.graph };
            let (id, _) = state.named_graph(child.graph)?;
            // Only a child whose ownership moves is simulated; a copy is refused, as with memory.
            if child.ownership.0 != 1 || state.knobs.version < 12090 {
                return Err(NOT_SUPPORTED);
            }
            state.add_child(graph, &after, id)?
        }
        _ => return Err(NOT_SUPPORTED),
    };
    out.write(to_handle(node))
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
        state.context(from_handle(context)).map_err(|_| INVALID_VALUE)?;
        if params.height != 1 || params.width == 0 {
            return Err(if params.height == 1 { INVALID_VALUE } else { NOT_SUPPORTED });
        }
        let pattern = match params.elementSize {
            1 => Pattern::D8(params.value as u8),
            2 => Pattern::D16(params.value as u16),
            4 => Pattern::D32(params.value),
            _ => return Err(INVALID_VALUE),
        };
        if !params.dst.is_multiple_of(u64::from(params.elementSize)) {
            return Err(INVALID_VALUE);
        }
        let len = params.width as u64 * u64::from(params.elementSize);
        state.check_range(params.dst, len)?;
        let op = Op::Fill { to: params.dst, pattern, count: params.width };
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
        state.context(from_handle(context)).map_err(|_| INVALID_VALUE)?;
        let is_device = [params.srcMemoryType, params.dstMemoryType]
            .into_iter()
            .all(|kind| kind.0 == DEVICE_MEMORY);
        if !is_device || params.Height != 1 || params.Depth != 1 {
            return Err(NOT_SUPPORTED);
        }
        let len = params.WidthInBytes;
        state.check_range(params.dstDevice, len as u64)?;
        state.check_range(params.srcDevice, len as u64)?;
        let rows = Rows::one(params.dstDevice, params.srcDevice, len);
        let node = state.add_op(graph, Op::Copy(rows), &after)?;
        out.write(to_handle(node))
    }

    plain fn cuGraphAddHostNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        params: In<CUDA_HOST_NODE_PARAMS>
    ) {
        out.required()?;
        let params = params.read()?;
        let function = params.fn_.ok_or(INVALID_VALUE)?;
        let mut state = state()?;
        let (graph, _) = state.named_graph(graph)?;
        let after = state.named_nodes(list, count)?;
        let context = state.current()?;
        let turn = std::sync::Arc::clone(&state.context(context)?.host_turn);
        let call = HostCall { function, argument: params.userData, turn };
        let node = state.add_op(graph, Op::Host(call), &after)?;
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

    plain fn cuGraphAddChildGraphNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        child: CUgraph
    ) {
        out.required()?;
        let mut state = state()?;
        let (_, _) = state.named_graph(graph)?;
        let _ = state.named_nodes(list, count)?;
        let _ = state.named_graph(child)?;
        // Measured with memory; a copy of a graph without memory is not simulated.
        Err(NOT_SUPPORTED)
    }

    plain fn cuGraphAddNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        params: Out<CUgraphNodeParams>
    ) {
        add_any(out, graph, list, count, params)
    }

    plain fn cuGraphAddNode_v2(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>,
        _edges: In<CUgraphEdgeData>, count: usize, params: Out<CUgraphNodeParams>
    ) {
        add_any(out, graph, list, count, params)
    }
}
