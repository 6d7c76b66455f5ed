//! Captures and graphs: what the sanitizer says of them, and what is left of them.

use cuda_driver_sys::*;

use crate::harness::*;

fn begin(stream: CUstream, mode: u32) {
    let mode = CUstreamCaptureMode(mode);
    assert_eq!(cu!(cuStreamBeginCapture_v2(stream, mode)), OK);
}

fn end(stream: CUstream) -> CUgraph {
    let mut graph = std::ptr::null_mut();
    assert_eq!(cu!(cuStreamEndCapture(stream, &raw mut graph)), OK);
    graph
}

fn alloc_in(stream: CUstream, size: usize) -> CUdeviceptr {
    let mut address = 0;
    assert_eq!(cu!(cuMemAllocAsync(&raw mut address, size, stream)), OK);
    address
}

fn order(after: CUstream, before: CUstream) {
    let event = event();
    assert_eq!(cu!(cuEventRecord(event, before)), OK);
    assert_eq!(cu!(cuStreamWaitEvent(after, event, 0)), OK);
    cu!(cuEventDestroy_v2(event));
}

fn instantiate(graph: CUgraph) -> CUgraphExec {
    let mut exec = std::ptr::null_mut();
    let code = cu!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
    assert_eq!(code, OK);
    exec
}

fn destroy(exec: CUgraphExec, graph: CUgraph) {
    assert_eq!(cu!(cuGraphExecDestroy(exec)), OK);
    assert_eq!(cu!(cuGraphDestroy(graph)), OK);
}

/// Captures two streams, which come together at the end, and answers what is reported at the making
/// of an instance.
fn reports(work: impl FnOnce(CUstream, CUstream)) -> Vec<String> {
    let _turn = turn();
    let (a, b) = (stream(), stream());
    begin(a, 2);
    order(b, a);
    work(a, b);
    order(a, b);
    let graph = end(a);
    let exec = instantiate(graph);
    let reports = control().reports();
    destroy(exec, graph);
    cu!(cuStreamDestroy_v2(a));
    cu!(cuStreamDestroy_v2(b));
    reports
}

#[test]
fn a_graph_that_keeps_the_order_is_not_reported() {
    let reports = reports(|a, b| {
        let block = alloc_in(a, 64);
        order(b, a);
        assert_eq!(cu!(cuMemsetD8Async(block, 1, 64, b)), OK);
        order(a, b);
        assert_eq!(cu!(cuMemFreeAsync(block, a)), OK);
        // The address comes again, and may be used again.
        let again = alloc_in(a, 64);
        assert_eq!(again, block);
        assert_eq!(cu!(cuMemsetD8Async(again, 1, 64, a)), OK);
        assert_eq!(cu!(cuMemFreeAsync(again, a)), OK);
    });
    assert!(reports.is_empty(), "{reports:?}");
}

#[test]
fn a_use_beside_the_allocation_is_reported() {
    let reports = reports(|a, b| {
        let block = alloc_in(a, 64);
        assert_eq!(cu!(cuMemsetD8Async(block, 1, 64, b)), OK);
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(reports[0].starts_with("before allocation: memset"));
}

#[test]
fn a_use_beside_the_free_is_reported() {
    let reports = reports(|a, b| {
        let block = alloc_in(a, 64);
        order(b, a);
        assert_eq!(cu!(cuMemFreeAsync(block, a)), OK);
        assert_eq!(cu!(cuMemsetD8Async(block, 1, 64, b)), OK);
    });
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(reports[0].starts_with("after free: memset"));
}

#[test]
fn a_launch_that_uses_freed_pool_memory_is_reported_and_harmless() {
    let _turn = turn();
    let (pool, a) = (pool(&props()), stream());
    let block = alloc(pool, 64, a);
    begin(a, 2);
    assert_eq!(cu!(cuMemsetD8Async(block, 1, 64, a)), OK);
    let graph = end(a);
    let exec = instantiate(graph);
    free(block, a);
    assert_eq!(cu!(cuGraphLaunch(exec, a)), OK);
    synchronise(a);
    let reports = control().reports();
    let found = |what: &str| reports.iter().any(|report| report.starts_with(what));
    assert!(
        found("after free: memset") && found("graph: memset"),
        "{reports:?}"
    );
    destroy(exec, graph);
    cu!(cuMemPoolDestroy(pool));
    cu!(cuStreamDestroy_v2(a));
}

#[test]
fn what_a_launch_leaves_is_counted_until_it_is_freed() {
    let _turn = turn();
    let a = stream();
    begin(a, 0);
    assert_eq!(control().live().captures, 1);
    let block = alloc_in(a, 64);
    let graph = end(a);
    let exec = instantiate(graph);
    let live = control().live();
    assert_eq!((live.captures, live.graphs, live.graph_execs), (0, 1, 1));
    assert_eq!(live.graph_allocations, 0);
    assert_eq!(cu!(cuGraphLaunch(exec, a)), OK);
    destroy(exec, graph);
    let live = control().live();
    assert_eq!(
        (live.graphs, live.graph_execs, live.graph_allocations),
        (0, 0, 1)
    );
    free(block, a);
    assert_eq!(control().live().graph_allocations, 0);
    cu!(cuStreamDestroy_v2(a));
}

#[test]
fn host_functions_and_copies_run_in_the_order_of_the_graph() {
    unsafe extern "C" fn look(argument: *mut std::ffi::c_void) {
        // SAFETY: the test hands over two bytes that live until the stream is done.
        let bytes = unsafe { &mut *argument.cast::<[u8; 2]>() };
        bytes[1] = bytes[0];
    }
    let _turn = turn();
    let (a, mut bytes) = (stream(), [0_u8; 2]);
    let place = (&raw mut bytes).cast::<std::ffi::c_void>();
    begin(a, 2);
    let block = alloc_in(a, 1);
    assert_eq!(cu!(cuMemsetD8Async(block, 5, 1, a)), OK);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(place, block, 1, a)), OK);
    assert_eq!(cu!(cuLaunchHostFunc(a, Some(look), place)), OK);
    assert_eq!(cu!(cuMemFreeAsync(block, a)), OK);
    let graph = end(a);
    let exec = instantiate(graph);
    assert_eq!(bytes, [0, 0], "nothing has run");
    assert_eq!(cu!(cuGraphLaunch(exec, a)), OK);
    synchronise(a);
    assert_eq!(bytes, [5, 5]);
    assert!(control().reports().is_empty());
    destroy(exec, graph);
    cu!(cuStreamDestroy_v2(a));
}

