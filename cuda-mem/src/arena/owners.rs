//! Which lane has a page of memory, by address.
//!
//! Two levels: a table of leaves, and leaves of 16 GiB that are made when memory in them comes to a lane.
//! Four bytes a page, and reading is two loads.

#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::PAGE;

/// Pages a leaf.
const LEAF: usize = 1 << 16;
/// Leaves, for addresses of 48 bits.
const LEAVES: usize = (1 << 48) / (LEAF * PAGE as usize);

/// The number of a lane.
pub(super) type LaneId = u32;

#[derive(Debug)]
pub(super) struct Owners(Box<[OnceLock<Box<[AtomicU32]>>]>);

impl Default for Owners {
    fn default() -> Self {
        Self(std::iter::repeat_with(OnceLock::new).take(LEAVES).collect())
    }
}

/// What is noted for a page that no lane has.
const NOBODY: u32 = 0;

impl Owners {
    /// The lane that has the page of this address.
    #[inline]
    pub(super) fn of(&self, address: u64) -> Option<LaneId> {
        let page = (address / PAGE) as usize;
        let leaf = self.0.get(page / LEAF)?.get()?;
        // Relaxed: whoever has a block of the page learned its address after the page was noted.
        match leaf[page % LEAF].load(Ordering::Relaxed) {
            NOBODY => None,
            noted => Some(noted - 1),
        }
    }

    /// Whether memory that ends here can be noted.
    pub(super) fn can_note(end: u64) -> bool {
        end <= (LEAVES * LEAF) as u64 * PAGE
    }

    /// Notes who has these pages from now on.
    pub(super) fn note(&self, address: u64, bytes: u64, lane: Option<LaneId>) {
        let noted = lane.map_or(NOBODY, |lane| lane + 1);
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
