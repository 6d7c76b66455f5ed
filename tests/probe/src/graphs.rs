//! Graphs made by hand, and the memory that is theirs.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::Gate;
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
    ask("a list that is null", &|p| p.accessDescCount = 1)?;
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

/// The newer call for all kinds of nodes.
pub(crate) fn add_node(lab: &Lab) -> Result<()> {
    let graph = graph(lab)?;
    let mut node = std::ptr::null_mut();
    let none = std::ptr::null();
    let mut params = CUgraphNodeParams_st::default();
    params.type_ = CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_MEM_ALLOC;
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
    let mut params = CUgraphNodeParams_st::default();
    params.type_ = CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_MEM_FREE;
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
    let add = |parent: CUgraph, child: CUgraph, ownership: i32| {
        let mut params = CUgraphNodeParams_st::default();
        params.type_ = CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_GRAPH;
        params.__bindgen_anon_1.graph = CUDA_CHILD_GRAPH_NODE_PARAMS_st {
            graph: child,
            ownership: CUgraphChildGraphNodeOwnership(ownership as _),
        };
        let mut node = std::ptr::null_mut();
        cu!(
            lab,
            cuGraphAddNode_v2(
                &raw mut node,
                parent,
                std::ptr::null(),
                std::ptr::null(),
                0,
                &raw mut params
            )
        )
    };
    lab.code("ownership 0", add(parent, child, 0));
    lab.code("ownership 2", add(parent, child, 2));
    lab.code("ownership 1", add(parent, child, 1));
    lab.say("nodes of the parent", kinds(lab, parent));
    lab.say("nodes of the child", kinds(lab, child));
    lab.code("instantiate the child", try_instantiate(lab, child, 0).0);
    lab.code("destroy the child", cu!(lab, cuGraphDestroy(child)));
    let second = graph(lab)?;
    lab.code("give it to a second parent", add(second, child, 1));
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
    lab.code("a child that leaves memory", add(parent, child, 1));
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

/// A graph that leaves its memory allocated.
struct Left {
    graph: CUgraph,
    exec: CUgraphExec,
    address: CUdeviceptr,
}

fn left(lab: &Lab, bytes: u64, flags: u64) -> Result<Left> {
    let graph = graph(lab)?;
    let (node, address) = alloc_node(lab, graph, &[], bytes)?;
    let (code, _) = try_memset_node(lab, graph, &[node], address, bytes);
    lab.fine("cuGraphAddMemsetNode", code)?;
    let exec = instantiate(lab, graph, flags)?;
    Ok(Left {
        graph,
        exec,
        address,
    })
}

/// Launching again while the last launch's memory lives.
pub(crate) fn relaunch(lab: &Lab) -> Result<()> {
    for (part, flags) in [("plain", 0), ("auto-free", 1)] {
        let say = |what: &str, code| lab.code(format!("{part}, {what}"), code);
        let stream = lab.stream()?;
        let it = left(lab, 3 * MIB, flags)?;
        say("launch", try_launch(lab, it.exec, stream));
        say("launch again", try_launch(lab, it.exec, stream));
        say("synchronise", cu!(lab, cuStreamSynchronize(stream)));
        say("after a synchronise", try_launch(lab, it.exec, stream));
        lab.synchronise(stream)?;
        show(lab, &format!("{part}, memory"))?;
        say(
            "free in a stream",
            cu!(lab, cuMemFreeAsync(it.address, stream)),
        );
        show(lab, &format!("{part}, memory after the free"))?;
        say("free again", cu!(lab, cuMemFreeAsync(it.address, stream)));
        lab.synchronise(stream)?;
        show(lab, &format!("{part}, memory after a synchronise"))?;
        say("launch after the free", try_launch(lab, it.exec, stream));
        say("cuMemFree", cu!(lab, cuMemFree_v2(it.address)));
        say("cuMemFree again", cu!(lab, cuMemFree_v2(it.address)));
        show(lab, &format!("{part}, memory after cuMemFree"))?;
        say("launch after that", try_launch(lab, it.exec, stream));
        let freer = graph(lab)?;
        free_node(lab, freer, &[], it.address)?;
        let freer_exec = instantiate(lab, freer, 0)?;
        say("free by another graph", try_launch(lab, freer_exec, stream));
        say("free by it again", try_launch(lab, freer_exec, stream));
        say("launch after that graph", try_launch(lab, it.exec, stream));
        let other = lab.stream()?;
        say(
            "free in another stream",
            cu!(lab, cuMemFreeAsync(it.address, other)),
        );
        lab.synchronise(stream)?;
        lab.synchronise(other)?;
        say("launch in another stream", try_launch(lab, it.exec, other));
        say(
            "free in the first stream",
            cu!(lab, cuMemFreeAsync(it.address, stream)),
        );
        lab.fine("sync", cu!(lab, cuCtxSynchronize()))?;
        let before = lab.context();
        let _ = before;
        show(lab, &format!("{part}, memory at the end"))?;
        destroy_exec(lab, it.exec)?;
        destroy(lab, it.graph)?;
        trim_graphs(lab)?;
        show(lab, &format!("{part}, trimmed"))?;
        for id in [1, 3] {
            lab.fine("reset", set_memory(lab, id, 0))?;
        }
    }
    Ok(())
}

/// The graph goes, its memory stays.
pub(crate) fn outlives(lab: &Lab) -> Result<()> {
    for (part, order) in [("exec first", 0), ("graph first", 1), ("auto-free", 2)] {
        let say = |what: &str, code| lab.code(format!("{part}, {what}"), code);
        let stream = lab.stream()?;
        let it = left(lab, 3 * MIB, u64::from(order == 2))?;
        launch(lab, it.exec, stream)?;
        lab.synchronise(stream)?;
        if order == 1 {
            destroy(lab, it.graph)?;
            destroy_exec(lab, it.exec)?;
        } else {
            destroy_exec(lab, it.exec)?;
            destroy(lab, it.graph)?;
        }
        show(lab, &format!("{part}, memory"))?;
        trim_graphs(lab)?;
        show(lab, &format!("{part}, trimmed"))?;
        let mut byte = 0_u8;
        say(
            "read",
            cu!(lab, cuMemcpyDtoH_v2((&raw mut byte).cast(), it.address, 1)),
        );
        lab.say(format!("{part}, it reads"), byte);
        say(
            "memset",
            cu!(lab, cuMemsetD8Async(it.address, 1, 64, stream)),
        );
        say("free", cu!(lab, cuMemFreeAsync(it.address, stream)));
        show(lab, &format!("{part}, freed"))?;
        lab.synchronise(stream)?;
        show(lab, &format!("{part}, synchronised"))?;
        trim_graphs(lab)?;
        show(lab, &format!("{part}, trimmed again"))?;
        say(
            "memset after all",
            cu!(lab, cuMemsetD8Async(it.address, 1, 64, stream)),
        );
    }
    // The instance goes and a new one comes, while the memory of the first lives.
    let stream = lab.stream()?;
    let it = left(lab, MIB, 0)?;
    launch(lab, it.exec, stream)?;
    lab.synchronise(stream)?;
    destroy_exec(lab, it.exec)?;
    let (code, exec) = try_instantiate(lab, it.graph, 0);
    lab.code("new instance", code);
    lab.code("its launch", try_launch(lab, exec, stream));
    lab.code("free", cu!(lab, cuMemFreeAsync(it.address, stream)));
    lab.code("its launch after the free", try_launch(lab, exec, stream));
    lab.code("free again", cu!(lab, cuMemFreeAsync(it.address, stream)));
    lab.synchronise(stream)?;
    let code = cu!(lab, cuMemPoolTrimTo(lab.pool(0)?, 0));
    lab.code("a pool's trim", code);
    show(lab, "memory")
}

/// The device's numbers, step by step.
pub(crate) fn memory_steps(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    show(lab, "at first")?;
    let it = left(lab, 3 * MIB, 0)?;
    show(lab, "instantiated")?;
    let code = cu!(lab, cuGraphUpload(it.exec, stream));
    lab.code("upload", code);
    lab.synchronise(stream)?;
    show(lab, "uploaded")?;
    let gate = Gate::hold(lab, stream)?;
    launch(lab, it.exec, stream)?;
    show(lab, "launched, held")?;
    gate.open();
    lab.synchronise(stream)?;
    show(lab, "launched")?;
    lab.code("trim", cu!(lab, cuDeviceGraphMemTrim(0)));
    show(lab, "trimmed")?;
    let gate = Gate::hold(lab, stream)?;
    lab.free(it.address, stream)?;
    show(lab, "freed, held")?;
    trim_graphs(lab)?;
    show(lab, "trimmed, held")?;
    gate.open();
    lab.let_it_finish();
    trim_graphs(lab)?;
    show(lab, "trimmed, done and not synchronised")?;
    lab.synchronise(stream)?;
    show(lab, "synchronised")?;
    trim_graphs(lab)?;
    show(lab, "trimmed after a synchronise")?;
    launch(lab, it.exec, stream)?;
    lab.free(it.address, stream)?;
    lab.synchronise(stream)?;
    show(lab, "launched again")?;
    destroy_exec(lab, it.exec)?;
    show(lab, "exec destroyed")?;
    destroy(lab, it.graph)?;
    show(lab, "graph destroyed")?;
    for id in 0..4 {
        for value in [1, 0] {
            lab.code(format!("set {id} to {value}"), set_memory(lab, id, value));
        }
    }
    lab.code("set 4 to 0", set_memory(lab, 4, 0));
    show(lab, "after the resets")?;
    let mut value = 0_u64;
    for (part, device, id) in [
        ("attribute 4", 0, 4),
        ("device 99", 99, 0),
        ("device -1", -1, 0),
    ] {
        let place = (&raw mut value).cast();
        let id = CUgraphMem_attribute_enum(id);
        lab.code(
            part,
            cu!(lab, cuDeviceGetGraphMemAttribute(device, id, place)),
        );
        lab.code(
            format!("{part} set"),
            cu!(lab, cuDeviceSetGraphMemAttribute(device, id, place)),
        );
    }
    lab.code("trim of device 99", cu!(lab, cuDeviceGraphMemTrim(99)));
    lab.code("trim of device -1", cu!(lab, cuDeviceGraphMemTrim(-1)));
    let null = std::ptr::null_mut();
    lab.code(
        "into null",
        cu!(
            lab,
            cuDeviceGetGraphMemAttribute(0, CUgraphMem_attribute_enum(0), null)
        ),
    );
    Ok(())
}

/// How many bytes graphs of several sizes use and reserve.
pub(crate) fn sizes(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    for bytes in [
        1,
        512,
        MIB,
        2 * MIB,
        2 * MIB + 1,
        31 * MIB,
        32 * MIB,
        33 * MIB,
        100 * MIB,
    ] {
        let it = left(lab, bytes, 0)?;
        launch(lab, it.exec, stream)?;
        lab.synchronise(stream)?;
        let (used, reserved) = (memory(lab, 0)?, memory(lab, 2)?);
        lab.say(
            size(bytes),
            format!("used {}, reserved {}", size(used), size(reserved)),
        );
        lab.free(it.address, stream)?;
        lab.synchronise(stream)?;
        destroy_exec(lab, it.exec)?;
        destroy(lab, it.graph)?;
        trim_graphs(lab)?;
    }
    // Several blocks in one graph that live together.
    for (part, list) in [
        ("three of 1 MiB", vec![MIB; 3]),
        ("3 MiB and 33 MiB", vec![3 * MIB, 33 * MIB]),
        ("40 of 1 MiB", vec![MIB; 40]),
        ("three of 1000 B", vec![1000; 3]),
    ] {
        let graph = graph(lab)?;
        let mut addresses = Vec::new();
        let mut after = Vec::new();
        for bytes in list {
            let (node, address) = alloc_node(lab, graph, &after, bytes)?;
            after = vec![node];
            addresses.push(address);
        }
        let exec = instantiate(lab, graph, 0)?;
        launch(lab, exec, stream)?;
        lab.synchronise(stream)?;
        show(lab, part)?;
        for address in addresses {
            lab.free(address, stream)?;
        }
        lab.synchronise(stream)?;
        show(lab, &format!("{part}, freed"))?;
        destroy_exec(lab, exec)?;
        destroy(lab, graph)?;
        trim_graphs(lab)?;
    }
    Ok(())
}

/// Where a second allocation of a graph goes after the first is freed in it.
pub(crate) fn reuse(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let ask = |part: &str, first: u64, second: u64, ordered: bool, freed: bool| -> Result<()> {
        let graph = graph(lab)?;
        let (node, one) = alloc_node(lab, graph, &[], first)?;
        let mut last = node;
        if freed {
            last = free_node(lab, graph, &[node], one)?;
        }
        let after: &[CUgraphNode] = if ordered { &[last] } else { &[] };
        let (_, two) = alloc_node(lab, graph, after, second)?;
        let exec = instantiate(lab, graph, 1)?;
        launch(lab, exec, stream)?;
        lab.synchronise(stream)?;
        let place = if one == two {
            "same address"
        } else {
            "other address"
        };
        let (used, reserved) = (memory(lab, 0)?, memory(lab, 2)?);
        lab.say(
            part,
            format!("{place}, used {}, reserved {}", size(used), size(reserved)),
        );
        lab.code(
            format!("{part}, free"),
            cu!(lab, cuMemFreeAsync(two, stream)),
        );
        if !freed {
            lab.code(
                format!("{part}, free of the first"),
                cu!(lab, cuMemFreeAsync(one, stream)),
            );
        }
        lab.synchronise(stream)?;
        destroy_exec(lab, exec)?;
        destroy(lab, graph)?;
        trim_graphs(lab)
    };
    ask("same size, after the free", 40 * MIB, 40 * MIB, true, true)?;
    ask("smaller, after the free", 40 * MIB, 33 * MIB, true, true)?;
    ask("larger, after the free", 33 * MIB, 40 * MIB, true, true)?;
    ask("same size, no order", 40 * MIB, 40 * MIB, false, true)?;
    ask("same size, not freed", 40 * MIB, 40 * MIB, true, false)?;
    ask("small, after the free", 1000, 1000, true, true)?;
    // The same in a capture.
    lab.fine("begin", begin(lab, stream, 0))?;
    let pool = lab.pool(0)?;
    let one = lab.alloc(pool, 40 * MIB, stream)?;
    lab.free(one, stream)?;
    let two = lab.alloc(pool, 40 * MIB, stream)?;
    lab.free(two, stream)?;
    lab.say("captured, same address", yes(one == two));
    lab.say("captured", ended(lab, stream));
    Ok(())
}

/// Two graphs, in one stream or two: do they share physical memory?
pub(crate) fn sharing(lab: &Lab) -> Result<()> {
    let freed = |bytes: u64| -> Result<CUgraphExec> {
        let graph = graph(lab)?;
        let (node, address) = alloc_node(lab, graph, &[], bytes)?;
        let (code, set) = try_memset_node(lab, graph, &[node], address, bytes);
        lab.fine("cuGraphAddMemsetNode", code)?;
        free_node(lab, graph, &[set], address)?;
        instantiate(lab, graph, 0)
    };
    let (a, b) = (lab.stream()?, lab.stream()?);
    let (first, second) = (freed(40 * MIB)?, freed(40 * MIB)?);
    launch(lab, first, a)?;
    launch(lab, second, a)?;
    show(lab, "one stream, not synchronised")?;
    lab.synchronise(a)?;
    show(lab, "one stream")?;
    launch(lab, second, b)?;
    lab.synchronise(b)?;
    show(lab, "the second in another stream, seen")?;
    let (third, fourth) = (freed(40 * MIB)?, freed(40 * MIB)?);
    let gate = Gate::hold(lab, a)?;
    launch(lab, third, a)?;
    launch(lab, fourth, b)?;
    show(lab, "two streams at once")?;
    gate.open();
    lab.synchronise(a)?;
    lab.synchronise(b)?;
    show(lab, "two streams, done")?;
    launch(lab, third, a)?;
    launch(lab, fourth, a)?;
    lab.synchronise(a)?;
    show(lab, "again in one stream")?;
    for exec in [first, second, third, fourth] {
        destroy_exec(lab, exec)?;
    }
    show(lab, "destroyed")?;
    trim_graphs(lab)?;
    show(lab, "trimmed")?;
    // Memory that is left keeps a second graph from sharing.
    let (one, two) = (left(lab, 40 * MIB, 0)?, left(lab, 40 * MIB, 0)?);
    launch(lab, one.exec, a)?;
    launch(lab, two.exec, a)?;
    lab.synchronise(a)?;
    show(lab, "both left")?;
    lab.free(one.address, a)?;
    lab.free(two.address, a)?;
    lab.synchronise(a)?;
    show(lab, "both freed")?;
    trim_graphs(lab)?;
    show(lab, "then trimmed")?;
    // The memory of a graph goes back when its instance goes, or not.
    let again = freed(40 * MIB)?;
    launch(lab, again, a)?;
    lab.synchronise(a)?;
    trim_graphs(lab)?;
    show(lab, "trimmed while an instance lives")?;
    launch(lab, again, a)?;
    lab.synchronise(a)?;
    show(lab, "launched after that")
}

/// Memset and copy nodes on memory of every kind.
pub(crate) fn work(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let (block, plain) = (lab.alloc(pool, 1000, stream)?, lab.plain(1000)?);
    lab.synchronise(stream)?;
    let graph_ = graph(lab)?;
    let (node, address) = alloc_node(lab, graph_, &[], 1000)?;
    let say = |part: &str, answer: (CUresult, CUgraphNode)| lab.code(part, answer.0);
    say(
        "memset of pool memory",
        try_memset_node(lab, graph_, &[], block, 1000),
    );
    say(
        "memset past pool memory",
        try_memset_node(lab, graph_, &[], block, 1001),
    );
    say(
        "memset of plain memory",
        try_memset_node(lab, graph_, &[], plain, 1000),
    );
    say(
        "memset past plain memory",
        try_memset_node(lab, graph_, &[], plain, 1001),
    );
    say(
        "memset of graph memory",
        try_memset_node(lab, graph_, &[node], address, 1000),
    );
    say(
        "memset past graph memory",
        try_memset_node(lab, graph_, &[node], address, 1001),
    );
    say(
        "memset of no memory",
        try_memset_node(lab, graph_, &[], 4096, 4),
    );
    say(
        "copy to pool memory",
        try_copy_node(lab, graph_, &[node], block, address, 1000),
    );
    say(
        "copy from pool memory",
        try_copy_node(lab, graph_, &[node], address, block, 1000),
    );
    say(
        "copy past the end",
        try_copy_node(lab, graph_, &[node], block, address, 1001),
    );
    let other = graph(lab)?;
    say(
        "memset of another graph's",
        try_memset_node(lab, other, &[], address, 1000),
    );
    say(
        "copy of another graph's",
        try_copy_node(lab, other, &[], block, address, 1000),
    );
    lab.code(
        "memset in a stream, never launched",
        cu!(lab, cuMemsetD8Async(address, 1, 64, stream)),
    );
    lab.code("then", cu!(lab, cuStreamSynchronize(stream)));
    Ok(())
}

/// Do the bytes come through: set in a graph, copied out in it.
pub(crate) fn bytes(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let plain = lab.plain(1000)?;
    let graph_ = graph(lab)?;
    let (node, address) = alloc_node(lab, graph_, &[], 1000)?;
    let (code, set) = try_memset_node(lab, graph_, &[node], address, 1000);
    lab.code("memset", code);
    let (code, copied) = try_copy_node(lab, graph_, &[set], plain, address, 1000);
    lab.code("copy", code);
    free_node(lab, graph_, &[copied], address)?;
    let exec = instantiate(lab, graph_, 0)?;
    for round in ["first", "second"] {
        lab.code(format!("{round} launch"), try_launch(lab, exec, stream));
        let mut out = [0_u8; 1000];
        lab.fine("sync", cu!(lab, cuStreamSynchronize(stream)))?;
        let code = cu!(lab, cuMemcpyDtoH_v2(out.as_mut_ptr().cast(), plain, 1000));
        lab.code(format!("{round} read"), code);
        lab.say(format!("{round} bytes are there"), yes(out == [7; 1000]));
        lab.fine("memset", cu!(lab, cuMemsetD8_v2(plain, 0, 1000)))?;
    }
    // What was freed in the graph is not there outside.
    lab.code(
        "memset after the graph freed it",
        cu!(lab, cuMemsetD8Async(address, 1, 64, stream)),
    );
    lab.code(
        "free after the graph freed it",
        cu!(lab, cuMemFreeAsync(address, stream)),
    );
    lab.code("then", cu!(lab, cuStreamSynchronize(stream)));
    Ok(())
}

/// What the driver says about an address of graph memory.
pub(crate) fn pointers(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let it = left(lab, 1000, 0)?;
    let ask = |part: &str| {
        for id in [1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 13, 15, 17] {
            let mut value = [0xab_u8; 32];
            let place = value.as_mut_ptr().cast();
            let code = cu!(
                lab,
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
            lab.say(format!("{part} attribute {id}"), answer);
        }
        let (mut base, mut len) = (0, 0);
        let code = cu!(
            lab,
            cuMemGetAddressRange_v2(&raw mut base, &raw mut len, it.address)
        );
        lab.say(
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
    launch(lab, it.exec, stream)?;
    lab.synchronise(stream)?;
    ask("launched,");
    lab.free(it.address, stream)?;
    lab.synchronise(stream)?;
    ask("freed,");
    Ok(())
}

/// An allocation that the device cannot meet.
pub(crate) fn out_of_memory(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let total = lab.device_free()? + 4096 * MIB;
    let graph_ = graph(lab)?;
    let mut params = alloc_params(total);
    let (code, _) = try_alloc_node(lab, graph_, &[], &mut params);
    lab.code("more than the device has", code);
    if code != OK {
        return Ok(());
    }
    let (code, exec) = try_instantiate(lab, graph_, 0);
    lab.code("instantiate", code);
    if code != OK {
        return Ok(());
    }
    lab.code("upload", cu!(lab, cuGraphUpload(exec, stream)));
    lab.code("launch", try_launch(lab, exec, stream));
    lab.code("synchronise", cu!(lab, cuStreamSynchronize(stream)));
    lab.code("free", cu!(lab, cuMemFreeAsync(params.dptr, stream)));
    lab.say("used", size(memory(lab, 0)?));
    Ok(())
}

/// Handles that are wrong, and empty graphs.
pub(crate) fn handles(lab: &Lab) -> Result<()> {
    let null = std::ptr::null_mut::<u8>();
    lab.code("create into null", cu!(lab, cuGraphCreate(null.cast(), 0)));
    let mut graph_ = null.cast();
    lab.code(
        "create with flags 1",
        cu!(lab, cuGraphCreate(&raw mut graph_, 1)),
    );
    lab.code("destroy null", cu!(lab, cuGraphDestroy(null.cast())));
    lab.code(
        "destroy null instance",
        cu!(lab, cuGraphExecDestroy(null.cast())),
    );
    let graph_ = graph(lab)?;
    let (code, exec) = try_instantiate(lab, graph_, 0);
    lab.code("instantiate an empty graph", code);
    let stream = lab.stream()?;
    lab.code("launch it", try_launch(lab, exec, stream));
    lab.code(
        "launch it on the null stream",
        try_launch(lab, exec, null.cast()),
    );
    lab.code("launch null", try_launch(lab, null.cast(), stream));
    lab.code("upload it", cu!(lab, cuGraphUpload(exec, stream)));
    lab.code("instantiate null", try_instantiate(lab, null.cast(), 0).0);
    lab.no_context()?;
    let mut fresh = null.cast();
    lab.code(
        "create without a context",
        cu!(lab, cuGraphCreate(&raw mut fresh, 0)),
    );
    let graph_ = graph(lab)?;
    let mut params = alloc_params(1000);
    let (code, node) = try_alloc_node(lab, graph_, &[], &mut params);
    lab.code("alloc node without a context", code);
    lab.code(
        "free node without a context",
        try_free_node(lab, graph_, &[node], params.dptr).0,
    );
    lab.code(
        "memset node without a context",
        try_memset_node(lab, graph_, &[node], params.dptr, 64).0,
    );
    let (code, exec) = try_instantiate(lab, graph_, 0);
    lab.code("instantiate without a context", code);
    if code == OK {
        lab.code("launch without a context", try_launch(lab, exec, stream));
        lab.code("synchronise", cu!(lab, cuStreamSynchronize(stream)));
        lab.code(
            "destroy instance without a context",
            cu!(lab, cuGraphExecDestroy(exec)),
        );
    }
    lab.code(
        "destroy without a context",
        cu!(lab, cuGraphDestroy(graph_)),
    );
    lab.code("begin without a context", begin(lab, stream, 0));
    lab.code(
        "alloc in it",
        cu!(lab, cuMemAllocAsync(&raw mut params.dptr, 64, stream)),
    );
    lab.code("free in it", cu!(lab, cuMemFreeAsync(params.dptr, stream)));
    lab.say("end without a context", ended(lab, stream));
    lab.code(
        "memory without a context",
        cu!(lab, cuDeviceGraphMemTrim(0)),
    );
    Ok(())
}

/// A host function of a graph waits; the host destroys what runs.
pub(crate) fn running(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let it = left(lab, MIB, 1)?;
    let gate = Gate::hold(lab, stream)?;
    launch(lab, it.exec, stream)?;
    lab.code("relaunch while it waits", try_launch(lab, it.exec, stream));
    lab.code(
        "destroy the instance",
        cu!(lab, cuGraphExecDestroy(it.exec)),
    );
    lab.code("destroy the graph", cu!(lab, cuGraphDestroy(it.graph)));
    gate.open();
    lab.code("synchronise", cu!(lab, cuStreamSynchronize(stream)));
    let mut byte = 0_u8;
    lab.code(
        "read",
        cu!(lab, cuMemcpyDtoH_v2((&raw mut byte).cast(), it.address, 1)),
    );
    lab.say("it reads", byte);
    lab.code("free", cu!(lab, cuMemFreeAsync(it.address, stream)));
    lab.synchronise(stream)?;
    show(lab, "memory")?;
    // One instance in two streams at once.
    let other = lab.stream()?;
    let graph_ = graph(lab)?;
    let (node, address) = alloc_node(lab, graph_, &[], MIB)?;
    free_node(lab, graph_, &[node], address)?;
    let exec = instantiate(lab, graph_, 0)?;
    let gate = Gate::hold(lab, stream)?;
    launch(lab, exec, stream)?;
    lab.code("launch in a second stream", try_launch(lab, exec, other));
    lab.let_it_finish();
    lab.code("is the second done", cu!(lab, cuStreamQuery(other)));
    gate.open();
    lab.synchronise(stream)?;
    lab.synchronise(other)?;
    Ok(())
}
