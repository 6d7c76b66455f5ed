//! Addresses that memory was moved from. It stays mapped there, so that it can move back without a driver call.

use std::collections::BTreeMap;

use super::super::Chunk;
use super::{Piece, State, Vmm};
use crate::base::error::Result;
use crate::mapped::vmm::{Mapping, PhysicalMemory};

/// By address, at most one per piece of memory. Memory is never accessed through them.
#[derive(Debug, Default)]
pub(super) struct Aliases(BTreeMap<u64, Mapping>);

impl Aliases {
    /// The aliases of a piece of memory.
    fn of(&self, memory: &PhysicalMemory) -> Vec<u64> {
        let raw = memory.as_raw();
        let aliases = self.0.iter();
        aliases
            .filter(|(_, alias)| alias.memory().as_raw() == raw)
            .map(|(address, _)| *address)
            .collect()
    }

    /// The aliases that overlap a range.
    fn within(&self, address: u64, bytes: u64) -> Vec<u64> {
        let before = self.0.range(..address + bytes).rev();
        before
            .take_while(|(start, alias)| *start + alias.size_bytes() > address)
            .map(|(start, _)| *start)
            .collect()
    }

    fn end(&mut self, addresses: Vec<u64>, vmm: &Vmm) -> Result<()> {
        for address in addresses {
            let Some(alias) = self.0.remove(&address) else {
                continue;
            };
            vmm.count(1);
            if let Err(failed) = alias.unmap() {
                if let Some(alias) = failed.object {
                    self.0.insert(address, alias);
                }
                return Err(failed.error);
            }
        }
        Ok(())
    }

    /// Unmaps the aliases where something else is to be mapped.
    pub(super) fn end_within(&mut self, address: u64, bytes: u64, vmm: &Vmm) -> Result<()> {
        self.end(self.within(address, bytes), vmm)
    }

    /// Unmaps the aliases of memory that is to go back to the device.
    pub(super) fn end_of(&mut self, memory: &PhysicalMemory, vmm: &Vmm) -> Result<()> {
        self.end(self.of(memory), vmm)
    }

    /// Keeps a mapping as an alias: its memory is used at another address from now on.
    pub(super) fn keep(&mut self, mapping: Mapping, vmm: &Vmm) {
        // A mapping that stays at a third address is harmless.
        drop(self.end_of(mapping.memory(), vmm));
        self.0.insert(mapping.address(), mapping);
    }
}

impl State {
    /// Swaps a chunk's mapping with the alias of its memory at `to`. `false` if there is no such alias.
    pub(super) fn switch(&mut self, chunk: Chunk, to: u64) -> bool {
        let (Some(now), Some(alias)) = (self.mapped(chunk.address), self.aliases.0.get(&to)) else {
            return false;
        };
        if now.memory().as_raw() != alias.memory().as_raw() {
            return false;
        }
        let (Some(now), Some(alias)) =
            (self.take_mapped(chunk.address), self.aliases.0.remove(&to))
        else {
            return false;
        };
        self.aliases.0.insert(chunk.address, now);
        self.chunks.insert(to, Piece::Mapped(alias));
        if let Some(reservation) = self.reservation_at(to) {
            reservation.frontier = reservation.frontier.max(to + chunk.bytes);
        }
        true
    }

    /// The addresses that memory can move back to, in order, and where that memory is now.
    pub(super) fn aliases(&self) -> Vec<(u64, Chunk)> {
        let mapped = self
            .chunks
            .iter()
            .filter_map(|(address, piece)| match piece {
                Piece::Mapped(mapping) => Some((mapping.memory().as_raw(), *address)),
                Piece::Asleep(_) | Piece::Stuck(_) => None,
            });
        let places: BTreeMap<_, _> = mapped.collect();
        let aliases = self.aliases.0.iter().filter_map(|(to, alias)| {
            let address = *places.get(&alias.memory().as_raw())?;
            let bytes = alias.size_bytes();
            self.is_free(*to, bytes)
                .then_some((*to, Chunk { address, bytes }))
        });
        aliases.collect()
    }
}
