//! The memory that is the graphs' own: how long it lives, and what the device counts.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::Gate;
use crate::lab::{Lab, MIB, cu, size, yes};
use crate::recorder::*;

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
    let pool = lab.pool(0)?;
    lab.fine("begin", begin(lab, stream, 0))?;
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
