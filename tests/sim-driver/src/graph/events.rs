//! Nodes that record events or wait for them.

use cuda_driver_sys::{CUevent, CUgraph, CUgraphExec, CUgraphNode, CUresult};

use super::{Node, NodeId, Op};
use crate::clock::StreamId;
use crate::event::EventId;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::state::{State, from_handle, state, to_handle};

/// What a node does with its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Record,
    Wait,
}

impl Use {
    fn op(self, event: EventId) -> Op {
        match self {
            Self::Record => Op::Record(event),
            Self::Wait => Op::Wait(event),
        }
    }

    /// The event of a node of this kind.
    fn event(self, op: &mut Op) -> Answer<&mut EventId> {
        match (self, op) {
            (Self::Record, Op::Record(event)) | (Self::Wait, Op::Wait(event)) => Ok(event),
            _ => Err(INVALID_VALUE),
        }
    }
}

impl State {
    /// Measured: INVALID_VALUE for null. A guess: for others that are no event, too.
    fn named_event(&self, event: CUevent) -> Answer<EventId> {
        self.event(event).map_err(|_| INVALID_VALUE)?;
        Ok(from_handle(event))
    }

    pub(super) fn event_op(&self, how: Use, event: CUevent) -> Answer<Op> {
        Ok(how.op(self.named_event(event)?))
    }

    /// Records a node for an event that lies outside the capture.
    pub(crate) fn record_external(
        &mut self,
        stream: StreamId,
        event: CUevent,
        is_wait: bool,
    ) -> Answer {
        if !self.is_recording(stream)? {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let how = if is_wait { Use::Wait } else { Use::Record };
        let op = self.event_op(how, event)?;
        self.record_op(stream, op)
    }

    /// The node of a handle passed by the program.
    pub(super) fn node_mut(&mut self, node: CUgraphNode) -> Answer<&mut Node> {
        let (graph, _) = self.graph_of(node)?;
        let node = self.graph(graph)?.node_mut(from_handle(node));
        node.ok_or(INVALID_VALUE)
    }

    /// Whether the events of all these operations still exist. A real driver crashes if they do not.
    pub(super) fn has_events<'a>(&self, mut ops: impl Iterator<Item = &'a Op>) -> bool {
        ops.all(|op| match op {
            Op::Record(event) | Op::Wait(event) => {
                self.events.contains_key(event) || self.orphaned_events.contains_key(event)
            }
            _ => true,
        })
    }
}

fn add(
    how: Use,
    out: Out<CUgraphNode>,
    graph: CUgraph,
    (list, count): (In<CUgraphNode>, usize),
    event: CUevent,
) -> Answer {
    out.required()?;
    let mut state = state()?;
    let (graph, _) = state.named_graph(graph)?;
    let after = state.named_nodes(list, count)?;
    let op = state.event_op(how, event)?;
    let node: NodeId = state.add_op(graph, op, &after)?;
    out.write(to_handle(node))
}

fn read(how: Use, node: CUgraphNode, out: Out<CUevent>) -> Answer {
    out.required()?;
    let mut state = state()?;
    let event = *how.event(&mut state.node_mut(node)?.op)?;
    out.write(to_handle(event))
}

fn set(how: Use, node: CUgraphNode, event: CUevent) -> Answer {
    let mut state = state()?;
    let event = state.named_event(event)?;
    *how.event(&mut state.node_mut(node)?.op)? = event;
    Ok(())
}

fn set_in(how: Use, exec: CUgraphExec, node: CUgraphNode, event: CUevent) -> Answer {
    let mut state = state()?;
    let event = state.named_event(event)?;
    let (_, exec) = state.exec(exec)?;
    *how.event(exec.op_of(from_handle(node))?)? = event;
    Ok(())
}

exports! {
    plain fn cuGraphAddEventRecordNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        event: CUevent
    ) {
        add(Use::Record, out, graph, (list, count), event)
    }

    plain fn cuGraphAddEventWaitNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        event: CUevent
    ) {
        add(Use::Wait, out, graph, (list, count), event)
    }

    plain fn cuGraphEventRecordNodeGetEvent(_, node: CUgraphNode, out: Out<CUevent>) {
        read(Use::Record, node, out)
    }

    plain fn cuGraphEventWaitNodeGetEvent(_, node: CUgraphNode, out: Out<CUevent>) {
        read(Use::Wait, node, out)
    }

    plain fn cuGraphEventRecordNodeSetEvent(_, node: CUgraphNode, event: CUevent) {
        set(Use::Record, node, event)
    }

    plain fn cuGraphEventWaitNodeSetEvent(_, node: CUgraphNode, event: CUevent) {
        set(Use::Wait, node, event)
    }

    plain fn cuGraphExecEventRecordNodeSetEvent(
        _, exec: CUgraphExec, node: CUgraphNode, event: CUevent
    ) {
        set_in(Use::Record, exec, node, event)
    }

    plain fn cuGraphExecEventWaitNodeSetEvent(
        _, exec: CUgraphExec, node: CUgraphNode, event: CUevent
    ) {
        set_in(Use::Wait, exec, node, event)
    }
}
