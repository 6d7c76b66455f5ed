//! Kernel nodes that are added by hand.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::code::{FillArguments as Arguments, function, kernel, load, load_library, word};
use crate::environment::{Environment, OK, cu, name, yes};
use crate::recorder::*;

type Params = CUDA_KERNEL_NODE_PARAMS_v2_st;

fn add(env: &Environment, graph: CUgraph, params: &Params) -> (CUresult, CUgraphNode) {
    let mut node = std::ptr::null_mut();
    let (list, params) = (std::ptr::null(), std::ptr::from_ref(params));
    let code = cu!(
        env,
        cuGraphAddKernelNode_v2(&raw mut node, graph, list, 0, params)
    );
    (code, node)
}

fn read(env: &Environment, node: CUgraphNode) -> (CUresult, Params) {
    let mut seen = Params::default();
    let code = cu!(env, cuGraphKernelNodeGetParams_v2(node, &raw mut seen));
    (code, seen)
}

/// What is said of a node, with the arguments of `fill`.
fn told(env: &Environment, node: CUgraphNode, function: CUfunction, kernel: CUkernel) -> String {
    let (code, seen) = read(env, node);
    if code != OK {
        return name(code);
    }
    let mut arguments = String::from("no arguments");
    if !seen.kernelParams.is_null() {
        // SAFETY: the driver keeps an address for each of the three arguments of `fill`.
        let second = unsafe { *seen.kernelParams.wrapping_add(1) };
        // SAFETY: the second one is a number of 32 bits.
        let value = unsafe { *second.cast::<u32>() };
        arguments = format!("value {value}");
    }
    format!(
        "grid {} {} {}, block {} {} {}, shared {}, function {}, kernel {}, context {}, {arguments}, extra {}",
        seen.gridDimX,
        seen.gridDimY,
        seen.gridDimZ,
        seen.blockDimX,
        seen.blockDimY,
        seen.blockDimZ,
        seen.sharedMemBytes,
        if seen.func.is_null() {
            "null"
        } else if seen.func == function {
            "own"
        } else {
            "another"
        },
        if seen.kern.is_null() {
            "null"
        } else if seen.kern == kernel {
            "own"
        } else {
            "another"
        },
        if seen.ctx.is_null() {
            "null"
        } else if seen.ctx == env.context() {
            "own"
        } else {
            "another"
        },
        yes(!seen.extra.is_null()),
    )
}

/// What is taken for a kernel node, what it says of itself, and what it does.
pub(crate) fn shapes(env: &Environment) -> Result<()> {
    let (module, stream, block) = (load(env)?, env.stream()?, env.plain(256)?);
    let fills = function(env, module, c"fill")?;
    let library = load_library(env)?;
    let of_library = kernel(env, library, c"fill")?;
    let none: CUfunction = std::ptr::null_mut();
    let ask = |part: &str, change: &dyn Fn(&mut Params)| -> Result<()> {
        let mut arguments = Arguments::new(block, 7);
        let mut params = arguments.params(fills);
        change(&mut params);
        let graph = graph(env)?;
        let (code, node) = add(env, graph, &params);
        env.code(part, code);
        if code != OK {
            return Ok(());
        }
        // The node keeps the arguments that it was added with.
        arguments.value = 8;
        env.say(format!("{part}, read"), told(env, node, fills, of_library));
        let (code, exec) = try_instantiate(env, graph, 0);
        env.code(format!("{part}, instantiate"), code);
        if code == OK {
            env.fine("memset", cu!(env, cuMemsetD8_v2(block, 0, 256)))?;
            env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
            env.code(format!("{part}, launch"), try_launch(env, exec, stream));
            env.say(format!("{part}, word"), word(env, block));
        }
        Ok(())
    };
    ask("a function", &|_| {})?;
    ask("a kernel", &|p| (p.func, p.kern) = (none, of_library))?;
    ask("a kernel as a function", &|p| p.func = of_library.cast())?;
    ask("both", &|p| p.kern = of_library)?;
    ask("neither", &|p| p.func = none)?;
    ask("its context", &|p| p.ctx = env.context())?;
    ask("a kernel in its context", &|p| {
        (p.func, p.kern, p.ctx) = (none, of_library, env.context());
    })?;
    ask("no grid", &|p| p.gridDimX = 0)?;
    ask("no block", &|p| p.blockDimY = 0)?;
    ask("too many threads", &|p| p.blockDimX = 1025)?;
    ask("too large a grid", &|p| p.gridDimY = 65536)?;
    ask("two blocks", &|p| p.gridDimX = 2)?;
    ask("shared memory", &|p| p.sharedMemBytes = 1024)?;
    ask("too much shared memory", &|p| p.sharedMemBytes = 1 << 20)?;
    let mut buffer = [block, 9, 64];
    let (mut bytes, at) = (size_of_val(&buffer), buffer.as_mut_ptr());
    // A buffer, its address, its size, and the end.
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(1),
        at.cast(),
        std::ptr::without_provenance_mut(2),
        (&raw mut bytes).cast(),
        std::ptr::null_mut(),
    ];
    let list = extra.as_mut_ptr();
    ask("a buffer of arguments", &|p| {
        (p.kernelParams, p.extra) = (std::ptr::null_mut(), list);
    })?;
    ask("arguments twice", &|p| p.extra = list)?;
    let other = crate::code::other_context(env)?;
    ask("another context", &|p| p.ctx = other)?;
    Ok(())
}

