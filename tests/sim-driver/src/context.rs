//! Contexts: each device's primary context, those that a program creates, and the current one.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cuda_driver_sys::{CUcontext, CUctxCreateParams, CUresult};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::clock::StreamId;
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::limits::{Limits, MAP_HOST};
use crate::queue::Mark;
use crate::state::{HandleKind, State, from_handle, state, to_handle};
use crate::thread::with_contexts;

/// The number behind a `CUcontext`.
pub(crate) type ContextId = u64;

/// The result of `cuCtxGetApiVersion`.
const API_VERSION: c_uint = 3020;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Flags that `cuCtxCreate` knows.
const KNOWN_FLAGS: c_uint = 0xff;

/// A live context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) is_primary: bool,
    pub(crate) flags: c_uint,
    pub(crate) limits: Limits,
    /// The result of `cuCtxGetId`: never reused, unlike handles.
    unique_id: u64,
    pub(crate) legacy: Option<StreamId>,
    pub(crate) per_thread: FxHashMap<u64, StreamId>,
    /// Contexts whose memory it may access.
    pub(crate) peers: FxHashSet<ContextId>,
    /// Held while a host function runs.
    pub(crate) host_turn: Arc<Mutex<()>>,
}

fn current_id() -> Option<ContextId> {
    with_contexts(|contexts| contexts.last().copied())
}

impl State {
    pub(crate) fn add_context(
        &mut self,
        id: ContextId,
        device: usize,
        is_primary: bool,
        flags: c_uint,
    ) {
        let context = Context {
            device,
            is_primary,
            flags,
            limits: Limits::default(),
            unique_id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            legacy: None,
            per_thread: FxHashMap::default(),
            peers: FxHashSet::default(),
            host_turn: Arc::default(),
        };
        self.contexts.insert(id, context);
        self.load_libraries_into(id);
    }

    /// The current context of this thread.
    pub(crate) fn current(&self) -> Answer<ContextId> {
        let id = current_id().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        self.context(id)?;
        Ok(id)
    }

    pub(crate) fn context(&self, id: ContextId) -> Answer<&Context> {
        match self.contexts.get(&id) {
            Some(context) => Ok(context),
            None if self.is_context_handle(id) => Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
            None => Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
        }
    }

    /// Whether this is or was a context.
    fn is_context_handle(&self, id: ContextId) -> bool {
        self.contexts.contains_key(&id) || self.ended_contexts.contains(&id) || self.is_primary(id)
    }

    fn is_primary(&self, id: ContextId) -> bool {
        self.devices.iter().any(|device| device.primary == Some(id))
    }

    /// Measured: a destroyed primary context can still be made current. With a destroyed `cuCtxCreate` context the
    /// driver corrupts its memory, in six processes of ten; here that is an error.
    fn check_may_be_current(&self, id: ContextId) -> Answer {
        if self.is_primary(id) {
            Ok(())
        } else {
            self.context(id).map(|_| ())
        }
    }

    /// The ends of all work in a context.
    fn marks(&self, id: ContextId) -> Vec<Mark> {
        let streams = self.streams.values();
        streams
            .filter(|stream| stream.context == id)
            .map(|stream| stream.queue.mark())
            .collect()
    }

    /// Destroys a context whose work is done, with its streams, events and memory.
    pub(crate) fn end_context(&mut self, id: ContextId) {
        self.contexts.remove(&id);
        self.ended_contexts.insert(id);
        // Measured: a reset, too, takes the flags of a primary context.
        for device in &mut self.devices {
            if device.primary == Some(id) {
                device.primary_flags = 0;
            }
        }
        for context in self.contexts.values_mut() {
            context.peers.remove(&id);
        }
        self.orphan_streams(id);
        self.end_modules_of(id);
        self.sharing.end_context(id);
        let (events, orphaned) = (&mut self.events, &mut self.orphaned_events);
        events.retain(|&event, it| {
            let is_orphan = it.context == id;
            if is_orphan {
                orphaned.insert(event, id);
            }
            !is_orphan
        });
        self.free_allocations_of(id);
        self.end_registrations_of(id);
    }
}

