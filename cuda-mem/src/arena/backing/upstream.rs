//! Backing by large blocks of another resource.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Chunk, Reserved, chunk_at, chunks_in};
use crate::arena::GRANULE;
use crate::arena::page_map::PageMap;
use crate::base::error::{Error, Result, took_effect};
use crate::driver::pointer::MemoryKind;
use crate::ledger::MemoryRange;
use crate::memory::buffer::give_back;
use crate::memory::resource::{MemoryResource, RESOURCE_ALIGNMENT, Resource};
use crate::stream::Stream;
use crate::stream::deferred::ResourceCall;
use crate::stream::recording;

#[derive(Debug)]
pub(in crate::arena) struct Upstream {
    resource: Resource,
    state: Mutex<State>,
    pub(super) reserved: Reserved,
}

#[derive(Debug, Default)]
struct State {
    /// The stream on which blocks are allocated and freed, and whose context they need. Created for the first block.
    own: Option<Stream>,
    /// Usable memory: address → bytes.
    chunks: BTreeMap<u64, u64>,
    /// The upstream's block that a chunk lies in, by the chunk's address.
    blocks: BTreeMap<u64, (u64, Layout)>,
    /// Blocks that are no chunks, and that the upstream did not take back when it could have.
    refused: Vec<(u64, Layout)>,
}

impl Upstream {
    pub(in crate::arena) fn new(resource: Resource, max: u64) -> Self {
        Self {
            resource,
            state: Mutex::default(),
            reserved: Reserved::new(max),
        }
    }

