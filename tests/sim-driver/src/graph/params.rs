//! Parameters of nodes that are read and set.

use cuda_driver_sys::{
    CUDA_HOST_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
    CUcontext, CUdeviceptr, CUgraphExec, CUgraphNode, CUmemAllocationType, CUmemLocationType,
    CUmemPoolProps, location,
};

use super::Op;
use super::add::host_op;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::state::{State, from_handle, state};

/// Replaces the operation of a node by another one of the same kind.
fn replace(place: &mut Op, op: Op) -> Answer {
    if std::mem::discriminant(place) != std::mem::discriminant(&op) {
        return Err(INVALID_VALUE);
    }
    *place = op;
    Ok(())
}

/// Sets the parameters of a node in a graph. A guess: they are checked as those of a new node.
pub(super) fn set(node: CUgraphNode, make: impl FnOnce(&mut State) -> Answer<Op>) -> Answer {
    let mut state = state()?;
    let op = make(&mut state)?;
    replace(&mut state.node_mut(node)?.op, op)
}

/// The same in an executable graph, whose graph stays as it is.
pub(super) fn set_in(
    exec: CUgraphExec,
    node: CUgraphNode,
    make: impl FnOnce(&mut State) -> Answer<Op>,
) -> Answer {
    let mut state = state()?;
    let op = make(&mut state)?;
    let (_, exec) = state.exec(exec)?;
    replace(exec.op_of(from_handle(node))?, op)
}

const CURRENT: CUcontext = std::ptr::null_mut();

exports! {
    plain fn cuGraphMemcpyNodeGetParams(_, node: CUgraphNode, out: Out<CUDA_MEMCPY3D>) {
        out.required()?;
        let state = state()?;
        match &state.graph_of(node)?.1.op {
            // Measured: as they were given.
            Op::Copy(copied) => out.write(copied.0),
            _ => Err(INVALID_VALUE),
        }
    }

    plain fn cuGraphMemcpyNodeSetParams(_, node: CUgraphNode, params: In<CUDA_MEMCPY3D>) {
        let params = params.read()?;
        set(node, |state| state.copy_op(params, CURRENT))
    }

    plain fn cuGraphExecMemcpyNodeSetParams(
        _, exec: CUgraphExec, node: CUgraphNode, params: In<CUDA_MEMCPY3D>, context: CUcontext
    ) {
        let params = params.read()?;
        set_in(exec, node, |state| state.copy_op(params, context))
    }

    plain fn cuGraphMemsetNodeGetParams(
        _, node: CUgraphNode, out: Out<CUDA_MEMSET_NODE_PARAMS>
    ) {
        out.required()?;
        let state = state()?;
        match &state.graph_of(node)?.1.op {
            Op::Fill(given) => out.write(*given),
            _ => Err(INVALID_VALUE),
        }
    }

    plain fn cuGraphMemsetNodeSetParams(
        _, node: CUgraphNode, params: In<CUDA_MEMSET_NODE_PARAMS>
    ) {
        let params = params.read()?;
        set(node, |state| state.fill_op(params, CURRENT))
    }

    plain fn cuGraphExecMemsetNodeSetParams(
        _, exec: CUgraphExec, node: CUgraphNode, params: In<CUDA_MEMSET_NODE_PARAMS>,
        context: CUcontext
    ) {
        let params = params.read()?;
        set_in(exec, node, |state| state.fill_op(params, context))
    }

    plain fn cuGraphHostNodeGetParams(_, node: CUgraphNode, out: Out<CUDA_HOST_NODE_PARAMS>) {
        out.required()?;
        let state = state()?;
        match &state.graph_of(node)?.1.op {
            Op::Host(call) => out.write(CUDA_HOST_NODE_PARAMS {
                fn_: Some(call.function),
                userData: call.argument,
            }),
            _ => Err(INVALID_VALUE),
        }
    }

    plain fn cuGraphHostNodeSetParams(_, node: CUgraphNode, params: In<CUDA_HOST_NODE_PARAMS>) {
        let params = params.read()?;
        set(node, |_| host_op(params.fn_, params.userData))
    }

    plain fn cuGraphExecHostNodeSetParams(
        _, exec: CUgraphExec, node: CUgraphNode, params: In<CUDA_HOST_NODE_PARAMS>
    ) {
        let params = params.read()?;
        set_in(exec, node, |_| host_op(params.fn_, params.userData))
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
}
