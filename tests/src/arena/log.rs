//! What blocks held, copied aside in the order of their streams, to be looked at when all is done.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::sys::CUresult;
use cuda_mem::{DeviceBuffer, MemoryPool, Stream};

/// Words that are copied aside from each place.
const WORDS: usize = 4;
const PLACES: usize = 3;
/// Words a block.
const ENTRY: usize = WORDS * PLACES;

/// A place of device memory for what is copied aside.
pub(super) struct Log {
    words: DeviceBuffer<u32>,
    next: AtomicUsize,
    stream: Stream,
}

/// What an entry has to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    entry: usize,
    tag: u32,
}

fn check(function: &str, code: CUresult) -> Result<()> {
    ensure!(code == CUresult::CUDA_SUCCESS, "{function} answered {code}");
    Ok(())
}

/// Fills words with a tag, in the order of the stream.
pub(super) fn fill(stream: &Stream, address: u64, words: usize, tag: u32) -> Result<()> {
    let table = stream.device().driver().table();
    let set = table.cuMemsetD32Async.context("no cuMemsetD32Async")?;
    // Of large blocks the ends, so that a program takes microseconds; neighbours would begin there.
    const MOST: usize = 16 << 10;
    let parts = if words <= 2 * MOST {
        [(0, words), (0, 0), (0, 0)]
    } else {
        [
            (0, MOST),
            (words / 2 - ENTRY, 2 * ENTRY),
            (words - MOST, MOST),
        ]
    };
    for (first, count) in parts.into_iter().filter(|part| part.1 > 0) {
        // SAFETY: the words are within a block that is live in this stream.
        check("cuMemsetD32Async", unsafe {
            set(address + 4 * first as u64, tag, count, stream.as_raw())
        })?;
    }
    Ok(())
}

impl Log {
    pub(super) fn new(pool: &MemoryPool, stream: &Stream, entries: usize) -> Result<Self> {
        Ok(Self {
            words: pool.alloc_zeroed::<u32>(stream, entries * ENTRY)?,
            next: AtomicUsize::new(0),
            stream: stream.clone(),
        })
    }

    /// Orders a stream behind the making of the log.
    pub(super) fn open_to(&self, stream: &Stream) -> Result<()> {
        Ok(stream.wait_for(&self.stream)?)
    }

    /// Copies some words of a block aside, in the order of the stream.
    pub(super) fn note(
        &self,
        stream: &Stream,
        address: u64,
        words: usize,
        tag: u32,
    ) -> Result<Option<Expected>> {
        let entry = self.next.fetch_add(1, Ordering::Relaxed);
        if words < WORDS || (entry + 1) * ENTRY > self.words.len() {
            return Ok(None);
        }
        let table = stream.device().driver().table();
        let copy = table.cuMemcpyDtoDAsync_v2.context("no cuMemcpyDtoDAsync")?;
        // A block may lie across two mappings, and copies of it want a current context (R148).
        let _current = stream.context().bind()?;
        let places = [0, words / 2 / WORDS * WORDS, words - WORDS];
        for (count, first) in places.into_iter().enumerate() {
            let to = self.words.as_raw() + 4 * (entry * ENTRY + count * WORDS) as u64;
            let from = address + 4 * first.min(words - WORDS) as u64;
            // SAFETY: both are within live memory, and this stream comes after the making of both.
            check("cuMemcpyDtoDAsync", unsafe {
                copy(to, from, 4 * WORDS, stream.as_raw())
            })?;
        }
        Ok(Some(Expected { entry, tag }))
    }

    /// Looks whether all entries are as expected. Everything must be done.
    pub(super) fn check(&self, expected: &[Expected]) -> Result<()> {
        let words = self.words.to_vec()?;
        for Expected { entry, tag } in expected {
            let found = &words[entry * ENTRY..(entry + 1) * ENTRY];
            ensure!(
                found.iter().all(|word| word == tag),
                "a block that held {tag:#x} held {found:x?} in the end"
            );
        }
        Ok(())
    }
}
