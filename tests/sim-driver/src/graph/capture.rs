//! Stream capture: which streams are captured, and which calls are forbidden meanwhile.

use std::cell::Cell;
use std::collections::BTreeMap;

use cuda_driver_sys::{CUgraph, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus};
use rustc_hash::FxHashMap;

use super::captured::Told;
use super::objects::finish;
use super::{Graph, GraphId, NodeId, Op};
use crate::clock::StreamId;
use crate::context::ContextId;
use crate::event::EventId;
use crate::export::{Answer, Call, INVALID_VALUE, Out, exports};
use crate::state::{State, state, to_handle};
use crate::stream::Kind;
use crate::thread;

type CaptureId = u64;

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

thread_local! {
    /// The capture mode that this thread has set for its own calls.
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// The active captures.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    active: BTreeMap<CaptureId, Capture>,
    members: FxHashMap<StreamId, Member>,
    /// Events recorded in a capture.
    events: FxHashMap<EventId, (CaptureId, Vec<NodeId>)>,
    next: CaptureId,
}

#[derive(Debug)]
struct Capture {
    origin: StreamId,
    mode: u32,
    thread: u64,
    graph: GraphId,
    is_invalid: bool,
}

/// A captured stream, and the nodes that its next node depends on.
#[derive(Debug)]
pub(super) struct Member {
    capture: CaptureId,
    pub(super) last: Vec<NodeId>,
    pub(super) told: Told,
}

/// What a program may know of a captured stream.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) id: CaptureId,
    pub(super) graph: GraphId,
    pub(super) last: Vec<NodeId>,
}

impl Captures {
    pub(super) fn count(&self) -> usize {
        self.active.len()
    }

    pub(super) fn member_mut(&mut self, stream: StreamId) -> Option<&mut Member> {
        self.members.get_mut(&stream)
    }

    pub(super) fn recording(&self, stream: StreamId) -> Option<Recording> {
        let member = self.members.get(&stream)?;
        let capture = self.active.get(&member.capture)?;
        Some(Recording {
            id: member.capture,
            graph: capture.graph,
            last: member.last.clone(),
        })
    }

    fn invalidate(&mut self, id: CaptureId) {
        if let Some(capture) = self.active.get_mut(&id) {
            capture.is_invalid = true;
        }
    }

    fn invalidate_stream(&mut self, stream: StreamId) {
        if let Some(member) = self.members.get(&stream) {
            self.invalidate(member.capture);
        }
    }

    fn status(&self, stream: StreamId) -> CUstreamCaptureStatus {
        let member = self.members.get(&stream);
        let capture = member.and_then(|member| self.active.get(&member.capture));
        match capture {
            None => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
            Some(capture) if capture.is_invalid => {
                CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED
            }
            Some(_) => CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        }
    }
}

impl State {
    /// Whether a stream is captured; an error if its capture was invalidated.
    pub(crate) fn is_recording(&self, stream: StreamId) -> Answer<bool> {
        match self.graphs.captures.status(stream) {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(false),
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => Ok(true),
            _ => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        }
    }

    /// The graph of a captured stream, and the dependencies of its next node.
    pub(super) fn recording(&self, stream: StreamId) -> Answer<(GraphId, Vec<NodeId>)> {
        let recording = self.graphs.captures.recording(stream);
        let recording = recording.ok_or(INVALID_VALUE)?;
        Ok((recording.graph, recording.last))
    }

    /// Records an operation of a captured stream.
    pub(super) fn record_op(&mut self, stream: StreamId, op: Op) -> Answer {
        let (graph, after) = self.recording(stream)?;
        let node = self.add_op(graph, op, &after)?;
        self.recorded(stream, node);
        Ok(())
    }

    pub(super) fn recorded(&mut self, stream: StreamId, node: NodeId) {
        if let Some(member) = self.graphs.captures.members.get_mut(&stream) {
            member.last = vec![node];
        }
    }

    /// For calls that the driver forbids during a capture: refuses them and invalidates the captures that forbid them.
    /// Measured.
    pub(crate) fn refuse_while_recording(&mut self) -> Answer {
        let captures = &mut self.graphs.captures;
        if captures.active.is_empty() {
            return Ok(());
        }
        let (thread, mine) = (thread::number(), MODE.get());
        let mut forbidding = captures.active.values_mut().filter(|capture| {
            let is_own = capture.thread == thread;
            match mine {
                GLOBAL => capture.mode == GLOBAL || capture.mode == THREAD_LOCAL && is_own,
                THREAD_LOCAL => capture.mode != RELAXED && is_own,
                _ => false,
            }
        });
        let mut any = false;
        for capture in &mut forbidding {
            capture.is_invalid = true;
            any = true;
        }
        if any {
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        } else {
            Ok(())
        }
    }

