//! The edges of graphs.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::recorder::*;

/// No driver writes that.
pub(crate) const ODD: usize = 0xabab;

/// A count given to the driver, and what it made of it.
pub(crate) fn counted(code: CUresult, count: usize) -> String {
    match count {
        ODD => format!("{}, count untouched", name(code)),
        count => format!("{}, count {count}", name(code)),
    }
}

pub(crate) fn empty(
    env: &Environment,
    graph: CUgraph,
    after: &[CUgraphNode],
) -> Result<CUgraphNode> {
    let mut node = std::ptr::null_mut();
    let (list, count) = (after.as_ptr(), after.len());
    let code = cu!(env, cuGraphAddEmptyNode(&raw mut node, graph, list, count));
    env.fine("cuGraphAddEmptyNode", code)?;
    Ok(node)
}

/// a before b and c, which are before d; e is alone.
pub(crate) fn diamond(env: &Environment) -> Result<(CUgraph, [CUgraphNode; 5])> {
    let graph = graph(env)?;
    let a = empty(env, graph, &[])?;
    let b = empty(env, graph, &[a])?;
    let c = empty(env, graph, &[a])?;
    let d = empty(env, graph, &[b, c])?;
    let e = empty(env, graph, &[])?;
    Ok((graph, [a, b, c, d, e]))
}

/// The letter of a node.
fn letter(all: &[CUgraphNode], node: CUgraphNode) -> String {
    match all.iter().position(|known| *known == node) {
        Some(index) => ["a", "b", "c", "d", "e"][index].into(),
        None if node.is_null() => "null".into(),
        None if node.addr() == ODD => "untouched".into(),
        None => "other".into(),
    }
}

fn odd<const N: usize>() -> [CUgraphNode; N] {
    [std::ptr::without_provenance_mut(ODD); N]
}

fn odd_data<const N: usize>() -> [CUgraphEdgeData; N] {
    [CUgraphEdgeData {
        from_port: 0xab,
        ..CUgraphEdgeData::default()
    }; N]
}

/// Whether the driver wrote plain edge data.
fn data(data: &[CUgraphEdgeData]) -> String {
    let told: Vec<String> = data
        .iter()
        .map(|data| match data.from_port {
            0xab => "untouched".into(),
            _ => format!(
                "{} {} {} {}",
                data.from_port,
                data.to_port,
                data.type_,
                yes(data.reserved == [0; 5])
            ),
        })
        .collect();
    told.join("; ")
}

/// The edges in the driver's order.
pub(crate) fn edges(env: &Environment, graph: CUgraph, all: &[CUgraphNode]) -> String {
    let (mut from, mut to, mut count) = (odd::<32>(), odd::<32>(), 32);
    let code = cu!(
        env,
        cuGraphGetEdges_v2(
            graph,
            from.as_mut_ptr(),
            to.as_mut_ptr(),
            std::ptr::null_mut(),
            &raw mut count
        )
    );
    if code != OK || count > 32 {
        return counted(code, count);
    }
    let pairs = from.iter().zip(&to).take(count);
    let told: Vec<String> = pairs
        .map(|(from, to)| letter(all, *from) + &letter(all, *to))
        .collect();
    format!("{count}, {}", told.join(" "))
}

/// All edges of a graph at once.
pub(crate) fn listed(env: &Environment) -> Result<()> {
    let (graph_, all) = diamond(env)?;
    let none = std::ptr::null_mut::<CUgraphNode>();
    let bare = none.cast::<CUgraphEdgeData>();
    let mut count = ODD;
    let code = cu!(env, cuGraphGetEdges(graph_, none, none, &raw mut count));
    env.say("v1 no lists", counted(code, count));
    let mut count = ODD;
    let code = cu!(
        env,
        cuGraphGetEdges_v2(graph_, none, none, bare, &raw mut count)
    );
    env.say("v2 no lists", counted(code, count));
    for room in [0, 1, 2, 4, 6] {
        let (mut from, mut to, mut count) = (odd::<6>(), odd::<6>(), room);
        let code = cu!(
            env,
            cuGraphGetEdges(graph_, from.as_mut_ptr(), to.as_mut_ptr(), &raw mut count)
        );
        let pairs = from.iter().zip(&to);
        let told: Vec<String> = pairs
            .map(|(from, to)| format!("{}-{}", letter(&all, *from), letter(&all, *to)))
            .collect();
        let answer = format!("{}: {}", counted(code, count), told.join(" "));
        env.say(format!("v1 room for {room}"), answer);
        let (mut from, mut to, mut count) = (odd::<6>(), odd::<6>(), room);
        let mut seen = odd_data::<6>();
        let code = cu!(
            env,
            cuGraphGetEdges_v2(
                graph_,
                from.as_mut_ptr(),
                to.as_mut_ptr(),
                seen.as_mut_ptr(),
                &raw mut count
            )
        );
        let pairs = from.iter().zip(&to);
        let told: Vec<String> = pairs
            .map(|(from, to)| format!("{}-{}", letter(&all, *from), letter(&all, *to)))
            .collect();
        let answer = format!("{}: {}", counted(code, count), told.join(" "));
        env.say(format!("v2 room for {room}"), answer);
        env.say(format!("v2 room for {room}, data"), data(&seen));
    }
    let (mut list, mut seen) = (odd::<6>(), odd_data::<6>());
    let here = list.as_mut_ptr();
    for (part, from, to) in [("only from", here, none), ("only to", none, here)] {
        let mut count = 6;
        let code = cu!(env, cuGraphGetEdges(graph_, from, to, &raw mut count));
        env.say(format!("v1 {part}"), counted(code, count));
        let mut count = 6;
        let code = cu!(
            env,
            cuGraphGetEdges_v2(graph_, from, to, bare, &raw mut count)
        );
        env.say(format!("v2 {part}"), counted(code, count));
    }
    let mut count = 6;
    let code = cu!(
        env,
        cuGraphGetEdges_v2(graph_, none, none, seen.as_mut_ptr(), &raw mut count)
    );
    env.say("v2 only data", counted(code, count));
    env.say("v2 only data, data", data(&seen));
    env.say("without data", edges(env, graph_, &all));
    let bare_graph = graph(env)?;
    env.say("of an empty graph", edges(env, bare_graph, &all));
    let mut count = ODD;
    let code = cu!(
        env,
        cuGraphGetEdges(std::ptr::null_mut(), none, none, &raw mut count)
    );
    env.say("of no graph", counted(code, count));
    // Edges of the driver's own making.
    let (stream, plain) = (env.stream()?, env.plain(64)?);
    env.fine("begin", begin(env, stream, 2))?;
    for _ in 0..3 {
        env.fine("memset", cu!(env, cuMemsetD8Async(plain, 1, 64, stream)))?;
    }
    let (code, captured) = end(env, stream);
    env.fine("end", code)?;
    let all = nodes(env, captured);
    env.say("of a captured graph", edges(env, captured, &all));
    Ok(())
}