/// Waits for all work of a context, and records that the host observed it.
fn synchronise(id: ContextId) -> Answer {
    let (device, marks, pasts) = {
        let mut state = state()?;
        state.context(id)?;
        state.refuse_in_context(id)?;
        let device = state.context(id)?.device;
        let streams = state
            .streams
            .iter()
            .filter(|(_, stream)| stream.context == id);
        let pasts: Vec<_> = streams.map(|(id, _)| state.clocks.past(*id)).collect();
        (device, state.marks(id), pasts)
    };
    marks.iter().for_each(Mark::wait);
    let mut state = state()?;
    state.observe(&pasts);
    state.shrink_pools_if(|pool| pool.device.is_none_or(|of| of == device));
    Ok(())
}

/// Waits for all work of a context. The host has not observed it: freed memory keeps waiting.
pub(crate) fn wait_for(id: ContextId) -> Answer {
    let marks = state()?.marks(id);
    marks.iter().for_each(Mark::wait);
    Ok(())
}

/// Waits for all work of a context, and destroys it if `may_end` still agrees.
fn finish(id: ContextId, may_end: impl FnOnce(&mut State) -> Answer<bool>) -> Answer {
    wait_for(id)?;
    let mut state = state()?;
    if may_end(&mut state)? {
        state.end_context(id);
    }
    Ok(())
}

fn create(out: Out<CUcontext>, flags: c_uint, device: c_int) -> Answer {
    out.required()?;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let mut state = state()?;
    let device = state.ordinal(device)?;
    let id = state.new_handle(HandleKind::Context);
    state.add_context(id, device, false, flags);
    with_contexts(|contexts| contexts.push(id));
    out.write(to_handle(id))
}

fn release_primary(device: c_int) -> Answer {
    let id = {
        let mut state = state()?;
        let ordinal = state.ordinal(device)?;
        let device = &mut state.devices[ordinal];
        match (device.primary, device.retains) {
            (_, 0) | (None, _) => return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
            (Some(id), 1) => id,
            _ => {
                device.retains -= 1;
                return Ok(());
            }
        }
    };
    finish(id, |state| {
        let ordinal = state.ordinal(device)?;
        let device = &mut state.devices[ordinal];
        device.retains = device
            .retains
            .checked_sub(1)
            .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        Ok(device.retains == 0)
    })
}

/// Destroys the primary context despite its retains. Measured: they still count.
fn reset_primary(device: c_int) -> Answer {
    let id = {
        let state = state()?;
        let primary = state.devices[state.ordinal(device)?].primary;
        let Some(id) = primary.filter(|id| state.contexts.contains_key(id)) else {
            return Ok(());
        };
        id
    };
    finish(id, |_| Ok(true))
}

