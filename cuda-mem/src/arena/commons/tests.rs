mod rules;
mod truth;

use super::super::front::is_small;
use super::super::lane::{Lane, Pending};
use super::super::owners::Owners;
use super::super::random::Random;
use super::super::{PAGE, UNIT};
use super::*;
use truth::Truth;

/// So many steps between two looks at all numbers.
const LOOK: u64 = 50;

/// The pure parts of an arena, put together as `refill` and `giving` do it, on streams that are numbers.
struct World {
    random: Random,
    truth: Truth,
    commons: Commons,
    counters: Counters,
    lanes: Vec<(Lane, Counters)>,
    owners: Owners,
    /// What is next in each stream that is handed out: start, size, the lane that asked.
    live: Vec<(u64, u32, LaneId)>,
    /// The ticket of the next mark.
    now: u64,
    /// By lane: what the host has seen of it.
    done: Vec<u64>,
    /// By lane: marks that the host has not seen yet.
    marks: Vec<Vec<(u64, Vec<u64>)>>,
    /// Where more memory comes from.
    frontier: u64,
    gone: Vec<(u64, u64)>,
    /// How often memory changed lanes behind a wait.
    taken_over: u32,
}

impl World {
    fn new(lanes: usize, seed: u64) -> Self {
        let mut commons = Commons::default();
        for lane in 0..lanes {
            commons.note_done(lane as LaneId, 0);
        }
        if lanes > 1 {
            commons.share(0, 0);
        }
        Self {
            random: Random::new(seed),
            truth: Truth::new(lanes),
            commons,
            counters: Counters::default(),
            lanes: std::iter::repeat_with(Default::default)
                .take(lanes)
                .collect(),
            owners: Owners::default(),
            live: Vec::new(),
            now: 1,
            done: vec![0; lanes],
            marks: vec![Vec::new(); lanes],
            frontier: PAGE_UNITS,
            gone: Vec::new(),
            taken_over: 0,
        }
    }

