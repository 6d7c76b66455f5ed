//! Blocks of a stream cache's pages that were freed on other streams and have not reached the cache yet. The threads
//! that free them contend here and not for the cache's lock, whose bias they would revoke.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::counters::{Counters, Home};
use super::stream_cache::RemoteFree;

#[derive(Debug, Default)]
pub(super) struct RemoteQueue {
    /// With their sizes, as given by the callers.
    blocks: Mutex<Vec<(RemoteFree, u32)>>,
    len: AtomicUsize,
    /// Written under the lock.
    pub(super) counters: Counters,
}

impl RemoteQueue {
    /// Adds a block, and counts it as freed. Returns how many wait now.
    pub(super) fn push(&self, block: RemoteFree, size: u32) -> usize {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.push((block, size));
        self.counters.count_free(size, Home::Pages);
        self.len.store(blocks.len(), Ordering::Relaxed);
        blocks.len()
    }

    /// Removes all blocks. They count as freed by the cache from now on.
    pub(super) fn take(&self) -> Vec<RemoteFree> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        self.len.store(0, Ordering::Relaxed);
        let taken = blocks.drain(..).map(|(block, size)| {
            self.counters.take_back_free(size, Home::Pages);
            block
        });
        taken.collect()
    }

    /// All blocks, which stay.
    pub(super) fn blocks(&self) -> Vec<RemoteFree> {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.iter().map(|(block, _)| *block).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Units in all blocks.
    pub(super) fn units(&self) -> u64 {
        self.counters.of_pages().wrapping_neg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_count_as_freed_until_they_are_taken() {
        let queue = RemoteQueue::default();
        let block = |start| RemoteFree {
            start,
            cache: 1,
            epoch: 5,
        };
        assert!(queue.is_empty());
        assert_eq!((queue.push(block(7), 3), queue.push(block(90), 2)), (1, 2));
        assert!(!queue.is_empty());
        assert_eq!(queue.units(), 5);
        assert_eq!(
            queue.counters.live(),
            (5_u64.wrapping_neg(), 2_u64.wrapping_neg())
        );
        assert_eq!(queue.take(), [block(7), block(90)]);
        assert_eq!((queue.units(), queue.counters.live()), (0, (0, 0)));
        assert!(queue.is_empty());
    }
}
