//! What a program may ask and change while a stream is captured.

use std::ffi::{c_uint, c_ulonglong};

use cuda_driver_sys::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUresult, CUstream, CUstreamCaptureStatus,
};

use super::NodeId;
use super::edges::check_edges;
use crate::export::{Answer, Call, INVALID_VALUE, In, Out, exports};
use crate::state::{from_handle, state, to_handle};

/// The nodes that the next one depends on, as the program was last told them. Measured: the lists live while they are
/// right. Documented: until the next call for the stream.
#[derive(Debug, Default)]
pub(super) struct Told {
    nodes: Box<[usize]>,
    edges: Box<[CUgraphEdgeData]>,
}

impl Told {
    fn renew(&mut self, nodes: &[NodeId]) {
        let nodes: Box<[usize]> = nodes.iter().map(|id| *id as usize).collect();
        if self.nodes != nodes {
            self.edges = nodes.iter().map(|_| CUgraphEdgeData::default()).collect();
            self.nodes = nodes;
        }
    }
}

/// Where a question about a capture puts its answers.
struct Places {
    status: Out<CUstreamCaptureStatus>,
    id: Out<c_ulonglong>,
    graph: Out<CUgraph>,
    nodes: Out<*const CUgraphNode>,
    edges: Out<*const CUgraphEdgeData>,
    count: Out<usize>,
}

/// Measured: null, and not an empty list.
fn start<T, U>(list: &[T]) -> *const U {
    if list.is_empty() {
        std::ptr::null()
    } else {
        list.as_ptr().cast()
    }
}

fn tell(handle: CUstream, call: Call, out: Places) -> Answer {
    out.status.required()?;
    let mut state = state()?;
    let id = state.resolve(handle, call)?;
    out.status.write(state.capture_status(id)?)?;
    let Some(recording) = state.graphs.captures.recording(id) else {
        return Ok(());
    };
    // Measured: of a stream that is not captured, or whose capture is lost, only the status is told.
    if !state.is_recording(id).unwrap_or(false) {
        return Ok(());
    }
    out.id.write_if_wanted(recording.id);
    out.graph.write_if_wanted(to_handle(recording.graph));
    let (wants_nodes, wants_edges) = (out.nodes.required().is_ok(), out.edges.required().is_ok());
    // Measured: edge data are not told without the nodes.
    if wants_edges && !wants_nodes {
        return Err(INVALID_VALUE);
    }
    let Some(member) = state.graphs.captures.member_mut(id) else {
        return Ok(());
    };
    member.told.renew(&member.last);
    out.nodes.write_if_wanted(start(&member.told.nodes));
    out.edges.write_if_wanted(start(&member.told.edges));
    out.count.write_if_wanted(member.last.len());
    Ok(())
}

/// Changes the nodes that the next one depends on.
fn update(
    (handle, call): (CUstream, Call),
    list: In<CUgraphNode>,
    data: In<CUgraphEdgeData>,
    count: usize,
    flags: c_uint,
) -> Answer {
    let mut state = state()?;
    let id = state.resolve(handle, call)?;
    if !state.is_recording(id)? {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
    }
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let list = list.read_all(count)?;
    check_edges(data, count)?;
    let (graph, mut last) = state.recording(id)?;
    if flags == 1 {
        last.clear();
    }
    for node in list.into_iter().map(from_handle) {
        if state.graph(graph)?.node(node).is_none() {
            return Err(INVALID_VALUE);
        }
        if !last.contains(&node) {
            last.push(node);
        }
    }
    if let Some(member) = state.graphs.captures.member_mut(id) {
        member.last = last;
    }
    Ok(())
}

exports! {
    plain fn cuStreamGetCaptureInfo(
        call, stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<c_ulonglong>
    ) twin cuStreamGetCaptureInfo_ptsz {
        let (graph, nodes) = (Out::none(), Out::none());
        let (edges, count) = (Out::none(), Out::none());
        tell(stream, call, Places { status, id, graph, nodes, edges, count })
    }

    plain fn cuStreamGetCaptureInfo_v2(
        call, stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<c_ulonglong>,
        graph: Out<CUgraph>, nodes: Out<*const CUgraphNode>, count: Out<usize>
    ) twin cuStreamGetCaptureInfo_v2_ptsz {
        tell(stream, call, Places { status, id, graph, nodes, edges: Out::none(), count })
    }

    plain fn cuStreamGetCaptureInfo_v3(
        call, stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<c_ulonglong>,
        graph: Out<CUgraph>, nodes: Out<*const CUgraphNode>, edges: Out<*const CUgraphEdgeData>,
        count: Out<usize>
    ) twin cuStreamGetCaptureInfo_v3_ptsz {
        tell(stream, call, Places { status, id, graph, nodes, edges, count })
    }

    plain fn cuStreamUpdateCaptureDependencies(
        call, stream: CUstream, list: Out<CUgraphNode>, count: usize, flags: c_uint
    ) twin cuStreamUpdateCaptureDependencies_ptsz {
        update((stream, call), list.as_input(), In::new(std::ptr::null()), count, flags)
    }

    plain fn cuStreamUpdateCaptureDependencies_v2(
        call, stream: CUstream, list: Out<CUgraphNode>, data: In<CUgraphEdgeData>, count: usize,
        flags: c_uint
    ) twin cuStreamUpdateCaptureDependencies_v2_ptsz {
        update((stream, call), list.as_input(), data, count, flags)
    }
}
