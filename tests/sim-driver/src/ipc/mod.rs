//! Sharing between processes: pools by descriptor, pointers by token, events by handle.
//!
//! Nothing remains when a process dies: the shared objects are anonymous memory files, which the system deletes with
//! the last process that holds one.

mod event;
mod legacy;
mod pointer;
mod pool;

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::context::ContextId;
use crate::export::Export;
use crate::pool::PoolId;

pub(crate) use event::{Signal, Slot};
pub(crate) use pool::{Backing, Imported};

/// The exports of this folder.
pub(crate) static EXPORTS: [&[&Export]; 4] = [
    event::EXPORTS,
    legacy::EXPORTS,
    pointer::EXPORTS,
    pool::EXPORTS,
];

/// What this process imports and exports.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    pub(crate) imported: BTreeMap<PoolId, Imported>,
    /// Destroyed imported pools. Measured: destroying one again is not an error.
    ended: FxHashSet<PoolId>,
    events: FxHashMap<ContextId, event::Slots>,
}

impl Sharing {
    /// The event handles of a context end with it.
    pub(crate) fn end_context(&mut self, context: ContextId) {
        self.events.remove(&context);
    }
}
