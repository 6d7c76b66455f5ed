//! The edges of graphs: listing, adding and removing them.

use cuda_driver_sys::{CUgraph, CUgraphEdgeData, CUgraphNode};

use super::{Graph, NodeId};
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::state::{from_handle, state, to_handle};

/// Measured: edges between other nodes than kernels are plain. A guess: so are those of kernels, which the simulator
/// does not start early.
pub(super) fn check_edges(data: In<CUgraphEdgeData>, count: usize) -> Answer {
    if data.required().is_err() {
        return Ok(());
    }
    let is_plain = |data: &CUgraphEdgeData| {
        (data.from_port, data.to_port, data.type_) == (0, 0, 0) && data.reserved == [0; 5]
    };
    if data.read_all(count)?.iter().all(is_plain) {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

impl Graph {
    /// All edges. Measured: in the order of the nodes they begin at, and of their making.
    pub(super) fn edges(&self) -> Vec<(NodeId, NodeId)> {
        let nodes = self.nodes.iter();
        let edges = nodes.flat_map(|node| node.then.iter().map(|then| (node.id, *then)));
        edges.collect()
    }

    fn link(&mut self, from: NodeId, to: NodeId) -> Answer {
        let is_there = self.node(from).ok_or(INVALID_VALUE)?.then.contains(&to);
        if from == to || is_there || self.node(to).is_none() {
            return Err(INVALID_VALUE);
        }
        // Measured: an edge that closes a cycle is taken.
        self.node_mut(from).ok_or(INVALID_VALUE)?.then.push(to);
        self.node_mut(to).ok_or(INVALID_VALUE)?.after.push(from);
        Ok(())
    }

    fn unlink(&mut self, from: NodeId, to: NodeId) -> Answer {
        let node = self.node_mut(from).ok_or(INVALID_VALUE)?;
        let place = node.then.iter().position(|then| *then == to);
        node.then.remove(place.ok_or(INVALID_VALUE)?);
        let node = self.node_mut(to).ok_or(INVALID_VALUE)?;
        node.after.retain(|before| *before != from);
        Ok(())
    }
}

/// Writes a list into the room that the program gives. Measured: the rest is set to null; a list without room is an
/// error.
fn list(
    nodes: &[NodeId],
    out: Out<CUgraphNode>,
    data: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> Answer {
    if out.required().is_err() {
        if data.required().is_ok() {
            return Err(INVALID_VALUE);
        }
        return count.write(nodes.len());
    }
    let room: usize = count.as_input().read()?;
    if room == 0 {
        return Err(INVALID_VALUE);
    }
    for index in 0..room {
        let node = nodes.get(index).copied();
        out.at(index)
            .write(node.map_or(std::ptr::null_mut(), to_handle))?;
        if index < nodes.len() && data.required().is_ok() {
            data.at(index).write(CUgraphEdgeData::default())?;
        }
    }
    count.write(nodes.len().min(room))
}

/// Lists the nodes before or after one.
fn neighbours(
    node: CUgraphNode,
    is_after: bool,
    out: Out<CUgraphNode>,
    data: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> Answer {
    count.required()?;
    let state = state()?;
    let (_, node) = state.graph_of(node)?;
    let nodes = if is_after { &node.then } else { &node.after };
    list(nodes, out, data, count)
}

fn edges(
    graph: CUgraph,
    (from, to): (Out<CUgraphNode>, Out<CUgraphNode>),
    data: Out<CUgraphEdgeData>,
    count: Out<usize>,
) -> Answer {
    count.required()?;
    let mut state = state()?;
    let (_, graph) = state.named_graph(graph)?;
    let edges = graph.edges();
    let lists = [from.required().is_ok(), to.required().is_ok()];
    if lists == [false, false] && data.required().is_err() {
        return count.write(edges.len());
    }
    let room: usize = count.as_input().read()?;
    if lists != [true, true] || room == 0 {
        return Err(INVALID_VALUE);
    }
    for index in 0..room {
        let null = (std::ptr::null_mut(), std::ptr::null_mut());
        let edge = edges.get(index).copied();
        let edge = edge.map_or(null, |(from, to)| (to_handle(from), to_handle(to)));
        from.at(index).write(edge.0)?;
        to.at(index).write(edge.1)?;
        if data.required().is_ok() {
            data.at(index).write(CUgraphEdgeData::default())?;
        }
    }
    count.write(edges.len().min(room))
}

/// Adds or removes edges. Measured: one by one, and those before the first that is refused stay.
fn change(
    graph: CUgraph,
    (from, to): (In<CUgraphNode>, In<CUgraphNode>),
    data: In<CUgraphEdgeData>,
    count: usize,
    is_new: bool,
) -> Answer {
    let (from, to) = (from.read_all(count)?, to.read_all(count)?);
    let mut state = state()?;
    let (id, _) = state.named_graph(graph)?;
    if !is_new {
        state.refuse_with_memory(id)?;
    }
    check_edges(data, count)?;
    let graph = state.graph(id)?;
    for (from, to) in from.into_iter().zip(to) {
        let (from, to) = (from_handle(from), from_handle(to));
        if is_new {
            graph.link(from, to)?;
        } else {
            graph.unlink(from, to)?;
        }
    }
    Ok(())
}

exports! {
    plain fn cuGraphGetEdges(
        _, graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>, count: Out<usize>
    ) {
        edges(graph, (from, to), Out::none(), count)
    }

    plain fn cuGraphGetEdges_v2(
        _, graph: CUgraph, from: Out<CUgraphNode>, to: Out<CUgraphNode>,
        data: Out<CUgraphEdgeData>, count: Out<usize>
    ) {
        edges(graph, (from, to), data, count)
    }

    plain fn cuGraphNodeGetDependencies(
        _, node: CUgraphNode, out: Out<CUgraphNode>, count: Out<usize>
    ) {
        neighbours(node, false, out, Out::none(), count)
    }

    plain fn cuGraphNodeGetDependencies_v2(
        _, node: CUgraphNode, out: Out<CUgraphNode>, data: Out<CUgraphEdgeData>,
        count: Out<usize>
    ) {
        neighbours(node, false, out, data, count)
    }

    plain fn cuGraphNodeGetDependentNodes(
        _, node: CUgraphNode, out: Out<CUgraphNode>, count: Out<usize>
    ) {
        neighbours(node, true, out, Out::none(), count)
    }

    plain fn cuGraphNodeGetDependentNodes_v2(
        _, node: CUgraphNode, out: Out<CUgraphNode>, data: Out<CUgraphEdgeData>,
        count: Out<usize>
    ) {
        neighbours(node, true, out, data, count)
    }

    plain fn cuGraphGetRootNodes(_, graph: CUgraph, out: Out<CUgraphNode>, count: Out<usize>) {
        count.required()?;
        let mut state = state()?;
        let (_, graph) = state.named_graph(graph)?;
        // Measured: the newest comes first.
        let roots = graph.nodes.iter().rev().filter(|node| node.after.is_empty());
        let roots: Vec<NodeId> = roots.map(|node| node.id).collect();
        list(&roots, out, Out::none(), count)
    }

    plain fn cuGraphAddDependencies(
        _, graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize
    ) {
        change(graph, (from, to), In::new(std::ptr::null()), count, true)
    }

    plain fn cuGraphAddDependencies_v2(
        _, graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>,
        data: In<CUgraphEdgeData>, count: usize
    ) {
        change(graph, (from, to), data, count, true)
    }

    plain fn cuGraphRemoveDependencies(
        _, graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>, count: usize
    ) {
        change(graph, (from, to), In::new(std::ptr::null()), count, false)
    }

    plain fn cuGraphRemoveDependencies_v2(
        _, graph: CUgraph, from: In<CUgraphNode>, to: In<CUgraphNode>,
        data: In<CUgraphEdgeData>, count: usize
    ) {
        change(graph, (from, to), data, count, false)
    }
}
