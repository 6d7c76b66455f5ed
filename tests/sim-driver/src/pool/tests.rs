//! Tests the bookkeeping with a long random run: the invariants of `driver-rules.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fit::Reuse;
use super::space::Space;
use crate::clock::{Clocks, StreamId};
use crate::queue::{Mark, Queue};

const CHUNK: u64 = 1 << 20;
const STREAMS: [StreamId; 3] = [1, 2, 3];

/// A mark that is reached, or one that never is.
fn mark(reached: bool) -> Mark {
    let queue = Arc::new(Queue::default());
    if reached {
        queue.mark()
    } else {
        queue.mark_ahead()
    }
}

struct Model {
    space: Space,
    clocks: Clocks,
    live: BTreeMap<u64, (u64, StreamId)>,
    reuse: Reuse,
    internal_dependencies: bool,
    random: u64,
}

impl Model {
    fn new(reuse: [bool; 3]) -> Self {
        let mut clocks = Clocks::default();
        STREAMS.iter().for_each(|stream| clocks.add(*stream));
        Self {
            space: Space::new(512, CHUNK, 64 * CHUNK, u64::MAX),
            clocks,
            live: BTreeMap::new(),
            reuse: Reuse {
                follow_events: reuse[0],
                opportunistic: reuse[1],
            },
            internal_dependencies: reuse[2],
            random: 7,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % limit
    }

    fn stream(&mut self) -> StreamId {
        1 + self.below(STREAMS.len() as u64)
    }

    fn alloc(&mut self, size: u64, stream: StreamId) -> Option<u64> {
        let point = self.clocks.tick(stream);
        self.space.settle(&self.clocks);
        let available = (40 * CHUNK).saturating_sub(self.space.reserved.current);
        let plan = self
            .space
            .plan(size, stream, &self.clocks, self.reuse, available);
        let plan = match plan {
            None if self.internal_dependencies => self.space.plan_waiting(size, stream)?,
            plan => {
                let plan = plan?;
                assert!(plan.waits.is_empty());
                plan
            }
        };
        self.space.commit(&plan, size, point);
        self.live.insert(plan.start, (size, stream));
        Some(plan.start)
    }

    fn free(&mut self, start: u64, stream: StreamId) {
        let point = self.clocks.tick(stream);
        let reached = self.below(2) == 0;
        let freed = self.space.free(start, Some((point, mark(reached))));
        assert_eq!(
            freed.map(|block| block.size),
            self.live.remove(&start).map(|(size, _)| size)
        );
    }

    fn observe(&mut self, stream: StreamId) {
        self.clocks.synchronise(&self.clocks.past(stream));
        self.space.settle(&self.clocks);
    }

    fn check(&self) {
        let sizes: u64 = self.live.values().map(|(size, _)| size).sum();
        assert_eq!(self.space.used.current, sizes);
        assert_eq!(self.space.live_bytes(), sizes);
        assert!(self.space.used.high >= sizes);
        assert!(self.space.reserved.high >= self.space.reserved.current);
        assert!(self.space.reserved.current >= sizes);
        let backed = self.space.backed.iter().filter(|backed| **backed).count() as u64;
        assert_eq!(self.space.reserved.current, backed * CHUNK);
        self.space.check_cover();
    }

    fn run(&mut self, steps: u64) {
        for step in 0..steps {
            let stream = self.stream();
            match self.below(20) {
                0..9 => {
                    let size = 1 + self.below(if step % 7 == 0 { 4 * CHUNK } else { 9000 });
                    self.alloc(size, stream);
                }
                9..17 => {
                    let at = self.below(64 * CHUNK);
                    let victim = self.live.range(at..).next().map(|(start, _)| *start);
                    if let Some(start) = victim {
                        self.free(start, stream);
                    }
                }
                17 => self.observe(stream),
                18 => {
                    let other = self.stream();
                    self.clocks.join(stream, &self.clocks.past(other));
                }
                19 if step % 16 == 0 => {
                    let available = (40 * CHUNK).saturating_sub(self.space.reserved.current);
                    self.space.grow_in_vain(available.min(3 * CHUNK + 1));
                }
                _ => {
                    let keep = self.below(8) * CHUNK;
                    self.space.give_back(|_, then| then >= keep);
                }
            }
            self.check();
        }
        let left: Vec<u64> = self.live.keys().copied().collect();
        left.into_iter().for_each(|start| self.free(start, 1));
        STREAMS.iter().for_each(|stream| self.observe(*stream));
        self.space.give_back(|_, _| true);
        assert_eq!(self.space.reserved.current, 0);
        self.check();
    }
}

#[test]
fn the_invariants_hold_under_every_policy() {
    for policy in 0..8_u32 {
        Model::new([policy & 1 != 0, policy & 2 != 0, policy & 4 != 0]).run(3000);
    }
}

#[test]
fn a_freed_block_is_taken_again_by_its_own_stream() {
    let mut model = Model::new([false; 3]);
    let first = model.alloc(1000, 1).expect("room");
    let second = model.alloc(1000, 1).expect("room");
    assert_eq!(second, first + 1024);
    model.free(first, 1);
    assert_ne!(model.alloc(1000, 2), Some(first), "another stream");
    assert_eq!(model.alloc(1000, 1), Some(first));
}

#[test]
fn a_request_grows_from_a_free_end() {
    let mut model = Model::new([false; 3]);
    let low = model.alloc(512, 1).expect("room");
    let high = model.alloc(CHUNK - 512, 1).expect("room");
    model.free(high, 1);
    model.observe(1);
    assert_eq!(model.alloc(CHUNK, 1), Some(high));
    assert_eq!(model.space.reserved.current, 2 * CHUNK);
    model.free(low, 1);
}

#[test]
fn neighbours_of_different_kinds_are_two_places() {
    let mut model = Model::new([false; 3]);
    let first = model.alloc(CHUNK / 2, 1).expect("room");
    let second = model.alloc(CHUNK / 2, 1).expect("room");
    model.free(first, 1);
    model.observe(1);
    model.free(second, 1);
    let elsewhere = model.alloc(CHUNK, 1).expect("room");
    assert!(elsewhere > second, "one is seen freed, one is not");
    model.observe(1);
    assert_eq!(model.alloc(CHUNK, 1), Some(first));
}

#[test]
fn of_equal_places_the_own_one_that_was_freed_first_is_taken() {
    let mut model = Model::new([false; 3]);
    let blocks: Vec<u64> = (0..6).filter_map(|_| model.alloc(1000, 1)).collect();
    for at in [2, 4, 0] {
        model.free(blocks[at], 1);
    }
    assert_eq!(model.alloc(1000, 1), Some(blocks[2]));
    model.observe(1);
    assert_eq!(model.alloc(1000, 1), Some(blocks[0]), "now the lowest");
}

#[test]
fn memory_that_is_there_is_taken_before_lower_memory_that_is_not() {
    let mut model = Model::new([false; 3]);
    let low = model.alloc(CHUNK, 1).expect("room");
    let middle = model.alloc(CHUNK, 1).expect("room");
    let high = model.alloc(512, 1).expect("room");
    model.free(low, 1);
    model.observe(1);
    model.space.give_back(|_, _| true);
    assert_eq!(model.space.reserved.current, 2 * CHUNK, "the lowest went");
    model.free(middle, 1);
    model.observe(1);
    assert_eq!(model.alloc(CHUNK, 1), Some(middle));
    assert_eq!(model.space.reserved.current, 2 * CHUNK);
    model.free(high, 1);
}