exports! {
    plain fn cuDevicePrimaryCtxReset(_, device: c_int) {
        reset_primary(device)
    }

    plain fn cuDevicePrimaryCtxReset_v2(_, device: c_int) {
        reset_primary(device)
    }

    plain fn cuDevicePrimaryCtxRetain(_, out: Out<CUcontext>, device: c_int) {
        out.required()?;
        let mut state = state()?;
        let ordinal = state.ordinal(device)?;
        let id = match state.devices[ordinal].primary {
            Some(id) => id,
            None => state.new_handle(HandleKind::Context),
        };
        let device = &mut state.devices[ordinal];
        device.primary = Some(id);
        device.retains += 1;
        if !state.contexts.contains_key(&id) {
            let flags = state.devices[ordinal].primary_flags | MAP_HOST;
            state.add_context(id, ordinal, true, flags);
        }
        out.write(to_handle(id))
    }

    release fn cuDevicePrimaryCtxRelease(_, device: c_int) {
        release_primary(device)
    }

    release fn cuDevicePrimaryCtxRelease_v2(_, device: c_int) {
        release_primary(device)
    }

    plain fn cuDevicePrimaryCtxGetState(
        _, device: c_int, flags: Out<c_uint>, active: Out<c_int>
    ) {
        let state = state()?;
        let found = state.device(device)?;
        let (primary, set) = (found.primary, found.primary_flags);
        let is_active = primary.is_some_and(|id| state.contexts.contains_key(&id));
        flags.write(set)?;
        active.write(c_int::from(is_active))
    }

    plain fn cuCtxCreate_v2(_, out: Out<CUcontext>, flags: c_uint, device: c_int) {
        create(out, flags, device)
    }

    plain fn cuCtxCreate_v4(
        _, out: Out<CUcontext>, parameters: Out<CUctxCreateParams>, flags: c_uint, device: c_int
    ) {
        // Null requests a plain context; execution affinity and graphics contexts are not simulated.
        if let Ok(parameters) = parameters.as_input().read()
            && (parameters.numExecAffinityParams != 0 || !parameters.cigParams.is_null())
        {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        create(out, flags, device)
    }

    release fn cuCtxDestroy_v2(_, context: CUcontext) {
        let id = from_handle(context);
        if id == 0 {
            return Err(INVALID_VALUE);
        }
        if state()?.contexts.get(&id).is_none_or(|context| context.is_primary) {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        finish(id, |state| Ok(state.contexts.contains_key(&id)))?;
        with_contexts(|contexts| {
            if contexts.last() == Some(&id) {
                contexts.pop();
            }
        });
        Ok(())
    }

    plain fn cuCtxGetCurrent(_, out: Out<CUcontext>) {
        out.write(current_id().map_or(std::ptr::null_mut(), to_handle))
    }

    plain fn cuCtxSetCurrent(_, context: CUcontext) {
        let id = from_handle(context);
        if id != 0 {
            state()?.check_may_be_current(id)?;
        }
        with_contexts(|contexts| {
            contexts.pop();
            if id != 0 {
                contexts.push(id);
            }
        });
        Ok(())
    }

    plain fn cuCtxPushCurrent_v2(_, context: CUcontext) {
        let id = from_handle(context);
        if id == 0 {
            return Err(INVALID_VALUE);
        }
        state()?.check_may_be_current(id)?;
        with_contexts(|contexts| contexts.push(id));
        Ok(())
    }

    plain fn cuCtxPopCurrent_v2(_, out: Out<CUcontext>) {
        let id = with_contexts(Vec::pop);
        let id = id.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        out.write_if_wanted(to_handle(id));
        Ok(())
    }

    plain fn cuCtxGetId(_, context: CUcontext, out: Out<c_ulonglong>) {
        out.required()?;
        let state = state()?;
        let id = match from_handle(context) {
            0 => state.current()?,
            id => id,
        };
        out.write(state.context(id)?.unique_id)
    }

    plain fn cuCtxGetDevice(_, out: Out<c_int>) {
        out.required()?;
        let state = state()?;
        let device = state.context(state.current()?)?.device;
        out.write(c_int::try_from(device).unwrap_or(0))
    }

    plain fn cuCtxGetFlags(_, out: Out<c_uint>) {
        out.required()?;
        let state = state()?;
        out.write(state.context(state.current()?)?.flags)
    }

    plain fn cuCtxSynchronize(_) {
        let current = state()?.current()?;
        synchronise(current)
    }

    plain fn cuCtxSynchronize_v2(_, context: CUcontext) {
        let id = match from_handle(context) {
            0 => state()?.current()?,
            id => id,
        };
        synchronise(id)
    }

    plain fn cuCtxGetApiVersion(_, context: CUcontext, out: Out<c_uint>) {
        out.required()?;
        let state = state()?;
        match from_handle(context) {
            0 => state.current().map(|_| ())?,
            id => state.context(id).map(|_| ())?,
        }
        out.write(API_VERSION)
    }

    plain fn cuCtxGetStreamPriorityRange(_, least: Out<c_int>, greatest: Out<c_int>) {
        state()?.current()?;
        least.write_if_wanted(*crate::stream::PRIORITIES.end());
        greatest.write_if_wanted(*crate::stream::PRIORITIES.start());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Configuration;
    use crate::device;
    use crate::event::Event;
    use crate::stream::Kind;

    #[test]
    fn a_destroyed_context_leaves_handles_only() {
        let configuration = Configuration::get();
        crate::state::initialise(configuration, device::visible(configuration, None));
        let mut state = state().expect("initialised");
        let gone = Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        for _ in 0..3 {
            let context = state.new_handle(HandleKind::Context);
            state.add_context(context, 0, false, 0);
            let stream = state
                .add_stream(context, Kind::Explicit, 0, 0)
                .expect("a context");
            state.legacy(context).expect("a context");
            let event = state.new_handle(HandleKind::Event);
            let slot = state.new_slot(context, event).expect("memory");
            state.events.insert(event, Event::opened(context, slot));
            state.end_context(context);
            assert!(state.streams.is_empty() && state.events.is_empty());
            assert_eq!(state.stream(stream).map(|_| ()), gone);
            assert_eq!(state.event(to_handle(event)).map(|_| ()), gone);
        }
    }
}
