//! Nodes of graphs and their edges: what they do when they are launched.

use std::ffi::{CString, c_void};

use cuda_driver_sys::*;

use crate::harness::*;

const NOT_READY: CUresult = CUresult::CUDA_ERROR_NOT_READY;

fn launch(exec: CUgraphExec, stream: CUstream) {
    assert_eq!(cu!(cuGraphLaunch(exec, stream)), OK);
}

fn instantiate(graph: CUgraph) -> CUgraphExec {
    handle!(cuGraphInstantiateWithFlags(_, graph, 0))
}

fn destroy(exec: CUgraphExec, graph: CUgraph) {
    assert_eq!(cu!(cuGraphExecDestroy(exec)), OK);
    assert_eq!(cu!(cuGraphDestroy(graph)), OK);
}

fn empty(graph: CUgraph, after: &[CUgraphNode]) -> CUgraphNode {
    handle!(cuGraphAddEmptyNode(_, graph, after.as_ptr(), after.len()))
}

fn memset(
    graph: CUgraph,
    after: &[CUgraphNode],
    context: CUcontext,
    params: CUDA_MEMSET_NODE_PARAMS,
) -> CUgraphNode {
    let (list, params) = (after.as_ptr(), &raw const params);
    handle!(cuGraphAddMemsetNode(
        _,
        graph,
        list,
        after.len(),
        params,
        context
    ))
}

fn row(to: CUdeviceptr, value: u32, width: usize) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS {
        dst: to,
        value,
        elementSize: 1,
        width,
        height: 1,
        ..CUDA_MEMSET_NODE_PARAMS::default()
    }
}

fn bytes<const N: usize>(from: CUdeviceptr) -> [u8; N] {
    let mut bytes = [0; N];
    let place = bytes.as_mut_ptr().cast::<c_void>();
    assert_eq!(cu!(cuMemcpyDtoH_v2(place, from, N)), OK);
    bytes
}

fn edges(graph: CUgraph) -> Vec<(CUgraphNode, CUgraphNode)> {
    let (mut from, mut to) = ([std::ptr::null_mut(); 8], [std::ptr::null_mut(); 8]);
    let mut count = 8;
    let code = cu!(cuGraphGetEdges(
        graph,
        from.as_mut_ptr(),
        to.as_mut_ptr(),
        &raw mut count
    ));
    assert_eq!(code, OK);
    from.into_iter().zip(to).take(count).collect()
}

#[test]
fn a_wait_node_orders_a_launch_after_the_event() {
    let turn = turn();
    let (held, stream, event) = (stream(), stream(), event());
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 16));
    let graph = handle!(cuGraphCreate(_, 0));
    let wait = handle!(cuGraphAddEventWaitNode(
        _,
        graph,
        std::ptr::null(),
        0,
        event
    ));
    memset(graph, &[wait], turn.context, row(x, 7, 16));
    let exec = instantiate(graph);
    let gate = Gate::hold(held);
    assert_eq!(cu!(cuMemsetD8Async(x, 1, 16, held)), OK);
    assert_eq!(cu!(cuEventRecord(event, held)), OK);
    launch(exec, stream);
    assert_eq!(cu!(cuStreamQuery(stream)), NOT_READY);
    gate.open();
    synchronise(stream);
    assert_eq!(bytes(x), [7; 16]);
    // The order sanitizer knows this order, too.
    assert_eq!(control().reports(), Vec::<String>::new());
    destroy(exec, graph);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    cu!(cuEventDestroy_v2(event));
    cu!(cuStreamDestroy_v2(held));
    cu!(cuStreamDestroy_v2(stream));
}

#[test]
fn a_record_node_is_reached_with_its_launch() {
    let _turn = turn();
    let (stream, other, event) = (stream(), stream(), event());
    let graph = handle!(cuGraphCreate(_, 0));
    handle!(cuGraphAddEventRecordNode(
        _,
        graph,
        std::ptr::null(),
        0,
        event
    ));
    let exec = instantiate(graph);
    let gate = Gate::hold(stream);
    launch(exec, stream);
    assert_eq!(cu!(cuEventQuery(event)), NOT_READY);
    assert_eq!(cu!(cuStreamWaitEvent(other, event, 0)), OK);
    assert_eq!(cu!(cuStreamQuery(other)), NOT_READY);
    gate.open();
    synchronise(other);
    assert_eq!(cu!(cuEventQuery(event)), OK);
    destroy(exec, graph);
    cu!(cuEventDestroy_v2(event));
    cu!(cuStreamDestroy_v2(other));
    cu!(cuStreamDestroy_v2(stream));
}

