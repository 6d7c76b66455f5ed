//! Nodes of every kind through one call.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::recorder::*;

static RUNS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn note(_: *mut c_void) {
    RUNS.fetch_add(1, Ordering::SeqCst);
}

/// The calls that add a node of any kind.
fn add(
    env: &Environment,
    abi: u32,
    graph: CUgraph,
    after: &[CUgraphNode],
    params: *mut CUgraphNodeParams,
) -> (CUresult, CUgraphNode) {
    let mut node = std::ptr::null_mut();
    let (list, count) = (after.as_ptr(), after.len());
    let code = if abi == 1 {
        cu!(
            env,
            cuGraphAddNode(&raw mut node, graph, list, count, params)
        )
    } else {
        let data = std::ptr::null();
        cu!(
            env,
            cuGraphAddNode_v2(&raw mut node, graph, list, data, count, params)
        )
    };
    (code, node)
}

/// A memset of one row of bytes.
fn memset(context: CUcontext, to: CUdeviceptr, width: usize) -> CUgraphNodeParams {
    let mut params = node_of(CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_MEMSET);
    params.__bindgen_anon_1.memset = CUDA_MEMSET_NODE_PARAMS_v2_st {
        dst: to,
        pitch: 0,
        value: 7,
        elementSize: 1,
        width,
        height: 1,
        ctx: context,
    };
    params
}

/// A copy of one row from the device to host memory.
fn memcpy(
    context: CUcontext,
    to: *mut c_void,
    from: CUdeviceptr,
    width: usize,
) -> CUgraphNodeParams {
    let mut params = node_of(CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_MEMCPY);
    params.__bindgen_anon_1.memcpy = CUDA_MEMCPY_NODE_PARAMS_st {
        flags: 0,
        reserved: 0,
        copyCtx: context,
        copyParams: CUDA_MEMCPY3D_st {
            srcMemoryType: CUmemorytype_enum(2),
            srcDevice: from,
            dstMemoryType: CUmemorytype_enum(1),
            dstHost: to,
            WidthInBytes: width,
            Height: 1,
            Depth: 1,
            ..CUDA_MEMCPY3D_st::default()
        },
    };
    params
}

fn host() -> CUgraphNodeParams {
    let mut params = node_of(CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_HOST);
    params.__bindgen_anon_1.host = CUDA_HOST_NODE_PARAMS_v2_st {
        fn_: Some(note),
        ..CUDA_HOST_NODE_PARAMS_v2_st::default()
    };
    params
}

fn record(event: CUevent) -> CUgraphNodeParams {
    let mut params = node_of(CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_EVENT_RECORD);
    params.__bindgen_anon_1.eventRecord.event = event;
    params
}

fn wait(event: CUevent) -> CUgraphNodeParams {
    let mut params = node_of(CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_WAIT_EVENT);
    params.__bindgen_anon_1.eventWait.event = event;
    params
}

/// One graph of all kinds, launched.
pub(crate) fn work(env: &Environment) -> Result<()> {
    for abi in [1, 2] {
        RUNS.store(0, Ordering::SeqCst);
        let (graph_, event, stream) = (graph(env)?, env.event()?, env.stream()?);
        let (plain, pinned) = (env.plain(64)?, env.pinned(64)?);
        let context = env.context();
        let mut last = Vec::new();
        for (part, mut params) in [
            (
                "empty",
                node_of(CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_EMPTY),
            ),
            ("memset", memset(context, plain, 64)),
            ("memcpy", memcpy(context, pinned, plain, 64)),
            ("host", host()),
            ("record", record(event)),
            ("wait", wait(event)),
        ] {
            let (code, node) = add(env, abi, graph_, &last, &raw mut params);
            env.code(format!("v{abi} {part}"), code);
            if code == OK {
                last = vec![node];
            }
        }
        env.say(format!("v{abi} nodes"), kinds(env, graph_));
        let mut edges = 0;
        let none = std::ptr::null_mut();
        let code = cu!(env, cuGraphGetEdges(graph_, none, none, &raw mut edges));
        env.say(format!("v{abi} edges"), format!("{} {edges}", name(code)));
        let (code, exec) = try_instantiate(env, graph_, 0);
        env.code(format!("v{abi} instantiate"), code);
        env.code(format!("v{abi} launch"), try_launch(env, exec, stream));
        env.synchronise(stream)?;
        let byte: *const u8 = pinned.cast_const().cast();
        // SAFETY: pinned memory, and the stream is done.
        let value = unsafe { byte.read_volatile() };
        env.say(format!("v{abi} copied"), value);
        let runs = RUNS.load(Ordering::SeqCst);
        env.say(format!("v{abi} host function ran"), runs);
    }
    Ok(())
}

