//! Nodes that record an event or wait for one.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::gate::Gate;
use crate::recorder::*;

fn event_with(env: &Environment, flags: u32) -> Result<CUevent> {
    let mut event = std::ptr::null_mut();
    let code = cu!(env, cuEventCreate(&raw mut event, flags));
    env.fine("cuEventCreate", code)?;
    Ok(event)
}

fn record_node(
    env: &Environment,
    graph: CUgraph,
    after: &[CUgraphNode],
    event: CUevent,
) -> (CUresult, CUgraphNode) {
    let mut node = std::ptr::null_mut();
    let (list, count) = (after.as_ptr(), after.len());
    let code = cu!(
        env,
        cuGraphAddEventRecordNode(&raw mut node, graph, list, count, event)
    );
    (code, node)
}

fn wait_node(
    env: &Environment,
    graph: CUgraph,
    after: &[CUgraphNode],
    event: CUevent,
) -> (CUresult, CUgraphNode) {
    let mut node = std::ptr::null_mut();
    let (list, count) = (after.as_ptr(), after.len());
    let code = cu!(
        env,
        cuGraphAddEventWaitNode(&raw mut node, graph, list, count, event)
    );
    (code, node)
}

/// Says whose event a call has written.
fn whose(code: CUresult, seen: CUevent, own: CUevent) -> String {
    let which = match seen.addr() {
        1 => "untouched",
        0 => "null",
        _ if seen == own => "the event",
        _ => "another event",
    };
    format!("{}, {which}", name(code))
}

/// Adding them, and what is read back.
pub(crate) fn nodes_of(env: &Environment) -> Result<()> {
    let graph_ = graph(env)?;
    let fresh = || std::ptr::without_provenance_mut(1);
    let recorded = |node: CUgraphNode, own: CUevent| {
        let mut seen = fresh();
        let code = cu!(env, cuGraphEventRecordNodeGetEvent(node, &raw mut seen));
        whose(code, seen, own)
    };
    let waited = |node: CUgraphNode, own: CUevent| {
        let mut seen = fresh();
        let code = cu!(env, cuGraphEventWaitNodeGetEvent(node, &raw mut seen));
        whose(code, seen, own)
    };
    for flags in [0, 1, 2, 3, 6] {
        let event = event_with(env, flags)?;
        let (code, node) = record_node(env, graph_, &[], event);
        env.code(format!("record, event flags {flags}"), code);
        if code == OK {
            env.say(
                format!("record, flags {flags}, read"),
                recorded(node, event),
            );
            env.say(
                format!("record, flags {flags}, read as wait"),
                waited(node, event),
            );
        }
        let (code, node) = wait_node(env, graph_, &[], event);
        env.code(format!("wait, event flags {flags}"), code);
        if code == OK {
            env.say(format!("wait, flags {flags}, read"), waited(node, event));
            env.say(
                format!("wait, flags {flags}, read as record"),
                recorded(node, event),
            );
        }
    }
    env.say("nodes", kinds(env, graph_));
    let (event, second) = (env.event()?, env.event()?);
    let null = std::ptr::null_mut::<u8>();
    let (code, node) = record_node(env, graph_, &[], event);
    let (_, wait) = wait_node(env, graph_, &[node], event);
    if code == OK {
        let set = cu!(env, cuGraphEventRecordNodeSetEvent(node, second));
        env.code("record, set another", set);
        env.say("record, then read", recorded(node, second));
        let set = cu!(env, cuGraphEventWaitNodeSetEvent(wait, second));
        env.code("wait, set another", set);
        env.say("wait, then read", waited(wait, second));
        let set = cu!(env, cuGraphEventWaitNodeSetEvent(node, second));
        env.code("wait's setter on record", set);
        let set = cu!(env, cuGraphEventRecordNodeSetEvent(wait, second));
        env.code("record's setter on wait", set);
        let read = cu!(env, cuGraphEventRecordNodeGetEvent(node, null.cast()));
        env.code("record, read into null", read);
        let read = cu!(env, cuGraphEventWaitNodeGetEvent(wait, null.cast()));
        env.code("wait, read into null", read);
    }
    env.code(
        "record, no place for the node",
        cu!(
            env,
            cuGraphAddEventRecordNode(null.cast(), graph_, std::ptr::null(), 0, event)
        ),
    );
    env.code(
        "wait, no place for the node",
        cu!(
            env,
            cuGraphAddEventWaitNode(null.cast(), graph_, std::ptr::null(), 0, event)
        ),
    );
    env.no_context()?;
    let (bare, event) = (graph(env)?, second);
    env.code(
        "record without a context",
        record_node(env, bare, &[], event).0,
    );
    env.code("wait without a context", wait_node(env, bare, &[], event).0);
    Ok(())
}

