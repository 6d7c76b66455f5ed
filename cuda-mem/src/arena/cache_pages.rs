//! Pages that move between stream caches and the central heap.

use super::central_heap::Pages;
use super::last_use::LastUse;
use super::page_map::CacheId;
use super::tlsf::{FreePages, Joins};
use super::{Inner, PAGE_UNITS, UNIT, thread};
use crate::stream::epoch;

/// A cache takes an eighth of the pages that it has, at least one and at most this many.
const MOST_TAKEN: u64 = 64;

impl Inner {
    /// Moves cached blocks and free pages of all caches to the central heap. Skips caches that had none last time,
    /// unless `thorough`: revoking the bias of a lock is expensive.
    pub(super) fn scavenge(&self, thorough: bool) {
        let me = thread::number();
        for (id, slot) in self.caches.iter() {
            for cache in slot
                .threads
                .iter()
                .filter(|cache| thorough || cache.is_left())
            {
                for block in cache.flush(me) {
                    // An unknown block was freed twice, so it has no owner.
                    let _ = slot.lock.lock(me).free_to_heap(block.start);
                }
            }
            let elsewhere = slot.of_pages_elsewhere();
            if !slot.counters.has_spare(thorough, elsewhere) {
                continue;
            }
            let mut cache = slot.lock.lock(me);
            let large = cache.flush(&slot.counters);
            let pages = cache.give_away(&slot.counters);
            slot.counters.scavenged(pages.len(), elsewhere);
            drop(cache);
            if let Some((block, epoch)) = large {
                // An unknown block was freed twice, so it has no owner.
                let _ = self
                    .central
                    .lock(me)
                    .free(block.start, LastUse::new(id, epoch));
            }
            self.pages_to_central(id, pages);
        }
    }

    /// Adds to the central heap the pages that a cache gave up.
    pub(super) fn pages_to_central(&self, id: CacheId, pages: Vec<FreePages>) {
        // The cache's stream may have used its pages until now.
        let last_use = LastUse::new(id, epoch::now());
        for place in pages {
            self.caches
                .page_map
                .set(place.start * UNIT, place.units * UNIT, None);
            self.add_to_central(place.start, place.units, last_use);
        }
    }

    /// Adds memory to the central heap.
    pub(super) fn add_to_central(&self, start: u64, units: u64, last_use: LastUse) {
        let mut central = self.central.lock(thread::number());
        // Found under the lock, because blocks of an upstream may come and go.
        let joins = self.joins(start, units);
        central.add(start, units, last_use, joins);
    }

    /// On which sides this memory may merge: not across the bounds of an upstream's blocks.
    pub(super) fn joins(&self, start: u64, units: u64) -> Joins {
        Joins {
            left: !self.backing.is_boundary(start * UNIT),
            right: !self.backing.is_boundary((start + units) * UNIT),
        }
    }

    /// How much a cache takes at a time, for a block of this size.
    pub(super) fn pages_for(&self, id: CacheId, size: u32) -> Pages {
        let has = self.slot(id).counters.held() / PAGE_UNITS;
        let share = (has / 8).clamp(1, MOST_TAKEN) * PAGE_UNITS;
        let least = u64::from(size).next_multiple_of(PAGE_UNITS);
        Pages {
            least,
            most: share.max(least),
        }
    }

    /// Adds pages to a cache and takes a block of them.
    pub(super) fn add_pages(&self, id: CacheId, pages: FreePages, size: u32) -> Option<u64> {
        let joins = self.joins(pages.start, pages.units);
        self.caches.add_pages(id, pages, joins, size)
    }
}
