//! Changing what the next node of a capture depends on, and its graph by hand.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::capture_info::{Info, waiting_for};
use crate::environment::{Environment, OK, cu, name};
use crate::recorder::*;

/// Changes the nodes that the next one depends on: flags 0 add to them, flags 1 replace them.
fn update(env: &Environment, stream: CUstream, list: &[CUgraphNode], flags: u32) -> CUresult {
    let (list, count) = (list.as_ptr().cast_mut(), list.len());
    cu!(
        env,
        cuStreamUpdateCaptureDependencies(stream, list, count, flags)
    )
}

/// Changing the nodes that the next one depends on.
pub(crate) fn updates(env: &Environment) -> Result<()> {
    let (stream, plain) = (env.stream()?, env.plain(64)?);
    let set = || cu!(env, cuMemsetD8Async(plain, 1, 64, stream));
    let count = |part: &str, code: CUresult| {
        let count = Info::ask(env, stream, 2).nodes().len();
        env.say(part, format!("{}, count {count}", name(code)));
    };
    let null = std::ptr::null_mut();
    env.code("not captured", update(env, stream, &[], 1));
    env.code("of the null stream", update(env, null, &[], 1));
    env.fine("begin", begin(env, stream, 2))?;
    env.code("add none to none", update(env, stream, &[], 0));
    let mut all = Vec::new();
    for _ in 0..3 {
        env.fine("memset", set())?;
        all.extend(Info::ask(env, stream, 2).nodes());
    }
    if all.len() < 3 {
        env.say("nodes", "not told");
        return Ok(());
    }
    let change = |part: &str, list: &[CUgraphNode], flags: u32| {
        count(part, update(env, stream, list, flags));
    };
    change("add the first", &all[..1], 0);
    change("add it again", &all[..1], 0);
    change("add two", &all[..2], 0);
    change("add none", &[], 0);
    change("set the second", &all[1..2], 1);
    change("set the same twice", &[all[1], all[1]], 1);
    change("set all", &all, 1);
    change("set none", &[], 1);
    change("flags 2", &all[..1], 2);
    change("flags 3", &all[..1], 3);
    let mut of_another = std::ptr::null_mut();
    let code = cu!(
        env,
        cuGraphAddEmptyNode(&raw mut of_another, graph(env)?, std::ptr::null(), 0)
    );
    env.fine("cuGraphAddEmptyNode", code)?;
    change("a node of another graph", &[of_another], 0);
    let none = std::ptr::null_mut();
    count(
        "a list that is null",
        cu!(env, cuStreamUpdateCaptureDependencies(stream, none, 1, 0)),
    );
    let data = [CUgraphEdgeData::default(); 3];
    let mut wrong = data;
    wrong[0].type_ = 9;
    let list = all.as_mut_ptr();
    for (part, data) in [
        ("v2, no edge data", std::ptr::null()),
        ("v2, plain edge data", data.as_ptr()),
        ("v2, unknown edge data", wrong.as_ptr()),
    ] {
        env.fine("none", update(env, stream, &[], 1))?;
        count(
            part,
            cu!(
                env,
                cuStreamUpdateCaptureDependencies_v2(stream, list, data, 3, 1)
            ),
        );
    }
    change("set two", &all[..2], 1);
    env.fine("memset", set())?;
    change("after a node", &[], 0);
    // A node that the program puts in by hand.
    let info = Info::ask(env, stream, 2);
    let mut by_hand = std::ptr::null_mut();
    env.code(
        "an empty node by hand",
        cu!(
            env,
            cuGraphAddEmptyNode(&raw mut by_hand, info.graph, all.as_ptr(), 1)
        ),
    );
    change("after a node by hand", &[], 0);
    change("set the node by hand", &[by_hand], 1);
    env.say("next waits for", waiting_for(env, stream));
    env.fine("memset", set())?;
    let (code, graph) = end(env, stream);
    env.code("end", code);
    if code == OK {
        env.say("nodes", kinds(env, graph));
        let mut edges = 0;
        let none = std::ptr::null_mut();
        let code = cu!(env, cuGraphGetEdges(graph, none, none, &raw mut edges));
        env.say("edges", format!("{} {edges}", name(code)));
    }
    env.fine("begin", begin(env, stream, 2))?;
    let _ = cu!(env, cuStreamQuery(stream));
    env.code("invalidated", update(env, stream, &[], 1));
    env.say("its end", ended(env, stream));
    Ok(())
}

/// What else can be done with the graph of a capture that goes on.
pub(crate) fn by_hand(env: &Environment) -> Result<()> {
    let part = |part: &str, act: &dyn Fn(CUgraph) -> CUresult| {
        env.alone(part, || {
            let (stream, plain) = (env.stream()?, env.plain(64)?);
            let set = || cu!(env, cuMemsetD8Async(plain, 1, 64, stream));
            env.fine("begin", begin(env, stream, 2))?;
            env.fine("memset", set())?;
            let info = Info::ask(env, stream, 2);
            if info.code != OK {
                return Ok(name(info.code));
            }
            let code = act(info.graph);
            let status = status(env, stream);
            let next = set();
            let answer = [name(code), status, name(next), ended(env, stream)];
            Ok(answer.join(", "))
        });
    };
    part("destroy", &|graph| cu!(env, cuGraphDestroy(graph)));
    part("instantiate", &|graph| try_instantiate(env, graph, 0).0);
    part("clone", &|graph| {
        let mut clone = std::ptr::null_mut();
        cu!(env, cuGraphClone(&raw mut clone, graph))
    });
    part("destroy a node", &|graph| {
        let node = nodes(env, graph).first().copied();
        node.map_or(CUresult(999), |node| cu!(env, cuGraphDestroyNode(node)))
    });
    part("alloc node", &|graph| {
        try_alloc_node(env, graph, &[], &mut alloc_params(64)).0
    });
    env.alone("a null node", || {
        let stream = env.stream()?;
        env.fine("begin", begin(env, stream, 2))?;
        let code = update(env, stream, &[std::ptr::null_mut()], 0);
        Ok(format!("{}, {}", name(code), ended(env, stream)))
    });
    part("as a child", &|graph| {
        let parent = crate::recorder::graph(env);
        parent.map_or(CUresult(999), |parent| add_child(env, parent, graph, 0))
    });
    Ok(())
}