#[test]
fn a_fork_shows_in_the_edges_of_its_capture() {
    let _turn = turn();
    let (a, b) = (stream(), stream());
    let (fork, join) = (event(), event());
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 48));
    let relaxed = CUstreamCaptureMode(2);
    assert_eq!(cu!(cuStreamBeginCapture_v2(a, relaxed)), OK);
    assert_eq!(cu!(cuMemsetD8Async(x, 1, 16, a)), OK);
    assert_eq!(cu!(cuEventRecord(fork, a)), OK);
    assert_eq!(cu!(cuStreamWaitEvent(b, fork, 0)), OK);
    assert_eq!(cu!(cuMemsetD8Async(x + 16, 2, 16, a)), OK);
    assert_eq!(cu!(cuMemsetD8Async(x + 32, 3, 16, b)), OK);
    assert_eq!(cu!(cuEventRecord(join, b)), OK);
    assert_eq!(cu!(cuStreamWaitEvent(a, join, 0)), OK);
    let (mut status, mut id) = (CUstreamCaptureStatus(0), 0);
    let (mut told, mut list, mut count) = (std::ptr::null_mut(), std::ptr::null(), 0);
    let code = cu!(cuStreamGetCaptureInfo_v2(
        a,
        &raw mut status,
        &raw mut id,
        &raw mut told,
        &raw mut list,
        &raw mut count
    ));
    assert_eq!((code, status.0, count), (OK, 1, 2));
    // SAFETY: the simulator says that so many nodes lie there.
    let last = unsafe { std::slice::from_raw_parts(list, count) }.to_vec();
    let mut graph = std::ptr::null_mut();
    assert_eq!(cu!(cuStreamEndCapture(a, &raw mut graph)), OK);
    assert_eq!(graph, told);
    let edges = edges(graph);
    let from: Vec<_> = edges.iter().map(|(from, _)| *from).collect();
    let to: Vec<_> = edges.iter().map(|(_, to)| *to).collect();
    assert_eq!((from[0], from.len()), (from[1], 2));
    assert_eq!(to, last);
    assert_eq!(cu!(cuGraphDestroy(graph)), OK);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    for event in [fork, join] {
        cu!(cuEventDestroy_v2(event));
    }
    cu!(cuStreamDestroy_v2(a));
    cu!(cuStreamDestroy_v2(b));
}

#[test]
fn an_edge_added_later_decides_which_node_runs_first() {
    let turn = turn();
    let stream = stream();
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 16));
    let graph = handle!(cuGraphCreate(_, 0));
    let first = memset(graph, &[], turn.context, row(x, 1, 16));
    let second = memset(graph, &[], turn.context, row(x, 2, 16));
    let add = |from: CUgraphNode, to: CUgraphNode| {
        let (from, to) = ([from], [to]);
        cu!(cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), 1))
    };
    assert_eq!(add(second, first), OK);
    let exec = instantiate(graph);
    launch(exec, stream);
    synchronise(stream);
    assert_eq!(bytes(x), [1; 16]);
    // A cycle is taken, and cannot be instantiated.
    assert_eq!(add(first, second), OK);
    let mut refused = std::ptr::null_mut();
    let code = cu!(cuGraphInstantiateWithFlags(&raw mut refused, graph, 0));
    assert_eq!(code, INVALID_VALUE);
    destroy(exec, graph);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    cu!(cuStreamDestroy_v2(stream));
}

