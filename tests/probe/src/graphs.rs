//! Graphs made by hand.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB, OK, cu, name, size, yes};
use crate::recorder::*;

/// What an allocation node writes back.
pub(crate) fn alloc(lab: &Lab) -> Result<()> {
    for bytes in [1, 511, 513, 1000, 2 * MIB, 2 * MIB + 1, 100 * MIB] {
        let graph = graph(lab)?;
        let mut params = alloc_params(bytes);
        let (code, first) = try_alloc_node(lab, graph, &[], &mut params);
        let second = alloc_node(lab, graph, &[first], bytes)?.1;
        let apart = second.abs_diff(params.dptr);
        lab.say(
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
        let node = nodes(lab, graph)[0];
        lab.code(
            format!("{} read back", size(bytes)),
            cu!(lab, cuGraphMemAllocNodeGetParams(node, &raw mut seen)),
        );
        lab.say(
            format!("{} read", size(bytes)),
            format!(
                "same address {}, size {}",
                yes(seen.dptr == params.dptr),
                size(seen.bytesize as u64)
            ),
        );
        destroy(lab, graph)?;
    }
    show(lab, "memory")
}

/// Requests that should be refused.
pub(crate) fn bad_allocs(lab: &Lab) -> Result<()> {
    let ask = |part: &str, change: &dyn Fn(&mut CUDA_MEM_ALLOC_NODE_PARAMS)| -> Result<()> {
        let graph = graph(lab)?;
        let mut params = alloc_params(1000);
        params.dptr = 77;
        change(&mut params);
        let (code, _) = try_alloc_node(lab, graph, &[], &mut params);
        let wrote = match params.dptr {
            77 => "address untouched",
            0 => "address null",
            _ => "an address",
        };
        lab.say(
            part,
            format!("{}, {wrote}, {}", name(code), kinds(lab, graph)),
        );
        destroy(lab, graph)
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
    let graph = graph(lab)?;
    let null = std::ptr::null_mut::<u8>();
    let mut node: CUgraphNode = null.cast();
    lab.code(
        "no parameters",
        cu!(
            lab,
            cuGraphAddMemAllocNode(&raw mut node, graph, std::ptr::null(), 0, null.cast())
        ),
    );
    let mut params = alloc_params(1000);
    lab.code(
        "no graph",
        cu!(
            lab,
            cuGraphAddMemAllocNode(
                &raw mut node,
                null.cast(),
                std::ptr::null(),
                0,
                &raw mut params
            )
        ),
    );
    lab.code(
        "no place for the node",
        cu!(
            lab,
            cuGraphAddMemAllocNode(null.cast(), graph, std::ptr::null(), 0, &raw mut params)
        ),
    );
    lab.code(
        "dependencies that are null",
        cu!(
            lab,
            cuGraphAddMemAllocNode(&raw mut node, graph, std::ptr::null(), 1, &raw mut params)
        ),
    );
    Ok(())
}

/// A list of accesses that is not there.
pub(crate) fn null_accesses(lab: &Lab) -> Result<()> {
    let graph = graph(lab)?;
    let mut params = alloc_params(1000);
    params.accessDescCount = 1;
    lab.code(
        "a list that is null",
        try_alloc_node(lab, graph, &[], &mut params).0,
    );
    Ok(())
}

/// The newer call for all kinds of nodes.
pub(crate) fn add_node(lab: &Lab) -> Result<()> {
    let graph = graph(lab)?;
    let mut node = std::ptr::null_mut();
    let none = std::ptr::null();
    let mut params = node_of(CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    let from = alloc_params(1000);
    params.__bindgen_anon_1.alloc = CUDA_MEM_ALLOC_NODE_PARAMS_v2_st {
        poolProps: from.poolProps,
        bytesize: from.bytesize,
        ..CUDA_MEM_ALLOC_NODE_PARAMS_v2_st::default()
    };
    lab.code(
        "alloc",
        cu!(
            lab,
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
    lab.say("an address", yes(address != 0));
    let mut params = node_of(CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_MEM_FREE);
    params.__bindgen_anon_1.free.dptr = address;
    let before = [node];
    let mut after = std::ptr::null_mut();
    lab.code(
        "free",
        cu!(
            lab,
            cuGraphAddNode(&raw mut after, graph, before.as_ptr(), 1, &raw mut params)
        ),
    );
    lab.say("nodes", kinds(lab, graph));
    Ok(())
}

/// Free nodes that are wrong or odd.
pub(crate) fn frees(lab: &Lab) -> Result<()> {
    let fresh = || -> Result<(CUgraph, CUgraphNode, CUdeviceptr)> {
        let graph = graph(lab)?;
        let (node, address) = alloc_node(lab, graph, &[], 1000)?;
        Ok((graph, node, address))
    };
    let (graph_, node, address) = fresh()?;
    let say = |part: &str, answer: (CUresult, CUgraphNode)| lab.code(part, answer.0);
    say(
        "the middle",
        try_free_node(lab, graph_, &[node], address + 16),
    );
    say("null", try_free_node(lab, graph_, &[node], 0));
    say("no memory", try_free_node(lab, graph_, &[node], 4096));
    let plain = lab.plain(64)?;
    say("plain memory", try_free_node(lab, graph_, &[node], plain));
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let block = lab.alloc(pool, 1000, stream)?;
    say("pool memory", try_free_node(lab, graph_, &[node], block));
    say("once", try_free_node(lab, graph_, &[node], address));
    say("twice", try_free_node(lab, graph_, &[node], address));
    let (second, first) = (graph(lab)?, graph_);
    say(
        "in another graph too",
        try_free_node(lab, second, &[], address),
    );
    destroy(lab, first)?;
    say(
        "of a graph that is gone",
        try_free_node(lab, second, &[], address),
    );

    let (first, node, address) = fresh()?;
    say("not ordered after", try_free_node(lab, first, &[], address));
    let (code, _) = try_instantiate(lab, first, 0);
    lab.code("not ordered after, instantiate", code);
    lab.say("not ordered after, nodes", kinds(lab, first));
    let _ = node;

    let (first, node, address) = fresh()?;
    say(
        "only in another graph",
        try_free_node(lab, second, &[], address),
    );
    say(
        "then in its own",
        try_free_node(lab, first, &[node], address),
    );
    let third = graph(lab)?;
    say("then in a third", try_free_node(lab, third, &[], address));

    let (first, node, address) = fresh()?;
    let exec = instantiate(lab, first, 0)?;
    say(
        "after instantiation",
        try_free_node(lab, first, &[node], address),
    );
    lab.code(
        "launch of what was made before",
        try_launch(lab, exec, stream),
    );
    lab.code(
        "free in a stream after that",
        cu!(lab, cuMemFreeAsync(address, stream)),
    );

    let (_, _, address) = fresh()?;
    lab.code(
        "in a stream, never launched",
        cu!(lab, cuMemFreeAsync(address, stream)),
    );
    lab.code("cuMemFree, never launched", cu!(lab, cuMemFree_v2(address)));
    Ok(())
}

/// What a graph with memory nodes allows.
pub(crate) fn limits(lab: &Lab) -> Result<()> {
    let with = |freed: bool| -> Result<(CUgraph, CUgraphNode, CUdeviceptr)> {
        let graph = graph(lab)?;
        let (node, address) = alloc_node(lab, graph, &[], 1000)?;
        if freed {
            free_node(lab, graph, &[node], address)?;
        }
        Ok((graph, node, address))
    };
    for freed in [true, false] {
        let how = if freed { "freed" } else { "left" };
        for flags in [0_u64, 1, 2, 3, 4, 5, 8, 9, 16, 1 << 40] {
            let (graph, _, _) = with(freed)?;
            let (code, exec) = try_instantiate(lab, graph, flags);
            lab.code(format!("{how}, flags {flags}"), code);
            if code == OK {
                let mut seen = 77;
                let code = cu!(lab, cuGraphExecGetFlags(exec, &raw mut seen));
                lab.say(
                    format!("{how}, flags {flags} read"),
                    format!("{} {seen}", name(code)),
                );
                destroy_exec(lab, exec)?;
            }
            destroy(lab, graph)?;
        }
    }
    let (first, node, address) = with(true)?;
    let exec = instantiate(lab, first, 0)?;
    lab.code("a second instance", try_instantiate(lab, first, 0).0);
    destroy_exec(lab, exec)?;
    let (code, exec) = try_instantiate(lab, first, 0);
    lab.code("after the first is destroyed", code);
    let mut clone = std::ptr::null_mut();
    lab.code("clone", cu!(lab, cuGraphClone(&raw mut clone, first)));
    lab.code("destroy a node", cu!(lab, cuGraphDestroyNode(node)));
    let all = nodes(lab, first);
    let (from, to) = ([all[0]], [all[1]]);
    lab.code(
        "remove an edge",
        cu!(
            lab,
            cuGraphRemoveDependencies(first, from.as_ptr(), to.as_ptr(), 1)
        ),
    );
    lab.say("nodes", kinds(lab, first));
    let mut empty = std::ptr::null_mut();
    lab.code(
        "add an empty node",
        cu!(
            lab,
            cuGraphAddEmptyNode(&raw mut empty, first, from.as_ptr(), 1)
        ),
    );
    lab.code(
        "destroy the empty node",
        cu!(lab, cuGraphDestroyNode(empty)),
    );
    let parent = graph(lab)?;
    let mut child = std::ptr::null_mut();
    lab.code(
        "as a child",
        cu!(
            lab,
            cuGraphAddChildGraphNode(&raw mut child, parent, std::ptr::null(), 0, first)
        ),
    );
    let (stream, other) = (lab.stream()?, address);
    let _ = other;
    lab.fine("begin", begin(lab, stream, 2))?;
    lab.code("launch into a capture", try_launch(lab, exec, stream));
    lab.say("its end", ended(lab, stream));
    let (second, _, _) = with(true)?;
    let mut info = CUgraphExecUpdateResultInfo::default();
    lab.code(
        "update by a graph of the same shape",
        cu!(lab, cuGraphExecUpdate_v2(exec, second, &raw mut info)),
    );
    lab.say("update result", info.result.0);
    Ok(())
}

/// A child graph whose ownership moves.
pub(crate) fn moved(lab: &Lab) -> Result<()> {
    let (parent, child) = (graph(lab)?, graph(lab)?);
    let (node, address) = alloc_node(lab, child, &[], 1000)?;
    let set = try_memset_node(lab, child, &[node], address, 1000).1;
    free_node(lab, child, &[set], address)?;
    lab.code("ownership 0", add_child(lab, parent, child, 0));
    lab.code("ownership 1", add_child(lab, parent, child, 1));
    lab.say("nodes of the parent", kinds(lab, parent));
    lab.say("nodes of the child", kinds(lab, child));
    lab.code("instantiate the child", try_instantiate(lab, child, 0).0);
    lab.code("destroy the child", cu!(lab, cuGraphDestroy(child)));
    let second = graph(lab)?;
    lab.code(
        "give it to a second parent",
        add_child(lab, second, child, 1),
    );
    let stream = lab.stream()?;
    let exec = instantiate(lab, parent, 0)?;
    lab.code("launch the parent", try_launch(lab, exec, stream));
    lab.code("launch it again", try_launch(lab, exec, stream));
    lab.synchronise(stream)?;
    show(lab, "memory")?;
    destroy_exec(lab, exec)?;
    lab.code("destroy the parent", cu!(lab, cuGraphDestroy(parent)));
    // A moved child that leaves its memory.
    let (parent, child) = (graph(lab)?, graph(lab)?);
    let (_, address) = alloc_node(lab, child, &[], 1000)?;
    lab.code(
        "a child that leaves memory",
        add_child(lab, parent, child, 1),
    );
    lab.code(
        "freed by the parent",
        try_free_node(lab, parent, &nodes(lab, parent), address).0,
    );
    let (code, exec) = try_instantiate(lab, parent, 0);
    lab.code("instantiate that parent", code);
    if code == OK {
        lab.code("launch that parent", try_launch(lab, exec, stream));
        lab.code("launch that parent again", try_launch(lab, exec, stream));
        lab.synchronise(stream)?;
    }
    Ok(())
}
