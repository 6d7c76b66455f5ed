//! Graphs made by hand.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, size, yes};
use crate::recorder::*;

/// What an allocation node writes back.
pub(crate) fn alloc(env: &Environment) -> Result<()> {
    for bytes in [1, 511, 513, 1000, 2 * MIB, 2 * MIB + 1, 100 * MIB] {
        let graph = graph(env)?;
        let mut params = alloc_params(bytes);
        let (code, first) = try_alloc_node(env, graph, &[], &mut params);
        let second = alloc_node(env, graph, &[first], bytes)?.1;
        let apart = second.abs_diff(params.dptr);
        env.say(
            size(bytes),
            format!(
                "{}, an address {}, a multiple of 512 {}, size {}, the next {} away",
                name(code),
                yes(params.dptr != 0),
                yes(params.dptr.is_multiple_of(512)),
                size(params.bytesize as u64),
                size(apart)
            ),
        );
        let mut seen = alloc_params(0);
        let node = nodes(env, graph)[0];
        env.code(
            format!("{} read back", size(bytes)),
            cu!(env, cuGraphMemAllocNodeGetParams(node, &raw mut seen)),
        );
        env.say(
            format!("{} read", size(bytes)),
            format!(
                "same address {}, size {}",
                yes(seen.dptr == params.dptr),
                size(seen.bytesize as u64)
            ),
        );
        destroy(env, graph)?;
    }
    show(env, "memory")
}

/// Requests that should be refused.
pub(crate) fn bad_allocs(env: &Environment) -> Result<()> {
    let ask = |part: &str, change: &dyn Fn(&mut CUDA_MEM_ALLOC_NODE_PARAMS)| -> Result<()> {
        let graph = graph(env)?;
        let mut params = alloc_params(1000);
        params.dptr = 77;
        change(&mut params);
        let (code, _) = try_alloc_node(env, graph, &[], &mut params);
        let wrote = match params.dptr {
            77 => "address untouched",
            0 => "address null",
            _ => "an address",
        };
        env.say(
            part,
            format!("{}, {wrote}, {}", name(code), kinds(env, graph)),
        );
        destroy(env, graph)
    };
    ask("nothing wrong", &|_| {})?;
    ask("no bytes", &|p| p.bytesize = 0)?;
    ask("too many bytes", &|p| p.bytesize = 1 << 46)?;
    ask("all bytes", &|p| p.bytesize = usize::MAX)?;
    for id in [0, 2, 4, 5] {
        let kind = CUmemLocationType(id);
        ask(&format!("location {id}"), &|p| {
            p.poolProps.location = location(kind, 0);
        })?;
    }
    for id in [-1, 99] {
        ask(&format!("device {id}"), &|p| {
            p.poolProps.location = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id);
        })?;
    }
    for id in [1, 8, 16] {
        ask(&format!("handle type {id}"), &|p| {
            p.poolProps.handleTypes = CUmemAllocationHandleType(id);
        })?;
    }
    for id in [0, 2] {
        ask(&format!("allocation type {id}"), &|p| {
            p.poolProps.allocType = CUmemAllocationType(id);
        })?;
    }
    ask("a maximum size", &|p| p.poolProps.maxSize = 64 << 20)?;
    ask("a small maximum size", &|p| p.poolProps.maxSize = 10)?;
    ask("usage 1", &|p| p.poolProps.usage = 1)?;
    ask("reserved bytes", &|p| p.poolProps.reserved[0] = 1)?;
    let device = |id| location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id);
    for (part, place, flags) in [
        ("access of its own device", device(0), 3),
        ("access to read only", device(0), 1),
        ("no access", device(0), 0),
        ("access of device 99", device(99), 3),
        (
            "access of the host",
            location(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0),
            3,
        ),
    ] {
        let list = [CUmemAccessDesc {
            location: place,
            flags: CUmemAccess_flags(flags),
        }];
        ask(part, &|p| {
            p.accessDescs = list.as_ptr();
            p.accessDescCount = 1;
        })?;
    }
    let graph = graph(env)?;
    let null = std::ptr::null_mut::<u8>();
    let mut node: CUgraphNode = null.cast();
    env.code(
        "no parameters",
        cu!(
            env,
            cuGraphAddMemAllocNode(&raw mut node, graph, std::ptr::null(), 0, null.cast())
        ),
    );
    let mut params = alloc_params(1000);
    env.code(
        "no graph",
        cu!(
            env,
            cuGraphAddMemAllocNode(
                &raw mut node,
                null.cast(),
                std::ptr::null(),
                0,
                &raw mut params
            )
        ),
    );
    env.code(
        "no place for the node",
        cu!(
            env,
            cuGraphAddMemAllocNode(null.cast(), graph, std::ptr::null(), 0, &raw mut params)
        ),
    );
    env.code(
        "dependencies that are null",
        cu!(
            env,
            cuGraphAddMemAllocNode(&raw mut node, graph, std::ptr::null(), 1, &raw mut params)
        ),
    );
    Ok(())
}