/// What a launched record does to its event.
pub(crate) fn records(env: &Environment) -> Result<()> {
    let (stream, other, graph_) = (env.stream()?, env.stream()?, graph(env)?);
    let (first, last) = (event_with(env, 0)?, event_with(env, 0)?);
    let (code, node) = record_node(env, graph_, &[], first);
    env.code("record", code);
    if code != OK {
        return Ok(());
    }
    let (code, set) = try_memset_node(env, graph_, &[node], env.plain(64)?, 64);
    env.fine("memset node", code)?;
    env.code("second record", record_node(env, graph_, &[set], last).0);
    let query = |part: &str| {
        let (first, last) = (cu!(env, cuEventQuery(first)), cu!(env, cuEventQuery(last)));
        env.say(part, format!("{}, {}", name(first), name(last)));
    };
    query("not instantiated");
    let exec = instantiate(env, graph_, 0)?;
    query("instantiated");
    let mut time = -1.0;
    let code = cu!(env, cuEventElapsedTime(&raw mut time, first, last));
    env.code("time before", code);
    let gate = Gate::hold(env, stream)?;
    env.code("launch, held", try_launch(env, exec, stream));
    query("launched, held");
    env.code("wait for it", cu!(env, cuStreamWaitEvent(other, last, 0)));
    env.let_it_finish();
    env.code("who waits", cu!(env, cuStreamQuery(other)));
    let code = cu!(env, cuEventElapsedTime(&raw mut time, first, last));
    env.code("time, held", code);
    gate.open();
    env.code("synchronise", cu!(env, cuEventSynchronize(last)));
    query("done");
    env.synchronise(other)?;
    let code = cu!(env, cuEventElapsedTime(&raw mut time, first, last));
    env.say(
        "time",
        format!("{}, not negative {}", name(code), yes(time >= 0.0)),
    );
    // The instance records another event than the graph.
    let third = env.event()?;
    let gate = Gate::hold(env, stream)?;
    let set = cu!(env, cuGraphEventRecordNodeSetEvent(node, third));
    env.code("set in the graph", set);
    launch(env, exec, stream)?;
    query("set in the graph, launched, held");
    env.code("the third", cu!(env, cuEventQuery(third)));
    gate.open();
    env.synchronise(stream)?;
    let gate = Gate::hold(env, stream)?;
    let set = cu!(env, cuGraphExecEventRecordNodeSetEvent(exec, node, third));
    env.code("set in the instance", set);
    launch(env, exec, stream)?;
    query("set in the instance, launched, held");
    env.code("the third then", cu!(env, cuEventQuery(third)));
    env.code("destroy it, held", cu!(env, cuEventDestroy_v2(third)));
    gate.open();
    env.code("synchronise then", cu!(env, cuStreamSynchronize(stream)));
    Ok(())
}

