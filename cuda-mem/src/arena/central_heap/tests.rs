mod rules;
mod truth;

use super::super::last_freed::is_small;
use super::super::page_map::PageMap;
use super::super::random::Random;
use super::super::stream_cache::{RemoteFree, StreamCache};
use super::super::{PAGE, UNIT};
use super::*;
use truth::Truth;

/// Steps between two checks of all numbers.
const LOOK: u64 = 50;

/// The parts of an arena that make no driver calls, combined as in `refill` and `free`, with numbers for streams.
struct World {
    random: Random,
    truth: Truth,
    central: CentralHeap,
    counters: Counters,
    caches: Vec<(StreamCache, Counters)>,
    page_map: PageMap,
    /// Blocks in use: start, size, the cache that requested it.
    live: Vec<(u64, u32, CacheId)>,
    /// The epoch of the next event.
    now: u64,
    /// By cache: the epoch that the host has seen done.
    done: Vec<u64>,
    /// By cache: events that the host has not seen yet.
    events: Vec<Vec<(u64, Vec<u64>)>>,
    /// The address of the next new memory.
    frontier: u64,
    gone: Vec<(u64, u64)>,
    /// How often memory changed caches after a wait.
    taken_over: u32,
}

impl World {
    fn new(caches: usize, seed: u64) -> Self {
        let mut central = CentralHeap::default();
        for cache in 0..caches {
            central.note_done(cache as CacheId, 0);
        }
        if caches > 1 {
            central.share(0, 0);
        }
        Self {
            random: Random::new(seed),
            truth: Truth::new(caches),
            central,
            counters: Counters::default(),
            caches: std::iter::repeat_with(Default::default)
                .take(caches)
                .collect(),
            page_map: PageMap::default(),
            live: Vec::new(),
            now: 1,
            done: vec![0; caches],
            events: vec![Vec::new(); caches],
            frontier: PAGE_UNITS,
            gone: Vec::new(),
            taken_over: 0,
        }
    }

    fn some_cache(&mut self) -> CacheId {
        self.random.below(self.caches.len() as u64) as CacheId
    }

