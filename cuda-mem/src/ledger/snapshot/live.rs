//! Which blocks are allocated after the events of a recording.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use crate::ledger::{Origin, Recording, TraceAction};

/// An allocation that was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LiveBlock {
    /// The bytes asked for.
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    pub(crate) origin: Option<Origin>,
}

/// By address. Blocks whose free is pending count.
#[derive(Debug, Default)]
pub(crate) struct LiveBlocks(HashMap<u64, LiveBlock>);

impl LiveBlocks {
    pub(crate) fn of(recording: &Recording) -> Self {
        let mut live = HashMap::new();
        for entry in recording.entries() {
            match entry.action {
                TraceAction::Allocate => {
                    let block = LiveBlock {
                        bytes: entry.bytes,
                        stream: entry.stream,
                        origin: entry.origin.clone(),
                    };
                    live.insert(entry.address, block);
                }
                TraceAction::Free | TraceAction::FreeCompleted => {
                    live.remove(&entry.address);
                }
                _ => {}
            }
        }
        Self(live)
    }

    pub(crate) fn take(&mut self, address: u64) -> Option<LiveBlock> {
        self.0.remove(&address)
    }
}
