//! Giving physical memory back temporarily.

use std::collections::BTreeMap;

use super::super::Chunk;
use super::{Asleep, Piece, State, Vmm};
use crate::arena::SleepContents;
use crate::base::error::Result;
use crate::mapped::vmm::Mapping;
use crate::memory::buffer::DeviceBuffer;
use crate::stream::Stream;

impl State {
    /// Gives back memory that an earlier wake could neither fill nor give back.
    fn release_unfilled(&mut self) -> Result<()> {
        for piece in self.chunks.values_mut() {
            let Piece::Asleep(asleep) = piece else {
                continue;
            };
            let unmapped = asleep.unfilled.take().map_or(Ok(()), Mapping::unmap);
            unmapped.map_err(|failed| {
                asleep.unfilled = failed.object;
                failed.error
            })?;
        }
        Ok(())
    }
}

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
        state.release_unfilled()?;
        for Chunk { address, bytes } in chunks {
            let Some(mapping) = state.take_mapped(address) else {
                continue;
            };
            self.count(2);
            state.unmap(mapping, self)?;
            let contents = kept.remove(&address);
            let asleep = Asleep {
                bytes,
                contents,
                unfilled: None,
            };
            state.chunks.insert(address, Piece::Asleep(asleep));
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
        let Some(mut asleep) = state.take_asleep(address) else {
            return Ok(());
        };
        let bytes = asleep.bytes;
        if let Err(error) = self.map_again(&mut state, address, &mut asleep) {
            asleep.unfilled = asleep.unfilled.or_else(|| state.take_stuck(address));
            state.chunks.insert(address, Piece::Asleep(asleep));
            return Err(error);
        }
        drop(state);
        let filled = asleep.contents.as_ref().map_or(Ok(()), |contents| {
            let mut view = self.view(Chunk { address, bytes }, stream);
            view.copy_from(contents)
        });
        if filled.is_err() {
            // Without its contents, the memory goes back to sleep.
            let mut state = self.state();
            if let Some(mapping) = state.take_mapped(address) {
                // The error of the copy is returned. Memory that stays is used or given back at the next try.
                let _ = state.unmap(mapping, self);
            }
            asleep.unfilled = state.take_mapped(address);
            state.chunks.insert(address, Piece::Asleep(asleep));
            self.reserved.falls_asleep(bytes);
        }
        filled
    }

    /// Maps memory at sleeping addresses.
    fn map_again(&self, state: &mut State, address: u64, asleep: &mut Asleep) -> Result<()> {
        let claim = self.reserved.claim(asleep.bytes)?;
        if let Some(mapping) = asleep.unfilled.take() {
            self.count(1);
            // That may be what failed before.
            if let Err(error) = mapping.set_access(self.access.iter().copied()) {
                asleep.unfilled = Some(mapping);
                return Err(error);
            }
            state.chunks.insert(address, Piece::Mapped(mapping));
        } else {
            self.count(4);
            let memory = self.memory.create_part(asleep.bytes)?;
            state.map(address, &memory, self)?;
        }
        claim.keep();
        self.reserved.wakes(asleep.bytes);
        Ok(())
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