    fn size(&mut self) -> u32 {
        let pages = PAGE_UNITS;
        1 + match self.random.below(8) {
            0..4 => self.random.below(256),
            4 => 255,
            5 => 256 + self.random.below(100),
            6 => self.random.below(pages),
            _ => self.random.below(3 * pages),
        } as u32
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..40 => self.allocate(),
            40..78 => self.free(),
            78..84 => self.event(),
            84..92 => self.see(),
            92..95 => {
                let cache = self.some_cache();
                let wait = self.random.below(2) == 0;
                self.reclaim_remote_frees(cache, wait);
            }
            95..98 => self.scavenge(),
            98 => self.trim(),
            _ => self.user_joins(),
        }
    }

    /// The user makes a stream wait for another one.
    fn user_joins(&mut self) {
        let (cache, other) = (self.some_cache(), self.some_cache());
        self.truth.wait(cache, other);
    }

    fn event(&mut self) {
        let cache = self.some_cache();
        let event = (self.now, self.truth.point(cache));
        self.now += 1;
        self.events[cache as usize].push(event);
    }

    /// The host sees that a stream has passed an event; the central heap may learn of it later.
    fn see(&mut self) {
        let cache = self.some_cache() as usize;
        if !self.events[cache].is_empty() {
            let (epoch, point) = self.events[cache].remove(0);
            self.truth.seen(&point);
            self.done[cache] = epoch;
        }
        if self.random.below(2) == 0 {
            self.central.note_done(cache as CacheId, self.done[cache]);
        }
    }

    fn allocate(&mut self) {
        let (cache, size) = (self.some_cache(), self.size());
        // Caches sometimes keep larger blocks too.
        let start = if is_small(size) || self.random.below(3) == 0 {
            self.of_pages(cache, size)
        } else {
            self.large(cache, size)
        };
        self.truth.take(start, size.into(), cache);
        self.live.push((start, size, cache));
    }

    fn try_allocate(&mut self, cache: CacheId, size: u32) -> Option<u64> {
        let (cache, counters) = &mut self.caches[cache as usize];
        cache.allocate(size, counters)
    }

    fn of_pages(&mut self, cache: CacheId, size: u32) -> u64 {
        if let Some(start) = self.try_allocate(cache, size) {
            return start;
        }
        let least = u64::from(size).next_multiple_of(PAGE_UNITS);
        let most = least + self.random.below(3) * PAGE_UNITS;
        let wanted = Pages { least, most };
        let pages = match self.central.take_pages(cache, wanted) {
            Some(pages) => Some(pages),
            None => {
                self.refused(cache, |start, end| {
                    start.next_multiple_of(PAGE_UNITS) + least <= end / PAGE_UNITS * PAGE_UNITS
                });
                self.pages_of_another(cache, wanted)
            }
        };
        let (start, units) = match pages {
            Some(pages) => (pages.start, pages.units),
            None => self.more(1 + least / PAGE_UNITS),
        };
        // The cache's stream may use the pages from now on.
        self.truth.check(start, units, cache);
        self.page_map.set(start * UNIT, units * UNIT, Some(cache));
        let (to, counters) = &mut self.caches[cache as usize];
        to.add(start, units, Joins::BOTH, counters);
        self.try_allocate(cache, size).expect("there is a page now")
    }

    fn pages_of_another(&mut self, cache: CacheId, wanted: Pages) -> Option<FreePages> {
        let place = self.central.pages_of_others(cache, wanted)?;
        if self.random.below(2) == 0 {
            return None;
        }
        self.wait_for(cache, place.last_use);
        let pages = self.central.take_pages_at(place, wanted);
        Some(pages.expect("nothing has happened to it"))
    }

    /// Checks that no run of memory that the cache may use, as far as the central heap knows, would have sufficed.
    fn refused(&self, cache: CacheId, would_do: impl Fn(u64, u64) -> bool) {
        for (start, end) in self.central.usable_runs(cache) {
            assert!(!would_do(start, end), "{start} to {end} was passed over");
        }
    }

    fn large(&mut self, cache: CacheId, size: u32) -> u64 {
        let (own, counters) = &mut self.caches[cache as usize];
        if let Some(start) = own.allocate_large(size, counters) {
            return start;
        }
        if let Some(start) = self.central.allocate(size, cache, &self.counters) {
            return start;
        }
        self.refused(cache, |start, end| start + u64::from(size) <= end);
        if let Some(place) = self.central.best_of_others(size, cache, |_| false)
            && self.random.below(2) == 0
        {
            self.wait_for(cache, place.last_use);
            assert!(self.central.allocate_at(place, size, cache, &self.counters));
            return place.start;
        }
        if self.random.below(2) == 0
            && let Some(places) = self.central.run_of_all(size)
        {
            for place in &places {
                if !place.last_use.is_usable_by(cache) {
                    self.wait_for(cache, place.last_use);
                }
            }
            let counters = &self.counters;
            let got = self.central.allocate_run_at(&places, size, cache, counters);
            return got.expect("nothing has happened to it");
        }
        let pages = u64::from(size).div_ceil(PAGE_UNITS) + self.random.below(3);
        let (start, units) = self.more(pages);
        self.central.add(start, units, LastUse::FREE, Joins::BOTH);
        let got = self.central.allocate(size, cache, &self.counters);
        got.expect("there is room now")
    }

    fn wait_for(&mut self, cache: CacheId, last_use: LastUse) {
        self.taken_over += 1;
        let user = last_use.cache().expect("it is another's");
        if self.done[user as usize] < last_use.epoch {
            self.truth.wait(cache, user);
        }
    }

    /// Pages that are new, or were given back earlier.
    fn more(&mut self, pages: u64) -> (u64, u64) {
        let units = pages * PAGE_UNITS;
        let again = self.gone.iter().position(|gone| gone.1 == units);
        if let Some(again) = again {
            let gone = self.gone.swap_remove(again);
            self.truth.add(gone.0, gone.1);
            return gone;
        }
        let start = self.frontier;
        self.frontier += units + self.random.below(2) * PAGE_UNITS;
        self.truth.add(start, units);
        (start, units)
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let which = self.random.below(self.live.len() as u64) as usize;
        let (start, size, user) = self.live.swap_remove(which);
        // Another stream may free it only once it waits for the one that used it.
        let cache = match self.random.below(4) {
            0 => self.some_cache(),
            _ => user,
        };
        self.truth.wait(cache, user);
        self.truth.free(start, cache);
        let last_use = LastUse::new(cache, self.now);
        let owner = self.page_map.cache_of(start * UNIT);
        assert!(
            owner.is_some() || !is_small(size),
            "small blocks are a cache's"
        );
        if let Some(owner) = owner {
            if owner != cache {
                let (cache, epoch) = (cache, self.now);
                let pending = RemoteFree {
                    start,
                    cache,
                    epoch,
                };
                let (to, counters) = &mut self.caches[owner as usize];
                return to.free_remote(pending, counters).expect("it is live");
            }
        } else if self.random.below(2) == 0 {
            self.counters.count_free(size, Home::Central);
            return self.central.free(start, last_use).expect("it is live");
        }
        let (to, counters) = &mut self.caches[cache as usize];
        if owner.is_some() {
            to.note_peak();
            if let Some(old) = to.free(start, size, counters) {
                to.free_to_heap(old.start).expect("it was in front");
            }
            if self.random.below(4) == 0 {
                let surplus = to.take_surplus(counters);
                self.give_away(cache, surplus);
            }
        } else if let Some((old, epoch)) = to.free_large(start, size, self.now, counters) {
            self.central
                .free(old.start, LastUse::new(cache, epoch))
                .expect("it was in front");
        }
    }

    fn reclaim_remote_frees(&mut self, cache: CacheId, wait: bool) {
        for block in self.caches[cache as usize].0.take_remote_frees() {
            let over = block.epoch <= self.done[block.cache as usize];
            if !over && wait {
                self.truth.wait(cache, block.cache);
            }
            let to = &mut self.caches[cache as usize].0;
            if over || wait {
                to.free_to_heap(block.start).expect("it was known");
            } else {
                to.push_remote_free(block);
            }
        }
    }

    fn scavenge(&mut self) {
        for id in 0..self.caches.len() as CacheId {
            let (cache, counters) = &mut self.caches[id as usize];
            let spare = counters.has_spare(true, 0);
            let large = cache.flush(counters);
            assert!(spare || large.is_none(), "a block in front is told");
            if let Some((block, epoch)) = large {
                self.central
                    .free(block.start, LastUse::new(id, epoch))
                    .expect("it was in front");
            }
            let pages = cache.give_away(counters);
            assert!(spare || pages.is_empty(), "pages that may be free are told");
            self.give_away(id, pages);
        }
    }

    fn give_away(&mut self, cache: CacheId, pages: Vec<FreePages>) {
        for place in pages {
            self.page_map
                .set(place.start * UNIT, place.units * UNIT, None);
            // From here on it counts as used by the cache's stream.
            self.truth.pass_on(place.start, place.units, cache);
            let last_use = LastUse::new(cache, self.now);
            self.central
                .add(place.start, place.units, last_use, Joins::BOTH);
        }
    }

    fn trim(&mut self) {
        self.central.share(0, self.now);
        self.central.note_done(0, self.done[0]);
        self.trim_done();
        if self.caches.len() == 1 {
            self.central.unshare();
        }
    }

    fn trim_done(&mut self) {
        for place in self.central.done_pages() {
            if self.random.below(2) == 0 {
                let taken = self.central.give_away(place.start, place.units);
                assert!(taken, "nothing has happened to it");
                self.truth.leave(place.start, place.units);
                self.gone.push((place.start, place.units));
            }
        }
    }

    /// Checks that all numbers are consistent.
    fn query(&self) {
        let caches = || self.caches.iter();
        let common = self.central.heap();
        let total: u64 = caches().map(|(cache, _)| cache.heap().total_units()).sum();
        assert_eq!(total + common.total_units(), self.truth.units());
        let free: u64 = caches()
            .map(|(cache, _)| {
                cache.heap().free_units() + cache.last_freed_units() + cache.remote_units()
            })
            .sum();
        let live: u64 = self.live.iter().map(|block| u64::from(block.1)).sum();
        assert_eq!(free + common.free_units() + live, self.truth.units());
        let counters = caches().map(|(_, counters)| counters);
        let (units, blocks) = counters.chain([&self.counters]).map(Counters::live).fold(
            (0, 0),
            |sum: (u64, u64), (units, blocks)| {
                (sum.0.wrapping_add(units), sum.1.wrapping_add(blocks))
            },
        );
        assert_eq!((units, blocks), (live, self.live.len() as u64));
    }

    /// Frees everything, and checks that all memory could be given back.
    fn finish(mut self) -> u32 {
        while !self.live.is_empty() {
            self.free();
        }
        for cache in 0..self.caches.len() as CacheId {
            self.reclaim_remote_frees(cache, true);
        }
        self.scavenge();
        self.query();
        for cache in 0..self.caches.len() as CacheId {
            let point = self.truth.point(cache);
            self.truth.seen(&point);
            self.central.note_done(cache, self.now);
        }
        let pages: u64 = self
            .central
            .done_pages()
            .iter()
            .map(|place| place.units)
            .sum();
        assert_eq!(pages, self.truth.units(), "all of it could go");
        assert!(
            self.caches
                .iter()
                .all(|(cache, _)| cache.heap().total_units() == 0)
        );
        self.taken_over
    }
}

fn run(caches: usize, seed: u64, steps: u64) -> u32 {
    let mut world = World::new(caches, seed);
    for step in 0..steps {
        world.step();
        if step % LOOK == 0 {
            world.query();
        }
    }
    world.finish()
}

#[test]
fn no_memory_comes_to_a_stream_before_its_last_user_is_done() {
    let steps = if cfg!(miri) { 60 } else { 8000 };
    let mut taken_over = 0;
    let few: &[(usize, u64)] = &[(3, 3)];
    let many = &[
        (1, 1),
        (2, 2),
        (3, 3),
        (5, 4),
        (31, 5),
        (32, 6),
        (40, 7),
        (70, 8),
    ];
    for &(caches, seed) in if cfg!(miri) { few } else { many } {
        taken_over += run(caches, seed, steps);
    }
    // Runs that take over no memory prove nothing.
    assert!(cfg!(miri) || taken_over > 200, "{taken_over}");
}
