//! Blocks of many sizes, freed in a different order than allocated.

use std::cell::Cell;

use anyhow::Result;

use crate::draws::Draws;

/// Allocates and frees blocks in stream order.
pub(crate) trait Allocator {
    type Stream;
    type Block;

    fn allocate(&self, stream: &Self::Stream, bytes: usize) -> Result<Self::Block>;

    fn free(&self, stream: &Self::Stream, block: Self::Block) -> Result<()>;
}

/// Powers of two from 256 bytes to 1 MiB.
pub(crate) const UP_TO_1_MIB: u64 = 13;

/// Maximum number of live blocks.
const PLACES: usize = 32;

pub(crate) struct Mix<B> {
    draws: Draws,
    /// Number of powers of two, from 256 bytes on.
    sizes: u64,
    live: [Option<B>; PLACES],
}

impl<B> Mix<B> {
    pub(crate) fn new(seed: u64, sizes: u64) -> Self {
        Self {
            draws: Draws::new(seed),
            sizes,
            live: std::array::from_fn(|_| None),
        }
    }

    /// Each pair frees the block at a random place, if any, and puts a new one of a random size there.
    pub(crate) fn run<A: Allocator<Block = B>>(
        &mut self,
        allocator: &A,
        stream: &A::Stream,
        pairs: usize,
    ) -> Result<()> {
        for _ in 0..pairs {
            let place = self.draws.next() as usize % PLACES;
            let bytes = 256_usize << (self.draws.next() % self.sizes);
            if let Some(block) = self.live[place].take() {
                allocator.free(stream, block)?;
            }
            self.live[place] = Some(allocator.allocate(stream, bytes)?);
        }
        Ok(())
    }

    /// Frees the live blocks.
    pub(crate) fn end<A: Allocator<Block = B>>(
        &mut self,
        allocator: &A,
        stream: &A::Stream,
    ) -> Result<()> {
        let live = self.live.iter_mut();
        live.filter_map(Option::take)
            .try_for_each(|block| allocator.free(stream, block))
    }
}

/// The sum of the threads' peaks of live bytes after `pairs` pairs each, with seeds from 1 on. Counted separately,
/// because a shared counter would slow the threads.
pub(crate) fn asked(threads: usize, pairs: usize, sizes: u64) -> Result<u64> {
    (1..=threads as u64)
        .map(|seed| {
            let count = Count::default();
            Mix::new(seed, sizes).run(&count, &(), pairs)?;
            Ok(count.peak.get())
        })
        .sum()
}

/// Counts without allocating.
#[derive(Default)]
struct Count {
    live: Cell<u64>,
    peak: Cell<u64>,
}

impl Allocator for Count {
    type Stream = ();
    type Block = u64;

    fn allocate(&self, (): &(), bytes: usize) -> Result<u64> {
        let bytes = bytes as u64;
        self.live.set(self.live.get() + bytes);
        self.peak.set(self.peak.get().max(self.live.get()));
        Ok(bytes)
    }

    fn free(&self, (): &(), bytes: u64) -> Result<()> {
        self.live.set(self.live.get() - bytes);
        Ok(())
    }
}