/// Changes of nodes and of instances.
pub(crate) fn changes(env: &Environment) -> Result<()> {
    let (module, stream, block) = (load(env)?, env.stream()?, env.plain(256)?);
    let fills = function(env, module, c"fill")?;
    let spins = function(env, module, c"spin")?;
    let none: CUkernel = std::ptr::null_mut();
    let graph = graph(env)?;
    let mut arguments = Arguments::new(block, 7);
    let (code, node) = add(env, graph, &arguments.params(fills));
    env.fine("cuGraphAddKernelNode", code)?;
    let (code, exec) = try_instantiate(env, graph, 0);
    env.fine("cuGraphInstantiate", code)?;
    let run = |part: &str| -> Result<()> {
        env.fine("memset", cu!(env, cuMemsetD8_v2(block, 0, 256)))?;
        env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
        let code = try_launch(env, exec, stream);
        env.say(part, format!("{}, {}", name(code), word(env, block)));
        Ok(())
    };
    run("at first")?;
    arguments.value = 11;
    let mut params = arguments.params(fills);
    params.gridDimX = 3;
    let code = cu!(env, cuGraphKernelNodeSetParams_v2(node, &raw const params));
    env.code("set", code);
    env.say("set, read", told(env, node, fills, none));
    run("the instance then")?;
    arguments.value = 12;
    params = arguments.params(fills);
    let at = &raw const params;
    let code = cu!(env, cuGraphExecKernelNodeSetParams_v2(exec, node, at));
    env.code("set in the instance", code);
    env.say("the node then", told(env, node, fills, none));
    run("the instance with it")?;
    // `spin` takes one argument, the time.
    let mut time = 1_u64;
    let mut list = [(&raw mut time).cast::<c_void>()];
    params.func = spins;
    params.kernelParams = list.as_mut_ptr();
    let code = cu!(
        env,
        cuGraphExecKernelNodeSetParams_v2(exec, node, &raw const params)
    );
    env.code("another function in the instance", code);
    run("the instance after it")?;
    let code = cu!(env, cuGraphKernelNodeSetParams_v2(node, &raw const params));
    env.code("another function", code);
    let (code, seen) = read(env, node);
    env.say(
        "its function then",
        format!("{}, own {}", name(code), yes(seen.func == spins)),
    );
    params = arguments.params(fills);
    params.blockDimX = 2000;
    let code = cu!(env, cuGraphKernelNodeSetParams_v2(node, &raw const params));
    env.code("too many threads", code);
    let code = cu!(
        env,
        cuGraphExecKernelNodeSetParams_v2(exec, node, &raw const params)
    );
    env.code("too many threads in the instance", code);
    let mut other = std::ptr::null_mut();
    let code = cu!(
        env,
        cuGraphAddEmptyNode(&raw mut other, graph, std::ptr::null(), 0)
    );
    env.fine("cuGraphAddEmptyNode", code)?;
    params = arguments.params(fills);
    let code = cu!(env, cuGraphKernelNodeSetParams_v2(other, &raw const params));
    env.code("an empty node", code);
    env.code("read an empty node", read(env, other).0);
    let code = cu!(
        env,
        cuGraphExecKernelNodeSetParams_v2(exec, other, &raw const params)
    );
    env.code("an empty node of the instance", code);
    Ok(())
}

