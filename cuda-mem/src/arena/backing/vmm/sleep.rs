//! Giving physical memory back temporarily.

use std::collections::BTreeMap;

use super::super::Chunk;
use super::{Asleep, Piece, Vmm};
use crate::arena::SleepContents;
use crate::base::error::Result;
use crate::memory::buffer::DeviceBuffer;
use crate::stream::Stream;

impl Vmm {
    /// Gives all memory back and keeps the addresses. The caller holds the turn to grow, and nothing uses the memory.
    /// If the contents cannot be kept, nothing changes.
    pub(in crate::arena) fn sleep(&self, contents: SleepContents, stream: &Stream) -> Result<()> {
        let chunks = self.chunks_in(0, u64::MAX);
        let mut kept = BTreeMap::new();
        if contents == SleepContents::Keep {
            for chunk in &chunks {
                kept.insert(chunk.address, self.view(*chunk, stream).to_vec()?);
            }
        }
        let mut state = self.state();
        for Chunk { address, bytes } in chunks {
            let Some(mapping) = state.take_mapped(address) else {
                continue;
            };
            self.count(2);
            state.unmap(mapping, self)?;
            let contents = kept.remove(&address);
            let asleep = Piece::Asleep(Asleep { bytes, contents });
            state.chunks.insert(address, asleep);
            self.reserved.falls_asleep(bytes);
        }
        Ok(())
    }

    /// Takes memory for all sleeping addresses. The caller holds the turn to grow.
    pub(in crate::arena) fn wake(&self, stream: &Stream) -> Result<()> {
        let asleep = self.state().asleep();
        asleep
            .into_iter()
            .try_for_each(|address| self.wake_at(address, stream))
    }

    fn wake_at(&self, address: u64, stream: &Stream) -> Result<()> {
        let _current = stream.context().bind()?;
        let mut state = self.state();
        let Some(asleep) = state.take_asleep(address) else {
            return Ok(());
        };
        let bytes = asleep.bytes;
        let mapped = self.reserved.claim(bytes).and_then(|claim| {
            self.count(4);
            let memory = self.memory.create_part(bytes)?;
            state.map(address, &memory, self)?;
            claim.keep();
            self.reserved.wakes(bytes);
            Ok(())
        });
        if let Err(error) = mapped {
            state.chunks.insert(address, Piece::Asleep(asleep));
            return Err(error);
        }
        drop(state);
        let Some(contents) = &asleep.contents else {
            return Ok(());
        };
        let filled = self
            .view(Chunk { address, bytes }, stream)
            .copy_from(contents);
        if filled.is_err() {
            // Without its contents, the memory goes back to sleep.
            let mut state = self.state();
            if let Some(mapping) = state.take_mapped(address) {
                state.unmap(mapping, self)?;
                self.reserved.falls_asleep(bytes);
                state.chunks.insert(address, Piece::Asleep(asleep));
            }
        }
        filled
    }

    /// A view of a chunk for copies, which are done when it is dropped.
    fn view(&self, chunk: Chunk, stream: &Stream) -> DeviceBuffer<u8> {
        // A chunk is mapped as a whole, so its size fits a `usize`.
        let len = usize::try_from(chunk.bytes).unwrap_or(0);
        // SAFETY: the chunk is mapped, and nothing else uses it, as the caller of `Arena::sleep` guarantees.
        let mut view = unsafe { DeviceBuffer::borrow_raw(stream, chunk.address, len, ()) };
        view.set_device(Some(self.device));
        view
    }
}
