//! The last-freed cache of a stream: blocks that have not gone back to the heap, so that the next request of the same
//! size costs next to nothing.
//!
//! A cached block cannot merge with its neighbours, so few are kept: one of each small size, and one of all others.

#![forbid(unsafe_code)]

/// The largest block that counts as small, in units: 16 KiB.
pub(super) const SMALL: u32 = 64;
/// The largest block that is ever cut from pages of a stream's cache, in units: 16 MiB.
pub(super) const MEDIUM: u32 = 65536;
/// The largest one in a small arena: 1 MiB.
pub(super) const MEDIUM_AT_LEAST: u32 = 4096;
/// One place for each size of small blocks.
const PLACES: usize = SMALL as usize;

/// Whether blocks of this size are always cut from pages of their cache, and not from what all caches share.
#[inline]
pub(super) fn is_small(size: u32) -> bool {
    size <= SMALL
}

/// A cached block, in units. Size 0 is none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    pub(super) start: u64,
    pub(super) size: u32,
}

#[derive(Debug)]
pub(super) struct LastFreed {
    /// The last place is for all other sizes.
    places: [Block; PLACES + 1],
    units: u64,
}

impl Default for LastFreed {
    fn default() -> Self {
        Self {
            places: [Block::default(); PLACES + 1],
            units: 0,
        }
    }
}

#[inline]
fn place(size: u32) -> usize {
    debug_assert_ne!(size, 0);
    if is_small(size) {
        size as usize - 1
    } else {
        PLACES
    }
}

impl LastFreed {
    /// A block of exactly this size.
    #[inline]
    pub(super) fn take(&mut self, size: u32) -> Option<u64> {
        let block = &mut self.places[place(size)];
        if block.size != size {
            return None;
        }
        block.size = 0;
        self.units -= u64::from(size);
        Some(block.start)
    }

    /// Caches a block, and returns the one that it replaces.
    #[inline]
    pub(super) fn put(&mut self, block: Block) -> Option<Block> {
        let old = std::mem::replace(&mut self.places[place(block.size)], block);
        self.units = self.units + u64::from(block.size) - u64::from(old.size);
        (old.size != 0).then_some(old)
    }

    /// Removes all blocks.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Block> {
        self.units = 0;
        self.places
            .iter_mut()
            .map(std::mem::take)
            .filter(|block| block.size != 0)
    }

    /// Units in all blocks.
    pub(super) fn units(&self) -> u64 {
        self.units
    }
}

#[cfg(test)]
mod tests;
