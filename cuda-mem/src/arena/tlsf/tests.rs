mod bytes;
mod model;

use proptest::prelude::*;

use super::super::random::cases;
use super::super::size_classes::place;
use super::*;
use model::{Block, HUGE, Model, Outcome, Use, last_use};

/// Numbers that choose among the current blocks are taken modulo their count.
#[derive(Clone, Debug)]
enum Step {
    /// Adds pages in one of several places, which may touch.
    Add {
        place: u64,
        pages: u64,
        last: Use,
        used: u32,
    },
    /// Adds more than a header can hold.
    AddHuge {
        place: u64,
        units: u64,
        last: Use,
    },
    Allocate(u32),
    Free(usize, Use),
    FreeTwice(usize, Use),
    FreeUnknown(u64),
    /// Removes a part of a free block.
    Cut {
        block: usize,
        from: u64,
        units: u64,
    },
    /// Removes all whole pages of a free block, as `free_pages` returns them.
    CutPages(usize, u64),
    Tail(u64),
}

/// The memory of a cache has no last user.
fn last() -> impl Strategy<Value = Use> {
    Just(None)
}

fn size() -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 1_u32..70,
        4 => 1_u32..20_000,
        2 => (1_u32..4).prop_map(|pages| pages * PAGE_UNITS as u32),
        1 => (0_u32..70).prop_map(|less| u32::MAX - less),
        1 => 1_u32..=u32::MAX,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u64..40, 1_u64..4, last(), prop_oneof![Just(0), size()])
            .prop_map(|(place, pages, last, used)| Step::Add { place, pages, last, used }),
        1 => (0_u64..3, 1_u64..=3 << 32, last())
            .prop_map(|(place, units, last)| Step::AddHuge { place, units, last }),
        10 => size().prop_map(Step::Allocate),
        12 => (any::<usize>(), last()).prop_map(|(block, last)| Step::Free(block, last)),
        1 => (any::<usize>(), last()).prop_map(|(block, last)| Step::FreeTwice(block, last)),
        1 => (0_u64..40 * PAGE_UNITS).prop_map(Step::FreeUnknown),
        3 => (any::<usize>(), any::<u64>(), any::<u64>())
            .prop_map(|(block, from, units)| Step::Cut { block, from, units }),
        4 => (any::<usize>(), 1_u64..4).prop_map(|(block, pages)| Step::CutPages(block, pages)),
        1 => (0_u64..41).prop_map(Step::Tail),
    ]
}

#[derive(Default)]
struct World {
    heap: Tlsf,
    model: Model,
}

impl World {
    /// The free blocks as the heap has them: a huge one may be several.
    fn free(&self) -> Vec<(u64, u64, LastUse)> {
        let ids = self.heap.classes.at_least(&self.heap.headers, 1);
        let headers = ids.map(|id| self.heap.headers[id]);
        let mut free: Vec<_> = headers
            .map(|header| (header.start(), u64::from(header.size), header.last_use()))
            .collect();
        free.sort_unstable_by_key(|block| block.0);
        free
    }

    fn add(&mut self, start: u64, units: u64, last: Use, used: u32) {
        if !self.model.has(start, start + units) && u64::from(used) <= units {
            self.heap.add_run(start, units, last_use(last), used);
            self.model.add(start, units, last, u64::from(used));
        }
    }

    /// Checks that one of the smallest blocks that are large enough was taken, if there is one.
    fn took(&mut self, free: &[(u64, u64, LastUse)], size: u32, got: Option<u64>) -> Outcome {
        let size = u64::from(size);
        let Some(start) = got else {
            let fits = free.iter().find(|block| block.1 >= size);
            prop_assert_eq!(fits, None, "none was found for {}", size);
            return Ok(());
        };
        let block = free.iter().find(|block| block.0 == start);
        let block = block.ok_or_else(|| TestCaseError::fail(format!("no block at {start}")))?;
        prop_assert!(block.1 >= size, "{block:?} is too small for {size}");
        // Sizes of one list count as equal.
        let list = |size: u64| place(size as u32).number();
        let larger = free.iter().filter(|other| list(other.1) > list(size));
        let best = larger.map(|other| list(other.1)).min();
        prop_assert!(
            best.is_none_or(|best| list(block.1) <= best),
            "{block:?} for {size} though others fit better"
        );
        self.model.take(start, size)
    }

