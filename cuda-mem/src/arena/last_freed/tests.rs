use std::collections::HashMap;

use super::super::random::Random;
use super::*;

fn size(random: &mut Random) -> u32 {
    match random.below(8) {
        0 => SMALL,
        1 => SMALL + 1,
        2 => SMALL + 1 + random.below(3) as u32,
        3 => u32::MAX - random.below(2) as u32,
        _ => 1 + random.below(SMALL.into()) as u32,
    }
}

#[test]
fn each_block_is_handed_out_once_and_in_its_size() {
    let mut random = Random::new(2);
    let mut last_freed = LastFreed::default();
    let mut inside: HashMap<u64, u32> = HashMap::new();
    let mut answered = 0;
    for start in 0..if cfg!(miri) { 400 } else { 100_000 } {
        let size = size(&mut random);
        match random.below(200) {
            0 => {
                let listed: Vec<_> = last_freed
                    .blocks()
                    .map(|block| (block.start, block.size))
                    .collect();
                let mut out: Vec<_> = last_freed
                    .drain()
                    .map(|block| (block.start, block.size))
                    .collect();
                assert_eq!(listed, out);
                out.sort_unstable();
                let mut all: Vec<_> = inside.drain().collect();
                all.sort_unstable();
                assert_eq!(out, all);
            }
            1..100 => {
                if let Some(start) = last_freed.take(size) {
                    assert_eq!(inside.remove(&start), Some(size));
                    answered += 1;
                } else {
                    let there = inside.values().any(|there| *there == size);
                    assert!(!there, "a block of {size} is cached");
                }
            }
            _ => {
                if let Some(old) = last_freed.put(Block { start, size }) {
                    assert_eq!(inside.remove(&old.start), Some(old.size));
                    assert_eq!(is_small(old.size), is_small(size));
                }
                inside.insert(start, size);
            }
        }
        let of = |small| {
            let sizes = inside.values().filter(|size| is_small(**size) == small);
            sizes.map(|size| u64::from(*size)).sum::<u64>()
        };
        assert_eq!(last_freed.units(), of(true) + of(false));
        assert_eq!(last_freed.larger_units(), of(false));
    }
    assert!(answered > 5, "{answered}");
}

#[test]
fn several_blocks_of_a_size_are_cached_up_to_a_page_in_all() {
    let mut last_freed = LastFreed::default();
    let mut blocks = 0_u64..;
    let mut put = |size| {
        blocks
            .next()
            .is_some_and(|start| last_freed.put(Block { start, size }).is_none())
    };
    // Three sizes, up to the limit of each.
    let rounds = (0..DEPTH)
        .map(|_| (38..=40).all(&mut put))
        .filter(|kept| *kept);
    assert_eq!(rounds.count(), DEPTH);
    assert!(!put(40), "there is a limit for each size");
    // One block of each size may exceed the page.
    assert!((50..=SMALL).all(&mut put));
    assert!(!(50..=SMALL).any(&mut put));
    assert!(last_freed.units() > PAGE_UNITS);

    let mut last_freed = LastFreed::default();
    for start in 0..DEPTH as u64 {
        assert!(last_freed.put(Block { start, size: 3 }).is_none());
    }
    let old = last_freed.put(Block { start: 9, size: 3 });
    assert_eq!(old.map(|old| old.start), Some(DEPTH as u64 - 1));
    assert_eq!(
        last_freed.take(3),
        Some(9),
        "the last one freed comes first"
    );
}

#[test]
fn larger_blocks_replace_each_other_in_turn() {
    let mut last_freed = LastFreed::default();
    let size = SMALL + 1;
    for start in 0..DEPTH as u64 {
        assert!(last_freed.put(Block { start, size }).is_none());
    }
    for start in 0..DEPTH as u64 {
        let new = DEPTH as u64 + start;
        let old = last_freed.put(Block { start: new, size });
        assert_eq!(old.map(|old| old.start), Some(start));
    }
    assert_eq!(last_freed.take(size + 1), None);
    let mut taken: Vec<_> = std::iter::from_fn(|| last_freed.take(size)).collect();
    taken.sort_unstable();
    assert_eq!(taken, (DEPTH as u64..2 * DEPTH as u64).collect::<Vec<_>>());
    assert_eq!(last_freed.units(), 0);
}

#[test]
fn round_sizes_fall_into_different_sets() {
    for step in [1, 2, 4, 8, 16, 64] {
        let sizes = (1..=16).map(|count| set_of(count * step));
        let sets: std::collections::HashSet<usize> = sizes.collect();
        assert!(sets.iter().all(|set| *set < SETS));
        assert!(sets.len() >= 8, "{step}: {sets:?}");
    }
}