/// What a launched wait waits for.
pub(crate) fn waits(env: &Environment) -> Result<()> {
    let (held, stream, third) = (env.stream()?, env.stream()?, env.stream()?);
    let (graph_, event) = (graph(env)?, env.event()?);
    let (code, node) = wait_node(env, graph_, &[], event);
    env.code("wait", code);
    if code != OK {
        return Ok(());
    }
    let (code, _) = try_memset_node(env, graph_, &[node], env.plain(64)?, 64);
    env.fine("memset node", code)?;
    let exec = instantiate(env, graph_, 0)?;
    env.code("launch, never recorded", try_launch(env, exec, stream));
    env.code("synchronise", cu!(env, cuStreamSynchronize(stream)));
    let is_done = |part: &str| {
        env.let_it_finish();
        env.code(part, cu!(env, cuStreamQuery(stream)));
    };
    let gate = Gate::hold(env, held)?;
    env.record(event, held)?;
    launch(env, exec, stream)?;
    is_done("recorded before the launch");
    gate.open();
    env.synchronise(held)?;
    env.code("let go", cu!(env, cuStreamSynchronize(stream)));
    let gate = Gate::hold(env, held)?;
    launch(env, exec, stream)?;
    env.record(event, held)?;
    is_done("recorded after the launch");
    gate.open();
    env.synchronise(held)?;
    env.synchronise(stream)?;
    // Another event in the instance.
    let other = env.event()?;
    let set = cu!(env, cuGraphExecEventWaitNodeSetEvent(exec, node, other));
    env.code("set in the instance", set);
    let gate = Gate::hold(env, held)?;
    env.record(event, held)?;
    launch(env, exec, stream)?;
    is_done("the first event recorded");
    gate.open();
    env.synchronise(held)?;
    let gate = Gate::hold(env, held)?;
    env.record(other, held)?;
    launch(env, exec, stream)?;
    is_done("the other event recorded");
    gate.open();
    env.synchronise(held)?;
    env.synchronise(stream)?;
    // One graph records what another waits for.
    let (first, second) = (graph(env)?, graph(env)?);
    let event = env.event()?;
    env.code("a record", record_node(env, first, &[], event).0);
    env.code("a wait", wait_node(env, second, &[], event).0);
    let (first, second) = (instantiate(env, first, 0)?, instantiate(env, second, 0)?);
    let gate = Gate::hold(env, held)?;
    launch(env, first, held)?;
    launch(env, second, stream)?;
    is_done("after another graph");
    gate.open();
    env.synchronise(held)?;
    env.synchronise(stream)?;
    // Both in one graph.
    let (both, event) = (graph(env)?, env.event()?);
    let (_, node) = record_node(env, both, &[], event);
    env.code("record, then wait", wait_node(env, both, &[node], event).0);
    let (code, exec) = try_instantiate(env, both, 0);
    env.code("both, instantiate", code);
    env.code("both, launch", try_launch(env, exec, stream));
    env.code("both, synchronise", cu!(env, cuStreamSynchronize(stream)));
    // An event recorded in a capture of another stream.
    env.fine("begin", begin(env, third, 2))?;
    let event = env.event()?;
    env.record(event, third)?;
    let bare = graph(env)?;
    env.code(
        "wait for a captured event",
        wait_node(env, bare, &[], event).0,
    );
    env.code(
        "record a captured event",
        record_node(env, bare, &[], event).0,
    );
    env.say("end", ended(env, third));
    Ok(())
}

/// Records and waits of a captured stream that stay in the graph.
pub(crate) fn external(env: &Environment) -> Result<()> {
    let (stream, event) = (env.stream()?, env.event()?);
    env.fine("begin", begin(env, stream, 2))?;
    env.code(
        "record, flags 1",
        cu!(env, cuEventRecordWithFlags(event, stream, 1)),
    );
    env.code(
        "wait, flags 1",
        cu!(env, cuStreamWaitEvent(stream, event, 1)),
    );
    env.code(
        "record, flags 0",
        cu!(env, cuEventRecordWithFlags(event, stream, 0)),
    );
    env.code(
        "record, flags 2",
        cu!(env, cuEventRecordWithFlags(event, stream, 2)),
    );
    env.say("status", status(env, stream));
    let (code, graph_) = end(env, stream);
    env.code("end", code);
    if code == OK {
        env.say("nodes", kinds(env, graph_));
        let (code, exec) = try_instantiate(env, graph_, 0);
        env.code("instantiate", code);
        env.code("launch", try_launch(env, exec, stream));
        env.code("synchronise", cu!(env, cuStreamSynchronize(stream)));
        env.code("event", cu!(env, cuEventQuery(event)));
    }
    // Outside a capture.
    env.code(
        "not captured, record, flags 1",
        cu!(env, cuEventRecordWithFlags(event, stream, 1)),
    );
    env.code(
        "not captured, wait, flags 1",
        cu!(env, cuStreamWaitEvent(stream, event, 1)),
    );
    env.code("synchronise it", cu!(env, cuStreamSynchronize(stream)));
    Ok(())
}

