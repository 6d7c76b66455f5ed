//! Adding and removing the edges of graphs.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name};
use crate::graph_edges::{ODD, counted, diamond, edges, empty};
use crate::recorder::*;

/// A null node, and counts that are not there.
pub(crate) fn no_node(env: &Environment) -> Result<()> {
    let null = std::ptr::null_mut::<u8>();
    env.alone("before", || {
        let mut count = ODD;
        let code = cu!(
            env,
            cuGraphNodeGetDependencies(null.cast(), null.cast(), &raw mut count)
        );
        Ok(counted(code, count))
    });
    env.alone("after", || {
        let mut count = ODD;
        let code = cu!(
            env,
            cuGraphNodeGetDependentNodes(null.cast(), null.cast(), &raw mut count)
        );
        Ok(counted(code, count))
    });
    for (part, is_from) in [("add an edge from it", true), ("add an edge to it", false)] {
        env.alone(part, || {
            let (graph, all) = diamond(env)?;
            let (here, nowhere) = ([all[0]], [null.cast()]);
            let (from, to) = if is_from {
                (nowhere, here)
            } else {
                (here, nowhere)
            };
            let code = cu!(
                env,
                cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), 1)
            );
            Ok(format!("{}: {}", name(code), edges(env, graph, &all)))
        });
    }
    type Ask<'a> = &'a dyn Fn(CUgraph, CUgraphNode) -> CUresult;
    let asks: [(&str, Ask<'_>); 5] = [
        ("edges v1", &|graph, _| {
            let (list, count) = (null.cast(), null.cast());
            cu!(env, cuGraphGetEdges(graph, list, list, count))
        }),
        ("edges v2", &|graph, _| {
            let (list, count) = (null.cast(), null.cast());
            cu!(
                env,
                cuGraphGetEdges_v2(graph, list, list, null.cast(), count)
            )
        }),
        ("before a node", &|_, node| {
            cu!(
                env,
                cuGraphNodeGetDependencies(node, null.cast(), null.cast())
            )
        }),
        ("after a node", &|_, node| {
            cu!(
                env,
                cuGraphNodeGetDependentNodes(node, null.cast(), null.cast())
            )
        }),
        ("roots", &|graph, _| {
            cu!(env, cuGraphGetRootNodes(graph, null.cast(), null.cast()))
        }),
    ];
    for (part, ask) in asks {
        env.alone(&format!("{part}, no count"), || {
            let (graph, all) = diamond(env)?;
            Ok(name(ask(graph, all[0])))
        });
    }
    env.alone("a node after it", || {
        let (graph, mut node) = (graph(env)?, null.cast());
        let list = [null.cast()];
        let code = cu!(
            env,
            cuGraphAddEmptyNode(&raw mut node, graph, list.as_ptr(), 1)
        );
        Ok(name(code))
    });
    Ok(())
}

/// Adding and removing edges.
pub(crate) fn links(env: &Environment) -> Result<()> {
    let (graph_, all) = diamond(env)?;
    let [a, b, c, d, e] = all;
    let say = |part: &str, code: CUresult| {
        env.say(
            part,
            format!("{}: {}", name(code), edges(env, graph_, &all)),
        );
    };
    let add = |from: &[CUgraphNode], to: &[CUgraphNode]| {
        let (from, to, count) = (from.as_ptr(), to.as_ptr(), to.len());
        cu!(env, cuGraphAddDependencies(graph_, from, to, count))
    };
    let remove = |from: &[CUgraphNode], to: &[CUgraphNode]| {
        let (from, to, count) = (from.as_ptr(), to.as_ptr(), to.len());
        cu!(env, cuGraphRemoveDependencies(graph_, from, to, count))
    };
    say("at first", OK);
    say("add none", add(&[], &[]));
    say("add ae", add(&[a], &[e]));
    say("add it again", add(&[a], &[e]));
    say("add two, one there", add(&[b, a], &[e, b]));
    say("add be ce", add(&[b, c], &[e, e]));
    say("add twice at once", add(&[d, d], &[e, e]));
    say("add aa", add(&[a], &[a]));
    say("add da, a cycle", add(&[d], &[a]));
    env.say("instantiate then", told(env, graph_));
    say("remove da", remove(&[d], &[a]));
    say("remove it again", remove(&[d], &[a]));
    say("remove ad, which is not there", remove(&[a], &[d]));
    say("remove two, one there", remove(&[a, a], &[e, d]));
    say("remove none", remove(&[], &[]));
    let other = graph(env)?;
    let foreign = empty(env, other, &[])?;
    say("add from another graph", add(&[foreign], &[a]));
    say("add to another graph", add(&[a], &[foreign]));
    say("remove from another graph", remove(&[foreign], &[a]));
    let null = std::ptr::null();
    let here = [a];
    let at = here.as_ptr();
    say(
        "add without lists",
        cu!(env, cuGraphAddDependencies(graph_, null, null, 1)),
    );
    say(
        "add without from",
        cu!(env, cuGraphAddDependencies(graph_, null, at, 1)),
    );
    let plain = [CUgraphEdgeData::default(); 1];
    let mut odd = plain;
    odd[0].type_ = 9;
    let mut port = plain;
    port[0].from_port = 1;
    let mut reserved = plain;
    reserved[0].reserved[0] = 1;
    let mut programmatic = plain;
    programmatic[0].type_ = 1;
    let to = [d];
    for (part, data) in [
        ("no data", std::ptr::null()),
        ("plain data", plain.as_ptr()),
        ("unknown type", odd.as_ptr()),
        ("from port 1", port.as_ptr()),
        ("reserved bytes", reserved.as_ptr()),
        ("programmatic", programmatic.as_ptr()),
    ] {
        say(
            &format!("v2 add ad, {part}"),
            cu!(
                env,
                cuGraphAddDependencies_v2(graph_, at, to.as_ptr(), data, 1)
            ),
        );
        say(
            &format!("v2 remove ad, {part}"),
            cu!(
                env,
                cuGraphRemoveDependencies_v2(graph_, at, to.as_ptr(), data, 1)
            ),
        );
    }
    // Nodes that name one twice, and one of another graph.
    let mut node = std::ptr::null_mut();
    let twice = [a, a];
    let code = cu!(
        env,
        cuGraphAddEmptyNode(&raw mut node, graph_, twice.as_ptr(), 2)
    );
    env.code("a node after the same twice", code);
    let before = [foreign];
    let code = cu!(
        env,
        cuGraphAddEmptyNode(&raw mut node, graph_, before.as_ptr(), 1)
    );
    env.code("a node after another graph's", code);
    Ok(())
}

/// How instantiation ends, with what it says beside the code.
fn told(env: &Environment, graph: CUgraph) -> String {
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
        result_out: CUgraphInstantiateResult_enum(77),
        hErrNode_out: std::ptr::without_provenance_mut(ODD),
        ..CUDA_GRAPH_INSTANTIATE_PARAMS::default()
    };
    let mut exec = std::ptr::null_mut();
    let code = cu!(
        env,
        cuGraphInstantiateWithParams(&raw mut exec, graph, &raw mut params)
    );
    let node = match params.hErrNode_out.addr() {
        0 => "no node",
        ODD => "node untouched",
        _ if nodes(env, graph).contains(&params.hErrNode_out) => "a node of it",
        _ => "another node",
    };
    let (plain, _) = try_instantiate(env, graph, 0);
    format!(
        "{}, result {}, {node}; with flags {}",
        name(code),
        params.result_out.0,
        name(plain)
    )
}
