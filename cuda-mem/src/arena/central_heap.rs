//! The central heap: large blocks of all streams, and pages that belong to no stream's cache.
//!
//! A free block has one last user, or none: then it is clean. A stream takes its own blocks first and then clean ones,
//! even several adjacent ones. So no request misses while a run of memory that the stream may use can hold it.

#![forbid(unsafe_code)]

mod runs;

use super::counters::{Counters, Home};
use super::header::Id;
use super::last_use::LastUse;
use super::page_map::CacheId;
use super::tlsf::{FreeLists as _, FreePages, Joins, Tlsf};
use super::unrecorded::UnrecordedFrees;
use super::user_size_classes::UserSizeClasses;
use super::{PAGE_UNITS, UnknownBlock};

#[derive(Debug, Default)]
pub(super) struct CentralHeap {
    heap: Tlsf<UserSizeClasses>,
    /// By cache.
    uses: Vec<Uses>,
    /// Whether last users are recorded: not while there is only one cache.
    is_shared: bool,
    /// Streams on which so much was freed that they are queried before the next allocation.
    to_query: Vec<CacheId>,
}

/// What is known about the frees of one stream.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    /// Frees of this epoch or an earlier one are done, and their memory is free for every stream.
    done: u64,
    /// The epoch of the last free.
    newest: u64,
    /// Units freed since the last recorded event.
    unrecorded: u64,
    /// Blocks that the stream requested and others freed.
    freed_elsewhere: u32,
}

/// A free block as it was seen before the lock was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeenBlock {
    pub(super) start: u64,
    pub(super) last_use: LastUse,
}

impl CentralHeap {
    /// A block that this stream may use at once.
    #[inline]
    pub(super) fn allocate(&mut self, size: u32, own: CacheId, counters: &Counters) -> Option<u64> {
        let id = match self.best(size, own) {
            Some(id) => id,
            None => self.merge_run(size, own)?,
        };
        Some(self.take(id, size, own, counters))
    }

    /// Takes a block from the beginning of a free one.
    #[inline]
    fn take(&mut self, id: Id, size: u32, own: CacheId, counters: &Counters) -> u64 {
        let start = self.heap.take(id, size);
        self.heap.headers[id].set_asker(own);
        counters.count_fit(size, Home::Central);
        start
    }

    /// The best-fitting block of the stream's own, or else the best-fitting clean one. Clean blocks are left to other
    /// streams while own ones suffice, which keeps the arena from growing.
    #[inline]
    fn best(&self, size: u32, own: CacheId) -> Option<Id> {
        let Tlsf {
            headers, classes, ..
        } = &self.heap;
        if self.is_shared
            && let Some(mine) = classes.find(headers, own + 1, size)
        {
            return Some(mine);
        }
        classes.find_clean(headers, size)
    }

    /// The best-fitting block of other streams. Blocks that the stream has already been made to wait for come first.
    pub(super) fn best_of_others(
        &self,
        size: u32,
        own: CacheId,
        is_after: impl Fn(LastUse) -> bool,
    ) -> Option<SeenBlock> {
        let Tlsf {
            headers, classes, ..
        } = &self.heap;
        let best = self
            .other_users(own)
            .filter_map(|user| classes.find(headers, user, size));
        let best = best.min_by_key(|id| {
            let header = &headers[*id];
            (!is_after(header.last_use()), header.size, header.start())
        })?;
        Some(self.place(best))
    }

