//! Graphs: work recorded once and launched many times, and their memory.

mod add;
mod any;
mod capture;
mod captured;
mod copies;
mod dot;
mod edges;
mod events;
mod families;
mod fills;
mod instances;
mod kernels;
mod launch;
mod memory;
mod nodes;
mod objects;
mod order;
mod params;

use std::collections::BTreeMap;

use cuda_driver_sys::{CUDA_MEMSET_NODE_PARAMS, CUgraph, CUgraphExec, CUgraphNode, CUresult};
use rustc_hash::FxHashSet;

use crate::event::EventId;
use crate::export::{Answer, Export, INVALID_VALUE};
use crate::queue::HostCall;
use crate::state::{HandleKind, State, from_handle};

use capture::Captures;
use copies::Copied;
use instances::Exec;
use kernels::KernelNode;
use memory::Memory;
use objects::{Objects, References};

pub(crate) use objects::finish;

/// The numbers behind the handles.
pub(crate) type GraphId = u64;
pub(crate) type NodeId = u64;
pub(crate) type ExecId = u64;

/// The exports of this folder.
pub(crate) static EXPORTS: [&[&Export]; 15] = [
    add::EXPORTS,
    any::EXPORTS,
    capture::EXPORTS,
    captured::EXPORTS,
    dot::EXPORTS,
    edges::EXPORTS,
    events::EXPORTS,
    families::EXPORTS,
    instances::EXPORTS,
    kernels::EXPORTS,
    launch::EXPORTS,
    memory::EXPORTS,
    nodes::EXPORTS,
    objects::EXPORTS,
    params::EXPORTS,
];

/// The state of all graphs.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    graphs: BTreeMap<GraphId, Graph>,
    execs: BTreeMap<ExecId, Exec>,
    pub(crate) captures: Captures,
    memory: Memory,
    objects: Objects,
}

/// A graph.
#[derive(Debug, Default)]
struct Graph {
    /// In creation order.
    nodes: Vec<Node>,
    /// Number of its live executable graphs.
    instances: usize,
    /// The graph of a child node, whose parent owns it.
    is_owned: bool,
    /// Still being captured.
    is_recording: bool,
    /// References to objects of the program.
    objects: References,
}

/// A node.
#[derive(Clone, Debug)]
struct Node {
    id: NodeId,
    op: Op,
    /// The nodes it depends on, and those that depend on it. Measured: in the order in which the edges were added.
    after: Vec<NodeId>,
    then: Vec<NodeId>,
    /// The node that it was cloned from.
    origin: Option<NodeId>,
}

/// The operation of a node.
#[derive(Clone, Debug)]
enum Op {
    Empty,
    Alloc { address: u64, size: u64 },
    Free { address: u64 },
    Fill(CUDA_MEMSET_NODE_PARAMS),
    Copy(Copied),
    Kernel(KernelNode),
    Host(HostCall),
    Record(EventId),
    Wait(EventId),
    Child(GraphId),
}

impl Op {
    fn is_memory(&self) -> bool {
        matches!(self, Self::Alloc { .. } | Self::Free { .. })
    }
}

impl Graph {
    fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(self.position(id)?)
    }

    fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        let at = self.position(id)?;
        self.nodes.get_mut(at)
    }

    /// Later nodes have greater numbers.
    fn position(&self, id: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&id, |node| node.id).ok()
    }

    /// These nodes and all their ancestors.
    fn with_ancestors(&self, nodes: &[NodeId]) -> FxHashSet<NodeId> {
        let mut all = FxHashSet::default();
        let mut rest = nodes.to_vec();
        while let Some(id) = rest.pop() {
            if all.insert(id)
                && let Some(node) = self.node(id)
            {
                rest.extend(&node.after);
            }
        }
        all
    }

    /// The nodes in an order that respects the edges. If there is none, the error is a node that cannot run.
    fn sorted(&self) -> Result<Vec<&Node>, NodeId> {
        let is_sorted = |node: &Node| node.after.iter().all(|before| *before < node.id);
        if self.nodes.iter().all(is_sorted) {
            // Later nodes have greater numbers.
            return Ok(self.nodes.iter().collect());
        }
        let mut rest: Vec<&Node> = self.nodes.iter().collect();
        let (mut done, mut all) = (FxHashSet::default(), Vec::new());
        while let Some(first) = rest.first() {
            let stuck = first.id;
            let is_ready = |node: &&Node| node.after.iter().all(|before| done.contains(before));
            let (ready, later): (Vec<&Node>, Vec<&Node>) = rest.into_iter().partition(is_ready);
            if ready.is_empty() {
                return Err(stuck);
            }
            done.extend(ready.iter().map(|node| node.id));
            all.extend(ready);
            rest = later;
        }
        Ok(all)
    }
}

