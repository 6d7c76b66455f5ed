//! Host memory that the bookkeeping takes.

use super::super::super::random::Random;
use super::super::*;
use super::model::HUGE;

/// Blocks in the tests that count bytes.
const MANY: u64 = if cfg!(miri) { 200 } else { 100_000 };

/// A heap with many live blocks of sizes up to `largest`, and these blocks.
fn many(largest: u64, random: &mut Random) -> (Tlsf, Vec<u64>) {
    let mut heap: Tlsf = Tlsf::default();
    let mut end = 0;
    let mut blocks = Vec::new();
    for _ in 0..MANY {
        let size = 1 + random.below(largest) as u32;
        let start = heap.allocate(size).unwrap_or_else(|| {
            let units = 16 * PAGE_UNITS.max(largest.next_multiple_of(PAGE_UNITS));
            heap.add_run(end, units, LastUse::FREE, 0);
            end += units;
            heap.allocate(size).expect("there is room now")
        });
        blocks.push(start);
    }
    (heap, blocks)
}

/// The worst case: a gap behind every block, and tables still sized for twice as many blocks.
#[test]
fn a_live_block_with_a_gap_behind_it_takes_little_more() {
    for (largest, blocks) in [(4, MANY), (256, MANY / 2 + 1), (256, MANY * 3 / 4)] {
        let mut random = Random::new(largest);
        let (mut heap, mut live) = many(largest, &mut random);
        live.truncate(blocks as usize);
        for start in live.iter().step_by(2) {
            heap.free(*start, LastUse::FREE).expect("it is live");
        }
        let count = MANY - blocks.div_ceil(2);
        let bytes = (heap.bytes() - Tlsf::<SizeClasses>::default().bytes()) as u64;
        // Tables grow by at least 64 entries, which matters if there are few.
        assert!(bytes <= 104 * count + 4096, "{largest}: {}", bytes / count);
    }
}

#[test]
fn a_live_block_takes_less_than_a_hundred_bytes_of_the_host() {
    // The bytes of an empty heap are a fixed cost.
    let bytes = |heap: &Tlsf| heap.bytes() - Tlsf::<SizeClasses>::default().bytes();
    for largest in [4, 256, 5000] {
        let mut random = Random::new(largest);
        let (mut heap, blocks) = many(largest, &mut random);
        assert!(
            bytes(&heap) as u64 <= 96 * MANY,
            "{largest}: {}",
            bytes(&heap)
        );
        // Both grow with the blocks.
        assert!(heap.bytes() > heap.headers.bytes() + heap.used.bytes());
        for start in blocks.iter().step_by(3) {
            heap.free(*start, LastUse::FREE).expect("it is live");
        }
        let live = MANY - MANY.div_ceil(3);
        assert!(
            bytes(&heap) as u64 <= 96 * live,
            "{largest}: {}",
            bytes(&heap)
        );
        // As many again, in the gaps or behind them.
        for start in blocks.iter().step_by(3) {
            let size = 1 + random.below(largest) as u32;
            if heap.allocate(size).is_none() {
                heap.add_run(
                    (1 << 37) + start * largest,
                    16 * PAGE_UNITS,
                    LastUse::FREE,
                    size,
                );
            }
        }
        assert!(
            bytes(&heap) as u64 <= 96 * MANY,
            "{largest}: {}",
            bytes(&heap)
        );
    }
}

#[test]
fn a_byte_that_is_free_or_large_costs_nothing() {
    // The tables grow in steps.
    let same = |heap: &Tlsf, other: &Tlsf| {
        let (one, other) = (heap.bytes(), other.bytes());
        assert!(one.abs_diff(other) <= other / 8 + 4096, "{one} and {other}");
    };
    let (small, _) = many(1, &mut Random::new(1));
    // The same number of blocks, a thousand times as large.
    let mut heap: Tlsf = Tlsf::default();
    heap.add_run(0, MANY * 1000, LastUse::FREE, 0);
    for _ in 0..MANY {
        heap.allocate(1000).expect("there is room");
    }
    same(&heap, &small);
    heap.add_run(HUGE, 1 << 37, LastUse::FREE, 0);
    same(&heap, &small);
}

#[test]
fn numbers_of_headers_are_given_again() {
    let mut heap: Tlsf = Tlsf::default();
    let round = |heap: &mut Tlsf| {
        for place in 0..8 {
            heap.add_run(place * 2 * PAGE_UNITS, PAGE_UNITS, LastUse::FREE, 10);
        }
        for place in 0..7 {
            let start = (place * 2 + 1) * PAGE_UNITS;
            heap.add_run(start, PAGE_UNITS, LastUse::new(place as u32, 1), 0);
        }
        let blocks: Vec<_> = (0..100).filter_map(|_| heap.allocate(50)).collect();
        for start in blocks
            .into_iter()
            .chain((0..8).map(|at| at * 2 * PAGE_UNITS))
        {
            heap.free(start, LastUse::FREE).expect("it is live");
        }
        for place in [1, 0, 14, 7, 8, 3] {
            let start = place * PAGE_UNITS;
            heap.cut(start, PAGE_UNITS);
        }
        while let Some(place) = { heap.free_pages(1).next() } {
            assert!(heap.cut(place.start, place.units));
        }
        assert_eq!(heap.total_units(), 0);
    };
    round(&mut heap);
    let bytes = heap.bytes();
    for _ in 0..if cfg!(miri) { 1 } else { 1000 } {
        round(&mut heap);
    }
    assert_eq!(heap.bytes(), bytes);
}

#[test]
fn all_parts_are_counted() {
    let (heap, _) = many(100, &mut Random::new(1));
    let tables = heap.headers.bytes() + heap.classes.bytes() + heap.used.bytes();
    assert!(heap.bytes() > tables && heap.used.bytes() > 0);
}
