//! The memory that is the graphs' own: how long it lives, and what the device counts.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, cu, size, yes};
use crate::gate::Gate;
use crate::recorder::*;

/// Launching again while the last launch's memory lives.
pub(crate) fn relaunch(env: &Environment) -> Result<()> {
    for (part, flags) in [("plain", 0), ("auto-free", 1)] {
        let say = |what: &str, code| env.code(format!("{part}, {what}"), code);
        let stream = env.stream()?;
        let it = left(env, 3 * MIB, flags)?;
        say("launch", try_launch(env, it.exec, stream));
        say("launch again", try_launch(env, it.exec, stream));
        say("synchronise", cu!(env, cuStreamSynchronize(stream)));
        say("after a synchronise", try_launch(env, it.exec, stream));
        env.synchronise(stream)?;
        show(env, &format!("{part}, memory"))?;
        say(
            "free in a stream",
            cu!(env, cuMemFreeAsync(it.address, stream)),
        );
        show(env, &format!("{part}, memory after the free"))?;
        say("free again", cu!(env, cuMemFreeAsync(it.address, stream)));
        env.synchronise(stream)?;
        show(env, &format!("{part}, memory after a synchronise"))?;
        say("launch after the free", try_launch(env, it.exec, stream));
        say("cuMemFree", cu!(env, cuMemFree_v2(it.address)));
        say("cuMemFree again", cu!(env, cuMemFree_v2(it.address)));
        show(env, &format!("{part}, memory after cuMemFree"))?;
        say("launch after that", try_launch(env, it.exec, stream));
        let freer = graph(env)?;
        free_node(env, freer, &[], it.address)?;
        let freer_exec = instantiate(env, freer, 0)?;
        say("free by another graph", try_launch(env, freer_exec, stream));
        say("free by it again", try_launch(env, freer_exec, stream));
        say("launch after that graph", try_launch(env, it.exec, stream));
        let other = env.stream()?;
        say(
            "free in another stream",
            cu!(env, cuMemFreeAsync(it.address, other)),
        );
        env.synchronise(stream)?;
        env.synchronise(other)?;
        say("launch in another stream", try_launch(env, it.exec, other));
        say(
            "free in the first stream",
            cu!(env, cuMemFreeAsync(it.address, stream)),
        );
        env.fine("sync", cu!(env, cuCtxSynchronize()))?;
        let before = env.context();
        let _ = before;
        show(env, &format!("{part}, memory at the end"))?;
        destroy_exec(env, it.exec)?;
        destroy(env, it.graph)?;
        trim_graphs(env)?;
        show(env, &format!("{part}, trimmed"))?;
        for id in [1, 3] {
            env.fine("reset", set_memory(env, id, 0))?;
        }
    }
    Ok(())
}

/// The graph goes, its memory stays.
pub(crate) fn outlives(env: &Environment) -> Result<()> {
    for (part, order) in [("exec first", 0), ("graph first", 1), ("auto-free", 2)] {
        let say = |what: &str, code| env.code(format!("{part}, {what}"), code);
        let stream = env.stream()?;
        let it = left(env, 3 * MIB, u64::from(order == 2))?;
        launch(env, it.exec, stream)?;
        env.synchronise(stream)?;
        if order == 1 {
            destroy(env, it.graph)?;
            destroy_exec(env, it.exec)?;
        } else {
            destroy_exec(env, it.exec)?;
            destroy(env, it.graph)?;
        }
        show(env, &format!("{part}, memory"))?;
        trim_graphs(env)?;
        show(env, &format!("{part}, trimmed"))?;
        let mut byte = 0_u8;
        say(
            "read",
            cu!(env, cuMemcpyDtoH_v2((&raw mut byte).cast(), it.address, 1)),
        );
        env.say(format!("{part}, it reads"), byte);
        say(
            "memset",
            cu!(env, cuMemsetD8Async(it.address, 1, 64, stream)),
        );
        say("free", cu!(env, cuMemFreeAsync(it.address, stream)));
        show(env, &format!("{part}, freed"))?;
        env.synchronise(stream)?;
        show(env, &format!("{part}, synchronised"))?;
        trim_graphs(env)?;
        show(env, &format!("{part}, trimmed again"))?;
        say(
            "memset after all",
            cu!(env, cuMemsetD8Async(it.address, 1, 64, stream)),
        );
    }
    // The instance goes and a new one comes, while the memory of the first lives.
    let stream = env.stream()?;
    let it = left(env, MIB, 0)?;
    launch(env, it.exec, stream)?;
    env.synchronise(stream)?;
    destroy_exec(env, it.exec)?;
    let (code, exec) = try_instantiate(env, it.graph, 0);
    env.code("new instance", code);
    env.code("its launch", try_launch(env, exec, stream));
    env.code("free", cu!(env, cuMemFreeAsync(it.address, stream)));
    env.code("its launch after the free", try_launch(env, exec, stream));
    env.code("free again", cu!(env, cuMemFreeAsync(it.address, stream)));
    env.synchronise(stream)?;
    let code = cu!(env, cuMemPoolTrimTo(env.pool(0)?, 0));
    env.code("a pool's trim", code);
    show(env, "memory")
}

