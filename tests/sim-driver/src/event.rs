//! Events: points in a stream that can be waited for, queried and timed.

use std::ffi::c_uint;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use cuda_driver_sys::{CUevent, CUresult, CUstream};

use crate::clock::{Past, StreamId};
use crate::context::ContextId;
use crate::export::{Answer, Call, INVALID_VALUE, Out, exports};
use crate::ipc::{Signal, Slot};
use crate::queue::{Mark, Task};
use crate::state::{HandleKind, State, from_handle, state, to_handle};
use crate::stream::is_external;

/// The number behind a `CUevent`.
pub(crate) type EventId = u64;

const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;
const KNOWN_FLAGS: c_uint = 7;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: ContextId,
    flags: c_uint,
    /// The last record in this process; `None` counts as reached.
    recorded: Option<Recorded>,
    /// The state shared with other processes.
    shared: Option<Shared>,
}

/// The shared state of an interprocess event.
#[derive(Debug)]
struct Shared {
    slot: Slot,
    /// Whether another process created it.
    is_opened: bool,
    /// The signal of `recorded` for the other processes.
    own: Option<Signal>,
}

impl Event {
    /// An event that another process created.
    pub(crate) fn opened(context: ContextId, slot: Slot) -> Self {
        let shared = Shared {
            slot,
            is_opened: true,
            own: None,
        };
        Self {
            context,
            flags: DISABLE_TIMING | INTERPROCESS,
            recorded: None,
            shared: Some(shared),
        }
    }

    /// Its slot for other processes, if it was created here as interprocess.
    pub(crate) fn own_slot(&self) -> Option<&Slot> {
        let shared = self.shared.as_ref()?;
        (!shared.is_opened).then_some(&shared.slot)
    }

    /// The last record by any process.
    pub(crate) fn last(&self) -> Option<Recorded> {
        let Some(shared) = &self.shared else {
            return self.recorded.clone();
        };
        let signal = shared.slot.latest()?;
        let is_own = shared.own.as_ref().is_some_and(|own| own.is_same(&signal));
        let past = self.recorded.as_ref().filter(|_| is_own);
        Some(Recorded {
            past: past.map_or_else(Past::default, |recorded| recorded.past.clone()),
            mark: Mark::shared(signal),
            time: Arc::default(),
        })
    }
}

/// A record of an event.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(crate) mark: Mark,
    pub(crate) past: Past,
    time: Arc<OnceLock<Instant>>,
}

impl State {
    pub(crate) fn event(&self, handle: CUevent) -> Answer<&Event> {
        let id = from_handle(handle);
        if let Some(event) = self.events.get(&id) {
            return Ok(event);
        }
        match self.orphaned_events.get(&id) {
            None => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
            // Measured: the result changes when the primary context is retained again.
            Some(context) => match self.context(*context) {
                Ok(_) => Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
                Err(code) => Err(code),
            },
        }
    }

