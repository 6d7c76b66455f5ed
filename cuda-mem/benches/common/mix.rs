//! Blocks of many sizes, freed in another order than they came.

use anyhow::Result;

use crate::draws::Draws;

/// How blocks are allocated and freed in a stream's order.
pub(crate) trait Allocator {
    type Stream;
    type Block;

    fn allocate(&self, stream: &Self::Stream, bytes: usize) -> Result<Self::Block>;

    fn free(&self, stream: &Self::Stream, block: Self::Block) -> Result<()>;
}

/// Blocks alive at most.
const PLACES: usize = 32;

pub(crate) struct Mix<B> {
    draws: Draws,
    live: [Option<B>; PLACES],
}

impl<B> Mix<B> {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            draws: Draws::new(seed),
            live: std::array::from_fn(|_| None),
        }
    }

    /// Each pair frees the block of a random place, if there is one, and puts a new one there, of a random
    /// power of two from 256 bytes to 1 MiB.
    pub(crate) fn run<A: Allocator<Block = B>>(
        &mut self,
        allocator: &A,
        stream: &A::Stream,
        pairs: usize,
    ) -> Result<()> {
        for _ in 0..pairs {
            let place = self.draws.next() as usize % PLACES;
            let bytes = 256_usize << (self.draws.next() % 13);
            if let Some(block) = self.live[place].take() {
                allocator.free(stream, block)?;
            }
            self.live[place] = Some(allocator.allocate(stream, bytes)?);
        }
        Ok(())
    }

    /// Frees what is alive.
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