/// A list of accesses that is not there.
pub(crate) fn null_accesses(env: &Environment) -> Result<()> {
    let graph = graph(env)?;
    let mut params = alloc_params(1000);
    params.accessDescCount = 1;
    env.code(
        "a list that is null",
        try_alloc_node(env, graph, &[], &mut params).0,
    );
    Ok(())
}

/// The newer call for all kinds of nodes.
pub(crate) fn add_node(env: &Environment) -> Result<()> {
    let graph = graph(env)?;
    let mut node = std::ptr::null_mut();
    let none = std::ptr::null();
    let mut params = node_of(CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    let from = alloc_params(1000);
    params.__bindgen_anon_1.alloc = CUDA_MEM_ALLOC_NODE_PARAMS_v2_st {
        poolProps: from.poolProps,
        bytesize: from.bytesize,
        ..CUDA_MEM_ALLOC_NODE_PARAMS_v2_st::default()
    };
    env.code(
        "alloc",
        cu!(
            env,
            cuGraphAddNode_v2(
                &raw mut node,
                graph,
                none,
                std::ptr::null(),
                0,
                &raw mut params
            )
        ),
    );
    // SAFETY: this is the field that was written.
    let address = unsafe { params.__bindgen_anon_1.alloc.dptr };
    env.say("an address", yes(address != 0));
    let mut params = node_of(CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_MEM_FREE);
    params.__bindgen_anon_1.free.dptr = address;
    let before = [node];
    let mut after = std::ptr::null_mut();
    env.code(
        "free",
        cu!(
            env,
            cuGraphAddNode(&raw mut after, graph, before.as_ptr(), 1, &raw mut params)
        ),
    );
    env.say("nodes", kinds(env, graph));
    Ok(())
}

/// Free nodes that are wrong or odd.
pub(crate) fn frees(env: &Environment) -> Result<()> {
    let fresh = || -> Result<(CUgraph, CUgraphNode, CUdeviceptr)> {
        let graph = graph(env)?;
        let (node, address) = alloc_node(env, graph, &[], 1000)?;
        Ok((graph, node, address))
    };
    let (graph_, node, address) = fresh()?;
    let say = |part: &str, answer: (CUresult, CUgraphNode)| env.code(part, answer.0);
    say(
        "the middle",
        try_free_node(env, graph_, &[node], address + 16),
    );
    say("null", try_free_node(env, graph_, &[node], 0));
    say("no memory", try_free_node(env, graph_, &[node], 4096));
    let plain = env.plain(64)?;
    say("plain memory", try_free_node(env, graph_, &[node], plain));
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    let block = env.alloc(pool, 1000, stream)?;
    say("pool memory", try_free_node(env, graph_, &[node], block));
    say("once", try_free_node(env, graph_, &[node], address));
    say("twice", try_free_node(env, graph_, &[node], address));
    let (second, first) = (graph(env)?, graph_);
    say(
        "in another graph too",
        try_free_node(env, second, &[], address),
    );
    destroy(env, first)?;
    say(
        "of a graph that is gone",
        try_free_node(env, second, &[], address),
    );

    let (first, node, address) = fresh()?;
    say("not ordered after", try_free_node(env, first, &[], address));
    let (code, _) = try_instantiate(env, first, 0);
    env.code("not ordered after, instantiate", code);
    env.say("not ordered after, nodes", kinds(env, first));
    let _ = node;

    let (first, node, address) = fresh()?;
    say(
        "only in another graph",
        try_free_node(env, second, &[], address),
    );
    say(
        "then in its own",
        try_free_node(env, first, &[node], address),
    );
    let third = graph(env)?;
    say("then in a third", try_free_node(env, third, &[], address));

    let (first, node, address) = fresh()?;
    let exec = instantiate(env, first, 0)?;
    say(
        "after instantiation",
        try_free_node(env, first, &[node], address),
    );
    env.code(
        "launch of what was made before",
        try_launch(env, exec, stream),
    );
    env.code(
        "free in a stream after that",
        cu!(env, cuMemFreeAsync(address, stream)),
    );

    let (_, _, address) = fresh()?;
    env.code(
        "in a stream, never launched",
        cu!(env, cuMemFreeAsync(address, stream)),
    );
    env.code("cuMemFree, never launched", cu!(env, cuMemFree_v2(address)));
    Ok(())
}

/// What a graph with memory nodes allows.
pub(crate) fn limits(env: &Environment) -> Result<()> {
    let with = |freed: bool| -> Result<(CUgraph, CUgraphNode, CUdeviceptr)> {
        let graph = graph(env)?;
        let (node, address) = alloc_node(env, graph, &[], 1000)?;
        if freed {
            free_node(env, graph, &[node], address)?;
        }
        Ok((graph, node, address))
    };
    for freed in [true, false] {
        let how = if freed { "freed" } else { "left" };
        for flags in [0_u64, 1, 2, 3, 4, 5, 8, 9, 16, 1 << 40] {
            let (graph, _, _) = with(freed)?;
            let (code, exec) = try_instantiate(env, graph, flags);
            env.code(format!("{how}, flags {flags}"), code);
            if code == OK {
                let mut seen = 77;
                let code = cu!(env, cuGraphExecGetFlags(exec, &raw mut seen));
                env.say(
                    format!("{how}, flags {flags} read"),
                    format!("{} {seen}", name(code)),
                );
                destroy_exec(env, exec)?;
            }
            destroy(env, graph)?;
        }
    }
    let (first, node, address) = with(true)?;
    let exec = instantiate(env, first, 0)?;
    env.code("a second instance", try_instantiate(env, first, 0).0);
    destroy_exec(env, exec)?;
    let (code, exec) = try_instantiate(env, first, 0);
    env.code("after the first is destroyed", code);
    let mut clone = std::ptr::null_mut();
    env.code("clone", cu!(env, cuGraphClone(&raw mut clone, first)));
    env.code("destroy a node", cu!(env, cuGraphDestroyNode(node)));
    let all = nodes(env, first);
    let (from, to) = ([all[0]], [all[1]]);
    env.code(
        "remove an edge",
        cu!(
            env,
            cuGraphRemoveDependencies(first, from.as_ptr(), to.as_ptr(), 1)
        ),
    );
    env.say("nodes", kinds(env, first));
    let mut empty = std::ptr::null_mut();
    env.code(
        "add an empty node",
        cu!(
            env,
            cuGraphAddEmptyNode(&raw mut empty, first, from.as_ptr(), 1)
        ),
    );
    env.code(
        "destroy the empty node",
        cu!(env, cuGraphDestroyNode(empty)),
    );
    let parent = graph(env)?;
    let mut child = std::ptr::null_mut();
    env.code(
        "as a child",
        cu!(
            env,
            cuGraphAddChildGraphNode(&raw mut child, parent, std::ptr::null(), 0, first)
        ),
    );
    let (stream, other) = (env.stream()?, address);
    let _ = other;
    env.fine("begin", begin(env, stream, 2))?;
    env.code("launch into a capture", try_launch(env, exec, stream));
    env.say("its end", ended(env, stream));
    let (second, _, _) = with(true)?;
    let mut info = CUgraphExecUpdateResultInfo::default();
    env.code(
        "update by a graph of the same shape",
        cu!(env, cuGraphExecUpdate_v2(exec, second, &raw mut info)),
    );
    env.say("update result", info.result.0);
    Ok(())
}

/// A child graph whose ownership moves.
pub(crate) fn moved(env: &Environment) -> Result<()> {
    let (parent, child) = (graph(env)?, graph(env)?);
    let (node, address) = alloc_node(env, child, &[], 1000)?;
    let set = try_memset_node(env, child, &[node], address, 1000).1;
    free_node(env, child, &[set], address)?;
    env.code("ownership 0", add_child(env, parent, child, 0));
    env.code("ownership 1", add_child(env, parent, child, 1));
    env.say("nodes of the parent", kinds(env, parent));
    env.say("nodes of the child", kinds(env, child));
    env.code("instantiate the child", try_instantiate(env, child, 0).0);
    env.code("destroy the child", cu!(env, cuGraphDestroy(child)));
    let second = graph(env)?;
    env.code(
        "give it to a second parent",
        add_child(env, second, child, 1),
    );
    let stream = env.stream()?;
    let exec = instantiate(env, parent, 0)?;
    env.code("launch the parent", try_launch(env, exec, stream));
    env.code("launch it again", try_launch(env, exec, stream));
    env.synchronise(stream)?;
    show(env, "memory")?;
    destroy_exec(env, exec)?;
    env.code("destroy the parent", cu!(env, cuGraphDestroy(parent)));
    // A moved child that leaves its memory.
    let (parent, child) = (graph(env)?, graph(env)?);
    let (_, address) = alloc_node(env, child, &[], 1000)?;
    env.code(
        "a child that leaves memory",
        add_child(env, parent, child, 1),
    );
    env.code(
        "freed by the parent",
        try_free_node(env, parent, &nodes(env, parent), address).0,
    );
    let (code, exec) = try_instantiate(env, parent, 0);
    env.code("instantiate that parent", code);
    if code == OK {
        env.code("launch that parent", try_launch(env, exec, stream));
        env.code("launch that parent again", try_launch(env, exec, stream));
        env.synchronise(stream)?;
    }
    Ok(())
}
