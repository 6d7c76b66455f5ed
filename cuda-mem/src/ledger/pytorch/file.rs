//! The file, with PyTorch's names.

#![forbid(unsafe_code)]

use serde::Serialize;

use super::frames::{Frame, frames};
use super::history::{History, HistoryEvent};
use crate::ledger::{BlockState, MemoryBlock, MemorySegment, MemorySnapshot, Recording};

/// How much memory a device has left is not recorded.
const UNKNOWN: i64 = -1;

#[derive(Debug, Serialize)]
pub(super) struct File<'a> {
    segments: Vec<FileSegment<'a>>,
    /// By device.
    device_traces: Vec<Vec<FileEvent<'a>>>,
}

// All numbers are `i64`: of a `u64`, the pickle would have nine bytes, and viewers then compute with big integers.

#[derive(Debug, Serialize)]
struct FileSegment<'a> {
    device: i64,
    address: i64,
    total_size: i64,
    allocated_size: i64,
    active_size: i64,
    requested_size: i64,
    stream: i64,
    segment_type: &'static str,
    segment_pool_id: (i64, i64),
    is_expandable: bool,
    frames: Vec<Frame<'a>>,
    blocks: Vec<FileBlock<'a>>,
}

#[derive(Debug, Serialize)]
struct FileBlock<'a> {
    address: i64,
    size: i64,
    requested_size: i64,
    state: &'static str,
    frames: Vec<Frame<'a>>,
}

#[derive(Debug, Serialize)]
struct FileEvent<'a> {
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_free: Option<i64>,
    size: i64,
    stream: i64,
    /// Since 1970.
    time_us: i64,
    frames: Vec<Frame<'a>>,
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl<'a> File<'a> {
    pub(super) fn of(snapshot: &'a MemorySnapshot, trace: Option<&'a Recording>) -> Self {
        let history = trace.map(|trace| History::of(snapshot, trace));
        let device = index(snapshot);
        let mut segments: Vec<FileSegment<'_>> = snapshot
            .segments
            .iter()
            .map(|segment| FileSegment::of(segment, device))
            .collect();
        let mut device_traces: Vec<Vec<FileEvent<'_>>> = Vec::new();
        device_traces.resize_with(device + 1, Vec::new);
        if let (Some(history), Some(trace)) = (&history, trace) {
            if snapshot.time.is_some() && !trace.entries().is_empty() {
                segments
                    .iter_mut()
                    .for_each(|segment| segment.drop_unknown(history));
            }
            segments.extend(others(snapshot, history, device));
            let began = trace.began_nanos();
            let events = history
                .events
                .iter()
                .map(|event| FileEvent::of(event, began));
            device_traces[device] = events.collect();
        }
        Self {
            segments,
            device_traces,
        }
    }
}

/// The device's place in lists; 0 for memory of none.
fn index(snapshot: &MemorySnapshot) -> usize {
    snapshot
        .device
        .map_or(0, |device| device.ordinal() as usize)
}

impl<'a> FileSegment<'a> {
    fn of(segment: &'a MemorySegment, device: usize) -> Self {
        let blocks: Vec<FileBlock<'_>> = segment.blocks.iter().map(FileBlock::of).collect();
        let (address, bytes) = (segment.address, segment.bytes);
        Self::with_blocks((address, bytes), segment.stream, device, blocks)
    }

    fn with_blocks(
        (address, bytes): (u64, u64),
        stream: Option<u64>,
        device: usize,
        blocks: Vec<FileBlock<'a>>,
    ) -> Self {
        let mut segment = Self {
            device: number(device as u64),
            address: number(address),
            total_size: number(bytes),
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            stream: number(stream.unwrap_or(0)),
            segment_type: "large",
            segment_pool_id: (0, 0),
            // One of a pool is a single block.
            is_expandable: stream.is_none(),
            frames: Vec::new(),
            blocks,
        };
        segment.sum();
        segment
    }

    fn sum(&mut self) {
        let sizes = |states: &[&str], size: fn(&FileBlock<'_>) -> i64| {
            let blocks = self.blocks.iter();
            let blocks = blocks.filter(|block| states.contains(&block.state));
            blocks.map(size).sum()
        };
        self.allocated_size = sizes(&[ALLOCATED], |block| block.size);
        self.active_size = sizes(&[ALLOCATED, PENDING], |block| block.size);
        self.requested_size = sizes(&[ALLOCATED, PENDING], |block| block.requested_size);
    }

    /// Makes blocks inactive that the events know to be free.
    fn drop_unknown(&mut self, history: &History<'_>) {
        for block in &mut self.blocks {
            let (start, bytes) = (block.address.cast_unsigned(), block.size.cast_unsigned());
            if block.state != INACTIVE && !history.has_block(start..start.saturating_add(bytes)) {
                block.state = INACTIVE;
            }
        }
        self.sum();
    }
}

const ALLOCATED: &str = "active_allocated";
const PENDING: &str = "active_pending_free";
const INACTIVE: &str = "inactive";

impl<'a> FileBlock<'a> {
    fn of(block: &'a MemoryBlock) -> Self {
        Self {
            address: number(block.address),
            size: number(block.bytes),
            requested_size: number(block.requested.unwrap_or(block.bytes)),
            state: match block.state {
                BlockState::Allocated => ALLOCATED,
                BlockState::PendingFree => PENDING,
                BlockState::Free => INACTIVE,
            },
            frames: frames(block.origin.as_ref()),
        }
    }

    fn free(address: u64, bytes: u64) -> Self {
        Self {
            address: number(address),
            size: number(bytes),
            requested_size: number(bytes),
            state: INACTIVE,
            frames: Vec::new(),
        }
    }
}

/// Memory in the history and not in the snapshot: of others that share the recorder.
fn others<'a>(
    snapshot: &MemorySnapshot,
    history: &History<'a>,
    device: usize,
) -> Vec<FileSegment<'a>> {
    let mut rest = history.mapped.clone();
    for segment in &snapshot.segments {
        rest.remove(segment.address..segment.end());
    }
    let segments = rest.iter().map(|range| {
        let (mut at, mut stream) = (range.start, None);
        let mut blocks = Vec::new();
        for (address, block) in history.live.range(range.clone()) {
            if *address < at {
                continue;
            }
            if *address > at {
                blocks.push(FileBlock::free(at, address - at));
            }
            at = address.saturating_add(block.bytes).min(range.end);
            stream = block.own_stream().or(stream);
            blocks.push(FileBlock {
                address: number(*address),
                size: number(at - address),
                requested_size: number(at - address),
                state: if block.is_pending { PENDING } else { ALLOCATED },
                frames: frames(block.origin),
            });
        }
        if at < range.end {
            blocks.push(FileBlock::free(at, range.end - at));
        }
        let (address, bytes) = (range.start, range.end - range.start);
        FileSegment::with_blocks((address, bytes), stream, device, blocks)
    });
    segments.collect()
}

impl<'a> FileEvent<'a> {
    fn of(event: &HistoryEvent<'a>, began: u64) -> Self {
        let is_failure = event.action == "oom";
        Self {
            action: event.action,
            addr: (!is_failure).then(|| number(event.address)),
            device_free: is_failure.then_some(UNKNOWN),
            size: number(event.bytes),
            stream: number(event.stream),
            time_us: number(began.saturating_add(event.time) / 1000),
            frames: frames(event.origin),
        }
    }
}
