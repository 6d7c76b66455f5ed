//! Physical memory in the address space, and what of it is free.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Block;

/// Physical memory at an address. Events are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The address.
    pub pointer: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The event since which it is mapped.
    pub mapped: usize,
    /// The event since which it is not; `None` if it is mapped at the end. Where physical memory moves, this
    /// is the event of the new mapping, so that sums of mapped bytes do not dip between the two.
    pub unmapped: Option<usize>,
}

/// Mapped memory that no block has, after one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeSpace {
    /// The event.
    pub event: usize,
    /// All of it, in bytes.
    pub bytes: u64,
    /// The largest piece without a gap.
    pub largest: u64,
}

/// What is mapped now, and all that ever was.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// Address → number of the mapping there.
    at_address: BTreeMap<u64, usize>,
    all: Vec<Mapping>,
    bytes: u64,
}

impl Mapped {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether nothing was mapped there before. If it was, that ends.
    pub(super) fn map(&mut self, range: Range<u64>, event: usize) -> bool {
        let before = self.bytes;
        if range.is_empty() {
            return true;
        }
        self.clear(&range, event);
        let is_new = self.bytes == before;
        self.add(range, event);
        is_new
    }

    /// Whether all of it was mapped.
    pub(super) fn unmap(&mut self, range: Range<u64>, event: usize) -> bool {
        let before = self.bytes;
        self.clear(&range, event);
        before - self.bytes == range.end - range.start
    }

    fn add(&mut self, range: Range<u64>, event: usize) {
        let bytes = range.end - range.start;
        self.bytes += bytes;
        self.at_address.insert(range.start, self.all.len());
        self.all.push(Mapping {
            pointer: range.start,
            bytes,
            mapped: event,
            unmapped: None,
        });
    }

    fn clear(&mut self, range: &Range<u64>, event: usize) {
        while let Some((&start, &number)) = self.at_address.range(..range.end).next_back() {
            let end = start + self.all[number].bytes;
            if end <= range.start {
                break;
            }
            self.at_address.remove(&start);
            self.all[number].unmapped = Some(event);
            self.bytes -= end - start;
            // Last the lower part, which ends the loop.
            if end > range.end {
                self.add(range.end..end, event);
            }
            if start < range.start {
                self.add(start..range.start, event);
            }
        }
    }

    /// `blocks` are those that take space now, in the order of their addresses.
    pub(super) fn free_space(
        &self,
        event: usize,
        blocks: impl Iterator<Item = Block>,
    ) -> FreeSpace {
        let mut blocks = blocks.map(|block| block.pointer..block.pointer + block.bytes);
        let mut next = blocks.next();
        let mut pieces = Pieces::default();
        for (&start, &number) in &self.at_address {
            let end = start + self.all[number].bytes;
            let mut from = start;
            while let Some(block) = next.clone().filter(|block| block.start < end) {
                if block.end > start {
                    pieces.add(from..block.start.max(from));
                    from = from.max(block.end.min(end));
                }
                if block.end > end {
                    // It goes on in the next mapping.
                    break;
                }
                next = blocks.next();
            }
            pieces.add(from..end);
        }
        FreeSpace {
            event,
            ..pieces.space
        }
    }

    /// All that were there between two events.
    pub(super) fn finish(mut self) -> Vec<Mapping> {
        self.all
            .retain(|mapping| mapping.unmapped != Some(mapping.mapped));
        self.all
    }
}

/// Free pieces by their addresses. Those of adjacent mappings are one.
#[derive(Default)]
struct Pieces {
    space: FreeSpace,
    last: Range<u64>,
}

impl Pieces {
    fn add(&mut self, piece: Range<u64>) {
        if piece.is_empty() {
            return;
        }
        self.space.bytes += piece.end - piece.start;
        self.last = if self.last.end == piece.start && !self.last.is_empty() {
            self.last.start..piece.end
        } else {
            piece
        };
        let bytes = self.last.end - self.last.start;
        self.space.largest = self.space.largest.max(bytes);
    }
}
