//! The layout of memory at one moment, as a value.

#![forbid(unsafe_code)]

mod layout;
mod live;

pub(crate) use layout::{MemoryRange, lay_out};
pub(crate) use live::LiveBlocks;

use std::fmt;

use super::Origin;
use crate::base::error::Bytes;
use crate::driver::device::Device;

/// The memory of an arena or a pool at one moment: its segments, and the blocks in each. From
/// [`Arena::snapshot`](crate::Arena::snapshot) and [`Pool::snapshot`](crate::Pool::snapshot).
///
/// ```
/// use cuda_mem::{Arena, Driver};
/// use cuda_mem::ledger::BlockState;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let arena = Arena::builder(&device).build()?;
/// let buffer = arena.alloc::<u8>(&stream, 1000)?;
///
/// let snapshot = arena.snapshot();
/// assert_eq!(snapshot.reserved_bytes(), arena.stats().reserved);
/// let allocated = snapshot.blocks().filter(|block| block.state == BlockState::Allocated);
/// let addresses: Vec<_> = allocated.map(|block| (block.address, block.bytes)).collect();
/// assert_eq!(addresses, [(buffer.as_raw(), 1024)]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySnapshot {
    /// The device that the memory belongs to; `None` if it belongs to none, such as memory of the host.
    pub device: Option<Device>,
    /// By address. They do not overlap.
    pub segments: Vec<MemorySegment>,
    /// Bytes that are held at addresses that are not known: what a pool of the driver holds beyond the blocks that are
    /// listed. 0 for an arena.
    pub unlisted_bytes: u64,
    /// When it was taken, in nanoseconds since the recorder was created; `None` if the memory is not recorded.
    pub time: Option<u64>,
}

/// Memory at contiguous addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySegment {
    /// The first address.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Of these, bytes whose memory [sleeps](crate::Arena::sleep): they are not held now.
    pub asleep_bytes: u64,
    /// The device of the snapshot.
    pub device: Option<Device>,
    /// The driver's handle of the stream that the whole segment belongs to, if there is one. A segment of an arena serves
    /// all streams.
    pub stream: Option<u64>,
    /// By address. They fill the segment without gaps.
    pub blocks: Vec<MemoryBlock>,
}

/// A part of a [`MemorySegment`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryBlock {
    /// The first address.
    pub address: u64,
    /// Its size in bytes. An arena rounds requests up to 256.
    pub bytes: u64,
    /// Whether it is allocated.
    pub state: BlockState,
    /// The driver's handle of a stream: of an allocated block, the one that allocated it; of another, the one that used it
    /// last. `None` if there is none, or if it is not known.
    pub stream: Option<u64>,
    /// The bytes that were asked for, if the allocation is in the recorder's memory.
    pub requested: Option<u64>,
    /// The origin of the allocation, as `requested`.
    pub origin: Option<Origin>,
}

/// The state of a [`MemoryBlock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Allocated.
    Allocated,
    /// Freed after use by [several streams](crate::DeviceBuffer::free_after), which are not known to be done.
    PendingFree,
    /// Free, for one stream or for all.
    Free,
}

impl BlockState {
    /// Its name: `allocated`, `pending free` or `free`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::PendingFree => "pending free",
            Self::Free => "free",
        }
    }
}

impl fmt::Display for BlockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl MemoryBlock {
    /// A block about which no more is known.
    pub(crate) fn new(address: u64, bytes: u64, state: BlockState, stream: Option<u64>) -> Self {
        Self {
            address,
            bytes,
            state,
            stream,
            requested: None,
            origin: None,
        }
    }

    /// The address after the last one.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

impl MemorySegment {
    /// The address after the last one.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

impl MemorySnapshot {
    /// All blocks, by address.
    pub fn blocks(&self) -> impl Iterator<Item = &MemoryBlock> {
        self.segments.iter().flat_map(|segment| &segment.blocks)
    }

    /// Bytes of the blocks in this state.
    #[must_use]
    pub fn bytes_in(&self, state: BlockState) -> u64 {
        let blocks = self.blocks().filter(|block| block.state == state);
        blocks.map(|block| block.bytes).sum()
    }

    /// Bytes that are held: those of the segments that are not asleep, and those that are not listed.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        let segments = self.segments.iter();
        let held = segments.map(|segment| segment.bytes.saturating_sub(segment.asleep_bytes));
        held.sum::<u64>().saturating_add(self.unlisted_bytes)
    }

    /// Adds the bytes asked for and the origins.
    pub(crate) fn describe(&mut self, live: &mut LiveBlocks, rounded: impl Fn(u64) -> u64) {
        let segments = self.segments.iter_mut();
        let blocks = segments.flat_map(|segment| &mut segment.blocks);
        for block in blocks.filter(|block| block.state != BlockState::Free) {
            let Some(known) = live.take(block.address) else {
                continue;
            };
            // An address may have been allocated again meanwhile.
            if rounded(known.bytes) == block.bytes {
                block.stream = Some(known.stream);
                block.requested = Some(known.bytes);
                block.origin = known.origin;
            }
        }
    }
}

/// One line: `32.0 MiB in 1 segment: 4.0 MiB allocated, 0 B pending free, 28.0 MiB free, 0 B unlisted`.
impl fmt::Display for MemorySnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.segments.len();
        write!(
            f,
            "{} in {count} {}: {} allocated, {} pending free, {} free, {} unlisted",
            Bytes(self.reserved_bytes()),
            if count == 1 { "segment" } else { "segments" },
            Bytes(self.bytes_in(BlockState::Allocated)),
            Bytes(self.bytes_in(BlockState::PendingFree)),
            Bytes(self.bytes_in(BlockState::Free)),
            Bytes(self.unlisted_bytes),
        )
    }
}