    fn step(&mut self, step: &Step) -> Outcome {
        let free = self.free();
        let used = self.model.used();
        match *step {
            Step::Add {
                place,
                pages,
                last,
                used,
            } => self.add(place * PAGE_UNITS, pages * PAGE_UNITS, last, used),
            Step::AddHuge { place, units, last } => {
                self.add(HUGE + (place << 33), units, last, 0);
            }
            Step::Allocate(size) => {
                let got = self.heap.allocate(size);
                self.took(&free, size, got)?;
            }
            Step::Free(block, last) => {
                self.free_block(&used, block, last)?;
            }
            Step::FreeTwice(block, last) => {
                if let Some(start) = self.free_block(&used, block, last)? {
                    prop_assert_eq!(self.heap.free(start, last_use(last)), None);
                }
            }
            Step::FreeUnknown(start) => {
                let known = used.iter().any(|block| block.start == start);
                if !known {
                    prop_assert_eq!(self.heap.size_of(start), None);
                    prop_assert_eq!(self.heap.free(start, LastUse::FREE), None);
                }
            }
            Step::Cut { block, from, units } => self.cut(&free, block, from, units)?,
            Step::CutPages(block, pages) => self.cut_pages(&free, block, pages)?,
            Step::Tail(page) => {
                let end = page * PAGE_UNITS;
                let tail = free.iter().find(|block| block.0 + block.1 == end);
                let tail = tail.filter(|_| !self.model.has(end, end + 1));
                let found = self.heap.tail(end).map(|id| self.heap.headers[id].start());
                prop_assert_eq!(found, tail.map(|block| block.0));
                let start = end;
                let head = free.iter().find(|block| block.0 == start);
                let head = head.filter(|_| start == 0 || !self.model.has(start - 1, start));
                let found = self
                    .heap
                    .head(start)
                    .map(|id| self.heap.headers[id].start());
                prop_assert_eq!(found, head.map(|block| block.0));
            }
        }
        Ok(())
    }

    fn free_block(
        &mut self,
        used: &[Block],
        block: usize,
        last: Use,
    ) -> Result<Option<u64>, TestCaseError> {
        let Some(block) = pick(used, block) else {
            return Ok(None);
        };
        let size = self.model.free(block.start, last);
        let freed = self.heap.free(block.start, last_use(last)).map(u64::from);
        prop_assert_eq!(freed, size);
        Ok(Some(block.start))
    }

    fn cut(
        &mut self,
        free: &[(u64, u64, LastUse)],
        block: usize,
        from: u64,
        units: u64,
    ) -> Outcome {
        let Some(block) = pick(free, block) else {
            return Ok(());
        };
        let start = block.0 + from % block.1;
        let end = block.0 + block.1;
        let units = 1 + units % (end - start);
        // One unit more goes beyond this block.
        prop_assert!(!self.heap.cut(start, end - start + 1), "too much");
        prop_assert!(self.heap.cut(start, units));
        self.model.cut(start, units)
    }

    fn cut_pages(&mut self, free: &[(u64, u64, LastUse)], block: usize, pages: u64) -> Outcome {
        let mut told: Vec<_> = self.heap.free_pages(pages).collect();
        told.sort_unstable_by_key(|place| place.start);
        let whole = free.iter().filter_map(|block| {
            let start = block.0.next_multiple_of(PAGE_UNITS);
            let end = (block.0 + block.1) / PAGE_UNITS * PAGE_UNITS;
            (start + pages * PAGE_UNITS <= end).then(|| FreePages {
                start,
                units: end - start,
            })
        });
        prop_assert_eq!(&told, &whole.collect::<Vec<_>>());
        let Some(place) = pick(&told, block) else {
            return Ok(());
        };
        prop_assert!(self.heap.cut(place.start, place.units));
        self.model.cut(place.start, place.units)
    }
}

fn pick<T: Clone>(all: &[T], which: usize) -> Option<T> {
    (!all.is_empty()).then(|| all[which % all.len()].clone())
}

#[test]
fn it_knows_what_a_naive_map_of_blocks_knows() {
    let steps = prop::collection::vec(step(), 1..if cfg!(miri) { 20 } else { 80 });
    cases(600, &steps, |steps| {
        let mut world = World::default();
        for step in &steps {
            let outcome = world
                .step(step)
                .and_then(|()| world.model.check(&world.heap));
            outcome.map_err(|error| TestCaseError::fail(format!("{step:?}: {error}")))?;
        }
        // Frees everything, and removes it.
        for block in world.model.used() {
            world.free_block(&[block], 0, None)?;
        }
        for (start, units, _) in world.free() {
            prop_assert!(world.heap.cut(start, units));
        }
        prop_assert_eq!(world.heap.total_units(), 0);
        prop_assert_eq!(world.heap.free_units(), 0);
        prop_assert!(world.heap.runs.is_empty());
        Ok(())
    });
}

#[test]
fn the_largest_block_that_a_header_can_say_comes_and_goes() {
    let mut heap: Tlsf = Tlsf::default();
    heap.add_run(7, u64::from(u32::MAX), LastUse::FREE, 0);
    assert_eq!(heap.largest_free(), u64::from(u32::MAX));
    assert_eq!(heap.allocate(u32::MAX), Some(7));
    assert_eq!((heap.allocate(1), heap.free_units()), (None, 0));
    assert_eq!(heap.free(7, LastUse::FREE), Some(u32::MAX));
    assert_eq!(heap.allocate(u32::MAX - 1), Some(7));
    assert_eq!(heap.allocate(2), None);
    assert_eq!(heap.allocate(1), Some(7 + u64::from(u32::MAX - 1)));
}

#[test]
fn memory_at_the_last_address_is_told_apart() {
    let end = (1_u64 << 48) / super::super::UNIT;
    let mut heap: Tlsf = Tlsf::default();
    heap.add_run(end - PAGE_UNITS, PAGE_UNITS, LastUse::FREE, 0);
    let start = heap.allocate(PAGE_UNITS as u32);
    assert_eq!(start, Some(end - PAGE_UNITS));
    assert_eq!(heap.size_of(end - PAGE_UNITS), Some(PAGE_UNITS as u32));
    assert_eq!(heap.size_of((end - PAGE_UNITS) & 0xffff_ffff), None);
}
