//! The blocks that were freed last: they stand before the fit, which they have not gone back to, so that the
//! next request of the same size costs next to nothing.
//!
//! What stands here cannot be merged with its neighbours, so it is little: one block of each small size, and
//! one large one.

#![forbid(unsafe_code)]

/// The largest block that counts as small, in units: 16 KiB.
pub(super) const SMALL: u32 = 64;
/// Places for small blocks: one for each size.
const PLACES: usize = SMALL as usize;

/// Whether blocks of this size are cut from pages of their lane, and not from what all lanes share.
#[inline]
pub(super) fn is_small(size: u32) -> bool {
    size <= SMALL
}

/// A block in front, in units. Size 0 is none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    pub(super) start: u64,
    pub(super) size: u32,
}

#[derive(Debug)]
pub(super) struct Front {
    /// The last place is that of the large one.
    places: [Block; PLACES + 1],
    units: u64,
}

impl Default for Front {
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

impl Front {
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

    /// Puts a block in front, and hands out the one that it takes the place of.
    #[inline]
    pub(super) fn put(&mut self, block: Block) -> Option<Block> {
        let old = std::mem::replace(&mut self.places[place(block.size)], block);
        self.units = self.units + u64::from(block.size) - u64::from(old.size);
        (old.size != 0).then_some(old)
    }

    /// Hands out all blocks.
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
