//! The streams that were recorded for blocks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cuda_mem::sys::CUstream;

/// How many tables there are, so that threads seldom meet.
const TABLES: usize = 16;

#[derive(Debug, Default)]
struct Table {
    /// Blocks in it, to be read without the lock.
    count: AtomicUsize,
    /// The handles of a block's streams, each once.
    streams: Mutex<HashMap<u64, Vec<usize>>>,
}

static TABLES_OF_BLOCKS: LazyLock<[Table; TABLES]> = LazyLock::new(Default::default);

impl Table {
    fn of(address: u64) -> &'static Self {
        // Blocks are multiples of 256 bytes.
        let spread = (address >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &TABLES_OF_BLOCKS[(spread >> 60) as usize % TABLES]
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<u64, Vec<usize>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes that a stream uses a block.
pub(super) fn record(address: u64, stream: CUstream) {
    let table = Table::of(address);
    let mut streams = table.streams();
    let of_block = streams.entry(address).or_default();
    if !of_block.contains(&stream.addr()) {
        of_block.push(stream.addr());
    }
    table.count.store(streams.len(), Ordering::Relaxed);
}

/// Forgets what was recorded for an address before it was allocated: for memory that is not ours.
pub(super) fn forget(address: u64) {
    let table = Table::of(address);
    if table.count.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut streams = table.streams();
    streams.remove(&address);
    table.count.store(streams.len(), Ordering::Relaxed);
}

/// The streams that were recorded for a block that is being freed, other than `own`.
pub(super) fn take(address: u64, own: CUstream) -> Vec<CUstream> {
    let table = Table::of(address);
    // A free comes after all records of its block, so it sees their count.
    if table.count.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    let mut streams = table.streams();
    let found = streams.remove(&address).unwrap_or_default();
    table.count.store(streams.len(), Ordering::Relaxed);
    let found = found.into_iter().filter(|stream| *stream != own.addr());
    found.map(std::ptr::with_exposed_provenance_mut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: usize) -> CUstream {
        std::ptr::with_exposed_provenance_mut(number)
    }

    #[test]
    fn streams_are_kept_until_the_free() {
        let block = 0x7f00_0000_0100;
        record(block, handle(0x10));
        record(block, handle(0x20));
        record(block, handle(0x20));
        record(block, handle(0x30));
        assert_eq!(take(block + 256, handle(0)), []);
        assert_eq!(take(block, handle(0x30)), [handle(0x10), handle(0x20)]);
        assert_eq!(take(block, handle(0)), []);
    }

    #[test]
    fn what_was_recorded_before_an_allocation_is_forgotten() {
        let block = 0x7e00_0000_0100;
        record(block, handle(0x10));
        forget(block);
        assert_eq!(take(block, handle(0)), []);
    }
}