    /// For calls that query or wait for a stream: a captured stream's capture is invalidated.
    pub(crate) fn refuse_on_recorded(&mut self, stream: StreamId) -> Answer {
        if self.graphs.captures.members.contains_key(&stream) {
            self.graphs.captures.invalidate_stream(stream);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        self.refuse_while_recording()
    }

    /// For callbacks, and for questions about a stream. Measured: only a capture of that stream forbids them.
    pub(crate) fn refuse_on_own_capture(&mut self, stream: StreamId) -> Answer {
        if self.graphs.captures.members.contains_key(&stream) {
            return self.refuse_on_recorded(stream);
        }
        Ok(())
    }

    /// The status of a stream, for questions about it.
    pub(super) fn capture_status(&self, stream: StreamId) -> Answer<CUstreamCaptureStatus> {
        if !self.recorded_blocking(stream).is_empty() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        Ok(self.graphs.captures.status(stream))
    }

    /// For calls that wait for a whole context.
    pub(crate) fn refuse_in_context(&mut self, context: ContextId) -> Answer {
        let members = self.graphs.captures.members.keys().copied();
        let its = members.filter(|id| {
            let stream = self.streams.get(id);
            stream.is_some_and(|stream| stream.context == context)
        });
        let its: Vec<StreamId> = its.collect();
        if its.is_empty() {
            return self.refuse_while_recording();
        }
        for id in its {
            self.graphs.captures.invalidate_stream(id);
        }
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    }

    /// Captured streams that synchronise with a legacy stream, which must not be used meanwhile.
    fn recorded_blocking(&self, legacy: StreamId) -> Vec<StreamId> {
        let context = match self.streams.get(&legacy) {
            Some(stream) if stream.kind == Kind::Legacy => stream.context,
            _ => return Vec::new(),
        };
        let members = self.graphs.captures.members.keys().copied();
        let its = members.filter(|id| {
            let stream = self.streams.get(id);
            stream.is_some_and(|stream| stream.context == context && stream.is_blocking())
        });
        its.collect()
    }

    /// Refuses the legacy stream while a blocking stream is captured.
    pub(crate) fn refuse_implicit(&mut self, stream: StreamId) -> Answer {
        if self.graphs.captures.active.is_empty() {
            return Ok(());
        }
        let its = self.recorded_blocking(stream);
        if its.is_empty() {
            return Ok(());
        }
        for id in its {
            self.graphs.captures.invalidate_stream(id);
        }
        Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    }

    /// An event is recorded in a stream. True if the stream is captured.
    pub(crate) fn record_event(&mut self, event: EventId, stream: StreamId) -> Answer<bool> {
        if !self.is_recording(stream)? {
            self.graphs.captures.events.remove(&event);
            return Ok(false);
        }
        let captures = &mut self.graphs.captures;
        if let Some(member) = captures.members.get(&stream) {
            let place = (member.capture, member.last.clone());
            captures.events.insert(event, place);
        }
        Ok(true)
    }

    /// A stream waits for an event. True if the wait is part of a capture or has no effect.
    pub(crate) fn wait_in_capture(
        &mut self,
        stream: StreamId,
        event: EventId,
        is_recorded: bool,
    ) -> Answer<bool> {
        let is_member = self.is_recording(stream)?;
        let captures = &mut self.graphs.captures;
        let place = captures.events.get(&event).cloned();
        let place = place.filter(|(capture, _)| captures.active.contains_key(capture));
        let Some((capture, nodes)) = place else {
            if is_member && is_recorded {
                captures.invalidate_stream(stream);
                return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
            }
            return Ok(is_member);
        };
        match captures.members.get_mut(&stream) {
            Some(member) if member.capture == capture => {
                member.last.extend(nodes);
                member.last.sort_unstable();
                member.last.dedup();
            }
            Some(_) => {
                captures.invalidate_stream(stream);
                captures.invalidate(capture);
                return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE);
            }
            None => {
                let (last, told) = (nodes, Told::default());
                let member = Member {
                    capture,
                    last,
                    told,
                };
                captures.members.insert(stream, member);
            }
        }
        Ok(true)
    }

    /// The host queries an event or waits for it, which is refused for one recorded in a capture.
    pub(crate) fn refuse_captured_event(&mut self, event: EventId) -> Answer {
        let captures = &mut self.graphs.captures;
        if let Some((capture, _)) = captures.events.get(&event).cloned()
            && captures.active.contains_key(&capture)
        {
            captures.invalidate(capture);
            return Err(CUresult::CUDA_ERROR_CAPTURED_EVENT);
        }
        self.refuse_while_recording()
    }

    pub(crate) fn forget_captured_event(&mut self, event: EventId) {
        self.graphs.captures.events.remove(&event);
    }

