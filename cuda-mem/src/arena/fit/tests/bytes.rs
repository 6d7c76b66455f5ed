//! What the bookkeeping takes of the host.

use super::super::super::random::Random;
use super::super::*;
use super::model::HUGE;

/// So many blocks where bytes are counted.
const MANY: u64 = if cfg!(miri) { 200 } else { 100_000 };

/// A fit with many live blocks of sizes up to this, and these blocks.
fn many(largest: u64, random: &mut Random) -> (Fit, Vec<u64>) {
    let mut fit: Fit = Fit::default();
    let mut end = 0;
    let mut blocks = Vec::new();
    for _ in 0..MANY {
        let size = 1 + random.below(largest) as u32;
        let start = fit.allocate(size).unwrap_or_else(|| {
            let units = 16 * PAGE_UNITS.max(largest.next_multiple_of(PAGE_UNITS));
            fit.add_run(end, units, Stamp::FREE, 0);
            end += units;
            fit.allocate(size).expect("there is room now")
        });
        blocks.push(start);
    }
    (fit, blocks)
}

/// The worst case: a gap behind every block, and the tables as large as they were with twice as many.
#[test]
fn a_live_block_with_a_gap_behind_it_takes_little_more() {
    for (largest, blocks) in [(4, MANY), (256, MANY / 2 + 1), (256, MANY * 3 / 4)] {
        let mut random = Random::new(largest);
        let (mut fit, mut live) = many(largest, &mut random);
        live.truncate(blocks as usize);
        for start in live.iter().step_by(2) {
            fit.free(*start, Stamp::FREE).expect("it is live");
        }
        let count = MANY - blocks.div_ceil(2);
        let bytes = (fit.bytes() - Fit::<Bins>::default().bytes()) as u64;
        // Tables grow by 64 at least, which counts where there are few.
        assert!(bytes <= 104 * count + 4096, "{largest}: {}", bytes / count);
    }
}

#[test]
fn a_live_block_takes_less_than_a_hundred_bytes_of_the_host() {
    // What an empty one takes is there once, whatever comes.
    let bytes = |fit: &Fit| fit.bytes() - Fit::<Bins>::default().bytes();
    for largest in [4, 256, 5000] {
        let mut random = Random::new(largest);
        let (mut fit, blocks) = many(largest, &mut random);
        assert!(
            bytes(&fit) as u64 <= 96 * MANY,
            "{largest}: {}",
            bytes(&fit)
        );
        for start in blocks.iter().step_by(3) {
            fit.free(*start, Stamp::FREE).expect("it is live");
        }
        let live = MANY - MANY.div_ceil(3);
        assert!(
            bytes(&fit) as u64 <= 96 * live,
            "{largest}: {}",
            bytes(&fit)
        );
        // Again as many, in the gaps or behind.
        for start in blocks.iter().step_by(3) {
            let size = 1 + random.below(largest) as u32;
            if fit.allocate(size).is_none() {
                fit.add_run(
                    (1 << 37) + start * largest,
                    16 * PAGE_UNITS,
                    Stamp::FREE,
                    size,
                );
            }
        }
        assert!(
            bytes(&fit) as u64 <= 96 * MANY,
            "{largest}: {}",
            bytes(&fit)
        );
    }
}

#[test]
fn a_byte_that_is_free_or_large_costs_nothing() {
    // The lists grow by an eighth at a time.
    let same = |fit: &Fit, other: &Fit| {
        let (one, other) = (fit.bytes(), other.bytes());
        assert!(one.abs_diff(other) <= other / 8 + 4096, "{one} and {other}");
    };
    let (small, _) = many(1, &mut Random::new(1));
    // The same number of blocks, a thousand times as large.
    let mut fit: Fit = Fit::default();
    fit.add_run(0, MANY * 1000, Stamp::FREE, 0);
    for _ in 0..MANY {
        fit.allocate(1000).expect("there is room");
    }
    same(&fit, &small);
    fit.add_run(HUGE, 1 << 37, Stamp::FREE, 0);
    same(&fit, &small);
}

#[test]
fn numbers_of_nodes_are_given_again() {
    let mut fit: Fit = Fit::default();
    let round = |fit: &mut Fit| {
        for place in 0..8 {
            fit.add_run(place * 2 * PAGE_UNITS, PAGE_UNITS, Stamp::FREE, 10);
        }
        for place in 0..7 {
            let start = (place * 2 + 1) * PAGE_UNITS;
            fit.add_run(start, PAGE_UNITS, Stamp::new(place as u32, 1), 0);
        }
        let blocks: Vec<_> = (0..100).filter_map(|_| fit.allocate(50)).collect();
        for start in blocks
            .into_iter()
            .chain((0..8).map(|at| at * 2 * PAGE_UNITS))
        {
            fit.free(start, Stamp::FREE).expect("it is live");
        }
        for place in [1, 0, 14, 7, 8, 3] {
            let start = place * PAGE_UNITS;
            fit.cut(start, PAGE_UNITS);
        }
        while let Some(place) = { fit.free_pages(1).next() } {
            assert!(fit.cut(place.start, place.units));
        }
        assert_eq!(fit.total_units(), 0);
    };
    round(&mut fit);
    let bytes = fit.bytes();
    for _ in 0..if cfg!(miri) { 1 } else { 1000 } {
        round(&mut fit);
    }
    assert_eq!(fit.bytes(), bytes);
}
