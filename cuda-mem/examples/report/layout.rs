//! Addresses without the gaps between them.
//!
//! Memory lies in a few places of an address space that is far larger. A map of it leaves the wide gaps
//! out, and the addresses that are left fit a number in JavaScript, which has 53 bits.

use std::ops::Range;

use cuda_mem_trace::Timeline;
use serde::Serialize;

/// A part of the address space without a wide gap.
#[derive(Debug, Serialize)]
pub(crate) struct Extent {
    /// Its address in hexadecimal.
    pointer: String,
    bytes: u64,
    #[serde(skip)]
    start: u64,
    /// Where it is in the map: behind the extents before.
    #[serde(skip)]
    place: u64,
}

/// Gaps narrower than this are kept.
const NARROW: u64 = 64 << 10;
/// So are those narrower than this part of the memory.
const PART: u64 = 512;

/// All addresses that the log has.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) extents: Vec<Extent>,
}

impl Layout {
    pub(crate) fn new(timeline: &Timeline) -> Self {
        let blocks = timeline.blocks.iter();
        let mappings = timeline.mappings.iter();
        let mut ranges: Vec<Range<u64>> = blocks
            .map(|block| block.pointer..block.pointer + block.bytes)
            .chain(mappings.map(|mapping| mapping.pointer..mapping.pointer + mapping.bytes))
            .filter(|range| !range.is_empty())
            .collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let ranges = joined(ranges, 0);
        let memory: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let mut place = 0;
        let extents = joined(ranges, NARROW.max(memory / PART))
            .into_iter()
            .map(|range| {
                let bytes = range.end - range.start;
                place += bytes;
                Extent {
                    pointer: format!("{:#x}", range.start),
                    bytes,
                    start: range.start,
                    place: place - bytes,
                }
            })
            .collect();
        Self { extents }
    }

    /// The place of an address in the map. Empty blocks may be outside, and are put to the end of what is before.
    pub(crate) fn place(&self, pointer: u64) -> u64 {
        let behind = self
            .extents
            .partition_point(|extent| extent.start <= pointer);
        let Some(extent) = behind
            .checked_sub(1)
            .and_then(|index| self.extents.get(index))
        else {
            return 0;
        };
        extent.place + (pointer - extent.start).min(extent.bytes)
    }
}

/// Ranges that overlap or are at most `gap` apart become one.
fn joined(ranges: Vec<Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(gap) => {
                last.end = last.end.max(range.end);
            }
            _ => all.push(range),
        }
    }
    all
}
