//! Objects of the program that graphs keep alive.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::MutexGuard;

use cuda_driver_sys::{CUgraph, CUhostFn, CUuserObject};
use rustc_hash::FxHashMap;

use crate::callback;
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::queue::{HostCall, Task};
use crate::state::{HandleKind, State, from_handle, state, to_handle};

use super::instances::Last;

/// The number behind a `CUuserObject`.
pub(super) type ObjectId = u64;

/// References that a graph or an executable graph holds.
pub(super) type References = BTreeMap<ObjectId, u32>;

const NO_DESTRUCTOR_SYNC: c_uint = 1;
const MOVE: c_uint = 1;
/// Larger counts are refused, except at creation.
const MOST: u32 = i32::MAX as u32;

/// The live objects, and those whose destructor has to run.
#[derive(Debug, Default)]
pub(super) struct Objects {
    live: FxHashMap<ObjectId, Object>,
    dead: Vec<Object>,
}

#[derive(Debug)]
struct Object {
    destroy: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
    /// References of the program and of all graphs.
    count: u32,
}

// SAFETY: the contract of cuUserObjectCreate: the destructor may run in any thread.
unsafe impl Send for Object {}

fn check_count(count: c_uint) -> Answer {
    if (1..=MOST).contains(&count) {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

impl State {
    fn object(&mut self, object: CUuserObject) -> Answer<&mut Object> {
        let live = &mut self.graphs.objects.live;
        live.get_mut(&from_handle(object)).ok_or(INVALID_VALUE)
    }

    /// Gives references back. Measured: an object ends when none is left, and not with more given back than there are.
    fn drop_reference(&mut self, id: ObjectId, count: u32) {
        let Objects { live, dead } = &mut self.graphs.objects;
        let Some(object) = live.get_mut(&id) else {
            return;
        };
        object.count = object.count.wrapping_sub(count);
        if object.count == 0 {
            dead.extend(live.remove(&id));
        }
    }

    pub(super) fn drop_references(&mut self, references: References) {
        for (id, count) in references {
            self.drop_reference(id, count);
        }
    }

    /// Takes the same references once more, for a copy.
    pub(super) fn copy_references(&mut self, references: &References) -> References {
        for (id, count) in references {
            if let Some(object) = self.graphs.objects.live.get_mut(id) {
                object.count = object.count.wrapping_add(*count);
            }
        }
        references.clone()
    }

    /// Gives the references of an executable graph back. Measured: once its last launch is done.
    pub(super) fn drop_references_after(&mut self, references: References, last: Option<&Last>) {
        let busy = last.filter(|last| !last.mark.is_reached() && !references.is_empty());
        let queue = busy.and_then(|last| self.streams.get(&last.stream));
        let Some(queue) = queue.map(|stream| &stream.queue) else {
            return self.drop_references(references);
        };
        let argument = Box::into_raw(Box::new(references)).cast();
        let call = HostCall {
            function: release_later,
            argument,
            turn: std::sync::Arc::default(),
        };
        // If the system has no thread for it, the objects are never destroyed.
        let _ = queue.push(Task::Host(call));
    }
}

unsafe extern "C" fn release_later(argument: *mut c_void) {
    // SAFETY: `drop_references_after` made this box for this one call.
    let references = unsafe { Box::from_raw(argument.cast::<References>()) };
    if let Ok(mut state) = state() {
        state.drop_references(*references);
        finish(state);
    }
}

/// Unlocks the state, and runs the destructors of objects that have ended. Measured: in this thread.
pub(crate) fn finish(mut state: MutexGuard<'_, State>) {
    let dead = std::mem::take(&mut state.graphs.objects.dead);
    drop(state);
    for object in dead {
        // Measured: a destructor must not call the driver.
        let _inside = callback::Inside::begin();
        // SAFETY: the program gave this function with this argument to cuUserObjectCreate.
        unsafe { (object.destroy)(object.argument) };
    }
}

exports! {
    plain fn cuUserObjectCreate(
        _, out: Out<CUuserObject>, argument: *mut c_void, destroy: CUhostFn, count: c_uint,
        flags: c_uint
    ) {
        out.required()?;
        let destroy = destroy.ok_or(INVALID_VALUE)?;
        if count == 0 || flags != NO_DESTRUCTOR_SYNC {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        let id = state.new_handle(HandleKind::Object);
        let object = Object { destroy, argument, count };
        state.graphs.objects.live.insert(id, object);
        out.write(to_handle(id))
    }

    plain fn cuUserObjectRetain(_, object: CUuserObject, count: c_uint) {
        check_count(count)?;
        let mut state = state()?;
        let object = state.object(object)?;
        object.count = object.count.wrapping_add(count);
        Ok(())
    }

    release fn cuUserObjectRelease(_, object: CUuserObject, count: c_uint) {
        check_count(count)?;
        let mut state = state()?;
        state.object(object)?;
        state.drop_reference(from_handle(object), count);
        finish(state);
        Ok(())
    }

    plain fn cuGraphRetainUserObject(
        _, graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint
    ) {
        check_count(count)?;
        if flags & !MOVE != 0 {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        let (graph, _) = state.named_graph(graph)?;
        let it = state.object(object)?;
        // Measured: how many the program has is not looked at.
        if flags & MOVE == 0 {
            it.count = it.count.wrapping_add(count);
        }
        let held = state.graph(graph)?.objects.entry(from_handle(object)).or_default();
        *held = held.wrapping_add(count);
        Ok(())
    }

    release fn cuGraphReleaseUserObject(
        _, graph: CUgraph, object: CUuserObject, count: c_uint
    ) {
        check_count(count)?;
        let mut state = state()?;
        let (graph, _) = state.named_graph(graph)?;
        state.object(object)?;
        let id = from_handle(object);
        // Measured: nor is it looked at how many the graph has.
        if let Some(held) = state.graph(graph)?.objects.get_mut(&id) {
            *held = held.saturating_sub(count);
        }
        state.drop_reference(id, count);
        finish(state);
        Ok(())
    }
}
