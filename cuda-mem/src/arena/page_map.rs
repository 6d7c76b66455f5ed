//! The page map: which stream cache a page of memory belongs to, by address.
//!
//! Two levels: a table of leaves, and leaves of 16 GiB each, created when a cache first gets memory in them. Four bytes
//! per page; a lookup is two loads.

#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::PAGE;

/// Pages per leaf.
const LEAF: usize = 1 << 16;
/// Leaves, for 48-bit addresses.
const LEAVES: usize = (1 << 48) / (LEAF * PAGE as usize);

/// The number of a cache.
pub(super) type CacheId = u32;

#[derive(Debug)]
pub(super) struct PageMap(Box<[OnceLock<Box<[AtomicU32]>>]>);

impl Default for PageMap {
    fn default() -> Self {
        Self(std::iter::repeat_with(OnceLock::new).take(LEAVES).collect())
    }
}

/// The entry of a page that belongs to no cache.
const NOBODY: u32 = 0;

impl PageMap {
    /// The cache that owns the page of this address.
    #[inline]
    pub(super) fn cache_of(&self, address: u64) -> Option<CacheId> {
        let page = (address / PAGE) as usize;
        let leaf = self.0.get(page / LEAF)?.get()?;
        // Relaxed: a thread that has a block of the page learned its address after the page was assigned.
        match leaf[page % LEAF].load(Ordering::Relaxed) {
            NOBODY => None,
            noted => Some(noted - 1),
        }
    }

    /// Whether the map covers memory that ends here.
    pub(super) fn can_hold(end: u64) -> bool {
        end <= (LEAVES * LEAF) as u64 * PAGE
    }

    /// Assigns these pages to a cache, or to none.
    pub(super) fn set(&self, address: u64, bytes: u64, cache: Option<CacheId>) {
        let noted = cache.map_or(NOBODY, |cache| cache + 1);
        for page in address / PAGE..(address + bytes) / PAGE {
            let page = page as usize;
            let Some(leaf) = self.0.get(page / LEAF) else {
                return;
            };
            let leaf = leaf.get_or_init(|| {
                std::iter::repeat_with(|| AtomicU32::new(NOBODY))
                    .take(LEAF)
                    .collect()
            });
            leaf[page % LEAF].store(noted, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