/// The device's numbers, step by step.
pub(crate) fn memory_steps(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    show(env, "at first")?;
    let it = left(env, 3 * MIB, 0)?;
    show(env, "instantiated")?;
    let code = cu!(env, cuGraphUpload(it.exec, stream));
    env.code("upload", code);
    env.synchronise(stream)?;
    show(env, "uploaded")?;
    let gate = Gate::hold(env, stream)?;
    launch(env, it.exec, stream)?;
    show(env, "launched, held")?;
    gate.open();
    env.synchronise(stream)?;
    show(env, "launched")?;
    env.code("trim", cu!(env, cuDeviceGraphMemTrim(0)));
    show(env, "trimmed")?;
    let gate = Gate::hold(env, stream)?;
    env.free(it.address, stream)?;
    show(env, "freed, held")?;
    trim_graphs(env)?;
    show(env, "trimmed, held")?;
    gate.open();
    env.let_it_finish();
    trim_graphs(env)?;
    show(env, "trimmed, done and not synchronised")?;
    env.synchronise(stream)?;
    show(env, "synchronised")?;
    trim_graphs(env)?;
    show(env, "trimmed after a synchronise")?;
    launch(env, it.exec, stream)?;
    env.free(it.address, stream)?;
    env.synchronise(stream)?;
    show(env, "launched again")?;
    destroy_exec(env, it.exec)?;
    show(env, "exec destroyed")?;
    destroy(env, it.graph)?;
    show(env, "graph destroyed")?;
    for id in 0..4 {
        for value in [1, 0] {
            env.code(format!("set {id} to {value}"), set_memory(env, id, value));
        }
    }
    env.code("set 4 to 0", set_memory(env, 4, 0));
    show(env, "after the resets")?;
    let mut value = 0_u64;
    for (part, device, id) in [
        ("attribute 4", 0, 4),
        ("device 99", 99, 0),
        ("device -1", -1, 0),
    ] {
        let place = (&raw mut value).cast();
        let id = CUgraphMem_attribute_enum(id);
        env.code(
            part,
            cu!(env, cuDeviceGetGraphMemAttribute(device, id, place)),
        );
        env.code(
            format!("{part} set"),
            cu!(env, cuDeviceSetGraphMemAttribute(device, id, place)),
        );
    }
    env.code("trim of device 99", cu!(env, cuDeviceGraphMemTrim(99)));
    env.code("trim of device -1", cu!(env, cuDeviceGraphMemTrim(-1)));
    let null = std::ptr::null_mut();
    env.code(
        "into null",
        cu!(
            env,
            cuDeviceGetGraphMemAttribute(0, CUgraphMem_attribute_enum(0), null)
        ),
    );
    Ok(())
}

/// How many bytes graphs of several sizes use and reserve.
pub(crate) fn sizes(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
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
        let it = left(env, bytes, 0)?;
        launch(env, it.exec, stream)?;
        env.synchronise(stream)?;
        let (used, reserved) = (memory(env, 0)?, memory(env, 2)?);
        env.say(
            size(bytes),
            format!("used {}, reserved {}", size(used), size(reserved)),
        );
        env.free(it.address, stream)?;
        env.synchronise(stream)?;
        destroy_exec(env, it.exec)?;
        destroy(env, it.graph)?;
        trim_graphs(env)?;
    }
    // Several blocks in one graph that live together.
    for (part, list) in [
        ("three of 1 MiB", vec![MIB; 3]),
        ("3 MiB and 33 MiB", vec![3 * MIB, 33 * MIB]),
        ("40 of 1 MiB", vec![MIB; 40]),
        ("three of 1000 B", vec![1000; 3]),
    ] {
        let graph = graph(env)?;
        let mut addresses = Vec::new();
        let mut after = Vec::new();
        for bytes in list {
            let (node, address) = alloc_node(env, graph, &after, bytes)?;
            after = vec![node];
            addresses.push(address);
        }
        let exec = instantiate(env, graph, 0)?;
        launch(env, exec, stream)?;
        env.synchronise(stream)?;
        show(env, part)?;
        for address in addresses {
            env.free(address, stream)?;
        }
        env.synchronise(stream)?;
        show(env, &format!("{part}, freed"))?;
        destroy_exec(env, exec)?;
        destroy(env, graph)?;
        trim_graphs(env)?;
    }
    Ok(())
}

