//! What memory held when it was freed, copied aside in the order of its stream and looked at when all is done.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{DeviceBuffer, Stream};

use super::content::Content;

/// Words that are copied from one place.
const PART: usize = 8;

/// A region of the log, and what has to be in it.
#[derive(Debug)]
pub(super) struct Witness {
    first: usize,
    expected: Vec<(usize, Content)>,
}

impl Witness {
    /// Words that each takes of the log.
    pub(super) const WORDS: usize = 8 << 10;

    pub(super) fn new(number: usize) -> Self {
        Self {
            first: number * Self::WORDS,
            expected: Vec::new(),
        }
    }

    /// Copies both ends of memory aside, in its stream. Nothing if there is no room any more.
    pub(super) fn note(
        &mut self,
        log: &DeviceBuffer<u32>,
        memory: &DeviceBuffer<u32>,
        (name, content): (usize, &Content),
    ) -> Result<u64> {
        let (stream, address, len) = (memory.stream(), memory.as_raw(), memory.len());
        let part = len.min(PART);
        let mut noted = 0;
        for first in [0, len - part] {
            let place = self.first + self.expected.len() * PART;
            if part == 0 || place + PART > self.first + Self::WORDS {
                break;
            }
            let (to, from) = (log.as_raw() + 4 * place as u64, address + 4 * first as u64);
            // SAFETY: the log lives longer than the program, and nobody else uses this place of it.
            let mut to = unsafe { DeviceBuffer::<u32>::borrow_raw(stream, to, part, ()) };
            // SAFETY: a part of memory that lives, in its own stream.
            let from = unsafe { DeviceBuffer::<u32>::borrow_raw(stream, from, part, ()) };
            to.copy_from_buffer(&from)?;
            self.expected.push((name, content.part(first, part)));
            noted += 1;
        }
        Ok(noted)
    }

    /// Everything is done: what was noted has to be what was there.
    pub(super) fn check(&mut self, log: &DeviceBuffer<u32>, stream: &Stream) -> Result<()> {
        let all = self.expected.len() * PART;
        if all == 0 {
            return Ok(());
        }
        let address = log.as_raw() + 4 * self.first as u64;
        // SAFETY: as above.
        let log = unsafe { DeviceBuffer::<u32>::borrow_raw(stream, address, all, ()) };
        let words = log.to_vec()?;
        let again = log.to_vec()?;
        ensure!(
            words == again,
            "two readings of the log differ: {words:x?}, {again:x?}"
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
