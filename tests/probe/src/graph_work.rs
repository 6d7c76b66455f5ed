//! Work in graphs, and wrong handles.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, size, yes};
use crate::gate::Gate;
use crate::recorder::*;

/// Memset and copy nodes on memory of every kind.
pub(crate) fn work(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    let (block, plain) = (env.alloc(pool, 1000, stream)?, env.plain(1000)?);
    env.synchronise(stream)?;
    let graph_ = graph(env)?;
    let (node, address) = alloc_node(env, graph_, &[], 1000)?;
    let say = |part: &str, answer: (CUresult, CUgraphNode)| env.code(part, answer.0);
    say(
        "memset of pool memory",
        try_memset_node(env, graph_, &[], block, 1000),
    );
    say(
        "memset past pool memory",
        try_memset_node(env, graph_, &[], block, 1001),
    );
    say(
        "memset of plain memory",
        try_memset_node(env, graph_, &[], plain, 1000),
    );
    say(
        "memset past plain memory",
        try_memset_node(env, graph_, &[], plain, 1001),
    );
    say(
        "memset of graph memory",
        try_memset_node(env, graph_, &[node], address, 1000),
    );
    say(
        "memset past graph memory",
        try_memset_node(env, graph_, &[node], address, 1001),
    );
    say(
        "memset of no memory",
        try_memset_node(env, graph_, &[], 4096, 4),
    );
    say(
        "copy to pool memory",
        try_copy_node(env, graph_, &[node], block, address, 1000),
    );
    say(
        "copy from pool memory",
        try_copy_node(env, graph_, &[node], address, block, 1000),
    );
    say(
        "copy past the end",
        try_copy_node(env, graph_, &[node], block, address, 1001),
    );
    let other = graph(env)?;
    say(
        "memset of another graph's",
        try_memset_node(env, other, &[], address, 1000),
    );
    say(
        "copy of another graph's",
        try_copy_node(env, other, &[], block, address, 1000),
    );
    env.code(
        "memset in a stream, never launched",
        cu!(env, cuMemsetD8Async(address, 1, 64, stream)),
    );
    env.code("then", cu!(env, cuStreamSynchronize(stream)));
    Ok(())
}

/// Do the bytes come through: set in a graph, copied out in it.
pub(crate) fn bytes(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let plain = env.plain(1000)?;
    let graph_ = graph(env)?;
    let (node, address) = alloc_node(env, graph_, &[], 1000)?;
    let (code, set) = try_memset_node(env, graph_, &[node], address, 1000);
    env.code("memset", code);
    let (code, copied) = try_copy_node(env, graph_, &[set], plain, address, 1000);
    env.code("copy", code);
    free_node(env, graph_, &[copied], address)?;
    let exec = instantiate(env, graph_, 0)?;
    for round in ["first", "second"] {
        env.code(format!("{round} launch"), try_launch(env, exec, stream));
        let mut out = [0_u8; 1000];
        env.fine("sync", cu!(env, cuStreamSynchronize(stream)))?;
        let code = cu!(env, cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), plain, 1000));
        env.code(format!("{round} read"), code);
        env.say(format!("{round} bytes are there"), yes(out == [7; 1000]));
        env.fine("memset", cu!(env, cuMemsetD8_v2(plain, 0, 1000)))?;
        // It need not be done when the call returns, and the next launch does not wait for it.
        env.fine("done", cu!(env, cuCtxSynchronize()))?;
    }
    // What was freed in the graph is not there outside.
    env.code(
        "memset after the graph freed it",
        cu!(env, cuMemsetD8Async(address, 1, 64, stream)),
    );
    env.code(
        "free after the graph freed it",
        cu!(env, cuMemFreeAsync(address, stream)),
    );
    env.code("then", cu!(env, cuStreamSynchronize(stream)));
    Ok(())
}

/// What the driver says about an address of graph memory.
pub(crate) fn pointers(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let it = left(env, 1000, 0)?;
    let ask = |part: &str| {
        for id in [1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 13, 15, 17] {
            let mut value = [0xab_u8; 32];
            let place = value.as_mut_ptr().cast();
            let code = cu!(
                env,
                cuPointerGetAttribute(place, CUpointer_attribute(id), it.address)
            );
            let number = u64::from_ne_bytes(value[..8].try_into().unwrap_or_default());
            // Addresses and handles are not told.
            let answer = match id {
                1 | 3 | 5 | 11 | 17 if code == OK => {
                    name(code) + if number == 0 { ", null" } else { ", not null" }
                }
                12 if code == OK => format!("{}, {}", name(code), size(number)),
                _ if code == OK => format!("{}, {}", name(code), value[0]),
                _ => name(code),
            };
            env.say(format!("{part} attribute {id}"), answer);
        }
        let (mut base, mut len) = (0, 0);
        let code = cu!(
            env,
            cuMemGetAddressRange_v2(&raw mut base, &raw mut len, it.address)
        );
        env.say(
            format!("{part} cuMemGetAddressRange"),
            format!(
                "{}, {}, starts there {}",
                name(code),
                size(len as u64),
                yes(base == it.address)
            ),
        );
    };
    ask("instantiated,");
    launch(env, it.exec, stream)?;
    env.synchronise(stream)?;
    ask("launched,");
    env.free(it.address, stream)?;
    env.synchronise(stream)?;
    ask("freed,");
    Ok(())
}

