//! Streams: handles, the default streams, and ordering among them.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};

use cuda_driver_sys::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUevent, CUresult, CUstream,
};

use crate::clock::{Past, Point, StreamId};
use crate::context::ContextId;
use crate::export::{Answer, Call, INVALID_VALUE, Out, exports};
use crate::graph::finish;
use crate::queue::{Mark, Queue, Task};
use crate::reach::Reach;
use crate::state::{HandleKind, State, from_handle, state, to_handle};
use crate::thread;

/// From the greatest to the least priority; smaller numbers are more urgent.
pub(crate) const PRIORITIES: RangeInclusive<c_int> = -5..=0;

const NON_BLOCKING: c_uint = 1;

/// The kind of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Created by `cuStreamCreate`.
    Explicit,
    /// The default stream of a context, which synchronises with its blocking streams.
    Legacy,
    /// The default stream of one thread in a context.
    PerThread,
}

/// Whether the program may still use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Usable,
    /// Destroyed by the program; the queue may still drain.
    Destroyed,
    /// Its context was destroyed; kept while the queue drains.
    Orphaned,
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: ContextId,
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    pub(crate) life: Life,
    flags: c_uint,
    priority: c_int,
    pub(crate) queue: Arc<Queue>,
    /// What the last kernel of the program's own may access, while a launch needs it.
    pub(crate) reach: Weak<Reach>,
}

impl Stream {
    /// Whether it synchronises with the legacy stream of its context.
    pub(crate) fn is_blocking(&self) -> bool {
        self.life != Life::Orphaned && self.flags & NON_BLOCKING == 0 && self.kind != Kind::Legacy
    }
}

impl State {
    pub(crate) fn add_stream(
        &mut self,
        context: ContextId,
        kind: Kind,
        flags: c_uint,
        priority: c_int,
    ) -> Answer<StreamId> {
        let device = self.context(context)?.device;
        let id = self.new_handle(HandleKind::Stream);
        let stream = Stream {
            context,
            device,
            kind,
            life: Life::Usable,
            flags,
            priority,
            queue: Arc::default(),
            reach: Weak::new(),
        };
        self.streams.insert(id, stream);
        self.clocks.add(id);
        Ok(id)
    }

    /// The stream of a handle. The default streams belong to the current context and are created on first use; explicit
    /// ones need no current context.
    pub(crate) fn resolve(&mut self, handle: CUstream, call: Call) -> Answer<StreamId> {
        let null_is_per_thread = call.per_thread && handle.is_null();
        if handle == CU_STREAM_PER_THREAD || null_is_per_thread {
            let (context, thread) = (self.current()?, thread::number());
            if let Some(id) = self.context(context)?.per_thread.get(&thread) {
                return Ok(*id);
            }
            let id = self.add_stream(context, Kind::PerThread, 0, 0)?;
            if let Some(context) = self.contexts.get_mut(&context) {
                context.per_thread.insert(thread, id);
            }
            return Ok(id);
        }
        if handle.is_null() || handle == CU_STREAM_LEGACY {
            let context = self.current()?;
            return self.legacy(context);
        }
        let id = from_handle(handle);
        self.stream(id)?;
        Ok(id)
    }

    /// The legacy stream of a context.
    pub(crate) fn legacy(&mut self, context: ContextId) -> Answer<StreamId> {
        if let Some(id) = self.context(context)?.legacy {
            return Ok(id);
        }
        let id = self.add_stream(context, Kind::Legacy, 0, 0)?;
        if let Some(context) = self.contexts.get_mut(&context) {
            context.legacy = Some(id);
        }
        Ok(id)
    }