/// What asks for the nodes before or after a node, or for those with none before.
type Ask<'a> = &'a dyn Fn(*mut CUgraphNode, *mut usize) -> CUresult;

fn ask_list(env: &Environment, part: &str, all: &[CUgraphNode], ask: Ask<'_>) {
    let mut count = ODD;
    let code = ask(std::ptr::null_mut(), &raw mut count);
    env.say(format!("{part}, no list"), counted(code, count));
    for room in [0, 1, 2, 3] {
        let (mut list, mut count) = (odd::<3>(), room);
        let code = ask(list.as_mut_ptr(), &raw mut count);
        let told: Vec<String> = list.iter().map(|node| letter(all, *node)).collect();
        let answer = format!("{}: {}", counted(code, count), told.join(" "));
        env.say(format!("{part}, room for {room}"), answer);
    }
}

/// The nodes before and after one.
pub(crate) fn neighbours(env: &Environment) -> Result<()> {
    let (graph_, all) = diamond(env)?;
    let [a, b, _, d, e] = all;
    for (who, node) in [("a", a), ("b", b), ("d", d), ("e", e)] {
        ask_list(env, &format!("before {who}"), &all, &|list, count| {
            cu!(env, cuGraphNodeGetDependencies(node, list, count))
        });
        ask_list(env, &format!("after {who}"), &all, &|list, count| {
            cu!(env, cuGraphNodeGetDependentNodes(node, list, count))
        });
    }
    let bare = std::ptr::null_mut();
    ask_list(env, "v2 before d", &all, &|list, count| {
        cu!(env, cuGraphNodeGetDependencies_v2(d, list, bare, count))
    });
    ask_list(env, "v2 after a", &all, &|list, count| {
        cu!(env, cuGraphNodeGetDependentNodes_v2(a, list, bare, count))
    });
    let (mut list, mut seen, mut count) = (odd::<3>(), odd_data::<3>(), 3);
    let (here, place) = (list.as_mut_ptr(), seen.as_mut_ptr());
    let code = cu!(
        env,
        cuGraphNodeGetDependencies_v2(d, here, place, &raw mut count)
    );
    env.say(
        "v2 before d, data",
        counted(code, count) + ": " + &data(&seen),
    );
    let (mut seen, mut count) = (odd_data::<3>(), 3);
    let code = cu!(
        env,
        cuGraphNodeGetDependentNodes_v2(a, here, seen.as_mut_ptr(), &raw mut count)
    );
    env.say(
        "v2 after a, data",
        counted(code, count) + ": " + &data(&seen),
    );
    let (mut seen, mut count) = (odd_data::<3>(), 3);
    let nowhere = std::ptr::null_mut();
    let code = cu!(
        env,
        cuGraphNodeGetDependencies_v2(d, nowhere, seen.as_mut_ptr(), &raw mut count)
    );
    env.say("v2 data alone", counted(code, count) + ": " + &data(&seen));
    ask_list(env, "roots", &all, &|list, count| {
        cu!(env, cuGraphGetRootNodes(graph_, list, count))
    });
    let mut count = ODD;
    let code = cu!(
        env,
        cuGraphGetRootNodes(std::ptr::null_mut(), nowhere, &raw mut count)
    );
    env.say("roots of no graph", counted(code, count));
    env.fine("destroy b", cu!(env, cuGraphDestroyNode(b)))?;
    env.say("edges without b", edges(env, graph_, &all));
    Ok(())
}
