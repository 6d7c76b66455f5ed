//! Blocks become segments without gaps.

#![forbid(unsafe_code)]

use super::{BlockState, MemoryBlock, MemorySegment};
use crate::driver::device::Device;

/// Addresses that are held or asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryRange {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) is_asleep: bool,
}

/// The segments of these ranges, with these blocks in them. Ranges that touch become one segment if `joins`. What is in a
/// range and in no block is free: it is on its way from one heap to another.
pub(crate) fn lay_out(
    mut ranges: Vec<MemoryRange>,
    mut blocks: Vec<MemoryBlock>,
    joins: bool,
    device: Option<Device>,
) -> Vec<MemorySegment> {
    ranges.sort_unstable_by_key(|range| range.address);
    blocks.sort_unstable_by_key(|block| block.address);
    let mut segments: Vec<MemorySegment> = Vec::new();
    for range in ranges {
        let asleep_bytes = if range.is_asleep { range.bytes } else { 0 };
        match segments.last_mut() {
            Some(last) if joins && last.end() == range.address => {
                last.bytes += range.bytes;
                last.asleep_bytes += asleep_bytes;
            }
            _ => segments.push(MemorySegment {
                address: range.address,
                bytes: range.bytes,
                asleep_bytes,
                device,
                stream: None,
                blocks: Vec::new(),
            }),
        }
    }
    let mut blocks = blocks.into_iter().peekable();
    for segment in &mut segments {
        let (mut at, end) = (segment.address, segment.end());
        while let Some(block) = blocks.next_if(|block| block.address < end) {
            let is_inside = at <= block.address && block.end() <= end;
            debug_assert!(is_inside, "{block:?} is not in {at:#x}..{end:#x}");
            if is_inside {
                fill(&mut segment.blocks, at, block.address);
                at = block.end();
                segment.blocks.push(block);
            }
        }
        fill(&mut segment.blocks, at, end);
    }
    debug_assert!(blocks.next().is_none(), "a block is in no segment");
    segments
}

/// Adds a free block between two addresses.
fn fill(blocks: &mut Vec<MemoryBlock>, from: u64, to: u64) {
    if from < to {
        blocks.push(MemoryBlock::new(from, to - from, BlockState::Free, None));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(address: u64, bytes: u64, is_asleep: bool) -> MemoryRange {
        MemoryRange {
            address,
            bytes,
            is_asleep,
        }
    }

    fn allocated(address: u64, bytes: u64) -> MemoryBlock {
        MemoryBlock::new(address, bytes, BlockState::Allocated, Some(7))
    }

    /// Start and size of each block.
    fn places(segment: &MemorySegment) -> Vec<(u64, u64)> {
        let blocks = segment.blocks.iter();
        blocks.map(|block| (block.address, block.bytes)).collect()
    }

    #[test]
    fn ranges_that_touch_are_one_segment_and_gaps_are_free() {
        let ranges = vec![
            range(300, 100, true),
            range(100, 100, false),
            range(200, 50, false),
        ];
        let blocks = vec![allocated(180, 60), allocated(110, 10)];
        let segments = lay_out(ranges, blocks, true, None);
        assert_eq!(segments.len(), 2);
        let first = &segments[0];
        assert_eq!(
            (first.address, first.bytes, first.asleep_bytes),
            (100, 150, 0)
        );
        let expected = [(100, 10), (110, 10), (120, 60), (180, 60), (240, 10)];
        assert_eq!(places(first), expected);
        let free = first.blocks.iter().step_by(2);
        assert!(
            free.into_iter()
                .all(|block| block.state == BlockState::Free)
        );
        assert_eq!(segments[1].asleep_bytes, 100);
        assert_eq!(places(&segments[1]), [(300, 100)]);
    }

    #[test]
    fn ranges_that_may_not_join_are_segments_of_their_own() {
        let ranges = vec![range(100, 100, false), range(200, 50, false)];
        let blocks = vec![allocated(100, 100), allocated(200, 1)];
        let segments = lay_out(ranges, blocks, false, None);
        let all: Vec<_> = segments.iter().map(places).collect();
        assert_eq!(all, [vec![(100, 100)], vec![(200, 1), (201, 49)]]);
    }

    #[test]
    fn nothing_has_no_segments() {
        assert_eq!(lay_out(Vec::new(), Vec::new(), true, None), []);
    }
}