/// What both functions answer that make an instance.
fn answers(graph: CUgraph, flags: u64) -> [CUresult; 2] {
    let mut exec = std::ptr::null_mut();
    let mut parameters = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags,
        ..CUDA_GRAPH_INSTANTIATE_PARAMS::default()
    };
    let by_flags = cu!(cuGraphInstantiateWithFlags(&raw mut exec, graph, flags));
    if by_flags == OK {
        assert_eq!(cu!(cuGraphExecDestroy(exec)), OK);
    }
    let by_parameters = cu!(cuGraphInstantiateWithParams(
        &raw mut exec,
        graph,
        &raw mut parameters
    ));
    if by_parameters == OK {
        assert_eq!(cu!(cuGraphExecDestroy(exec)), OK);
    }
    [by_flags, by_parameters]
}

/// Documented: both functions have the flag for launches by devices, which excludes the one that frees memory at a
/// launch. What graphs it takes was measured (`graph_calls.odd device launch` in `probe-h100.txt`).
#[test]
fn instances_for_devices_have_no_memory_of_their_own() {
    let _turn = turn();
    let stream = stream();
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 64));
    begin(stream, 2);
    assert_eq!(cu!(cuMemsetD8Async(x, 1, 64, stream)), OK);
    let memset = end(stream);
    begin(stream, 2);
    let own = alloc_in(stream, 64);
    free(own, stream);
    let memory = end(stream);
    for (graph, flags, expected) in [
        (memset, 4, OK),
        (memset, 5, INVALID_VALUE),
        (memory, 4, INVALID_VALUE),
        (memory, 5, INVALID_VALUE),
        (memory, 1, OK),
    ] {
        assert_eq!(answers(graph, flags), [expected; 2], "flags {flags}");
    }
    assert_eq!(cu!(cuGraphDestroy(memset)), OK);
    assert_eq!(cu!(cuGraphDestroy(memory)), OK);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    cu!(cuStreamDestroy_v2(stream));
}

/// Documented: while a blocking stream is captured, any use of the legacy stream is invalid.
#[test]
fn the_legacy_stream_cannot_join_a_capture() {
    let _turn = turn();
    let (blocking, event): (CUstream, _) = (handle!(cuStreamCreate(_, 0)), event());
    begin(blocking, 2);
    assert_eq!(cu!(cuEventRecord(event, blocking)), OK);
    let refused = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    let null = std::ptr::null_mut();
    assert_eq!(cu!(cuStreamWaitEvent(null, event, 0)), refused);
    let mut graph = std::ptr::null_mut();
    assert_eq!(
        cu!(cuStreamEndCapture(blocking, &raw mut graph)),
        CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    );
    assert_eq!(cu!(cuMemsetD8Async(0, 0, 0, null)), OK, "it is free again");
    cu!(cuEventDestroy_v2(event));
    cu!(cuStreamDestroy_v2(blocking));
}
