//! Contents of freed memory: copied in stream order just before the free, and checked at the end of the program.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{DeviceBuffer, Stream};

use super::content::Content;

/// Words per copy.
const PART: usize = 8;

/// A region of `Fixture::freed_words`, and its expected contents.
#[derive(Debug)]
pub(super) struct FreedContents {
    first: usize,
    expected: Vec<(usize, Content)>,
}

impl FreedContents {
    /// Words of a region.
    pub(super) const WORDS: usize = 8 << 10;

    pub(super) fn new(number: usize) -> Self {
        Self {
            first: number * Self::WORDS,
            expected: Vec::new(),
        }
    }

    /// Copies both ends of memory in its stream, and returns the number of copies. Stops when the region is full.
    pub(super) fn copy(
        &mut self,
        freed_words: &DeviceBuffer<u32>,
        memory: &DeviceBuffer<u32>,
        (name, content): (usize, &Content),
    ) -> Result<u64> {
        let (stream, address, len) = (memory.stream(), memory.as_raw(), memory.len());
        let part = len.min(PART);
        let mut copies = 0;
        for first in [0, len - part] {
            let place = self.first + self.expected.len() * PART;
            if part == 0 || place + PART > self.first + Self::WORDS {
                break;
            }
            let (to, from) = (
                freed_words.as_raw() + 4 * place as u64,
                address + 4 * first as u64,
            );
            // SAFETY: the region outlives the program, and only this copy uses these words of it.
            let mut to = unsafe { DeviceBuffer::<u32>::borrow_raw(stream, to, part, ()) };
            // SAFETY: a part of live memory, in its own stream.
            let from = unsafe { DeviceBuffer::<u32>::borrow_raw(stream, from, part, ()) };
            to.copy_from_device(&from)?;
            self.expected.push((name, content.part(first, part)));
            copies += 1;
        }
        Ok(copies)
    }

    /// Checks all copies. All streams must be idle.
    pub(super) fn check(&mut self, freed_words: &DeviceBuffer<u32>, stream: &Stream) -> Result<()> {
        let all = self.expected.len() * PART;
        if all == 0 {
            return Ok(());
        }
        let address = freed_words.as_raw() + 4 * self.first as u64;
        // SAFETY: as above.
        let region = unsafe { DeviceBuffer::<u32>::borrow_raw(stream, address, all, ()) };
        let words = region.to_vec()?;
        let again = region.to_vec()?;
        ensure!(
            words == again,
            "two readings differ: {words:x?}, {again:x?}"
        );
        for (found, (name, expected)) in words.chunks(PART).zip(&self.expected) {
            let found = &found[..expected.len()];
            expected
                .check(found)
                .with_context(|| format!("value {name} when it was freed: {found:x?}"))?;
        }
        self.expected.clear();
        Ok(())
    }
}