    pub(crate) fn stream(&self, id: StreamId) -> Answer<&Stream> {
        match self.streams.get(&id) {
            Some(stream) if stream.life == Life::Usable => Ok(stream),
            _ if self.orphaned_streams.contains(&id) => {
                Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)
            }
            _ => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
        }
    }

    /// Starts a task on a stream: orders it after the legacy stream or, on that, after all blocking streams.
    pub(crate) fn begin(&mut self, id: StreamId) -> Answer<Point> {
        self.refuse_implicit(id)?;
        let stream = self.stream(id)?;
        let context = stream.context;
        let others: Vec<StreamId> = if stream.kind == Kind::Legacy {
            self.streams
                .iter()
                .filter(|(_, other)| other.context == context && other.is_blocking())
                .map(|(id, _)| *id)
                .collect()
        } else if stream.is_blocking() {
            self.context(context)?.legacy.into_iter().collect()
        } else {
            Vec::new()
        };
        for other in others {
            self.wait_for_stream(id, other)?;
        }
        Ok(self.clocks.tick(id))
    }

    /// Orders `id` after everything on `other`.
    fn wait_for_stream(&mut self, id: StreamId, other: StreamId) -> Answer {
        let past = self.clocks.past(other);
        if let Some(other) = self.streams.get(&other) {
            let mark = other.queue.mark();
            self.wait_for(id, &past, mark)?;
        }
        Ok(())
    }

    /// Orders `id` after `past`, and blocks it until `mark` is reached.
    pub(crate) fn wait_for(&mut self, id: StreamId, past: &Past, mark: Mark) -> Answer {
        self.clocks.join(id, past);
        if mark.is_reached() {
            Ok(())
        } else {
            self.stream(id)?.queue.push(Task::Wait(mark))
        }
    }

    /// Records that the host synchronised with this: memory freed before is free for every stream, and pools above
    /// their threshold that these streams used release some.
    pub(crate) fn observe(&mut self, pasts: &[Past]) {
        for past in pasts {
            self.clocks.synchronise(past);
        }
        self.shrink_pools(pasts);
        self.free_what_was_left();
        self.forget_streams();
    }

    /// Records that the host knows this is done, from a query or a returned copy, which the driver does not count as
    /// synchronisation.
    pub(crate) fn note_observed(&mut self, pasts: &[Past]) {
        for past in pasts {
            self.clocks.observe(past);
        }
        self.empty_graveyard();
    }

    fn forget_streams(&mut self) {
        let Self {
            streams,
            clocks,
            pools,
            ..
        } = self;
        streams.retain(|id, stream| {
            let done = stream.life != Life::Usable && stream.queue.is_idle();
            // The end of a context synchronises with its streams.
            let gone = done && clocks.is_synchronised(clocks.now(*id));
            if gone {
                pools.values_mut().for_each(|pool| {
                    pool.users.remove(id);
                });
            }
            !gone
        });
        self.empty_graveyard();
    }

    /// Makes streams unusable to the program; their queues still drain.
    pub(crate) fn destroy_streams(&mut self, ids: &[StreamId]) {
        for id in ids {
            if let Some(stream) = self.streams.get_mut(id) {
                stream.life = Life::Destroyed;
            }
            self.leave_captures(*id);
            self.clocks.retire(*id);
        }
        // Measured: destroying an idle stream synchronises with it.
        self.end_finished_streams();
    }

    /// Finished work of destroyed streams counts as synchronised without a call.
    pub(crate) fn end_finished_streams(&mut self) {
        let finished = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.life == Life::Destroyed && stream.queue.is_idle());
        let finished: Vec<StreamId> = finished.map(|(id, _)| *id).collect();
        if finished.is_empty() {
            return;
        }
        for id in finished {
            let past = self.clocks.past(id);
            for pool in self.pools.values_mut() {
                pool.space.settle(&self.clocks);
            }
            let waiting = self.pools.iter();
            let waiting: Vec<_> = waiting
                .filter(|(_, pool)| pool.space.has_pending_of(id))
                .map(|(pool, _)| *pool)
                .collect();
            self.clocks.synchronise(&past);
            for id in waiting {
                self.shrink_pool(id);
            }
        }
        self.free_what_was_left();
        self.forget_streams();
    }

    /// The context was destroyed, and its streams with it.
    pub(crate) fn orphan_streams(&mut self, context: ContextId) {
        let mut pasts = Vec::new();
        for (id, stream) in &mut self.streams {
            if stream.context == context && stream.life != Life::Orphaned {
                stream.life = Life::Orphaned;
                pasts.push(self.clocks.past(*id));
                self.clocks.retire(*id);
                // Only streams created by the program can be named again, and return that the context is destroyed.
                if stream.kind == Kind::Explicit {
                    self.orphaned_streams.insert(*id);
                }
            }
        }
        // The context's destruction waited for its work.
        for past in &pasts {
            self.clocks.synchronise(past);
        }
        self.free_what_was_left();
        self.forget_streams();
    }
}

impl State {
    /// The streams that must be done for this one to count as done: for the legacy stream, all that synchronise with
    /// it.
    fn with_blocking(&self, id: StreamId) -> Answer<Vec<StreamId>> {
        let stream = self.stream(id)?;
        let mut all = vec![id];
        if stream.kind == Kind::Legacy {
            let others = self.streams.iter();
            let others =
                others.filter(|(_, other)| other.context == stream.context && other.is_blocking());
            all.extend(others.map(|(id, _)| *id));
        }
        Ok(all)
    }

    /// The ends of all work on these streams, and their pasts.
    fn ends(&self, streams: &[StreamId]) -> (Vec<Mark>, Vec<Past>) {
        let known = streams.iter().filter_map(|id| self.streams.get(id));
        let marks = known.map(|stream| stream.queue.mark()).collect();
        let pasts = streams.iter().map(|id| self.clocks.past(*id)).collect();
        (marks, pasts)
    }
}