    pub(in crate::arena) fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Whether the memory is from `cuMemAlloc`, as far as can be told.
    pub(super) fn is_plain(&self) -> bool {
        self.resource.pool().is_none() && self.resource.memory_kind() == MemoryKind::Device
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn chunks_in(&self, from: u64, to: u64) -> Vec<Chunk> {
        chunks_in(&self.state().chunks, from, to, |bytes| Some(*bytes))
    }

    pub(super) fn chunk_at(&self, address: u64) -> Option<Chunk> {
        chunk_at(&self.state().chunks, address, |bytes| Some(*bytes))
    }

    pub(super) fn ranges(&self) -> Vec<MemoryRange> {
        let state = self.state();
        let chunks = state.chunks.iter();
        let ranges = chunks.map(|(address, bytes)| MemoryRange {
            address: *address,
            bytes: *bytes,
            is_asleep: false,
        });
        ranges.collect()
    }

    fn own_stream(&self, stream: &Stream) -> Result<Stream> {
        if let Some(own) = &self.state().own {
            return Ok(own.clone());
        }
        // Not under the lock. If two threads create a stream, one of the two is dropped, not under the lock either.
        let own = stream.context().stream()?;
        let mut state = self.state();
        Ok(state.own.get_or_insert_with(|| own.clone()).clone())
    }

    /// Whether a block of the resource begins here.
    pub(super) fn is_boundary(&self, address: u64) -> bool {
        self.state().chunks.contains_key(&address)
    }

    pub(super) fn grow(&self, bytes: u64, stream: &Stream) -> Result<Chunk> {
        let grown = self.try_grow(bytes, stream);
        if grown.is_err() {
            self.drop_unneeded_stream();
        }
        grown
    }

    fn try_grow(&self, bytes: u64, stream: &Stream) -> Result<Chunk> {
        let own = self.own_stream(stream)?;
        let claim = self.reserved.claim(bytes)?;
        // Blocks that are refused again stay for the next time.
        let _ = self.give_back_refused();
        let grown = self.grow_reserved(bytes, stream, &own)?;
        claim.keep();
        Ok(grown)
    }

    /// The bytes are counted as reserved already.
    fn grow_reserved(&self, bytes: u64, stream: &Stream, own: &Stream) -> Result<Chunk> {
        // The resource may hold locks, so nothing must be given back to it meanwhile. None of ours is held.
        let _inside = ResourceCall::enter();
        let table = own.device().driver().table();
        let (address, layout) =
            recording::relaxed_while_capturing(table, || self.take(bytes, own))?;
        let chunk = Chunk {
            address: address.next_multiple_of(GRANULE),
            bytes,
        };
        let ready = if PageMap::can_hold(chunk.end()) {
            stream.wait_for(own)
        } else {
            Err(Error::invalid(format!(
                "{address:#x} is beyond the addresses that an arena can keep account of"
            )))
        };
        if let Err(error) = ready {
            // The first error matters more; the block is tried again.
            let _ = self.give_back_unused(address, layout, own);
            return Err(error);
        }
        let mut state = self.state();
        // Another thread may have given the last block back meanwhile, and the stream with it.
        state.own.get_or_insert_with(|| own.clone());
        state.chunks.insert(chunk.address, chunk.bytes);
        state.blocks.insert(chunk.address, (address, layout));
        Ok(chunk)
    }

    /// A block with room for this many bytes in whole granules.
    fn take(&self, bytes: u64, own: &Stream) -> Result<(u64, Layout)> {
        let layout = |bytes: u64| {
            usize::try_from(bytes)
                .ok()
                .and_then(|bytes| Layout::from_size_align(bytes, RESOURCE_ALIGNMENT).ok())
                .ok_or_else(|| Error::invalid(format!("{bytes} bytes are too many")))
        };
        let exact = layout(bytes)?;
        let address = self.resource.allocate(exact, own)?;
        if address.is_multiple_of(GRANULE) {
            return Ok((address, exact));
        }
        // Not aligned to a granule: ask for one granule more.
        self.give_back_unused(address, exact, own)?;
        let wider = layout(bytes.saturating_add(GRANULE))?;
        Ok((self.resource.allocate(wider, own)?, wider))
    }

    /// Gives back a block that was just allocated, and never used. If the upstream refuses it, it is tried again later.
    fn give_back_unused(&self, address: u64, layout: Layout, own: &Stream) -> Result<()> {
        // SAFETY: the block was allocated there with this layout, and is unused.
        let given = unsafe { give_back(&*self.resource.inner, address, layout, own) };
        if !took_effect(&given) {
            let mut state = self.state();
            // Also if no other block has a stream.
            state.own.get_or_insert_with(|| own.clone());
            state.refused.push((address, layout));
        }
        given
    }

    /// Tries again to give back what was refused. No lock of ours is held. The error is that of the last block that is
    /// refused again.
    pub(super) fn give_back_refused(&self) -> Result<()> {
        let (refused, own) = {
            let mut state = self.state();
            (std::mem::take(&mut state.refused), state.own.clone())
        };
        let (false, Some(own)) = (refused.is_empty(), own) else {
            return Ok(());
        };
        let mut outcome = Ok(());
        for (address, layout) in refused {
            // If it fails, it is kept again.
            if let Err(error) = self.give_back_unused(address, layout, &own) {
                outcome = Err(error);
            }
        }
        self.drop_unneeded_stream();
        outcome
    }

    pub(super) fn has_refused(&self) -> bool {
        !self.state().refused.is_empty()
    }

    /// With no block of the resource left, there is no reason to keep a context.
    fn drop_unneeded_stream(&self) {
        let mut state = self.state();
        let is_last = state.blocks.is_empty() && state.refused.is_empty();
        let last = is_last.then(|| state.own.take());
        // The stream is dropped outside the lock.
        drop(state);
        drop(last);
    }

    /// # Safety
    ///
    /// As [`Backing::release`](super::Backing::release).
    pub(super) unsafe fn release(&self, chunk: Chunk) -> Result<()> {
        // Removed from the bookkeeping before the call: the resource may hand out the same block again at once.
        let (block, own) = {
            let mut state = self.state();
            let block = state.blocks.remove(&chunk.address);
            state.chunks.remove(&chunk.address);
            (block, state.own.clone())
        };
        let (Some((address, layout)), Some(own)) = (block, own) else {
            return Ok(());
        };
        // SAFETY: the block was allocated there with this layout, and the caller guarantees that nothing uses it.
        let released = unsafe { give_back(&*self.resource.inner, address, layout, &own) };
        if took_effect(&released) {
            self.reserved.subtract(chunk.bytes);
            self.drop_unneeded_stream();
        } else {
            let mut state = self.state();
            // Another thread whose growth failed may have found no block meanwhile, and taken the stream. If yet another one
            // was made, this one is dropped after the guard.
            state.own.get_or_insert_with(|| own.clone());
            state.chunks.insert(chunk.address, chunk.bytes);
            state.blocks.insert(chunk.address, (address, layout));
        }
        released
    }
}
