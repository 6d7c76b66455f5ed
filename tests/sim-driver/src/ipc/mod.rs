//! Sharing between processes: pools by descriptor, pointers by token, events by handle.
//!
//! Nothing is left behind when a process dies: what is shared are files of memory without a name,
//! which the system forgets with the last process that has one.

mod event;
mod file;
mod legacy;
mod pointer;
mod pool;

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::context::ContextId;
use crate::export::Export;
use crate::pool::PoolId;

pub(crate) use event::{Signal, Slot};
pub(crate) use file::{SharedFile, anonymous_file, file_of};
pub(crate) use pool::{Backing, Imported};

/// What the files of this folder export.
pub(crate) static EXPORTS: [&[&Export]; 4] = [
    event::EXPORTS,
    legacy::EXPORTS,
    pointer::EXPORTS,
    pool::EXPORTS,
];

/// What this process has from others, and what it has for them.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    pub(crate) imported: BTreeMap<PoolId, Imported>,
    /// Imported pools that are gone: measured, to destroy one again is no error.
    ended: FxHashSet<PoolId>,
    events: FxHashMap<ContextId, event::Slots>,
}

impl Sharing {
    /// A context takes the handles of its events with it.
    pub(crate) fn end_context(&mut self, context: ContextId) {
        self.events.remove(&context);
    }
}