/// What is refused.
pub(crate) fn refused(env: &Environment) -> Result<()> {
    let (graph_, plain, pinned) = (graph(env)?, env.plain(64)?, env.pinned(64)?);
    let (context, null) = (env.context(), std::ptr::null_mut::<u8>());
    let ask = |part: &str, mut params: CUgraphNodeParams| {
        let (code, node) = add(env, 2, graph_, &[], &raw mut params);
        let seen = if code == OK {
            kind(env, node)
        } else {
            yes(!node.is_null()).into()
        };
        env.say(part, format!("{}, {seen}", name(code)));
    };
    ask("memset, null context", memset(null.cast(), plain, 64));
    ask("memset, past the end", memset(context, plain, 1000));
    ask("memset, null address", memset(context, 0, 64));
    ask(
        "memcpy, null context",
        memcpy(null.cast(), pinned, plain, 64),
    );
    ask("memcpy, null host", memcpy(context, null.cast(), plain, 64));
    let mut params = memcpy(context, pinned, plain, 64);
    params.__bindgen_anon_1.memcpy.flags = 1;
    ask("memcpy, flags 1", params);
    let mut params = memcpy(context, pinned, plain, 64);
    params.__bindgen_anon_1.memcpy.reserved = 1;
    ask("memcpy, reserved 1", params);
    let mut params = host();
    params.__bindgen_anon_1.host.fn_ = None;
    ask("host, no function", params);
    let mut params = memset(context, plain, 64);
    params.reserved0[0] = 1;
    ask("reserved0", params);
    let mut params = memset(context, plain, 64);
    params.reserved2 = 1;
    ask("reserved2", params);
    let mut params = memset(context, plain, 64);
    // SAFETY: all bits of these fields may be anything.
    unsafe { params.__bindgen_anon_1.reserved1[28] = 1 };
    ask("reserved1", params);
    let mut params = memset(context, plain, 64);
    let none = std::ptr::null();
    let code = cu!(
        env,
        cuGraphAddNode(null.cast(), graph_, none, 0, &raw mut params)
    );
    env.code("no place for the node", code);
    let (code, first) = add(env, 2, graph_, &[], &raw mut params);
    env.fine("memset", code)?;
    let list = [first];
    let plain_data = [CUgraphEdgeData::default()];
    let (mut odd, mut port, mut programmatic) = (plain_data, plain_data, plain_data);
    odd[0].type_ = 9;
    port[0].from_port = 1;
    programmatic[0].type_ = 1;
    for (part, data) in [
        ("plain", &plain_data),
        ("unknown type", &odd),
        ("port 1", &port),
        ("programmatic", &programmatic),
    ] {
        let (mut node, data) = (null.cast(), data.as_ptr());
        let code = cu!(
            env,
            cuGraphAddNode_v2(
                &raw mut node,
                graph_,
                list.as_ptr(),
                data,
                1,
                &raw mut params
            )
        );
        env.code(format!("edge data, {part}"), code);
    }
    env.no_context()?;
    ask("memset without a context", memset(context, plain, 64));
    ask("copy without a context", memcpy(context, pinned, plain, 64));
    ask("host without a context", host());
    Ok(())
}

/// Kinds that need more than zeros, and what is not there.
pub(crate) fn odd(env: &Environment) -> Result<()> {
    let null = std::ptr::null_mut::<u8>();
    for id in [0, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 99] {
        env.alone(&format!("kind {id}, all else zero"), || {
            let mut params = node_of(CUgraphNodeType_enum(id));
            Ok(name(add(env, 2, graph(env)?, &[], &raw mut params).0))
        });
    }
    for abi in [1, 2] {
        env.alone(&format!("v{abi} no graph"), || {
            let mut params = node_of(CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_EMPTY);
            Ok(name(add(env, abi, null.cast(), &[], &raw mut params).0))
        });
        env.alone(&format!("v{abi} no parameters"), || {
            Ok(name(add(env, abi, graph(env)?, &[], null.cast()).0))
        });
    }
    Ok(())
}
