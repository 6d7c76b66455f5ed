//! The events of a recording as PyTorch's actions, so that viewers can go back from the snapshot through all of them.
//!
//! Viewers want every live block to lie in a live segment, whenever they look. So memory without events of its own, such
//! as a pool's, becomes a segment with each block, and memory that sleeps stays. Where recording and snapshot differ, more
//! events follow at the end.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use crate::ledger::ranges::Ranges;
use crate::ledger::{
    BlockState, LiveBlocks, MemoryBlock, MemorySegment, MemorySnapshot, Origin, Recording,
    TraceAction, TraceEntry,
};

/// One of PyTorch's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HistoryEvent<'a> {
    pub(super) action: &'static str,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    /// Nanoseconds since the recorder was created.
    pub(super) time: u64,
    pub(super) origin: Option<&'a Origin>,
}

/// A block that is allocated, or whose free is pending.
#[derive(Clone, Debug)]
pub(super) struct HistoryBlock<'a> {
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) is_pending: bool,
    pub(super) origin: Option<&'a Origin>,
    /// What was mapped for this block alone.
    own: Vec<Range<u64>>,
}

impl HistoryBlock<'_> {
    /// The stream of the segment that is this block's alone.
    pub(super) fn own_stream(&self) -> Option<u64> {
        (!self.own.is_empty()).then_some(self.stream)
    }
}

#[derive(Debug)]
pub(super) struct History<'a> {
    pub(super) events: Vec<HistoryEvent<'a>>,
    /// After the events.
    pub(super) live: BTreeMap<u64, HistoryBlock<'a>>,
    pub(super) mapped: Ranges,
    /// Before the events.
    mapped_before: Ranges,
    /// Addresses of blocks in events so far, and all that they took.
    seen: HashSet<u64>,
    taken: Ranges,
    /// Whether there are no earlier events.
    is_complete: bool,
    /// When the last event happened.
    time: u64,
}

/// The events up to the snapshot.
fn entries_before<'a>(
    snapshot: &MemorySnapshot,
    recording: &'a Recording,
) -> impl DoubleEndedIterator<Item = &'a TraceEntry> {
    let until = snapshot.time.unwrap_or(u64::MAX);
    let entries = recording.entries().iter();
    entries.filter(move |entry| entry.time <= until)
}

fn range_of(address: u64, bytes: u64) -> Range<u64> {
    address..address.saturating_add(bytes)
}

impl<'a> History<'a> {
    /// The events up to a snapshot, and those that lead to it.
    pub(super) fn of(snapshot: &MemorySnapshot, recording: &'a Recording) -> Self {
        let mapped = mapped_before(snapshot, recording);
        let mut history = Self {
            events: Vec::new(),
            live: BTreeMap::new(),
            mapped_before: mapped.clone(),
            mapped,
            seen: HashSet::new(),
            taken: Ranges::default(),
            is_complete: recording.dropped() == 0,
            time: 0,
        };
        for entry in entries_before(snapshot, recording) {
            history.time = entry.time;
            history.add(entry);
        }
        history.time = snapshot.time.unwrap_or(history.time);
        history.lead_to(snapshot);
        history
    }

    fn push(&mut self, action: &'static str, range: Range<u64>, stream: u64) {
        self.push_with(action, range, stream, None);
    }

    fn push_with(
        &mut self,
        action: &'static str,
        range: Range<u64>,
        stream: u64,
        origin: Option<&'a Origin>,
    ) {
        self.events.push(HistoryEvent {
            action,
            address: range.start,
            bytes: range.end - range.start,
            stream,
            time: self.time,
            origin,
        });
    }

    fn add(&mut self, entry: &'a TraceEntry) {
        let range = range_of(entry.address, entry.bytes);
        match entry.action {
            TraceAction::Allocate => self.allocate(entry),
            TraceAction::Free if self.is_known(entry) => self.free(entry.address),
            TraceAction::FreeRequested if self.is_known(entry) => self.request_free(entry.address),
            TraceAction::FreeCompleted if self.is_known(entry) => self.free(entry.address),
            TraceAction::AllocateFailure => {
                self.push_with("oom", range, entry.stream, entry.origin.as_ref());
            }
            TraceAction::Map => {
                self.hand_over(&range);
                self.map(range, 0);
            }
            TraceAction::Unmap if !self.has_blocks_in(&range) => self.unmap(range, 0),
            _ => {}
        }
    }

    fn allocate(&mut self, entry: &'a TraceEntry) {
        if self.live.contains_key(&entry.address) {
            // Recorded twice, as by an adaptor too.
            return;
        }
        self.seen.insert(entry.address);
        let range = range_of(entry.address, entry.bytes);
        self.taken.add(range.clone());
        let block = self.block(entry, false);
        self.push_with("alloc", range, entry.stream, entry.origin.as_ref());
        self.live.insert(entry.address, block);
    }