/// Waits for a stream without holding the state lock, and records that the host observed it.
pub(crate) fn synchronise(handle: CUstream, call: Call) -> Answer {
    let (id, (marks, pasts)) = {
        let mut state = state()?;
        let id = state.resolve(handle, call)?;
        state.refuse_on_recorded(id)?;
        let ends = state.ends(&state.with_blocking(id)?);
        state.waited_for.push(id);
        (id, ends)
    };
    marks.iter().for_each(Mark::wait);
    let mut state = state()?;
    if let Some(place) = state.waited_for.iter().position(|waited| *waited == id) {
        state.waited_for.swap_remove(place);
    }
    state.observe(&pasts);
    Ok(())
}

fn create(out: Out<CUstream>, flags: c_uint, priority: c_int) -> Answer {
    out.required()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(INVALID_VALUE);
    }
    let mut state = state()?;
    let context = state.current()?;
    let priority = priority.clamp(*PRIORITIES.start(), *PRIORITIES.end());
    let id = state.add_stream(context, Kind::Explicit, flags, priority)?;
    out.write(to_handle(id))
}

/// Whether a wait or record has the external flag.
pub(crate) fn is_external(flags: c_uint) -> Answer<bool> {
    match flags {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(INVALID_VALUE),
    }
}

exports! {
    plain fn cuStreamCreate(_, out: Out<CUstream>, flags: c_uint) {
        create(out, flags, 0)
    }

    plain fn cuStreamCreateWithPriority(
        _, out: Out<CUstream>, flags: c_uint, priority: c_int
    ) {
        create(out, flags, priority)
    }

    release fn cuStreamDestroy_v2(_, handle: CUstream) {
        let mut state = state()?;
        let id = from_handle(handle);
        match state.stream(id) {
            Ok(stream) if stream.kind == Kind::Explicit => {}
            Ok(_) => return Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
            Err(code) => {
                if code == CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED {
                    state.orphaned_streams.remove(&id);
                }
                return Err(code);
            }
        }
        state.destroy_streams(&[id]);
        finish(state);
        Ok(())
    }

    plain fn cuStreamSynchronize(call, handle: CUstream) twin cuStreamSynchronize_ptsz {
        synchronise(handle, call)
    }

    plain fn cuStreamQuery(call, handle: CUstream) twin cuStreamQuery_ptsz {
        let mut state = state()?;
        let id = state.resolve(handle, call)?;
        state.refuse_on_recorded(id)?;
        let (marks, pasts) = state.ends(&state.with_blocking(id)?);
        if !marks.iter().all(Mark::is_reached) {
            return Err(CUresult::CUDA_ERROR_NOT_READY);
        }
        state.note_observed(&pasts);
        Ok(())
    }

    plain fn cuStreamWaitEvent(
        call, handle: CUstream, event: CUevent, flags: c_uint
    ) twin cuStreamWaitEvent_ptsz {
        let is_external = is_external(flags)?;
        let mut state = state()?;
        let id = state.resolve(handle, call)?;
        if is_external {
            return state.record_external(id, event, true);
        }
        let recorded = state.event(event)?.last();
        // Before the wait, which could make the legacy stream part of the capture that forbids it.
        state.refuse_implicit(id)?;
        if state.wait_in_capture(id, from_handle(event), recorded.is_some())? {
            return Ok(());
        }
        state.begin(id)?;
        match recorded {
            Some(recorded) => state.wait_for(id, &recorded.past, recorded.mark),
            None => Ok(()),
        }
    }

    plain fn cuStreamGetCtx(
        call, handle: CUstream, out: Out<CUcontext>
    ) twin cuStreamGetCtx_ptsz {
        out.required()?;
        let mut state = state()?;
        let id = state.resolve(handle, call)?;
        out.write(to_handle(state.stream(id)?.context))
    }

    plain fn cuStreamGetDevice(call, handle: CUstream, out: Out<c_int>) twin cuStreamGetDevice_ptsz {
        out.required()?;
        let mut state = state()?;
        let id = state.resolve(handle, call)?;
        state.refuse_on_own_capture(id)?;
        out.write(c_int::try_from(state.stream(id)?.device).unwrap_or(0))
    }

    plain fn cuStreamGetFlags(
        call, handle: CUstream, out: Out<c_uint>
    ) twin cuStreamGetFlags_ptsz {
        out.required()?;
        let mut state = state()?;
        let id = state.resolve(handle, call)?;
        state.refuse_on_own_capture(id)?;
        out.write(state.stream(id)?.flags)
    }

    plain fn cuStreamGetPriority(
        call, handle: CUstream, out: Out<c_int>
    ) twin cuStreamGetPriority_ptsz {
        out.required()?;
        let mut state = state()?;
        let id = state.resolve(handle, call)?;
        out.write(state.stream(id)?.priority)
    }

    plain fn cuStreamGetId(
        call, handle: CUstream, out: Out<c_ulonglong>
    ) twin cuStreamGetId_ptsz {
        out.required()?;
        let mut state = state()?;
        let id = state.resolve(handle, call)?;
        state.refuse_on_own_capture(id)?;
        out.write(id)
    }
}