    fn record(&mut self, event: CUevent, stream: CUstream, call: Call) -> Answer {
        let id = self.resolve(stream, call)?;
        let context = self.event(event)?.context;
        if self.stream(id)?.context != context {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        if self.record_event(from_handle(event), id)? {
            return Ok(());
        }
        self.record_now(from_handle(event), id)
    }

    /// Records an event at the end of a stream; nothing happens if it was destroyed.
    pub(crate) fn record_now(&mut self, id: EventId, stream: StreamId) -> Answer {
        self.begin(stream)?;
        self.forget_captured_event(id);
        let Some(event) = self.events.get(&id) else {
            return Ok(());
        };
        let queue = Arc::clone(&self.stream(stream)?.queue);
        let time = Arc::new(OnceLock::new());
        // Without a time to take, an event is only a position in the queue.
        if event.flags & DISABLE_TIMING == 0 {
            if queue.is_idle() {
                let _ = time.set(Instant::now());
            } else {
                queue.push(Task::Stamp(Arc::clone(&time)))?;
            }
        }
        let signal = event.shared.as_ref();
        let signal = signal.map(|shared| shared.slot.record());
        if let Some(signal) = &signal {
            if queue.is_idle() {
                signal.reach();
            } else {
                queue.push(Task::Signal(signal.clone()))?;
            }
        }
        let recorded = Recorded {
            mark: queue.mark(),
            past: self.clocks.past(stream),
            time,
        };
        if let Some(event) = self.events.get_mut(&id) {
            event.recorded = Some(recorded);
            if let Some(shared) = &mut event.shared {
                shared.own = signal;
            }
        }
        Ok(())
    }
}

/// Milliseconds between two timed events that are complete.
fn elapsed(out: Out<f32>, start: CUevent, end: CUevent) -> Answer {
    // Measured: not INVALID_VALUE.
    out.required()
        .map_err(|_| CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    let state = state()?;
    let time = |handle| {
        let event = state.event(handle)?;
        match &event.recorded {
            Some(recorded) if event.flags & DISABLE_TIMING == 0 => recorded
                .time
                .get()
                .copied()
                .ok_or(CUresult::CUDA_ERROR_NOT_READY),
            _ => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
        }
    };
    let (start, end): (Instant, Instant) = (time(start)?, time(end)?);
    let forward = end.saturating_duration_since(start).as_secs_f32();
    let backward = start.saturating_duration_since(end).as_secs_f32();
    out.write((forward - backward) * 1000.0)
}

exports! {
    plain fn cuEventCreate(_, out: Out<CUevent>, flags: c_uint) {
        out.required()?;
        let impossible = flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0;
        if flags & !KNOWN_FLAGS != 0 || impossible {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        let context = state.current()?;
        let id = state.new_handle(HandleKind::Event);
        let shared = if flags & INTERPROCESS == 0 {
            None
        } else {
            let slot = state.new_slot(context, id)?;
            Some(Shared { slot, is_opened: false, own: None })
        };
        let event = Event { context, flags, recorded: None, shared };
        state.events.insert(id, event);
        out.write(to_handle(id))
    }

    release fn cuEventDestroy_v2(_, event: CUevent) {
        let mut state = state()?;
        let answer = state.event(event).map(|_| ());
        if let Some(event) = state.events.remove(&from_handle(event))
            && let Some(slot) = event.own_slot()
        {
            state.end_slot(event.context, slot);
        }
        state.orphaned_events.remove(&from_handle(event));
        state.forget_captured_event(from_handle(event));
        answer
    }

    plain fn cuEventRecord(call, event: CUevent, stream: CUstream) twin cuEventRecord_ptsz {
        state()?.record(event, stream, call)
    }

    plain fn cuEventRecordWithFlags(
        call, event: CUevent, stream: CUstream, flags: c_uint
    ) twin cuEventRecordWithFlags_ptsz {
        if is_external(flags)? {
            let mut state = state()?;
            let id = state.resolve(stream, call)?;
            return state.record_external(id, event, false);
        }
        state()?.record(event, stream, call)
    }

    plain fn cuEventQuery(_, event: CUevent) {
        let mut state = state()?;
        state.event(event)?;
        state.refuse_captured_event(from_handle(event))?;
        match state.event(event)?.last() {
            Some(recorded) if !recorded.mark.is_reached() => Err(CUresult::CUDA_ERROR_NOT_READY),
            Some(recorded) => {
                state.note_observed(&[recorded.past]);
                Ok(())
            }
            None => Ok(()),
        }
    }

    plain fn cuEventSynchronize(_, event: CUevent) {
        let recorded = {
            let mut state = state()?;
            let recorded = state.event(event)?.last();
            state.refuse_captured_event(from_handle(event))?;
            recorded
        };
        if let Some(recorded) = recorded {
            recorded.mark.wait();
            state()?.observe(&[recorded.past]);
        }
        Ok(())
    }

    plain fn cuEventElapsedTime(_, out: Out<f32>, start: CUevent, end: CUevent) {
        elapsed(out, start, end)
    }

    plain fn cuEventElapsedTime_v2(_, out: Out<f32>, start: CUevent, end: CUevent) {
        elapsed(out, start, end)
    }
}
