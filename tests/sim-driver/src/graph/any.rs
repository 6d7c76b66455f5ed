//! Nodes of every kind through one function.

use std::mem::size_of;

use cuda_driver_sys::{
    CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_EVENT_RECORD_NODE_PARAMS, CUDA_HOST_NODE_PARAMS_v2,
    CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v3, CUDA_MEM_ALLOC_NODE_PARAMS,
    CUDA_MEM_ALLOC_NODE_PARAMS_v2, CUDA_MEM_FREE_NODE_PARAMS, CUDA_MEMCPY_NODE_PARAMS,
    CUDA_MEMSET_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS_v2, CUgraph, CUgraphEdgeData, CUgraphNode,
    CUgraphNodeParams, CUgraphNodeType, CUresult,
};

use super::add::{check_alloc, host_op};
use super::edges::check_edges;
use super::events::Use;
use super::{GraphId, NodeId, Op};
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::state::{State, state, to_handle};

const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

/// Measured with memsets: what does not belong to the kind must be zero. A guess: so with the other simulated kinds.
fn check_reserved(given: &CUgraphNodeParams) -> Answer {
    let used = match given.type_ {
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => 0,
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET => size_of::<CUDA_MEMSET_NODE_PARAMS_v2>(),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => size_of::<CUDA_MEMCPY_NODE_PARAMS>(),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL => size_of::<CUDA_KERNEL_NODE_PARAMS_v3>(),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST => size_of::<CUDA_HOST_NODE_PARAMS_v2>(),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD
        | CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
            size_of::<CUDA_EVENT_RECORD_NODE_PARAMS>()
        }
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => size_of::<CUDA_MEM_ALLOC_NODE_PARAMS_v2>(),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => size_of::<CUDA_MEM_FREE_NODE_PARAMS>(),
        CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH => size_of::<CUDA_CHILD_GRAPH_NODE_PARAMS>(),
        _ => size_of_val(&given.__bindgen_anon_1),
    };
    // SAFETY: these are numbers for which every bit pattern is valid, and the caller guarantees the whole struct.
    let words = unsafe { given.__bindgen_anon_1.reserved1 };
    let rest = words.iter().skip(used.div_ceil(size_of::<i64>()));
    let is_clear = rest.chain([&given.reserved2]).all(|word| *word == 0);
    if is_clear && given.reserved0 == [0; 3] {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

impl State {
    fn add_any(
        &mut self,
        graph: GraphId,
        after: &[NodeId],
        given: &mut CUgraphNodeParams,
    ) -> Answer<NodeId> {
        let fields = &mut given.__bindgen_anon_1;
        let op = match given.type_ {
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY => Op::Empty,
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMSET => {
                // SAFETY: the caller guarantees that the kind says which field is set.
                let wanted = unsafe { fields.memset };
                let plain = CUDA_MEMSET_NODE_PARAMS {
                    dst: wanted.dst,
                    pitch: wanted.pitch,
                    value: wanted.value,
                    elementSize: wanted.elementSize,
                    width: wanted.width,
                    height: wanted.height,
                };
                self.fill_op(plain, wanted.ctx)?
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY => {
                // SAFETY: as above.
                let wanted = unsafe { fields.memcpy };
                if (wanted.flags, wanted.reserved) != (0, 0) {
                    return Err(INVALID_VALUE);
                }
                self.copy_op(wanted.copyParams, wanted.copyCtx)?
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL => {
                // SAFETY: as above.
                let wanted = unsafe { fields.kernel };
                self.kernel_op(&CUDA_KERNEL_NODE_PARAMS {
                    func: wanted.func,
                    gridDimX: wanted.gridDimX,
                    gridDimY: wanted.gridDimY,
                    gridDimZ: wanted.gridDimZ,
                    blockDimX: wanted.blockDimX,
                    blockDimY: wanted.blockDimY,
                    blockDimZ: wanted.blockDimZ,
                    sharedMemBytes: wanted.sharedMemBytes,
                    kernelParams: wanted.kernelParams,
                    extra: wanted.extra,
                    kern: wanted.kern,
                    ctx: wanted.ctx,
                })?
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_HOST => {
                // SAFETY: as above.
                let wanted = unsafe { fields.host };
                host_op(wanted.fn_, wanted.userData)?
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
                // SAFETY: as above.
                let wanted = unsafe { fields.eventRecord };
                self.event_op(Use::Record, wanted.event)?
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
                // SAFETY: as above.
                let wanted = unsafe { fields.eventWait };
                self.event_op(Use::Wait, wanted.event)?
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
                // SAFETY: as above.
                let wanted = unsafe { fields.alloc };
                let wanted = CUDA_MEM_ALLOC_NODE_PARAMS {
                    poolProps: wanted.poolProps,
                    accessDescs: wanted.accessDescs,
                    accessDescCount: wanted.accessDescCount,
                    bytesize: wanted.bytesize,
                    dptr: 0,
                };
                let device = check_alloc(&wanted, self)?;
                let size = wanted.bytesize as u64;
                let (node, address) = self.add_alloc(graph, after, size, device)?;
                fields.alloc.dptr = address;
                return Ok(node);
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_FREE => {
                // SAFETY: as above.
                let address = unsafe { fields.free.dptr };
                return self.add_free(graph, after, address);
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH => {
                // SAFETY: as above.
                let child = unsafe { fields.graph };
                let (id, _) = self.named_graph(child.graph)?;
                return match child.ownership.0 {
                    0 => self.copy_child(graph, after, id),
                    1 if self.configuration.version >= 12090 => self.move_child(graph, after, id),
                    _ => Err(NOT_SUPPORTED),
                };
            }
            kind => return Err(self.refuse_kind(kind, given)),
        };
        self.add_op(graph, op, after)
    }

    /// Kinds that are not simulated. Measured: what a real driver answers if all of the node is zero.
    fn refuse_kind(&self, kind: CUgraphNodeType, given: &CUgraphNodeParams) -> CUresult {
        // SAFETY: these are numbers for which every bit pattern is valid, and the caller guarantees the whole struct.
        let words = unsafe { given.__bindgen_anon_1.reserved1 };
        match kind {
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL if words == [0; 29] => {
                CUresult::CUDA_ERROR_INVALID_HANDLE
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP
            | CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL
                if words == [0; 29] =>
            {
                INVALID_VALUE
            }
            CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL
            | CUgraphNodeType::CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL
            | CUgraphNodeType::CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT
            | CUgraphNodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP
            | CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL => NOT_SUPPORTED,
            _ => INVALID_VALUE,
        }
    }
}

/// Adds a node of the kind in the parameters.
fn add(
    out: Out<CUgraphNode>,
    graph: CUgraph,
    (list, data, count): (In<CUgraphNode>, In<CUgraphEdgeData>, usize),
    params: Out<CUgraphNodeParams>,
) -> Answer {
    out.required()?;
    let mut given = params.as_input().read()?;
    check_reserved(&given)?;
    let mut state = state()?;
    let (graph, _) = state.named_graph(graph)?;
    let after = state.named_nodes(list, count)?;
    check_edges(data, count)?;
    let node = state.add_any(graph, &after, &mut given)?;
    params.write(given)?;
    out.write(to_handle(node))
}

exports! {
    plain fn cuGraphAddNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        params: Out<CUgraphNodeParams>
    ) {
        add(out, graph, (list, In::new(std::ptr::null()), count), params)
    }

    plain fn cuGraphAddNode_v2(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>,
        edges: In<CUgraphEdgeData>, count: usize, params: Out<CUgraphNodeParams>
    ) {
        add(out, graph, (list, edges, count), params)
    }
}
