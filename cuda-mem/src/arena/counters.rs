//! The counters of a stream cache or of the central heap. Written under its lock, read at any time.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use super::PAGE_UNITS;

/// Where a block was cut from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// Pages of a stream's cache.
    Pages,
    /// The central heap.
    Central,
}

/// A block may be counted as allocated in one place and as freed in another, so what is live is the wrapping sum over
/// all.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Units of live blocks, by their home.
    of_pages: AtomicU64,
    of_central: AtomicU64,
    /// Live blocks.
    blocks: AtomicU64,
    /// Requests answered by the last-freed cache, and by the heap.
    last_freed: AtomicU64,
    heap: AtomicU64,
    /// Units in pages of the cache.
    held: AtomicU64,
    /// Units that a cache keeps if it cuts medium blocks from its pages.
    kept_limit: AtomicU64,
    /// Units of the cached large block.
    cached_large: AtomicU64,
    /// Free units when the cache was last scavenged without a whole page in it.
    fruitless: AtomicU64,
}

/// Adds without a locked instruction, because there is one writer at a time.
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
    pub(super) fn count_hit(&self, size: u32, home: Home) {
        add(&self.last_freed, 1);
        if home == Home::Central {
            self.cached_large.store(0, Ordering::Relaxed);
        }
        self.change(home, u64::from(size), 1);
    }

    #[inline]
    pub(super) fn count_fit(&self, size: u32, home: Home) {
        add(&self.heap, 1);
        self.change(home, u64::from(size), 1);
    }

    #[inline]
    pub(super) fn count_free(&self, size: u32, home: Home) {
        self.change(home, u64::from(size).wrapping_neg(), u64::MAX);
    }

    /// Undoes the count of a free, which is now counted elsewhere.
    pub(super) fn take_back_free(&self, size: u32, home: Home) {
        self.change(home, u64::from(size), 1);
    }

    #[inline]
    fn change(&self, home: Home, units: u64, blocks: u64) {
        let live = match home {
            Home::Pages => &self.of_pages,
            Home::Central => &self.of_central,
        };
        add(live, units);
        add(&self.blocks, blocks);
    }

    /// The cached large block has this size; 0 means none.
    #[inline]
    pub(super) fn set_cached_large(&self, units: u32) {
        self.cached_large.store(u64::from(units), Ordering::Relaxed);
    }

    /// Units of the cached large block.
    #[inline]
    pub(super) fn cached_large(&self) -> u64 {
        read(&self.cached_large)
    }

    /// The cache has this much memory in pages.
    pub(super) fn set_held(&self, units: u64) {
        self.held.store(units, Ordering::Relaxed);
    }

    /// The cache gives up pages only beyond this many units.
    #[inline]
    pub(super) fn set_kept_limit(&self, units: u64) {
        self.kept_limit.store(units, Ordering::Relaxed);
    }

    pub(super) fn kept_limit(&self) -> u64 {
        read(&self.kept_limit)
    }

    pub(super) fn held(&self) -> u64 {
        read(&self.held)
    }

    /// Units of live blocks from pages, as far as counted here: a free may be counted elsewhere.
    pub(super) fn of_pages(&self) -> u64 {
        read(&self.of_pages)
    }

    /// Free units in pages of the cache. `elsewhere` is the sum of other counters of its blocks.
    fn spare(&self, elsewhere: u64) -> u64 {
        let used = self.of_pages().wrapping_add(elsewhere);
        self.held().saturating_sub(used)
    }

    /// Whether the cache may have something that others could use: whole pages, or a large block. Fragments that had no
    /// whole page last time count only if there are more of them now, unless `thorough`.
    pub(super) fn has_spare(&self, thorough: bool, elsewhere: u64) -> bool {
        let spare = self.spare(elsewhere);
        let fruitless = read(&self.fruitless).min(spare);
        self.fruitless.store(fruitless, Ordering::Relaxed);
        read(&self.cached_large) > 0 || spare >= PAGE_UNITS && (thorough || spare > fruitless)
    }

    /// The cache was scavenged of this many whole pages.
    pub(super) fn scavenged(&self, pages: usize, elsewhere: u64) {
        let fruitless = if pages == 0 { self.spare(elsewhere) } else { 0 };
        self.fruitless.store(fruitless, Ordering::Relaxed);
    }

    /// Blocks came back that may turn fragments into whole pages.
    pub(super) fn expect_pages(&self) {
        self.fruitless.store(0, Ordering::Relaxed);
    }

    /// Units and blocks that are live, as terms of a sum over all counters.
    pub(super) fn live(&self) -> (u64, u64) {
        let units = read(&self.of_pages).wrapping_add(read(&self.of_central));
        (units, read(&self.blocks))
    }

    /// Requests answered by the last-freed cache, and by the heap.
    pub(super) fn answered(&self) -> (u64, u64) {
        (read(&self.last_freed), read(&self.heap))
    }
}

#[cfg(test)]
mod tests;
