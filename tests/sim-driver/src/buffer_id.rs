//! Numbers of allocations.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of one allocation. Documented: unique over the lifetime of the process, unlike its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferId(u64);

impl BufferId {
    /// Of no allocation.
    pub(crate) const NONE: Self = Self(0);

    /// A number never used before.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }
}
