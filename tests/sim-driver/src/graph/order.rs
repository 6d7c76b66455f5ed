//! The order sanitizer within a graph: by its edges alone, every use of a block of the graph's own memory must lie
//! between the block's allocation and its free. No real driver checks that.

use std::cell::LazyCell;

use rustc_hash::FxHashMap;

use super::{Graph, GraphId, NodeId, Op};
use crate::state::State;

/// The addresses that a node uses, and how.
fn uses(op: &Op) -> Vec<(&'static str, u64)> {
    match op {
        Op::Fill(given) => vec![("memset", given.dst)],
        Op::Copy(copied) => match copied.layers() {
            Ok(it) => vec![
                ("copy to", it.to.address()),
                ("copy from", it.from.address()),
            ],
            Err(_) => Vec::new(),
        },
        Op::Kernel(node) => {
            let uses = node.work.uses().into_iter();
            uses.map(|used| (used.what, used.address)).collect()
        }
        Op::Free { address } => vec![("free", *address)],
        _ => Vec::new(),
    }
}

/// The ordering errors of one graph.
fn check(graph: &Graph, start_of: impl Fn(u64) -> Option<u64>) -> Vec<String> {
    let mut allocs: FxHashMap<u64, Vec<NodeId>> = FxHashMap::default();
    let mut frees: FxHashMap<u64, Vec<NodeId>> = FxHashMap::default();
    for node in &graph.nodes {
        match node.op {
            Op::Alloc { address, .. } => allocs.entry(address).or_default().push(node.id),
            Op::Free { address } => frees.entry(address).or_default().push(node.id),
            _ => {}
        }
    }
    let mut wrong = Vec::new();
    for node in &graph.nodes {
        // Most nodes use no memory of the graph.
        let before = LazyCell::new(|| graph.with_ancestors(&[node.id]));
        for (what, address) in uses(&node.op) {
            let Some(start) = start_of(address) else {
                continue;
            };
            let Some(allocs) = allocs.get(&start) else {
                continue;
            };
            let is_after = |node: &NodeId| before.contains(node);
            if !allocs.iter().any(is_after) {
                wrong.push(format!(
                    "before allocation: {what} at {address:#x} in a graph is not ordered after the \
                     allocation in it"
                ));
            }
            for free in frees.get(&start).into_iter().flatten() {
                if *free == node.id {
                    continue;
                }
                let free_before = graph.with_ancestors(&[*free]);
                // The address may have been reallocated after that free.
                let is_again = before.contains(free)
                    && allocs
                        .iter()
                        .any(|alloc| before.contains(alloc) && !free_before.contains(alloc));
                if !free_before.contains(&node.id) && !is_again {
                    wrong.push(format!(
                        "after free: {what} at {address:#x} in a graph is not ordered before the \
                         free in it"
                    ));
                }
            }
        }
    }
    wrong
}

impl State {
    /// Reports the ordering errors of a graph.
    pub(super) fn check_graph_order(&mut self, id: GraphId) {
        let memory = &self.graphs.memory;
        let Some(graph) = self.graphs.graphs.get(&id) else {
            return;
        };
        let wrong = check(graph, |address| {
            let (start, block) = memory.block(address)?;
            (block.graph == id).then_some(start)
        });
        for line in wrong {
            self.reports.add(line);
        }
    }
}
