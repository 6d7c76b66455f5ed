//! Recording a stream into a graph, and looking at graphs.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, size};

pub(crate) const MODES: [(&str, u32); 3] = [("global", 0), ("thread", 1), ("relaxed", 2)];

pub(crate) fn begin(env: &Environment, stream: CUstream, mode: u32) -> CUresult {
    let mode = CUstreamCaptureMode_enum(mode);
    cu!(env, cuStreamBeginCapture_v2(stream, mode))
}

pub(crate) fn end(env: &Environment, stream: CUstream) -> (CUresult, CUgraph) {
    let mut graph = std::ptr::without_provenance_mut(1);
    let code = cu!(env, cuStreamEndCapture(stream, &raw mut graph));
    (code, graph)
}

/// Sets the capture mode of this thread; also returns the one before.
pub(crate) fn exchange(env: &Environment, mode: u32) -> (CUresult, u32) {
    let mut mode = CUstreamCaptureMode_enum(mode);
    let code = cu!(env, cuThreadExchangeStreamCaptureMode(&raw mut mode));
    (code, mode.0)
}

/// What the driver says about a stream: none, active, invalidated, or a code.
pub(crate) fn status(env: &Environment, stream: CUstream) -> String {
    let mut status = CUstreamCaptureStatus_enum(77);
    let code = cu!(env, cuStreamIsCapturing(stream, &raw mut status));
    match (code, status.0) {
        (OK, 0) => "none".into(),
        (OK, 1) => "active".into(),
        (OK, 2) => "invalidated".into(),
        (OK, other) => format!("status {other}"),
        (code, _) => name(code),
    }
}

/// The nodes of a graph, in the driver's order.
pub(crate) fn nodes(env: &Environment, graph: CUgraph) -> Vec<CUgraphNode> {
    let mut nodes = vec![std::ptr::null_mut(); 64];
    let mut count = nodes.len();
    let code = cu!(
        env,
        cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count)
    );
    nodes.truncate(if code == OK { count } else { 0 });
    nodes
}

pub(crate) fn kind(env: &Environment, node: CUgraphNode) -> String {
    let mut kind = CUgraphNodeType_enum(77);
    let code = cu!(env, cuGraphNodeGetType(node, &raw mut kind));
    let names = [
        "kernel", "memcpy", "memset", "host", "graph", "empty", "wait", "record", "signal",
        "await", "alloc", "free",
    ];
    match names.get(kind.0 as usize) {
        Some(kind) if code == OK => (*kind).into(),
        _ => format!("{} {}", name(code), kind.0),
    }
}

/// The kinds of a graph's nodes.
pub(crate) fn kinds(env: &Environment, graph: CUgraph) -> String {
    let kinds: Vec<String> = nodes(env, graph)
        .into_iter()
        .map(|node| kind(env, node))
        .collect();
    if kinds.is_empty() {
        "no node".into()
    } else {
        kinds.join(" ")
    }
}

/// Ends a capture and says how: the code, and the nodes of the graph if there is one.
pub(crate) fn ended(env: &Environment, stream: CUstream) -> String {
    let (code, graph) = end(env, stream);
    if graph.is_null() {
        return format!("{}, no graph", name(code));
    }
    if graph.addr() == 1 {
        return format!("{}, graph untouched", name(code));
    }
    format!("{}, {}", name(code), kinds(env, graph))
}

pub(crate) fn graph(env: &Environment) -> Result<CUgraph> {
    let mut graph = std::ptr::null_mut();
    env.fine("cuGraphCreate", cu!(env, cuGraphCreate(&raw mut graph, 0)))?;
    Ok(graph)
}

pub(crate) fn alloc_params(bytes: u64) -> CUDA_MEM_ALLOC_NODE_PARAMS {
    CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: Environment::props(),
        bytesize: bytes as usize,
        ..CUDA_MEM_ALLOC_NODE_PARAMS::default()
    }
}