impl State {
    fn add_graph(&mut self, graph: Graph) -> GraphId {
        let id = self.new_handle(HandleKind::Graph);
        self.graphs.graphs.insert(id, graph);
        id
    }

    fn graph(&mut self, id: GraphId) -> Answer<&mut Graph> {
        self.graphs.graphs.get_mut(&id).ok_or(INVALID_VALUE)
    }

    /// The graph of a handle passed by the program.
    fn named_graph(&mut self, handle: CUgraph) -> Answer<(GraphId, &mut Graph)> {
        let id = from_handle(handle);
        let graph = self.graphs.graphs.get_mut(&id);
        graph.map(|graph| (id, graph)).ok_or(INVALID_VALUE)
    }

    /// The graph that contains a node.
    fn graph_of(&self, node: CUgraphNode) -> Answer<(GraphId, &Node)> {
        let id = from_handle(node);
        let mut graphs = self.graphs.graphs.iter();
        graphs
            .find_map(|(graph, it)| it.node(id).map(|node| (*graph, node)))
            .ok_or(INVALID_VALUE)
    }

    fn exec(&mut self, handle: CUgraphExec) -> Answer<(ExecId, &mut Exec)> {
        let id = from_handle(handle);
        let exec = self.graphs.execs.get_mut(&id);
        exec.map(|exec| (id, exec)).ok_or(INVALID_VALUE)
    }

    /// Adds a node to a graph.
    fn add_op(&mut self, graph: GraphId, op: Op, after: &[NodeId]) -> Answer<NodeId> {
        let id = self.new_handle(HandleKind::Node);
        let graph = self.graph(graph)?;
        // Measured: a node is not named twice.
        let is_twice = |(index, id)| after[..index].contains(id);
        if after.iter().any(|id| graph.node(*id).is_none())
            || after.iter().enumerate().any(is_twice)
        {
            return Err(INVALID_VALUE);
        }
        for before in after {
            if let Some(node) = graph.node_mut(*before) {
                node.then.push(id);
            }
        }
        graph.nodes.push(Node {
            id,
            op,
            after: after.to_vec(),
            then: Vec::new(),
            origin: None,
        });
        Ok(id)
    }

    /// Whether a graph or one of its children has memory nodes.
    fn has_memory(&self, graph: GraphId) -> bool {
        let Some(graph) = self.graphs.graphs.get(&graph) else {
            return false;
        };
        graph.nodes.iter().any(|node| match node.op {
            Op::Child(child) => self.has_memory(child),
            ref op => op.is_memory(),
        })
    }

    /// A graph and all its descendants.
    fn family(&self, graph: GraphId) -> Vec<GraphId> {
        let mut all = vec![graph];
        if let Some(graph) = self.graphs.graphs.get(&graph) {
            for node in &graph.nodes {
                if let Op::Child(child) = node.op {
                    all.extend(self.family(child));
                }
            }
        }
        all
    }

    fn destroy_graph(&mut self, id: GraphId) {
        for id in self.family(id) {
            if let Some(graph) = self.graphs.graphs.remove(&id) {
                self.drop_references(graph.objects);
            }
        }
        self.forget_graph_memory();
    }

    /// Measured: nothing can be removed from a graph with memory.
    fn refuse_with_memory(&self, graph: GraphId) -> Answer {
        if self.has_memory(graph) {
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        } else {
            Ok(())
        }
    }

    /// Counts of live graphs, executable graphs, blocks of graph memory and captures.
    pub(crate) fn live_graphs(&self) -> [u64; 4] {
        let graphs = self.graphs.graphs.values();
        let graphs = graphs.filter(|graph| !graph.is_owned && !graph.is_recording);
        [
            graphs.count(),
            self.graphs.execs.len(),
            self.graphs.memory.live_blocks(),
            self.graphs.captures.count(),
        ]
        .map(|count| count as u64)
    }
}