/// An allocation that the device cannot meet.
pub(crate) fn out_of_memory(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let total = env.device_free()? + 4096 * MIB;
    let graph_ = graph(env)?;
    let mut params = alloc_params(total);
    let (code, _) = try_alloc_node(env, graph_, &[], &mut params);
    env.code("more than the device has", code);
    if code != OK {
        return Ok(());
    }
    let (code, exec) = try_instantiate(env, graph_, 0);
    env.code("instantiate", code);
    if code != OK {
        return Ok(());
    }
    env.code("upload", cu!(env, cuGraphUpload(exec, stream)));
    env.code("launch", try_launch(env, exec, stream));
    env.code("synchronise", cu!(env, cuStreamSynchronize(stream)));
    env.code("free", cu!(env, cuMemFreeAsync(params.dptr, stream)));
    env.say("used", size(memory(env, 0)?));
    Ok(())
}

/// Handles that are wrong, and empty graphs.
pub(crate) fn handles(env: &Environment) -> Result<()> {
    let null = std::ptr::null_mut::<u8>();
    env.code("create into null", cu!(env, cuGraphCreate(null.cast(), 0)));
    let mut graph_ = null.cast();
    env.code(
        "create with flags 1",
        cu!(env, cuGraphCreate(&raw mut graph_, 1)),
    );
    env.code("destroy null", cu!(env, cuGraphDestroy(null.cast())));
    env.code(
        "destroy null instance",
        cu!(env, cuGraphExecDestroy(null.cast())),
    );
    let graph_ = graph(env)?;
    let (code, exec) = try_instantiate(env, graph_, 0);
    env.code("instantiate an empty graph", code);
    let stream = env.stream()?;
    env.code("launch it", try_launch(env, exec, stream));
    env.code(
        "launch it on the null stream",
        try_launch(env, exec, null.cast()),
    );
    env.code("launch null", try_launch(env, null.cast(), stream));
    env.code("upload it", cu!(env, cuGraphUpload(exec, stream)));
    env.code("instantiate null", try_instantiate(env, null.cast(), 0).0);
    env.no_context()?;
    let mut fresh = null.cast();
    env.code(
        "create without a context",
        cu!(env, cuGraphCreate(&raw mut fresh, 0)),
    );
    let graph_ = graph(env)?;
    let mut params = alloc_params(1000);
    let (code, node) = try_alloc_node(env, graph_, &[], &mut params);
    env.code("alloc node without a context", code);
    env.code(
        "free node without a context",
        try_free_node(env, graph_, &[node], params.dptr).0,
    );
    env.code(
        "memset node without a context",
        try_memset_node(env, graph_, &[node], params.dptr, 64).0,
    );
    let (code, exec) = try_instantiate(env, graph_, 0);
    env.code("instantiate without a context", code);
    if code == OK {
        env.code("launch without a context", try_launch(env, exec, stream));
        env.code("synchronise", cu!(env, cuStreamSynchronize(stream)));
        env.code(
            "destroy instance without a context",
            cu!(env, cuGraphExecDestroy(exec)),
        );
    }
    env.code(
        "destroy without a context",
        cu!(env, cuGraphDestroy(graph_)),
    );
    env.code("begin without a context", begin(env, stream, 0));
    env.code(
        "alloc in it",
        cu!(env, cuMemAllocAsync(&raw mut params.dptr, 64, stream)),
    );
    env.code("free in it", cu!(env, cuMemFreeAsync(params.dptr, stream)));
    env.say("end without a context", ended(env, stream));
    env.code(
        "memory without a context",
        cu!(env, cuDeviceGraphMemTrim(0)),
    );
    Ok(())
}

/// A host function of a graph waits; the host destroys what runs.
pub(crate) fn running(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let it = left(env, MIB, 1)?;
    let gate = Gate::hold(env, stream)?;
    launch(env, it.exec, stream)?;
    env.code("relaunch while it waits", try_launch(env, it.exec, stream));
    env.code(
        "destroy the instance",
        cu!(env, cuGraphExecDestroy(it.exec)),
    );
    env.code("destroy the graph", cu!(env, cuGraphDestroy(it.graph)));
    gate.open();
    env.code("synchronise", cu!(env, cuStreamSynchronize(stream)));
    let mut byte = 0_u8;
    env.code(
        "read",
        cu!(env, cuMemcpyDtoH_v2((&raw mut byte).cast(), it.address, 1)),
    );
    env.say("it reads", byte);
    env.code("free", cu!(env, cuMemFreeAsync(it.address, stream)));
    env.synchronise(stream)?;
    show(env, "memory")?;
    // One instance in two streams at once.
    let other = env.stream()?;
    let graph_ = graph(env)?;
    let (node, address) = alloc_node(env, graph_, &[], MIB)?;
    free_node(env, graph_, &[node], address)?;
    let exec = instantiate(env, graph_, 0)?;
    let gate = Gate::hold(env, stream)?;
    launch(env, exec, stream)?;
    env.code("launch in a second stream", try_launch(env, exec, other));
    env.let_it_finish();
    env.code("is the second done", cu!(env, cuStreamQuery(other)));
    gate.open();
    env.synchronise(stream)?;
    env.synchronise(other)?;
    Ok(())
}