pub(crate) fn try_alloc_node(
    env: &Environment,
    graph: CUgraph,
    after: &[CUgraphNode],
    params: &mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> (CUresult, CUgraphNode) {
    let mut node = std::ptr::null_mut();
    let (list, count) = (after.as_ptr(), after.len());
    let code = cu!(
        env,
        cuGraphAddMemAllocNode(
            &raw mut node,
            graph,
            list,
            count,
            std::ptr::from_mut(params)
        )
    );
    (code, node)
}

pub(crate) fn alloc_node(
    env: &Environment,
    graph: CUgraph,
    after: &[CUgraphNode],
    bytes: u64,
) -> Result<(CUgraphNode, CUdeviceptr)> {
    let mut params = alloc_params(bytes);
    let (code, node) = try_alloc_node(env, graph, after, &mut params);
    env.fine("cuGraphAddMemAllocNode", code)?;
    Ok((node, params.dptr))
}

pub(crate) fn try_free_node(
    env: &Environment,
    graph: CUgraph,
    after: &[CUgraphNode],
    address: CUdeviceptr,
) -> (CUresult, CUgraphNode) {
    let mut node = std::ptr::null_mut();
    let (list, count) = (after.as_ptr(), after.len());
    let code = cu!(
        env,
        cuGraphAddMemFreeNode(&raw mut node, graph, list, count, address)
    );
    (code, node)
}

pub(crate) fn free_node(
    env: &Environment,
    graph: CUgraph,
    after: &[CUgraphNode],
    address: CUdeviceptr,
) -> Result<CUgraphNode> {
    let (code, node) = try_free_node(env, graph, after, address);
    env.fine("cuGraphAddMemFreeNode", code)?;
    Ok(node)
}

pub(crate) fn try_memset_node(
    env: &Environment,
    graph: CUgraph,
    after: &[CUgraphNode],
    address: CUdeviceptr,
    bytes: u64,
) -> (CUresult, CUgraphNode) {
    let params = CUDA_MEMSET_NODE_PARAMS_st {
        dst: address,
        pitch: 0,
        value: 7,
        elementSize: 1,
        width: bytes as usize,
        height: 1,
    };
    let mut node = std::ptr::null_mut();
    let (list, count, context) = (after.as_ptr(), after.len(), env.context());
    let code = cu!(
        env,
        cuGraphAddMemsetNode(
            &raw mut node,
            graph,
            list,
            count,
            &raw const params,
            context
        )
    );
    (code, node)
}

/// A copy of so many bytes between two addresses of a device.
pub(crate) fn try_copy_node(
    env: &Environment,
    graph: CUgraph,
    after: &[CUgraphNode],
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: u64,
) -> (CUresult, CUgraphNode) {
    let params = CUDA_MEMCPY3D_st {
        srcMemoryType: CUmemorytype_enum(2),
        srcDevice: from,
        dstMemoryType: CUmemorytype_enum(2),
        dstDevice: to,
        WidthInBytes: bytes as usize,
        Height: 1,
        Depth: 1,
        ..CUDA_MEMCPY3D_st::default()
    };
    let mut node = std::ptr::null_mut();
    let (list, count, context) = (after.as_ptr(), after.len(), env.context());
    let code = cu!(
        env,
        cuGraphAddMemcpyNode(
            &raw mut node,
            graph,
            list,
            count,
            &raw const params,
            context
        )
    );
    (code, node)
}

pub(crate) fn try_instantiate(
    env: &Environment,
    graph: CUgraph,
    flags: u64,
) -> (CUresult, CUgraphExec) {
    let mut exec = std::ptr::null_mut();
    let code = cu!(
        env,
        cuGraphInstantiateWithFlags(&raw mut exec, graph, flags)
    );
    (code, exec)
}

pub(crate) fn instantiate(env: &Environment, graph: CUgraph, flags: u64) -> Result<CUgraphExec> {
    let (code, exec) = try_instantiate(env, graph, flags);
    env.fine("cuGraphInstantiate", code)?;
    Ok(exec)
}

pub(crate) fn try_launch(env: &Environment, exec: CUgraphExec, stream: CUstream) -> CUresult {
    cu!(env, cuGraphLaunch(exec, stream))
}

pub(crate) fn launch(env: &Environment, exec: CUgraphExec, stream: CUstream) -> Result<()> {
    env.fine("cuGraphLaunch", try_launch(env, exec, stream))
}

pub(crate) fn destroy_exec(env: &Environment, exec: CUgraphExec) -> Result<()> {
    env.fine("cuGraphExecDestroy", cu!(env, cuGraphExecDestroy(exec)))
}

pub(crate) fn destroy(env: &Environment, graph: CUgraph) -> Result<()> {
    env.fine("cuGraphDestroy", cu!(env, cuGraphDestroy(graph)))
}

/// One number of the device's graph memory: used, its high mark, reserved, its high mark.
pub(crate) fn memory(env: &Environment, attribute: u32) -> Result<u64> {
    let mut value = 0_u64;
    let place = (&raw mut value).cast::<c_void>();
    let attribute = CUgraphMem_attribute_enum(attribute);
    let code = cu!(env, cuDeviceGetGraphMemAttribute(0, attribute, place));
    env.fine("cuDeviceGetGraphMemAttribute", code)?;
    Ok(value)
}

pub(crate) fn set_memory(env: &Environment, attribute: u32, value: u64) -> CUresult {
    let mut value = value;
    let place = (&raw mut value).cast::<c_void>();
    let attribute = CUgraphMem_attribute_enum(attribute);
    cu!(env, cuDeviceSetGraphMemAttribute(0, attribute, place))
}

/// All four numbers.
pub(crate) fn footprint(env: &Environment) -> Result<String> {
    Ok(format!(
        "used {} (high {}), reserved {} (high {})",
        size(memory(env, 0)?),
        size(memory(env, 1)?),
        size(memory(env, 2)?),
        size(memory(env, 3)?)
    ))
}

/// Says all four numbers.
pub(crate) fn show(env: &Environment, part: &str) -> Result<()> {
    env.say(part, footprint(env)?);
    Ok(())
}

pub(crate) fn trim_graphs(env: &Environment) -> Result<()> {
    env.fine("cuDeviceGraphMemTrim", cu!(env, cuDeviceGraphMemTrim(0)))
}

/// A graph that leaves its memory allocated.
pub(crate) struct Leftover {
    pub(crate) graph: CUgraph,
    pub(crate) exec: CUgraphExec,
    pub(crate) address: CUdeviceptr,
}

pub(crate) fn left(env: &Environment, bytes: u64, flags: u64) -> Result<Leftover> {
    let graph = graph(env)?;
    let (node, address) = alloc_node(env, graph, &[], bytes)?;
    let (code, _) = try_memset_node(env, graph, &[node], address, bytes);
    env.fine("cuGraphAddMemsetNode", code)?;
    let exec = instantiate(env, graph, flags)?;
    Ok(Leftover {
        graph,
        exec,
        address,
    })
}

/// Parameters of a node of this kind, all else zero.
pub(crate) fn node_of(kind: CUgraphNodeType) -> CUgraphNodeParams {
    CUgraphNodeParams {
        type_: kind,
        ..CUgraphNodeParams::default()
    }
}

/// Puts a graph into another, with this kind of ownership.
pub(crate) fn add_child(
    env: &Environment,
    parent: CUgraph,
    child: CUgraph,
    ownership: i32,
) -> CUresult {
    let mut params = node_of(CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_GRAPH);
    params.__bindgen_anon_1.graph = CUDA_CHILD_GRAPH_NODE_PARAMS_st {
        graph: child,
        ownership: CUgraphChildGraphNodeOwnership(ownership),
    };
    let mut node = std::ptr::null_mut();
    cu!(
        env,
        cuGraphAddNode_v2(
            &raw mut node,
            parent,
            std::ptr::null(),
            std::ptr::null(),
            0,
            &raw mut params
        )
    )
}