#[test]
fn a_memset_node_fills_rows_and_leaves_what_lies_between() {
    let turn = turn();
    let stream = stream();
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 16));
    assert_eq!(cu!(cuMemsetD8Async(x, 0, 16, stream)), OK);
    let graph = handle!(cuGraphCreate(_, 0));
    let params = CUDA_MEMSET_NODE_PARAMS {
        pitch: 8,
        height: 2,
        ..row(x + 1, 7, 3)
    };
    let node = memset(graph, &[], turn.context, params);
    let exec = instantiate(graph);
    launch(exec, stream);
    synchronise(stream);
    assert_eq!(bytes(x), [0, 7, 7, 7, 0, 0, 0, 0, 0, 7, 7, 7, 0, 0, 0, 0]);
    // The instance keeps its own parameters.
    let other = row(x, 9, 16);
    let code = cu!(cuGraphMemsetNodeSetParams(node, &raw const other));
    assert_eq!(code, OK);
    assert_eq!(cu!(cuMemsetD8Async(x, 0, 16, stream)), OK);
    launch(exec, stream);
    synchronise(stream);
    assert_eq!(bytes::<4>(x), [0, 7, 7, 7]);
    destroy(exec, graph);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    cu!(cuStreamDestroy_v2(stream));
}

#[test]
fn a_copy_node_brings_layers_of_rows_from_the_host() {
    let turn = turn();
    let stream = stream();
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 16));
    let host: Vec<u8> = (1..=12).collect();
    let params = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: host.as_ptr().cast(),
        srcXInBytes: 1,
        srcPitch: 3,
        srcHeight: 2,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: x,
        dstPitch: 4,
        WidthInBytes: 2,
        Height: 2,
        Depth: 2,
        ..CUDA_MEMCPY3D::default()
    };
    let (graph, list) = (handle!(cuGraphCreate(_, 0)), std::ptr::null());
    let params = &raw const params;
    handle!(cuGraphAddMemcpyNode(
        _,
        graph,
        list,
        0,
        params,
        turn.context
    ));
    let exec = instantiate(graph);
    assert_eq!(cu!(cuMemsetD8Async(x, 0, 16, stream)), OK);
    launch(exec, stream);
    synchronise(stream);
    assert_eq!(bytes(x), [2, 3, 0, 0, 5, 6, 0, 0, 8, 9, 0, 0, 11, 12, 0, 0]);
    destroy(exec, graph);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    cu!(cuStreamDestroy_v2(stream));
}

#[test]
fn a_child_is_a_copy_that_goes_with_its_parent() {
    let turn = turn();
    let stream = stream();
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 16));
    let child = handle!(cuGraphCreate(_, 0));
    let inner = memset(child, &[], turn.context, row(x, 3, 16));
    let (parent, list) = (handle!(cuGraphCreate(_, 0)), std::ptr::null());
    let node = handle!(cuGraphAddChildGraphNode(_, parent, list, 0, child));
    let mut copy = std::ptr::null_mut();
    let code = cu!(cuGraphChildGraphNodeGetGraph(node, &raw mut copy));
    assert_eq!(code, OK);
    let found = handle!(cuGraphNodeFindInClone(_, inner, copy));
    assert_ne!(found, inner);
    assert_eq!(cu!(cuGraphDestroy(child)), OK);
    let exec = instantiate(parent);
    launch(exec, stream);
    synchronise(stream);
    assert_eq!(bytes(x), [3; 16]);
    destroy(exec, parent);
    assert_eq!(control().live().graphs, 0);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    cu!(cuStreamDestroy_v2(stream));
}

#[test]
fn a_graph_is_written_as_a_dot_file() {
    let _turn = turn();
    let graph = handle!(cuGraphCreate(_, 0));
    let first = empty(graph, &[]);
    empty(graph, &[first]);
    let path = std::env::temp_dir().join(format!("cuda-sim-{}.dot", std::process::id()));
    let name = CString::new(path.to_str().expect("UTF-8")).expect("no zero");
    assert_eq!(cu!(cuGraphDebugDotPrint(graph, name.as_ptr(), 0)), OK);
    let text = std::fs::read_to_string(&path).expect("the file is there");
    std::fs::remove_file(&path).expect("the file can be removed");
    assert!(
        text.starts_with("digraph ") && text.ends_with("}\n"),
        "{text}"
    );
    assert_eq!(text.matches("[label=\"empty\"]").count(), 2, "{text}");
    assert_eq!(text.matches(" -> ").count(), 1, "{text}");
    assert_eq!(cu!(cuGraphDestroy(graph)), OK);
}
