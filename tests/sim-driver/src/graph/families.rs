//! Copies of graphs, and graphs in graphs.

use cuda_driver_sys::{CUgraph, CUgraphNode, CUresult};
use rustc_hash::FxHashMap;

use super::{Graph, GraphId, NodeId, Op};
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::state::{HandleKind, State, from_handle, state, to_handle};

impl State {
    /// Copies a graph with its children. Measured: not with memory.
    pub(super) fn copy_graph(&mut self, id: GraphId) -> Answer<GraphId> {
        self.refuse_with_memory(id)?;
        let graph = self.graph(id)?;
        let (mut nodes, objects) = (graph.nodes.clone(), graph.objects.clone());
        let mut names: FxHashMap<NodeId, NodeId> = FxHashMap::default();
        for node in &mut nodes {
            let new = self.new_handle(HandleKind::Node);
            names.insert(node.id, new);
            node.origin = Some(std::mem::replace(&mut node.id, new));
            if let Op::Child(child) = &mut node.op {
                *child = self.copy_graph(*child)?;
                self.graph(*child)?.is_owned = true;
            }
        }
        for node in &mut nodes {
            for edge in node.after.iter_mut().chain(&mut node.then) {
                *edge = names.get(edge).copied().ok_or(INVALID_VALUE)?;
            }
        }
        let objects = self.copy_references(&objects);
        Ok(self.add_graph(Graph {
            nodes,
            objects,
            ..Graph::default()
        }))
    }

    /// Moves a graph into another one.
    pub(super) fn move_child(
        &mut self,
        parent: GraphId,
        after: &[NodeId],
        child: GraphId,
    ) -> Answer<NodeId> {
        let graph = self.graph(child)?;
        let may_move = !graph.is_owned && !graph.is_recording && graph.instances == 0;
        // Nor may a graph become part of itself.
        if !may_move || self.family(child).contains(&parent) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let node = self.add_op(parent, Op::Child(child), after)?;
        self.graph(child)?.is_owned = true;
        Ok(node)
    }

    /// Copies a graph into another one.
    pub(super) fn copy_child(
        &mut self,
        parent: GraphId,
        after: &[NodeId],
        child: GraphId,
    ) -> Answer<NodeId> {
        let copy = self.copy_graph(child)?;
        let added = self.add_op(parent, Op::Child(copy), after);
        match added {
            Ok(_) => self.graph(copy)?.is_owned = true,
            Err(_) => self.destroy_graph(copy),
        }
        added
    }
}

exports! {
    plain fn cuGraphClone(_, out: Out<CUgraph>, graph: CUgraph) {
        out.required()?;
        let mut state = state()?;
        let (id, _) = state.named_graph(graph)?;
        out.write(to_handle(state.copy_graph(id)?))
    }

    plain fn cuGraphNodeFindInClone(
        _, out: Out<CUgraphNode>, node: CUgraphNode, graph: CUgraph
    ) {
        out.required()?;
        // Measured: null if it is not there. Only the graph that was cloned counts, not one further back.
        out.write(std::ptr::null_mut())?;
        let mut state = state()?;
        let (_, graph) = state.named_graph(graph)?;
        let origin = Some(from_handle(node));
        let found = graph.nodes.iter().find(|node| node.origin == origin);
        out.write(to_handle(found.ok_or(INVALID_VALUE)?.id))
    }

    plain fn cuGraphAddChildGraphNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        child: CUgraph
    ) {
        out.required()?;
        let mut state = state()?;
        let (graph, _) = state.named_graph(graph)?;
        let after = state.named_nodes(list, count)?;
        let (child, _) = state.named_graph(child)?;
        let node = state.copy_child(graph, &after, child)?;
        out.write(to_handle(node))
    }

    plain fn cuGraphChildGraphNodeGetGraph(_, node: CUgraphNode, out: Out<CUgraph>) {
        out.required()?;
        let state = state()?;
        match state.graph_of(node)?.1.op {
            Op::Child(child) => out.write(to_handle(child)),
            _ => Err(INVALID_VALUE),
        }
    }
}
