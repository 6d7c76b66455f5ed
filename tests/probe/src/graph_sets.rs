//! Memset nodes of every shape, and host nodes.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::recorder::*;

unsafe extern "C" fn ignore(_: *mut c_void) {}

/// Memset nodes of every shape.
pub(crate) fn memsets(env: &Environment) -> Result<()> {
    let (plain, stream) = (env.plain(256)?, env.stream()?);
    let ask = |part: &str, change: &dyn Fn(&mut CUDA_MEMSET_NODE_PARAMS_st)| -> Result<()> {
        let mut params = CUDA_MEMSET_NODE_PARAMS_st {
            dst: plain,
            pitch: 0,
            value: 7,
            elementSize: 1,
            width: 16,
            height: 1,
        };
        change(&mut params);
        let (graph, mut node) = (graph(env)?, std::ptr::null_mut());
        let (list, context) = (std::ptr::null(), env.context());
        let code = cu!(
            env,
            cuGraphAddMemsetNode(&raw mut node, graph, list, 0, &raw const params, context)
        );
        if code != OK {
            env.code(part, code);
            return Ok(());
        }
        let mut seen = CUDA_MEMSET_NODE_PARAMS_st::default();
        let read = cu!(env, cuGraphMemsetNodeGetParams(node, &raw mut seen));
        let (made, exec) = try_instantiate(env, graph, 0);
        if made != OK {
            env.say(part, format!("SUCCESS, instantiate {}", name(made)));
            return Ok(());
        }
        env.fine("memset", cu!(env, cuMemsetD8_v2(plain, 0, 256)))?;
        env.fine("sync", cu!(env, cuCtxSynchronize()))?;
        let code = try_launch(env, exec, stream);
        env.synchronise(stream)?;
        let mut bytes = [0_u8; 256];
        let copied = cu!(env, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), plain, 256));
        env.fine("cuMemcpyDtoH", copied)?;
        let count = bytes.iter().filter(|byte| **byte != 0).count();
        let places = bytes.iter().enumerate();
        let sum: usize = places.map(|(at, byte)| at * usize::from(*byte)).sum();
        env.say(
            part,
            format!("SUCCESS, {}, {count} bytes, sum {sum}", name(code)),
        );
        env.say(
            format!("{part}, read"),
            format!(
                "{}, there {}, pitch {}, value {}, size {}, {} by {}",
                name(read),
                yes(seen.dst == params.dst),
                seen.pitch,
                seen.value,
                seen.elementSize,
                seen.width,
                seen.height
            ),
        );
        Ok(())
    };
    ask("a row", &|_| {})?;
    ask("a row with a pitch", &|p| p.pitch = 100)?;
    ask("a row with a narrow pitch", &|p| p.pitch = 3)?;
    for size in [0, 1, 2, 3, 4, 8] {
        ask(&format!("elements of {size}"), &|p| {
            (p.elementSize, p.value) = (size, 0x0403_0201);
        })?;
    }
    ask("a value of two bytes for one", &|p| p.value = 0x1ff)?;
    ask("no width", &|p| p.width = 0)?;
    ask("no height", &|p| p.height = 0)?;
    ask("four rows", &|p| (p.height, p.pitch) = (4, 32))?;
    ask("four rows of words", &|p| {
        (p.height, p.pitch, p.elementSize, p.width) = (4, 32, 4, 5);
    })?;
    ask("four rows, no pitch", &|p| p.height = 4)?;
    ask("four rows, narrow pitch", &|p| (p.height, p.pitch) = (4, 8))?;
    ask("four rows, odd pitch", &|p| {
        (p.height, p.pitch, p.elementSize, p.width) = (4, 33, 2, 5);
    })?;
    ask("rows past the end", &|p| (p.height, p.pitch) = (8, 64))?;
    ask("last row inside", &|p| (p.height, p.pitch) = (4, 80))?;
    // Captured memsets.
    let show = |part: &str, set: &dyn Fn() -> CUresult| -> Result<()> {
        env.fine("begin", begin(env, stream, 2))?;
        env.code(format!("captured {part}"), set());
        let (code, graph) = end(env, stream);
        env.fine("end", code)?;
        let mut seen = CUDA_MEMSET_NODE_PARAMS_st::default();
        for node in nodes(env, graph) {
            let code = cu!(env, cuGraphMemsetNodeGetParams(node, &raw mut seen));
            env.say(
                format!("captured {part}, read"),
                format!(
                    "{}, pitch {}, value {}, size {}, {} by {}",
                    name(code),
                    seen.pitch,
                    seen.value,
                    seen.elementSize,
                    seen.width,
                    seen.height
                ),
            );
        }
        Ok(())
    };
    show("D8", &|| cu!(env, cuMemsetD8Async(plain, 7, 16, stream)))?;
    show("D16", &|| cu!(env, cuMemsetD16Async(plain, 7, 16, stream)))?;
    show("D32", &|| cu!(env, cuMemsetD32Async(plain, 7, 16, stream)))?;
    let (graph_, null) = (graph(env)?, std::ptr::null_mut::<u8>());
    let (code, node) = try_memset_node(env, graph_, &[], plain, 16);
    env.fine("memset node", code)?;
    let code = cu!(env, cuGraphMemsetNodeGetParams(node, null.cast()));
    env.code("get into null", code);
    let other = CUDA_MEMSET_NODE_PARAMS_st {
        dst: plain,
        pitch: 0,
        value: 9,
        elementSize: 2,
        width: 3,
        height: 1,
    };
    let code = cu!(env, cuGraphMemsetNodeSetParams(node, &raw const other));
    env.code("set", code);
    let mut seen = CUDA_MEMSET_NODE_PARAMS_st::default();
    let code = cu!(env, cuGraphMemsetNodeGetParams(node, &raw mut seen));
    env.say("set, read", format!("{}, value {}", name(code), seen.value));
    Ok(())
}

