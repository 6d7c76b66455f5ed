//! How many bytes of a resource are allocated.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// What the model has allocated from a resource.
#[derive(Debug, Default)]
pub(super) struct Count {
    pub(super) bytes: AtomicI64,
    pub(super) blocks: AtomicI64,
}

impl Count {
    pub(super) fn add(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.fetch_add(bytes as i64, Ordering::Relaxed);
            self.blocks.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn take(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes as i64, Ordering::Relaxed);
            self.blocks.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether `memory` is counted by `count`.
pub(super) fn is_of(memory: Option<&Arc<Count>>, count: &Arc<Count>) -> bool {
    memory.is_some_and(|memory| Arc::ptr_eq(memory, count))
}
