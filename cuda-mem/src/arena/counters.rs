//! What a lane or the commons counts. Written by whoever has it, read by anybody at any time.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use super::PAGE_UNITS;
use super::front::is_small;

/// A block may come from one place and go back to another, so what is live is the wrapping sum over all.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Units of small blocks, and of large ones, that users have.
    small: AtomicU64,
    large: AtomicU64,
    /// Blocks that users have.
    blocks: AtomicU64,
    /// Requests that the front answered, and that the fit did.
    front: AtomicU64,
    fit: AtomicU64,
    /// Units in pages of the lane.
    held: AtomicU64,
    /// Units of the large block in front.
    fronted: AtomicU64,
    /// Units in no block when the lane was last found to have no whole page.
    in_vain: AtomicU64,
}

/// Adds, where nobody else writes at the same time: no locked instruction.
#[inline]
fn add(counter: &AtomicU64, change: u64) {
    let value = counter.load(Ordering::Relaxed);
    counter.store(value.wrapping_add(change), Ordering::Relaxed);
}

#[inline]
fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Counters {
    #[inline]
    pub(super) fn took_front(&self, size: u32) {
        add(&self.front, 1);
        if !is_small(size) {
            self.fronted.store(0, Ordering::Relaxed);
        }
        self.change(size, u64::from(size), 1);
    }

    #[inline]
    pub(super) fn took_fit(&self, size: u32) {
        add(&self.fit, 1);
        self.change(size, u64::from(size), 1);
    }

    #[inline]
    pub(super) fn came_back(&self, size: u32) {
        self.change(size, u64::from(size).wrapping_neg(), u64::MAX);
    }

    #[inline]
    fn change(&self, size: u32, units: u64, blocks: u64) {
        let live = if is_small(size) {
            &self.small
        } else {
            &self.large
        };
        add(live, units);
        add(&self.blocks, blocks);
    }

    /// So many units of a large block stand in front.
    #[inline]
    pub(super) fn fronts(&self, units: u32) {
        self.fronted.store(u64::from(units), Ordering::Relaxed);
    }

    /// Units of the large block in front.
    #[inline]
    pub(super) fn fronted(&self) -> u64 {
        read(&self.fronted)
    }

    /// The lane has so many units in pages.
    pub(super) fn holds(&self, units: u64) {
        self.held.store(units, Ordering::Relaxed);
    }

    pub(super) fn held(&self) -> u64 {
        read(&self.held)
    }

    /// Units in pages of the lane that are in no block.
    fn spare(&self) -> u64 {
        self.held().saturating_sub(read(&self.small))
    }

    /// Whether the lane may have something that others could use: whole pages, or a large block in front. Crumbs
    /// that were looked through in vain count only when there are more of them, unless all have to be looked at.
    pub(super) fn has_spare(&self, thorough: bool) -> bool {
        let spare = self.spare();
        let in_vain = read(&self.in_vain).min(spare);
        self.in_vain.store(in_vain, Ordering::Relaxed);
        read(&self.fronted) > 0 || spare >= PAGE_UNITS && (thorough || spare > in_vain)
    }

    /// The lane was looked through, and had so many whole pages.
    pub(super) fn gave(&self, pages: usize) {
        let in_vain = if pages == 0 { self.spare() } else { 0 };
        self.in_vain.store(in_vain, Ordering::Relaxed);
    }

    /// Adds this to a sum: units and blocks that users have.
    pub(super) fn live(&self) -> (u64, u64) {
        let units = read(&self.small).wrapping_add(read(&self.large));
        (units, read(&self.blocks))
    }

    /// Requests that the front answered, and that the fit did.
    pub(super) fn answered(&self) -> (u64, u64) {
        (read(&self.front), read(&self.fit))
    }
}

#[cfg(test)]
mod tests;
