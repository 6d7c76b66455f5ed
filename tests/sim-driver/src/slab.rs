//! Small blocks outside the pools. Measured: those of `cuMemAlloc` up to 1 MiB share 2 MiB of the device, and the
//! memory is released with the last of them. Pinned and managed blocks also share memory; the same size limit is a
//! guess.

use std::collections::BTreeMap;

use crate::alloc::Kind;
use crate::context::ContextId;
use crate::export::Answer;
use crate::memory::Mapping;
use crate::pool::Runs;

/// Size of a slab on the device.
pub(crate) const SLAB: u64 = 2 << 20;

/// The largest block placed in a slab.
pub(crate) const LARGEST: u64 = 1 << 20;

/// Spacing of blocks.
const GRANULE: u64 = 512;

#[derive(Debug)]
struct Slab {
    context: ContextId,
    kind: Kind,
    mapping: Mapping,
    room: Runs,
}

/// All slabs, by address.
#[derive(Debug, Default)]
pub(crate) struct Slabs(BTreeMap<u64, Slab>);

impl Slabs {
    /// Takes space from an existing slab.
    pub(crate) fn take(&mut self, context: ContextId, kind: Kind, size: u64) -> Option<u64> {
        let len = size.next_multiple_of(GRANULE);
        let slabs = self.0.iter_mut();
        slabs
            .filter(|(_, slab)| slab.context == context && slab.kind == kind)
            .find_map(|(base, slab)| {
                let (start, _) = slab.room.best_fit(len)?;
                slab.room.remove(start, len);
                Some(base + start)
            })
    }

    /// Adds a slab.
    pub(crate) fn grow(&mut self, context: ContextId, kind: Kind) -> Answer {
        let (mapping, base) = Mapping::allocate_aligned(SLAB, SLAB)?;
        let mut room = Runs::default();
        room.add(0, SLAB);
        let slab = Slab {
            context,
            kind,
            mapping,
            room,
        };
        self.0.insert(base, slab);
        Ok(())
    }

    /// The memory of the slab that contains an address.
    #[cfg(target_os = "linux")]
    pub(crate) fn mapping_at(&mut self, address: u64) -> Option<&mut Mapping> {
        let (base, slab) = self.0.range_mut(..=address).next_back()?;
        (address < base + SLAB).then_some(&mut slab.mapping)
    }

    /// Returns a block; yields the slab's base and memory if it was the last.
    pub(crate) fn put(&mut self, address: u64, size: u64) -> Option<(u64, Mapping)> {
        let (&base, slab) = self.0.range_mut(..=address).next_back()?;
        slab.room
            .add(address - base, size.next_multiple_of(GRANULE));
        slab.room.best_fit(SLAB)?;
        self.0.remove(&base).map(|slab| (base, slab.mapping))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_of_one_context_and_kind_and_goes_with_its_last_block() {
        let kind = Kind::Device;
        let mut slabs = Slabs::default();
        assert_eq!(slabs.take(1, kind, 1), None);
        slabs.grow(1, kind).expect("memory");
        let first = slabs.take(1, kind, 1).expect("room");
        assert!(first.is_multiple_of(SLAB));
        assert_eq!(slabs.take(1, kind, LARGEST), Some(first + GRANULE));
        assert_eq!(slabs.take(1, kind, LARGEST), None);
        assert_eq!(slabs.take(2, kind, 1), None);
        assert_eq!(slabs.take(1, Kind::Pinned, 1), None);
        assert!(slabs.put(first, 1).is_none());
        assert_eq!(slabs.take(1, kind, 3), Some(first));
        assert!(slabs.put(first, 3).is_none());
        assert!(slabs.put(first + GRANULE, LARGEST).is_some());
    }
}