    /// A block, with a segment if there is none around it.
    fn block(&mut self, entry: &'a TraceEntry, is_pending: bool) -> HistoryBlock<'a> {
        let range = range_of(entry.address, entry.bytes);
        HistoryBlock {
            bytes: entry.bytes,
            stream: entry.stream,
            is_pending,
            origin: entry.origin.as_ref(),
            own: self.map(range, entry.stream),
        }
    }

    /// Whether there is such a block. One that was allocated before the first event is added.
    fn is_known(&mut self, entry: &'a TraceEntry) -> bool {
        if self.live.contains_key(&entry.address) {
            return true;
        }
        if self.is_complete || !self.seen.insert(entry.address) {
            return false;
        }
        let range = range_of(entry.address, entry.bytes);
        let is_older_than_its_memory =
            !self.mapped.overlapping(&range).is_empty() && !self.mapped_before.contain(&range);
        if is_older_than_its_memory {
            return false;
        }
        // It has been there since before the first event, and so has its segment.
        self.taken.add(range.clone());
        let block = HistoryBlock {
            bytes: entry.bytes,
            stream: entry.stream,
            is_pending: entry.action == TraceAction::FreeCompleted,
            origin: None,
            own: self.mapped.add(range),
        };
        self.live.insert(entry.address, block);
        true
    }

    fn request_free(&mut self, address: u64) {
        let Some(block) = self.live.get_mut(&address) else {
            return;
        };
        if !std::mem::replace(&mut block.is_pending, true) {
            let (range, stream) = (range_of(address, block.bytes), block.stream);
            self.push("free_requested", range, stream);
        }
    }

    fn free(&mut self, address: u64) {
        self.request_free(address);
        let Some(block) = self.live.remove(&address) else {
            return;
        };
        let range = range_of(address, block.bytes);
        self.push("free_completed", range, block.stream);
        for own in block.own {
            if !self.has_blocks_in(&own) {
                self.unmap(own, block.stream);
            }
        }
    }

    /// Returns what was not mapped before.
    fn map(&mut self, range: Range<u64>, stream: u64) -> Vec<Range<u64>> {
        let new = self.mapped.add(range);
        for part in &new {
            self.push("segment_map", part.clone(), stream);
        }
        new
    }

    fn unmap(&mut self, range: Range<u64>, stream: u64) {
        for part in self.mapped.remove(range) {
            self.push("segment_unmap", part, stream);
        }
    }

    /// Memory of a block becomes an arena's: the block of an upstream that records too.
    fn hand_over(&mut self, range: &Range<u64>) {
        let before = self.live.range(..=range.start).next_back();
        let around = before.filter(|(address, block)| {
            let block_end = range_of(**address, block.bytes).end;
            !block.own.is_empty() && block_end >= range.end
        });
        if let Some((&address, _)) = around {
            self.free(address);
        }
    }

    fn has_blocks_in(&self, range: &Range<u64>) -> bool {
        let before = self.live.range(..range.end).next_back();
        before.is_some_and(|(address, block)| range_of(*address, block.bytes).end > range.start)
    }

    /// Whether a block of the snapshot is one that the events know, or that has been there since before them. Others are
    /// about to be allocated, or to be freed.
    pub(super) fn has_block(&self, range: Range<u64>) -> bool {
        let is_older = !self.is_complete
            && self.mapped_before.contain(&range)
            && self.taken.overlapping(&range).is_empty();
        is_older || self.live.contains_key(&range.start)
    }

    /// Adds what is missing between the last event and the snapshot.
    fn lead_to(&mut self, snapshot: &MemorySnapshot) {
        let addresses: Vec<u64> = self.live.keys().copied().collect();
        for address in addresses {
            let Some(segment) = segment_at(snapshot, address) else {
                continue;
            };
            match block_at(segment, address).map(|block| block.state) {
                Some(BlockState::Allocated) => {}
                Some(BlockState::PendingFree) => self.request_free(address),
                Some(BlockState::Free) | None => self.free(address),
            }
        }
        for segment in &snapshot.segments {
            let range = segment.address..segment.end();
            for part in self.mapped.overlapping(&range) {
                for beyond in [part.start..range.start, range.end..part.end] {
                    if beyond.start < beyond.end && !self.has_blocks_in(&beyond) {
                        self.unmap(beyond, 0);
                    }
                }
            }
            self.map(range, segment.stream.unwrap_or(0));
        }
        self.push("snapshot", 0..0, 0);
    }
}

/// What was mapped before the first event, as far as the snapshot shows it.
fn mapped_before(snapshot: &MemorySnapshot, recording: &Recording) -> Ranges {
    let mut mapped = Ranges::default();
    let mut live = LiveBlocks::of(recording);
    for segment in &snapshot.segments {
        // A block of a pool is a segment from its allocation on.
        let is_block = segment.blocks.len() == 1 && live.take(segment.address).is_some();
        if !is_block {
            mapped.add(segment.address..segment.end());
        }
    }
    for entry in entries_before(snapshot, recording).rev() {
        let range = range_of(entry.address, entry.bytes);
        match entry.action {
            TraceAction::Map => drop(mapped.remove(range)),
            TraceAction::Unmap => drop(mapped.add(range)),
            _ => {}
        }
    }
    mapped
}

/// The segment that contains an address.
fn segment_at(snapshot: &MemorySnapshot, address: u64) -> Option<&MemorySegment> {
    let segments = &snapshot.segments;
    let after = segments.partition_point(|segment| segment.address <= address);
    let segment = segments.get(after.checked_sub(1)?)?;
    (address < segment.end()).then_some(segment)
}

/// The block that begins at an address.
fn block_at(segment: &MemorySegment, address: u64) -> Option<&MemoryBlock> {
    let blocks = &segment.blocks;
    let found = blocks.binary_search_by_key(&address, |block| block.address);
    blocks.get(found.ok()?)
}

#[cfg(test)]
mod tests;