/// Events and graphs that are not there.
pub(crate) fn odd(env: &Environment) -> Result<()> {
    let null = std::ptr::null_mut::<u8>();
    env.alone("record null", || {
        Ok(name(record_node(env, graph(env)?, &[], null.cast()).0))
    });
    env.alone("wait null", || {
        Ok(name(wait_node(env, graph(env)?, &[], null.cast()).0))
    });
    env.alone("record in no graph", || {
        Ok(name(record_node(env, null.cast(), &[], env.event()?).0))
    });
    env.alone("record, set null", || {
        let (code, node) = record_node(env, graph(env)?, &[], env.event()?);
        env.fine("cuGraphAddEventRecordNode", code)?;
        let code = cu!(env, cuGraphEventRecordNodeSetEvent(node, null.cast()));
        Ok(name(code))
    });
    env.alone("wait, set null", || {
        let (code, node) = wait_node(env, graph(env)?, &[], env.event()?);
        env.fine("cuGraphAddEventWaitNode", code)?;
        let code = cu!(env, cuGraphEventWaitNodeSetEvent(node, null.cast()));
        Ok(name(code))
    });
    env.alone("set null in an instance", || {
        let (graph, event) = (graph(env)?, env.event()?);
        let (code, node) = record_node(env, graph, &[], event);
        env.fine("cuGraphAddEventRecordNode", code)?;
        let exec = instantiate(env, graph, 0)?;
        let code = cu!(
            env,
            cuGraphExecEventRecordNodeSetEvent(exec, node, null.cast())
        );
        Ok(name(code))
    });
    Ok(())
}

/// Events that are gone.
pub(crate) fn destroyed(env: &Environment) -> Result<()> {
    for (kind, is_record) in [("record", true), ("wait", false)] {
        let add = |graph: CUgraph, event: CUevent| {
            if is_record {
                record_node(env, graph, &[], event)
            } else {
                wait_node(env, graph, &[], event)
            }
        };
        env.alone(&format!("{kind}, before instantiation"), || {
            let (graph, event, stream) = (graph(env)?, env.event()?, env.stream()?);
            let (code, _) = add(graph, event);
            env.fine("add", code)?;
            env.fine("cuEventDestroy", cu!(env, cuEventDestroy_v2(event)))?;
            let (code, exec) = try_instantiate(env, graph, 0);
            if code != OK {
                return Ok(name(code));
            }
            let (launched, done) = (
                try_launch(env, exec, stream),
                cu!(env, cuStreamSynchronize(stream)),
            );
            Ok(format!(
                "{}, {}, {}",
                name(code),
                name(launched),
                name(done)
            ))
        });
        env.alone(&format!("{kind}, before the launch"), || {
            let (graph, event, stream) = (graph(env)?, env.event()?, env.stream()?);
            let (code, _) = add(graph, event);
            env.fine("add", code)?;
            let exec = instantiate(env, graph, 0)?;
            env.fine("cuEventDestroy", cu!(env, cuEventDestroy_v2(event)))?;
            let (launched, done) = (
                try_launch(env, exec, stream),
                cu!(env, cuStreamSynchronize(stream)),
            );
            Ok(format!("{}, {}", name(launched), name(done)))
        });
    }
    Ok(())
}