/// Nodes from a capture and through `cuGraphAddNode`, and the functions of before CUDA 12.
pub(crate) fn others(env: &Environment) -> Result<()> {
    let (module, stream, block) = (load(env)?, env.stream()?, env.plain(256)?);
    let fills = function(env, module, c"fill")?;
    let none: CUkernel = std::ptr::null_mut();
    env.fine("begin", begin(env, stream, 2))?;
    env.code(
        "captured",
        crate::code::fill(env, fills, stream, (block, 5, 64)),
    );
    let (code, captured) = end(env, stream);
    env.fine("end", code)?;
    for node in nodes(env, captured) {
        env.say("captured, read", told(env, node, fills, none));
        let mut arguments = Arguments::new(block, 6);
        let params = arguments.params(fills);
        let code = cu!(env, cuGraphKernelNodeSetParams_v2(node, &raw const params));
        env.code("captured, set", code);
        env.say("captured, then", told(env, node, fills, none));
    }
    let graph = graph(env)?;
    let mut arguments = Arguments::new(block, 7);
    let mut any = CUgraphNodeParams_st {
        type_: CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL,
        ..CUgraphNodeParams_st::default()
    };
    let params = arguments.params(fills);
    any.__bindgen_anon_1.kernel = CUDA_KERNEL_NODE_PARAMS_v3_st {
        func: params.func,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 64,
        blockDimY: 1,
        blockDimZ: 1,
        kernelParams: params.kernelParams,
        ..CUDA_KERNEL_NODE_PARAMS_v3_st::default()
    };
    let mut node = std::ptr::null_mut();
    let code = cu!(
        env,
        cuGraphAddNode_v2(
            &raw mut node,
            graph,
            std::ptr::null(),
            std::ptr::null(),
            0,
            &raw mut any
        )
    );
    env.code("any node", code);
    if code == OK {
        env.say("any node, read", told(env, node, fills, none));
    }
    let old = CUDA_KERNEL_NODE_PARAMS_st {
        func: fills,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: params.kernelParams,
        extra: std::ptr::null_mut(),
    };
    let mut node = std::ptr::null_mut();
    let list = std::ptr::null();
    let code = cu!(
        env,
        cuGraphAddKernelNode(&raw mut node, graph, list, 0, &raw const old)
    );
    env.code("before 12", code);
    let mut seen = CUDA_KERNEL_NODE_PARAMS_st::default();
    let code = cu!(env, cuGraphKernelNodeGetParams(node, &raw mut seen));
    env.say(
        "before 12, read",
        format!(
            "{}, block {}, own {}",
            name(code),
            seen.blockDimX,
            yes(seen.func == fills)
        ),
    );
    let code = cu!(env, cuGraphKernelNodeSetParams(node, &raw const old));
    env.code("before 12, set", code);
    let (code, exec) = try_instantiate(env, graph, 0);
    env.fine("cuGraphInstantiate", code)?;
    let code = cu!(
        env,
        cuGraphExecKernelNodeSetParams(exec, node, &raw const old)
    );
    env.code("before 12, set in the instance", code);
    Ok(())
}

/// What may crash, each in a process of its own.
pub(crate) fn odd(env: &Environment) -> Result<()> {
    type Change = fn(&mut Params);
    let parts: [(&str, Change); 3] = [
        ("no arguments", |p| p.kernelParams = std::ptr::null_mut()),
        ("a forged function", |p| {
            p.func = std::ptr::without_provenance_mut(0x1000)
        }),
        ("a forged context", |p| {
            p.ctx = std::ptr::without_provenance_mut(0x1000)
        }),
    ];
    for (part, change) in parts {
        env.alone(part, || {
            let (module, block) = (load(env)?, env.plain(256)?);
            let mut arguments = Arguments::new(block, 7);
            let mut params = arguments.params(function(env, module, c"fill")?);
            change(&mut params);
            Ok(name(add(env, graph(env)?, &params).0))
        });
    }
    env.alone("into null", || {
        let (list, params) = (std::ptr::null(), Params::default());
        let code = cu!(
            env,
            cuGraphAddKernelNode_v2(
                std::ptr::null_mut(),
                graph(env)?,
                list,
                0,
                &raw const params
            )
        );
        Ok(name(code))
    });
    env.alone("null parameters", || {
        let (mut node, list) = (std::ptr::null_mut(), std::ptr::null());
        let code = cu!(
            env,
            cuGraphAddKernelNode_v2(&raw mut node, graph(env)?, list, 0, std::ptr::null())
        );
        Ok(name(code))
    });
    env.alone("no context", || {
        let (module, block) = (load(env)?, env.plain(256)?);
        let mut arguments = Arguments::new(block, 7);
        let params = arguments.params(function(env, module, c"fill")?);
        let graph = graph(env)?;
        env.no_context()?;
        Ok(name(add(env, graph, &params).0))
    });
    env.alone("null graph", || {
        let (module, block) = (load(env)?, env.plain(256)?);
        let mut arguments = Arguments::new(block, 7);
        let params = arguments.params(function(env, module, c"fill")?);
        Ok(name(add(env, std::ptr::null_mut(), &params).0))
    });
    env.alone("read null", || Ok(name(read(env, std::ptr::null_mut()).0)));
    env.alone("its module unloaded, before the launch", || {
        let (module, block) = (load(env)?, env.plain(256)?);
        let mut arguments = Arguments::new(block, 7);
        let graph = graph(env)?;
        let (code, _) = add(
            env,
            graph,
            &arguments.params(function(env, module, c"fill")?),
        );
        env.fine("cuGraphAddKernelNode", code)?;
        env.fine("cuModuleUnload", cu!(env, cuModuleUnload(module)))?;
        let (code, _) = try_instantiate(env, graph, 0);
        Ok(name(code))
    });
    Ok(())
}
