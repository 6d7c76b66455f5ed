//! What a lane counts. Written by whoever has the lane, read by anybody at any time.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Units that users have.
    pub(super) live: AtomicU64,
    /// Blocks that users have.
    pub(super) blocks: AtomicU64,
    /// Requests that the front answered, and that the fit did.
    pub(super) front: AtomicU64,
    pub(super) fit: AtomicU64,
    /// Units that belong to the lane.
    pub(super) held: AtomicU64,
}

/// Adds, where nobody else writes at the same time: no locked instruction.
#[inline]
fn add(counter: &AtomicU64, change: u64) {
    let value = counter.load(Ordering::Relaxed);
    counter.store(value.wrapping_add(change), Ordering::Relaxed);
}

impl Counters {
    #[inline]
    pub(super) fn took_front(&self, size: u32) {
        add(&self.front, 1);
        self.took(size);
    }

    #[inline]
    pub(super) fn took_fit(&self, size: u32) {
        add(&self.fit, 1);
        self.took(size);
    }

    #[inline]
    fn took(&self, size: u32) {
        add(&self.live, u64::from(size));
        add(&self.blocks, 1);
    }

    #[inline]
    pub(super) fn came_back(&self, size: u32) {
        add(&self.live, u64::from(size).wrapping_neg());
        add(&self.blocks, u64::MAX);
    }

    /// The lane has so many units more, or less.
    pub(super) fn holds(&self, units: u64) {
        self.held.store(units, Ordering::Relaxed);
    }

    pub(super) fn held(&self) -> u64 {
        Self::read(&self.held)
    }

    /// Units that nobody has.
    pub(super) fn free(&self) -> u64 {
        self.held().saturating_sub(Self::read(&self.live))
    }

    pub(super) fn read(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}
