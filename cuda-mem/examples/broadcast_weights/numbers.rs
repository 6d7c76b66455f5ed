//! Numbers that ranks exchange beside the weights.

use anyhow::Result;
use cuda_mem::collective::{Communicator, ReduceOp};
use cuda_mem::{DefaultPool, Stream};

use super::common::synchronize;

pub(crate) struct Numbers<'a> {
    communicator: &'a Communicator,
    stream: &'a Stream,
    pool: DefaultPool,
}

impl<'a> Numbers<'a> {
    pub(crate) fn new(communicator: &'a Communicator, stream: &'a Stream) -> Result<Self> {
        Ok(Self {
            communicator,
            stream,
            pool: communicator.device().default_pool()?,
        })
    }

    /// The root's list. The others need not know its length.
    pub(crate) fn broadcast(&self, list: Vec<u64>, root: usize) -> Result<Vec<u64>> {
        let is_root = self.communicator.rank() == root;
        let own = if is_root { list.len() as u64 } else { 0 };
        let len = usize::try_from(self.reduce(own, ReduceOp::Max)?)?;
        let list = if is_root { list } else { vec![0; len] };
        let mut memory = self.pool.alloc_from(self.stream, &list)?;
        self.communicator.broadcast(&mut memory, root)?;
        synchronize(self.communicator, self.stream)?;
        Ok(memory.to_vec()?)
    }

    /// One number of all ranks' numbers.
    pub(crate) fn reduce(&self, number: u64, op: ReduceOp) -> Result<u64> {
        let mut memory = self.pool.alloc_from(self.stream, &[number])?;
        self.communicator.all_reduce_in_place(&mut memory, op)?;
        synchronize(self.communicator, self.stream)?;
        let mut reduced = [0];
        memory.copy_to(&mut reduced)?;
        Ok(reduced[0])
    }

    /// The numbers of each rank.
    pub(crate) fn gather<const N: usize>(&self, own: [u64; N]) -> Result<Vec<[u64; N]>> {
        let from = self.pool.alloc_from(self.stream, &own)?;
        let len = N * self.communicator.rank_count();
        let mut to = self.pool.alloc::<u64>(self.stream, len)?;
        self.communicator.all_gather(&from, &mut to)?;
        synchronize(self.communicator, self.stream)?;
        let numbers = to.to_vec()?;
        Ok(numbers.as_chunks::<N>().0.to_vec())
    }
}
