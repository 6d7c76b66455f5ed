//! Small blocks of `cuMemAlloc`: measured, those up to 1 MiB share 2 MiB of the device, and the
//! memory goes back with the last of them.

use std::collections::BTreeMap;

use crate::context::ContextId;
use crate::export::Answer;
use crate::memory::Mapping;
use crate::pool::Runs;

/// What a slab takes from the device.
pub(crate) const SLAB: u64 = 2 << 20;

/// The largest block that shares.
pub(crate) const LARGEST: u64 = 1 << 20;

/// Blocks lie apart by multiples of this.
const GRANULE: u64 = 512;

#[derive(Debug)]
struct Slab {
    context: ContextId,
    mapping: Mapping,
    room: Runs,
}

/// All slabs, by address.
#[derive(Debug, Default)]
pub(crate) struct Slabs(BTreeMap<u64, Slab>);

impl Slabs {
    /// A place in a slab that is there.
    pub(crate) fn take(&mut self, context: ContextId, size: u64) -> Option<u64> {
        let len = size.next_multiple_of(GRANULE);
        let slabs = self.0.iter_mut();
        slabs
            .filter(|(_, slab)| slab.context == context)
            .find_map(|(base, slab)| {
                let (start, _) = slab.room.best_fit(len)?;
                slab.room.remove(start, len);
                Some(base + start)
            })
    }

    /// Another slab.
    pub(crate) fn grow(&mut self, context: ContextId) -> Answer {
        let mapping = Mapping::allocate(SLAB)?;
        let mut room = Runs::default();
        room.add(0, SLAB);
        let base = mapping.base();
        let slab = Slab {
            context,
            mapping,
            room,
        };
        self.0.insert(base, slab);
        Ok(())
    }

    /// Puts a block back; answers the slab's memory if that was the last.
    pub(crate) fn put(&mut self, address: u64, size: u64) -> Option<Mapping> {
        let (&base, slab) = self.0.range_mut(..=address).next_back()?;
        slab.room
            .add(address - base, size.next_multiple_of(GRANULE));
        slab.room.best_fit(SLAB)?;
        self.0.remove(&base).map(|slab| slab.mapping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_shared_by_one_context_and_goes_with_its_last_block() {
        let mut slabs = Slabs::default();
        assert_eq!(slabs.take(1, 1), None);
        slabs.grow(1).expect("memory");
        let first = slabs.take(1, 1).expect("room");
        assert_eq!(slabs.take(1, LARGEST), Some(first + GRANULE));
        assert_eq!(slabs.take(1, LARGEST), None);
        assert_eq!(slabs.take(2, 1), None);
        assert!(slabs.put(first, 1).is_none());
        assert_eq!(slabs.take(1, 3), Some(first));
        assert!(slabs.put(first, 3).is_none());
        assert!(slabs.put(first + GRANULE, LARGEST).is_some());
    }
}