    /// Other users that have free blocks.
    fn other_users(&self, own: CacheId) -> impl Iterator<Item = u32> + '_ {
        let users = self.heap.classes.users();
        users.filter(move |user| *user != own + 1)
    }

    fn place(&self, id: Id) -> SeenBlock {
        let header = &self.heap.headers[id];
        SeenBlock {
            start: header.start(),
            last_use: header.last_use(),
        }
    }

    /// A block that was seen, if it is unchanged and has at least this size.
    fn find_at(&self, place: SeenBlock, size: u32) -> Option<Id> {
        let Tlsf {
            headers, classes, ..
        } = &self.heap;
        let mut blocks = classes.at_least(headers, place.last_use.user, size);
        blocks.find(|id| self.place(*id) == place)
    }

    /// Free units that have a last user.
    pub(super) fn not_done(&self) -> u64 {
        let classes = &self.heap.classes;
        classes.users().map(|user| classes.units(user)).sum()
    }

    /// Other streams whose free memory may be in use, those with most of it first.
    pub(super) fn others(&self, own: CacheId) -> Vec<CacheId> {
        let classes = &self.heap.classes;
        let mut caches: Vec<CacheId> = self.other_users(own).map(|user| user - 1).collect();
        caches.sort_by_key(|cache| std::cmp::Reverse(classes.units(cache + 1)));
        caches
    }

    /// Takes a block from the beginning of one that was seen, if that is unchanged.
    pub(super) fn allocate_at(
        &mut self,
        place: SeenBlock,
        size: u32,
        own: CacheId,
        counters: &Counters,
    ) -> bool {
        let Some(id) = self.find_at(place, size) else {
            return false;
        };
        self.take(id, size, own, counters);
        true
    }

    /// Frees a block.
    #[inline]
    pub(super) fn free(&mut self, start: u64, last_use: LastUse) -> Result<(), UnknownBlock> {
        let Some(id) = self.heap.remove_used(start) else {
            return Err(UnknownBlock { start });
        };
        let (size, asker) = (self.heap.headers[id].size, self.heap.headers[id].asker());
        if last_use.cache() != Some(asker) {
            let elsewhere = &mut self.uses_mut(asker).freed_elsewhere;
            *elsewhere = elsewhere.saturating_add(1);
        }
        let last_use = self.if_done(last_use);
        self.heap.release(id, last_use);
        self.note_use(last_use, u64::from(size));
        Ok(())
    }

    /// How many blocks that the stream requested were freed on other streams since the last call.
    pub(super) fn take_freed_elsewhere(&mut self, cache: CacheId) -> u32 {
        std::mem::take(&mut self.uses_mut(cache).freed_elsewhere)
    }

    #[inline]
    fn note_use(&mut self, last_use: LastUse, units: u64) {
        if let Some(cache) = last_use.cache() {
            let uses = self.uses_mut(cache);
            uses.newest = uses.newest.max(last_use.epoch);
            uses.unrecorded += units;
        }
    }

    #[inline]
    fn uses_mut(&mut self, cache: CacheId) -> &mut Uses {
        let at = cache as usize;
        if self.uses.len() <= at {
            self.uses.resize(at + 1, Uses::default());
        }
        &mut self.uses[at]
    }

    /// The epoch of the stream's last free; 0 if there is none.
    pub(super) fn newest(&self, cache: CacheId) -> u64 {
        self.uses.get(cache as usize).map_or(0, |uses| uses.newest)
    }

    /// How much the stream freed since its last recorded event.
    #[inline]
    pub(super) fn unrecorded(&self, cache: CacheId) -> UnrecordedFrees {
        let units = self
            .uses
            .get(cache as usize)
            .map_or(0, |uses| uses.unrecorded);
        UnrecordedFrees {
            units,
            of_all: self.heap.total_units(),
            caches: self.uses.len().max(1) as u64,
        }
    }

    /// Has the stream queried before the next allocation. Not at once, because frees come in bursts, and one query
    /// after the last of them says as much as one after each.
    pub(super) fn query_later(&mut self, cache: CacheId) {
        if !self.to_query.contains(&cache) {
            self.to_query.push(cache);
        }
    }

    /// Whether streams are to be queried first.
    #[inline]
    pub(super) fn has_to_query(&self) -> bool {
        !self.to_query.is_empty()
    }

    /// The streams that are to be queried.
    pub(super) fn take_to_query(&mut self) -> Vec<CacheId> {
        std::mem::take(&mut self.to_query)
    }

    /// The last use, or none if it is known to be done.
    #[inline]
    fn if_done(&self, last_use: LastUse) -> LastUse {
        if !self.is_shared {
            return LastUse::FREE;
        }
        let uses = last_use
            .cache()
            .and_then(|cache| self.uses.get(cache as usize));
        if uses.is_some_and(|uses| uses.done >= last_use.epoch) {
            return LastUse::FREE;
        }
        last_use
    }

    /// Records last users from now on, for a second cache or before memory goes back to the device. The first cache's
    /// stream may have used all free memory until this epoch.
    pub(super) fn share(&mut self, first: CacheId, epoch: u64) {
        if std::mem::replace(&mut self.is_shared, true) {
            return;
        }
        let last_use = self.if_done(LastUse::new(first, epoch));
        self.note_use(last_use, self.heap.free_units());
        let Tlsf {
            headers, classes, ..
        } = &mut self.heap;
        let free: Vec<Id> = classes.at_least(headers, 0, 1).collect();
        for id in free {
            classes.remove(headers, id);
            headers[id].set_last_use(last_use);
            classes.insert(headers, id);
        }
    }

    /// Stops recording last users, as there is only one cache, and no second one is being added. All free memory is its
    /// own.
    pub(super) fn unshare(&mut self) {
        self.is_shared = false;
        let Tlsf {
            headers, classes, ..
        } = &self.heap;
        let used: Vec<Id> = classes
            .users()
            .flat_map(|user| classes.at_least(headers, user, 1))
            .collect();
        for id in used {
            self.heap.make_free_for_all(id);
        }
    }

    /// Adds memory.
    pub(super) fn add(&mut self, start: u64, units: u64, last_use: LastUse, joins: Joins) {
        let last_use = self.if_done(last_use);
        self.heap.add(start, units, last_use, 0, joins);
        self.note_use(last_use, units);
    }

    /// Removes adjacent pages for a cache.
    pub(super) fn take_pages(&mut self, own: CacheId, wanted: Pages) -> Option<FreePages> {
        let Tlsf {
            headers, classes, ..
        } = &self.heap;
        let mine = classes.at_least(headers, own + 1, wanted.least as u32);
        let blocks = mine.chain(classes.at_least(headers, 0, wanted.least as u32));
        let found = blocks
            .map(|id| (id, wanted.of(headers[id].start(), headers[id].end())))
            .find_map(|(id, pages)| Some((id, pages?)));
        let (id, pages) = match found {
            Some(found) => found,
            None => self.pages_of_run(own, wanted.least)?,
        };
        self.heap.cut_of(id, pages.start, pages.units);
        Some(pages)
    }

    /// Removes pages of another stream's block that was seen, if that is unchanged.
    pub(super) fn take_pages_at(&mut self, place: SeenBlock, wanted: Pages) -> Option<FreePages> {
        let id = self.find_at(place, wanted.least as u32)?;
        let headers = &self.heap.headers;
        let pages = wanted.of(headers[id].start(), headers[id].end())?;
        self.heap.cut_of(id, pages.start, pages.units);
        Some(pages)
    }

    /// A block of another stream with that many pages.
    pub(super) fn pages_of_others(&self, own: CacheId, wanted: Pages) -> Option<SeenBlock> {
        let Tlsf {
            headers, classes, ..
        } = &self.heap;
        let others = self.other_users(own);
        let mut blocks =
            others.flat_map(|user| classes.at_least(headers, user, wanted.least as u32));
        let holds = |id: &Id| {
            wanted
                .of(headers[*id].start(), headers[*id].end())
                .is_some()
        };
        let id = blocks.find(holds)?;
        Some(self.place(id))
    }

    /// All clean pages.
    pub(super) fn done_pages(&self) -> Vec<FreePages> {
        let Tlsf {
            headers, classes, ..
        } = &self.heap;
        let blocks = classes.at_least(headers, 0, PAGE_UNITS as u32);
        let pages = blocks.map(|id| pages_in(headers[id].start(), headers[id].end(), u64::MAX));
        pages.filter(|pages| pages.units > 0).collect()
    }

    /// Removes a part of a clean block, if it is still clean.
    pub(super) fn give_away(&mut self, start: u64, units: u64) -> bool {
        let end = start + units;
        let Ok(least) = u32::try_from(units) else {
            return false;
        };
        let Tlsf {
            headers, classes, ..
        } = &self.heap;
        let mut blocks = classes.at_least(headers, 0, least);
        let found = blocks.find(|id| headers[*id].start() <= start && end <= headers[*id].end());
        drop(blocks);
        found.map(|id| self.heap.cut_of(id, start, units)).is_some()
    }

    /// Whether there is a block of at least this size for any stream.
    pub(super) fn has_block(&self, size: u32) -> bool {
        let Tlsf {
            headers, classes, ..
        } = &self.heap;
        let mut owned = classes.users();
        classes.find_clean(headers, size).is_some()
            || owned.any(|user| classes.find(headers, user, size).is_some())
    }

    /// Where usable memory that ends here begins. Growth would extend it.
    pub(super) fn usable_tail(&self, end: u64, own: CacheId) -> Option<u64> {
        let last = self.heap.tail(end)?;
        let is_usable = self.heap.headers[last].last_use().is_usable_by(own);
        is_usable.then(|| self.run_around(last, own).start)
    }

    /// Where usable memory that begins here ends. Memory added before it would extend it.
    pub(super) fn usable_head(&self, start: u64, own: CacheId) -> Option<u64> {
        let first = self.heap.head(start)?;
        let is_usable = self.heap.headers[first].last_use().is_usable_by(own);
        is_usable.then(|| self.run_around(first, own).end)
    }

    /// Notes the progress of a stream: memory that it is done with becomes clean.
    pub(super) fn note_done(&mut self, cache: CacheId, epoch: u64) {
        let uses = self.uses_mut(cache);
        if std::mem::replace(&mut uses.done, epoch) == epoch {
            return;
        }
        for id in self
            .heap
            .classes
            .until(&self.heap.headers, cache + 1, epoch)
        {
            self.heap.make_free_for_all(id);
        }
    }

    /// Notes that an event was recorded after the frees of this epoch.
    pub(super) fn note_event(&mut self, cache: CacheId, epoch: u64) {
        let uses = self.uses_mut(cache);
        if epoch >= uses.newest {
            uses.unrecorded = 0;
        }
    }

    pub(super) fn heap(&self) -> &Tlsf<UserSizeClasses> {
        &self.heap
    }
}

/// How many pages a cache requests, in units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    pub(super) least: u64,
    pub(super) most: u64,
}

impl Pages {
    /// The pages between two places, if there are enough.
    fn of(self, start: u64, end: u64) -> Option<FreePages> {
        let pages = pages_in(start, end, self.most);
        (pages.units >= self.least).then_some(pages)
    }
}

/// The whole pages between two places, up to a number of units.
fn pages_in(start: u64, end: u64, most: u64) -> FreePages {
    let start = start.next_multiple_of(PAGE_UNITS);
    let end = end / PAGE_UNITS * PAGE_UNITS;
    FreePages {
        start,
        units: end.saturating_sub(start).min(most),
    }
}

#[cfg(test)]
mod tests;