/// Elements that are not aligned.
pub(crate) fn unaligned(env: &Environment) -> Result<()> {
    for (size, offset) in [(2, 1), (4, 1), (4, 2)] {
        env.alone(&format!("elements of {size}, {offset} off"), || {
            let (graph, stream) = (graph(env)?, env.stream()?);
            let params = CUDA_MEMSET_NODE_PARAMS_st {
                dst: env.plain(256)? + offset,
                pitch: 0,
                value: 7,
                elementSize: size,
                width: 4,
                height: 1,
            };
            let (mut node, list) = (std::ptr::null_mut(), std::ptr::null());
            let (params, context) = (&raw const params, env.context());
            let code = cu!(
                env,
                cuGraphAddMemsetNode(&raw mut node, graph, list, 0, params, context)
            );
            if code != OK {
                return Ok(name(code));
            }
            let (made, exec) = try_instantiate(env, graph, 0);
            if made != OK {
                return Ok([code, made].map(name).join(", "));
            }
            let launched = try_launch(env, exec, stream);
            let done = cu!(env, cuStreamSynchronize(stream));
            Ok([code, made, launched, done].map(name).join(", "))
        });
    }
    Ok(())
}

/// Host nodes, and what they say about themselves.
pub(crate) fn hosts(env: &Environment) -> Result<()> {
    let (graph_, null) = (graph(env)?, std::ptr::null_mut::<u8>());
    let argument = std::ptr::without_provenance_mut(0x77);
    let mut params = CUDA_HOST_NODE_PARAMS_st {
        fn_: Some(ignore),
        userData: argument,
    };
    let mut node: CUgraphNode = null.cast();
    let list = std::ptr::null();
    let code = cu!(
        env,
        cuGraphAddHostNode(&raw mut node, graph_, list, 0, &raw const params)
    );
    env.code("add", code);
    let mut seen = CUDA_HOST_NODE_PARAMS_st::default();
    let code = cu!(env, cuGraphHostNodeGetParams(node, &raw mut seen));
    env.say(
        "read",
        format!(
            "{}, same function {}, same argument {}",
            name(code),
            yes(seen.fn_.map(|it| it as usize) == params.fn_.map(|it| it as usize)),
            yes(seen.userData == argument)
        ),
    );
    let code = cu!(env, cuGraphHostNodeGetParams(node, null.cast()));
    env.code("read into null", code);
    let (code, set) = try_memset_node(env, graph_, &[], env.plain(64)?, 16);
    env.fine("memset node", code)?;
    let code = cu!(env, cuGraphHostNodeGetParams(set, &raw mut seen));
    env.code("read of a memset", code);
    params.fn_ = None;
    let mut other: CUgraphNode = null.cast();
    let code = cu!(
        env,
        cuGraphAddHostNode(&raw mut other, graph_, list, 0, &raw const params)
    );
    env.code("no function", code);
    env.no_context()?;
    params.fn_ = Some(ignore);
    let code = cu!(
        env,
        cuGraphAddHostNode(&raw mut other, graph_, list, 0, &raw const params)
    );
    env.code("without a context", code);
    Ok(())
}