    fn some_lane(&mut self) -> LaneId {
        self.random.below(self.lanes.len() as u64) as LaneId
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
            78..84 => self.mark(),
            84..92 => self.see(),
            92..95 => {
                let lane = self.some_lane();
                let wait = self.random.below(2) == 0;
                self.recover(lane, wait);
            }
            95..98 => self.gather(),
            98 => self.trim(),
            _ => self.user_joins(),
        }
    }

    /// The user makes a stream wait for another one.
    fn user_joins(&mut self) {
        let (lane, other) = (self.some_lane(), self.some_lane());
        self.truth.wait(lane, other);
    }

    fn mark(&mut self) {
        let lane = self.some_lane();
        let mark = (self.now, self.truth.point(lane));
        self.now += 1;
        self.marks[lane as usize].push(mark);
    }

    /// The host sees that a stream has passed a mark; the commons may hear of it later.
    fn see(&mut self) {
        let lane = self.some_lane() as usize;
        if !self.marks[lane].is_empty() {
            let (ticket, point) = self.marks[lane].remove(0);
            self.truth.seen(&point);
            self.done[lane] = ticket;
        }
        if self.random.below(2) == 0 {
            self.commons.note_done(lane as LaneId, self.done[lane]);
        }
    }

    fn allocate(&mut self) {
        let (lane, size) = (self.some_lane(), self.size());
        let start = if is_small(size) {
            self.small(lane, size)
        } else {
            self.large(lane, size)
        };
        self.truth.take(start, size.into(), lane);
        self.live.push((start, size, lane));
    }

    fn at_hand(&mut self, lane: LaneId, size: u32) -> Option<u64> {
        let (lane, counters) = &mut self.lanes[lane as usize];
        lane.allocate(size, counters)
    }

    fn small(&mut self, lane: LaneId, size: u32) -> u64 {
        if let Some(start) = self.at_hand(lane, size) {
            return start;
        }
        let most = (1 + self.random.below(3)) * PAGE_UNITS;
        let pages = match self.commons.take_pages(lane, most) {
            Some(pages) => Some(pages),
            None => {
                self.refused(lane, |start, end| {
                    start.next_multiple_of(PAGE_UNITS) + PAGE_UNITS <= end
                });
                self.pages_of_another(lane, most)
            }
        };
        let (start, units) = match pages {
            Some(pages) => (pages.start, pages.units),
            None => self.more(2),
        };
        // The pages are the lane's stream's to use from now on.
        self.truth.check(start, units, lane);
        self.owners.note(start * UNIT, units * UNIT, Some(lane));
        let (to, counters) = &mut self.lanes[lane as usize];
        to.add(start, units, Joins::BOTH, counters);
        self.at_hand(lane, size).expect("there is a page now")
    }

    fn pages_of_another(&mut self, lane: LaneId, most: u64) -> Option<FreePages> {
        let place = self.commons.pages_of_others(lane)?;
        if self.random.below(2) == 0 {
            return None;
        }
        self.wait_for(lane, place.stamp);
        let pages = self.commons.take_pages_at(place, most);
        Some(pages.expect("nothing has happened to it"))
    }

    /// No run of memory that the lane may use, as far as the commons know, would have done.
    fn refused(&self, lane: LaneId, would_do: impl Fn(u64, u64) -> bool) {
        for (start, end) in self.commons.usable_runs(lane) {
            assert!(!would_do(start, end), "{start} to {end} was passed over");
        }
    }

    fn large(&mut self, lane: LaneId, size: u32) -> u64 {
        if let Some(start) = self.at_hand(lane, size) {
            return start;
        }
        if let Some(start) = self.commons.allocate(size, lane, &self.counters) {
            return start;
        }
        self.refused(lane, |start, end| start + u64::from(size) <= end);
        if let Some(place) = self.commons.best_of_others(size, lane, |_| false)
            && self.random.below(2) == 0
        {
            self.wait_for(lane, place.stamp);
            assert!(self.commons.allocate_at(place, size, &self.counters));
            return place.start;
        }
        if self.random.below(2) == 0
            && let Some(places) = self.commons.run_of_all(size)
        {
            for place in &places {
                if !place.stamp.is_usable_by(lane) {
                    self.wait_for(lane, place.stamp);
                }
            }
            let counters = &self.counters;
            let got = self.commons.allocate_run_at(&places, size, counters);
            return got.expect("nothing has happened to it");
        }
        let pages = u64::from(size).div_ceil(PAGE_UNITS) + self.random.below(3);
        let (start, units) = self.more(pages);
        self.commons.add(start, units, Stamp::FREE, Joins::BOTH);
        let got = self.commons.allocate(size, lane, &self.counters);
        got.expect("there is room now")
    }

    fn wait_for(&mut self, lane: LaneId, stamp: Stamp) {
        self.taken_over += 1;
        let user = stamp.lane().expect("it is another's");
        if self.done[user as usize] < stamp.ticket {
            self.truth.wait(lane, user);
        }
    }

    /// Pages that are new, or were given back.
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
        // In the order of another stream only once that waits for the one that used it.
        let lane = match self.random.below(4) {
            0 => self.some_lane(),
            _ => user,
        };
        self.truth.wait(lane, user);
        self.truth.free(start, lane);
        let stamp = Stamp::new(lane, self.now);
        if is_small(size) {
            let owner = self
                .owners
                .of(start * UNIT)
                .expect("small blocks are a lane's");
            if owner != lane {
                let (lane, ticket) = (lane, self.now);
                let pending = Pending {
                    start,
                    lane,
                    ticket,
                };
                let (to, counters) = &mut self.lanes[owner as usize];
                return to.free_elsewhere(pending, counters).expect("it is live");
            }
        } else if self.random.below(2) == 0 {
            self.counters.came_back(size);
            return self.commons.free(start, stamp).expect("it is live");
        }
        let (to, counters) = &mut self.lanes[lane as usize];
        if is_small(size) {
            if let Some(old) = to.free_small(start, size, counters) {
                to.settle(old.start).expect("it was in front");
            }
        } else if let Some((old, ticket)) = to.free_large(start, size, self.now, counters) {
            self.commons
                .free(old.start, Stamp::new(lane, ticket))
                .expect("it was in front");
        }
    }

    fn recover(&mut self, lane: LaneId, wait: bool) {
        for block in self.lanes[lane as usize].0.take_pending() {
            let over = block.ticket <= self.done[block.lane as usize];
            if !over && wait {
                self.truth.wait(lane, block.lane);
            }
            let to = &mut self.lanes[lane as usize].0;
            if over || wait {
                to.settle(block.start).expect("it was known");
            } else {
                to.wait_again(block);
            }
        }
    }

    fn gather(&mut self) {
        for (id, (lane, counters)) in self.lanes.iter_mut().enumerate() {
            let stamp = Stamp::new(id as LaneId, self.now);
            let spare = counters.has_spare(true);
            let large = lane.flush(counters);
            assert!(spare || large.is_none(), "a block in front is told");
            if let Some((block, ticket)) = large {
                self.commons
                    .free(block.start, Stamp::new(id as LaneId, ticket))
                    .expect("it was in front");
            }
            for place in lane.give_away(counters) {
                assert!(spare, "pages that may be free are told");
                self.owners
                    .note(place.start * UNIT, place.units * UNIT, None);
                // From here on it counts as used by the lane's stream.
                self.truth.pass_on(place.start, place.units, id as LaneId);
                self.commons
                    .add(place.start, place.units, stamp, Joins::BOTH);
            }
        }
    }

    fn trim(&mut self) {
        self.commons.share(0, self.now);
        self.commons.note_done(0, self.done[0]);
        self.trim_done();
        if self.lanes.len() == 1 {
            self.commons.unshare();
        }
    }

    fn trim_done(&mut self) {
        for place in self.commons.done_pages() {
            if self.random.below(2) == 0 {
                let taken = self.commons.give_away(place.start, place.units);
                assert!(taken, "nothing has happened to it");
                self.truth.leave(place.start, place.units);
                self.gone.push((place.start, place.units));
            }
        }
    }

    /// All numbers fit together.
    fn look(&self) {
        let lanes = || self.lanes.iter();
        let common = self.commons.fit();
        let total: u64 = lanes().map(|(lane, _)| lane.fit().total_units()).sum();
        assert_eq!(total + common.total_units(), self.truth.units());
        let free: u64 = lanes()
            .map(|(lane, _)| lane.fit().free_units() + lane.front_units() + lane.pending_units())
            .sum();
        let live: u64 = self.live.iter().map(|block| u64::from(block.1)).sum();
        assert_eq!(free + common.free_units() + live, self.truth.units());
        let counters = lanes().map(|(_, counters)| counters);
        let (units, blocks) = counters.chain([&self.counters]).map(Counters::live).fold(
            (0, 0),
            |sum: (u64, u64), (units, blocks)| {
                (sum.0.wrapping_add(units), sum.1.wrapping_add(blocks))
            },
        );
        assert_eq!((units, blocks), (live, self.live.len() as u64));
    }

    /// Everything comes back, and all is one again.
    fn finish(mut self) -> u32 {
        while !self.live.is_empty() {
            self.free();
        }
        for lane in 0..self.lanes.len() as LaneId {
            self.recover(lane, true);
        }
        self.gather();
        self.look();
        for lane in 0..self.lanes.len() as LaneId {
            let point = self.truth.point(lane);
            self.truth.seen(&point);
            self.commons.note_done(lane, self.now);
        }
        let pages: u64 = self
            .commons
            .done_pages()
            .iter()
            .map(|place| place.units)
            .sum();
        assert_eq!(pages, self.truth.units(), "all of it could go");
        assert!(
            self.lanes
                .iter()
                .all(|(lane, _)| lane.fit().total_units() == 0)
        );
        self.taken_over
    }
}

fn run(lanes: usize, seed: u64, steps: u64) -> u32 {
    let mut world = World::new(lanes, seed);
    for step in 0..steps {
        world.step();
        if step % LOOK == 0 {
            world.look();
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
    for &(lanes, seed) in if cfg!(miri) { few } else { many } {
        taken_over += run(lanes, seed, steps);
    }
    // Runs that never get there show nothing.
    assert!(cfg!(miri) || taken_over > 200, "{taken_over}");
}
