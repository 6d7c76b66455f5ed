//! Work in graphs, and wrong handles.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::Gate;
use crate::lab::{Lab, MIB, OK, cu, name, size, yes};
use crate::recorder::*;

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
        // It need not be done when the call returns, and the next launch does not wait for it.
        lab.fine("done", cu!(lab, cuCtxSynchronize()))?;
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
