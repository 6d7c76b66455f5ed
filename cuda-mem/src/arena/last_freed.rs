//! The last-freed cache of a stream: blocks that have not gone back to the heap, so that the next request of the same
//! size costs next to nothing.
//!
//! A cached block cannot merge with its neighbours, so few are kept: one of each small size, and a few more while all
//! small ones take at most a page; of other sizes, what the stream's cache can spare. More than one helps programs that
//! mix sizes: they free several blocks of one size before they allocate as many.

#![forbid(unsafe_code)]

use super::PAGE_UNITS;

/// The largest block that counts as small, in units: 16 KiB.
pub(super) const SMALL: u32 = 64;
/// The largest block that is ever cut from pages of a stream's cache, in units: 16 MiB.
pub(super) const MEDIUM: u32 = 65536;
/// The largest one in a small arena: 1 MiB.
pub(super) const MEDIUM_AT_LEAST: u32 = 4096;
/// The most blocks of one small size, and of one set of larger ones.
const DEPTH: usize = 4;
/// Sets of blocks that are not small.
const SETS: usize = 32;

/// Whether blocks of this size are always cut from pages of a stream's cache, never from the central heap.
#[inline]
pub(super) fn is_small(size: u32) -> bool {
    size <= SMALL
}

/// A cached block, in units. Size 0 means none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    pub(super) start: u64,
    pub(super) size: u32,
}

/// Blocks of one small size, the last freed on top.
#[derive(Clone, Copy, Debug, Default)]
struct Stack {
    starts: [u64; DEPTH],
    len: usize,
}

/// Larger blocks of several sizes.
#[derive(Clone, Copy, Debug, Default)]
struct Set {
    sizes: [u32; DEPTH],
    starts: [u64; DEPTH],
    /// The place of the block that is replaced next.
    oldest: usize,
}

impl Set {
    #[inline]
    fn find(&self, size: u32) -> Option<usize> {
        self.sizes.iter().position(|cached| *cached == size)
    }
}

#[derive(Debug)]
pub(super) struct LastFreed {
    /// By size.
    small: [Stack; SMALL as usize],
    larger: [Set; SETS],
    /// Units in each.
    small_units: u64,
    larger_units: u64,
}

impl Default for LastFreed {
    fn default() -> Self {
        Self {
            small: [Stack::default(); SMALL as usize],
            larger: [Set::default(); SETS],
            small_units: 0,
            larger_units: 0,
        }
    }
}

/// The number of the set for blocks of this size. Requested sizes are often round, so their low bits alone would not
/// spread them.
#[inline]
fn set_of(size: u32) -> usize {
    (size.wrapping_mul(0x9e37_79b1) >> (u32::BITS - SETS.ilog2())) as usize
}

impl LastFreed {
    /// A block of exactly this size.
    #[inline]
    pub(super) fn take(&mut self, size: u32) -> Option<u64> {
        debug_assert_ne!(size, 0);
        if is_small(size) {
            let stack = &mut self.small[size as usize - 1];
            stack.len = stack.len.checked_sub(1)?;
            self.small_units -= u64::from(size);
            return Some(stack.starts[stack.len % DEPTH]);
        }
        let set = &mut self.larger[set_of(size)];
        let place = set.find(size)?;
        set.sizes[place] = 0;
        self.larger_units -= u64::from(size);
        Some(set.starts[place])
    }

    /// Caches a block, and returns the one that it replaces.
    #[inline]
    pub(super) fn put(&mut self, block: Block) -> Option<Block> {
        let Block { start, size } = block;
        if !is_small(size) {
            return self.put_larger(block);
        }
        let units = self.small_units + u64::from(size);
        let stack = &mut self.small[size as usize - 1];
        if stack.len == 0 || stack.len < DEPTH && units <= PAGE_UNITS {
            stack.starts[stack.len] = start;
            stack.len += 1;
            self.small_units = units;
            return None;
        }
        let top = &mut stack.starts[(stack.len - 1) % DEPTH];
        let start = std::mem::replace(top, start);
        Some(Block { start, size })
    }

    fn put_larger(&mut self, block: Block) -> Option<Block> {
        let set = &mut self.larger[set_of(block.size)];
        let place = set.find(0).unwrap_or(set.oldest);
        set.oldest = (place + 1) % DEPTH;
        let old = Block {
            start: std::mem::replace(&mut set.starts[place], block.start),
            size: std::mem::replace(&mut set.sizes[place], block.size),
        };
        self.larger_units = self.larger_units + u64::from(block.size) - u64::from(old.size);
        (old.size != 0).then_some(old)
    }

    /// Removes all blocks.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Block> {
        self.small_units = 0;
        self.larger_units = 0;
        let small = (1..).zip(&mut self.small).flat_map(|(size, stack)| {
            let len = std::mem::take(&mut stack.len);
            let starts = stack.starts.iter().take(len);
            starts.map(move |start| Block {
                start: *start,
                size,
            })
        });
        let larger = self.larger.iter_mut().flat_map(|set| {
            let sizes = std::mem::take(&mut set.sizes);
            let blocks = set.starts.into_iter().zip(sizes);
            blocks.map(|(start, size)| Block { start, size })
        });
        small.chain(larger.filter(|block| block.size != 0))
    }

    /// All blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Block> {
        let small = (1..).zip(&self.small).flat_map(|(size, stack)| {
            let starts = stack.starts.iter().take(stack.len);
            starts.map(move |start| Block {
                start: *start,
                size,
            })
        });
        let larger = self.larger.iter().flat_map(|set| {
            let blocks = set.starts.iter().zip(&set.sizes);
            blocks.map(|(start, size)| Block {
                start: *start,
                size: *size,
            })
        });
        small.chain(larger.filter(|block| block.size != 0))
    }

    /// Units in all blocks.
    pub(super) fn units(&self) -> u64 {
        self.small_units + self.larger_units
    }

    /// Units in those that are not small.
    #[inline]
    pub(super) fn larger_units(&self) -> u64 {
        self.larger_units
    }
}

#[cfg(test)]
mod tests;