/// Where a second allocation of a graph goes after the first is freed in it.
pub(crate) fn reuse(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let ask = |part: &str, first: u64, second: u64, ordered: bool, freed: bool| -> Result<()> {
        let graph = graph(env)?;
        let (node, one) = alloc_node(env, graph, &[], first)?;
        let mut last = node;
        if freed {
            last = free_node(env, graph, &[node], one)?;
        }
        let after: &[CUgraphNode] = if ordered { &[last] } else { &[] };
        let (_, two) = alloc_node(env, graph, after, second)?;
        let exec = instantiate(env, graph, 1)?;
        launch(env, exec, stream)?;
        env.synchronise(stream)?;
        let place = if one == two {
            "same address"
        } else {
            "other address"
        };
        let (used, reserved) = (memory(env, 0)?, memory(env, 2)?);
        env.say(
            part,
            format!("{place}, used {}, reserved {}", size(used), size(reserved)),
        );
        env.code(
            format!("{part}, free"),
            cu!(env, cuMemFreeAsync(two, stream)),
        );
        if !freed {
            env.code(
                format!("{part}, free of the first"),
                cu!(env, cuMemFreeAsync(one, stream)),
            );
        }
        env.synchronise(stream)?;
        destroy_exec(env, exec)?;
        destroy(env, graph)?;
        trim_graphs(env)
    };
    ask("same size, after the free", 40 * MIB, 40 * MIB, true, true)?;
    ask("smaller, after the free", 40 * MIB, 33 * MIB, true, true)?;
    ask("larger, after the free", 33 * MIB, 40 * MIB, true, true)?;
    ask("same size, no order", 40 * MIB, 40 * MIB, false, true)?;
    ask("same size, not freed", 40 * MIB, 40 * MIB, true, false)?;
    ask("small, after the free", 1000, 1000, true, true)?;
    // The same in a capture.
    let pool = env.pool(0)?;
    env.fine("begin", begin(env, stream, 0))?;
    let one = env.alloc(pool, 40 * MIB, stream)?;
    env.free(one, stream)?;
    let two = env.alloc(pool, 40 * MIB, stream)?;
    env.free(two, stream)?;
    env.say("captured, same address", yes(one == two));
    env.say("captured", ended(env, stream));
    Ok(())
}

/// Two graphs, in one stream or two: do they share physical memory?
pub(crate) fn sharing(env: &Environment) -> Result<()> {
    let freed = |bytes: u64| -> Result<CUgraphExec> {
        let graph = graph(env)?;
        let (node, address) = alloc_node(env, graph, &[], bytes)?;
        let (code, set) = try_memset_node(env, graph, &[node], address, bytes);
        env.fine("cuGraphAddMemsetNode", code)?;
        free_node(env, graph, &[set], address)?;
        instantiate(env, graph, 0)
    };
    let (a, b) = (env.stream()?, env.stream()?);
    let (first, second) = (freed(40 * MIB)?, freed(40 * MIB)?);
    launch(env, first, a)?;
    launch(env, second, a)?;
    show(env, "one stream, not synchronised")?;
    env.synchronise(a)?;
    show(env, "one stream")?;
    launch(env, second, b)?;
    env.synchronise(b)?;
    show(env, "the second in another stream, seen")?;
    let (third, fourth) = (freed(40 * MIB)?, freed(40 * MIB)?);
    let gate = Gate::hold(env, a)?;
    launch(env, third, a)?;
    launch(env, fourth, b)?;
    show(env, "two streams at once")?;
    gate.open();
    env.synchronise(a)?;
    env.synchronise(b)?;
    show(env, "two streams, done")?;
    launch(env, third, a)?;
    launch(env, fourth, a)?;
    env.synchronise(a)?;
    show(env, "again in one stream")?;
    for exec in [first, second, third, fourth] {
        destroy_exec(env, exec)?;
    }
    show(env, "destroyed")?;
    trim_graphs(env)?;
    show(env, "trimmed")?;
    // Memory that is left keeps a second graph from sharing.
    let (one, two) = (left(env, 40 * MIB, 0)?, left(env, 40 * MIB, 0)?);
    launch(env, one.exec, a)?;
    launch(env, two.exec, a)?;
    env.synchronise(a)?;
    show(env, "both left")?;
    env.free(one.address, a)?;
    env.free(two.address, a)?;
    env.synchronise(a)?;
    show(env, "both freed")?;
    trim_graphs(env)?;
    show(env, "then trimmed")?;
    // The memory of a graph goes back when its instance goes, or not.
    let again = freed(40 * MIB)?;
    launch(env, again, a)?;
    env.synchronise(a)?;
    trim_graphs(env)?;
    show(env, "trimmed while an instance lives")?;
    launch(env, again, a)?;
    env.synchronise(a)?;
    show(env, "launched after that")
}
