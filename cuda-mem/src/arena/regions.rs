//! What a tool knows of an arena: mapped memory as heaps, and blocks as their regions.
//!
//! A heap is one chunk, which the driver knows as one piece of memory. A block that crosses a border between chunks is
//! therefore several regions.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::panic::Location;

use super::backing::Chunk;
use crate::base::lock::Lock;
use crate::driver::raw::nvtx::Heap;
use crate::ledger::nvtx::Tool;

/// compute-sanitizer takes no longer names.
const LONGEST_NAME: usize = 49;

/// The heaps and regions of an arena. Threads take turns, so that the tool is notified in the order of events.
#[derive(Debug)]
pub(super) struct Regions {
    tool: Tool,
    state: Lock<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By address.
    heaps: BTreeMap<u64, (Chunk, Heap)>,
    /// Blocks by address, also those without memory while the arena sleeps.
    blocks: BTreeMap<u64, Block>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    origin: Option<&'static Location<'static>>,
}

/// The part of a block in a chunk: address and bytes.
fn part(address: u64, bytes: u64, chunk: Chunk) -> Option<(u64, u64)> {
    let start = address.max(chunk.address);
    let end = (address + bytes).min(chunk.end());
    (start < end).then(|| (start, end - start))
}

impl State {
    /// The parts of a block that lie in heaps.
    fn parts(&self, address: u64, bytes: u64) -> impl Iterator<Item = (Heap, u64, u64)> {
        let heaps = self.heaps.range(..address + bytes).rev();
        let heaps = heaps.take_while(move |(_, (chunk, _))| chunk.end() > address);
        heaps.filter_map(move |(_, (chunk, heap))| {
            let (start, bytes) = part(address, bytes, *chunk)?;
            Some((*heap, start, bytes))
        })
    }

    /// The blocks that have a part in a chunk, and this part.
    fn blocks_in(&self, chunk: Chunk) -> impl Iterator<Item = (Block, u64, u64)> {
        let before = self.blocks.range(..chunk.address).next_back();
        let blocks = before
            .into_iter()
            .chain(self.blocks.range(chunk.address..chunk.end()));
        blocks.filter_map(move |(address, block)| {
            let (start, bytes) = part(*address, block.bytes, chunk)?;
            Some((*block, start, bytes))
        })
    }
}

impl Regions {
    pub(super) fn new(tool: Tool) -> Self {
        Self {
            tool,
            state: Lock::default(),
        }
    }

    pub(super) fn mapped(&self, chunk: Chunk) {
        let Some(mut state) = self.state.lock_unless_forked() else {
            return;
        };
        let Some(heap) = self.tool.register_heap(chunk.address, chunk.bytes) else {
            return;
        };
        state.heaps.insert(chunk.address, (chunk, heap));
        // After a sleep there are blocks already.
        for (block, address, bytes) in state.blocks_in(chunk) {
            self.register(heap, address, bytes, block.origin);
        }
    }

    pub(super) fn unmapped(&self, chunk: Chunk) {
        let Some(mut state) = self.state.lock_unless_forked() else {
            return;
        };
        let Some((chunk, heap)) = state.heaps.remove(&chunk.address) else {
            return;
        };
        for (_, address, _) in state.blocks_in(chunk) {
            self.tool.unregister_region(address);
        }
        self.tool.unregister_heap(heap);
    }

    pub(super) fn allocated(
        &self,
        address: u64,
        bytes: u64,
        origin: Option<&'static Location<'static>>,
    ) {
        let Some(mut state) = self.state.lock_unless_forked() else {
            return;
        };
        state.blocks.insert(address, Block { bytes, origin });
        for (heap, start, bytes) in state.parts(address, bytes) {
            self.register(heap, start, bytes, origin);
        }
    }

    /// Call it before the block can be allocated again.
    pub(super) fn freed(&self, address: u64) {
        let Some(mut state) = self.state.lock_unless_forked() else {
            return;
        };
        let Some(block) = state.blocks.remove(&address) else {
            return;
        };
        for (_, start, _) in state.parts(address, block.bytes) {
            self.tool.unregister_region(start);
        }
    }

    fn register(
        &self,
        heap: Heap,
        address: u64,
        bytes: u64,
        origin: Option<&'static Location<'static>>,
    ) {
        let mut name = [0; LONGEST_NAME + 1];
        let name = origin.and_then(|origin| name_of(origin, &mut name));
        self.tool.register_region(heap, address, bytes, name);
    }
}

/// `file:line`, the end of it if it is long.
fn name_of<'a>(origin: &Location<'_>, name: &'a mut [u8; LONGEST_NAME + 1]) -> Option<&'a CStr> {
    let text = format!("{}:{}", origin.file(), origin.line());
    let bytes = text.as_bytes();
    let end = &bytes[bytes.len().saturating_sub(LONGEST_NAME)..];
    for (to, from) in name.iter_mut().zip(end) {
        *to = match from {
            b' '..=b'~' => *from,
            _ => b'?',
        };
    }
    CStr::from_bytes_until_nul(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_end_of_the_origin() {
        let origin = Location::caller();
        let mut name = [0; LONGEST_NAME + 1];
        let name = name_of(origin, &mut name).expect("it ends in a zero");
        let name = name.to_str().expect("printable");
        let whole = format!("{}:{}", origin.file(), origin.line());
        assert!(!name.is_empty() && name.len() <= LONGEST_NAME && whole.ends_with(name));
    }

    #[test]
    fn a_part_is_what_lies_in_the_chunk() {
        let chunk = Chunk {
            address: 100,
            bytes: 50,
        };
        assert_eq!(part(90, 20, chunk), Some((100, 10)));
        assert_eq!(part(110, 10, chunk), Some((110, 10)));
        assert_eq!(part(140, 100, chunk), Some((140, 10)));
        assert_eq!(part(90, 10, chunk), None);
        assert_eq!(part(150, 10, chunk), None);
    }
}