    /// A stream is destroyed. If it is the origin of a capture, the capture ends too.
    pub(crate) fn leave_captures(&mut self, stream: StreamId) {
        let captures = &mut self.graphs.captures;
        let Some(member) = captures.members.remove(&stream) else {
            return;
        };
        let capture = captures.active.get(&member.capture);
        if capture.is_some_and(|capture| capture.origin == stream) {
            // A guess: the graph goes with it.
            if let Some(graph) = self.finish_capture(member.capture) {
                self.destroy_graph(graph);
            }
        } else {
            captures.invalidate(member.capture);
        }
    }

    /// Ends a capture and returns its graph, which has no owner yet.
    fn finish_capture(&mut self, id: CaptureId) -> Option<GraphId> {
        let captures = &mut self.graphs.captures;
        captures.members.retain(|_, member| member.capture != id);
        captures.events.retain(|_, (capture, _)| *capture != id);
        let graph = captures.active.remove(&id)?.graph;
        Some(graph)
    }

    /// Whether every stream of a capture has joined its origin.
    fn is_joined(&self, id: CaptureId, graph: GraphId, origin: StreamId) -> bool {
        let captures = &self.graphs.captures;
        let (Some(graph), Some(origin)) = (
            self.graphs.graphs.get(&graph),
            captures.members.get(&origin),
        ) else {
            return false;
        };
        let all = graph.with_ancestors(&origin.last);
        let mut members = captures.members.values();
        members
            .all(|member| member.capture != id || member.last.iter().all(|node| all.contains(node)))
    }

    fn end_capture(&mut self, stream: StreamId) -> Answer<GraphId> {
        let captures = &self.graphs.captures;
        let member = captures.members.get(&stream);
        let id = member.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?.capture;
        let capture = captures.active.get(&id).ok_or(INVALID_VALUE)?;
        let (graph, origin) = (capture.graph, capture.origin);
        if origin != stream {
            self.graphs.captures.invalidate(id);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let is_elsewhere = capture.mode != RELAXED && capture.thread != thread::number();
        let lost = if is_elsewhere {
            Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
        } else if capture.is_invalid {
            Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        } else if !self.is_joined(id, graph, origin) {
            Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        } else {
            None
        };
        self.finish_capture(id);
        if let Some(code) = lost {
            self.destroy_graph(graph);
            return Err(code);
        }
        if let Ok(graph) = self.graph(graph) {
            graph.is_recording = false;
        }
        Ok(graph)
    }
}

fn begin(handle: CUstream, call: Call, mode: CUstreamCaptureMode) -> Answer {
    if mode.0 > RELAXED {
        return Err(INVALID_VALUE);
    }
    let mut state = state()?;
    let id = state.resolve(handle, call)?;
    if state.stream(id)?.kind == Kind::Legacy {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if state.graphs.captures.members.contains_key(&id) {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
    }
    let thread = thread::number();
    let graph = state.add_graph(Graph {
        is_recording: true,
        ..Graph::default()
    });
    let captures = &mut state.graphs.captures;
    captures.next += 1;
    let capture = captures.next;
    captures.active.insert(
        capture,
        Capture {
            origin: id,
            mode: mode.0,
            thread,
            graph,
            is_invalid: false,
        },
    );
    let (last, told) = (Vec::new(), Told::default());
    let member = Member {
        capture,
        last,
        told,
    };
    captures.members.insert(id, member);
    Ok(())
}

exports! {
    plain fn cuStreamBeginCapture_v2(
        call, stream: CUstream, mode: CUstreamCaptureMode
    ) twin cuStreamBeginCapture_v2_ptsz {
        begin(stream, call, mode)
    }

    release fn cuStreamEndCapture(
        call, stream: CUstream, out: Out<CUgraph>
    ) twin cuStreamEndCapture_ptsz {
        let mut state = state()?;
        let id = state.resolve(stream, call)?;
        let ended = state.end_capture(id);
        out.write_if_wanted(ended.map_or(std::ptr::null_mut(), to_handle));
        if let Ok(graph) = ended
            && out.required().is_err()
        {
            state.destroy_graph(graph);
        }
        finish(state);
        ended.map(|_| ())
    }

    plain fn cuStreamIsCapturing(
        call, stream: CUstream, out: Out<CUstreamCaptureStatus>
    ) twin cuStreamIsCapturing_ptsz {
        out.required()?;
        let mut state = state()?;
        let id = state.resolve(stream, call)?;
        out.write(state.capture_status(id)?)
    }

    plain fn cuThreadExchangeStreamCaptureMode(_, mode: Out<CUstreamCaptureMode>) {
        let new = mode.as_input().read()?;
        // Measured: the mode is not validated.
        mode.write(CUstreamCaptureMode(MODE.replace(new.0)))
    }
}
