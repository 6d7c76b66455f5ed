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
    for start in 0..if cfg!(miri) { 200 } else { 100_000 } {
        let size = size(&mut random);
        match random.below(200) {
            0 => {
                let mut out: Vec<_> = last_freed
                    .drain()
                    .map(|block| (block.start, block.size))
                    .collect();
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
                    assert!(!there, "{size} is in front");
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
        let units: u64 = inside.values().map(|size| u64::from(*size)).sum();
        assert_eq!(last_freed.units(), units);
    }
    assert!(answered > 5, "{answered}");
}

#[test]
fn one_block_that_is_not_small_stands_in_last_freed_at_most() {
    let mut last_freed = LastFreed::default();
    assert!(
        last_freed
            .put(Block {
                start: 1,
                size: 300
            })
            .is_none()
    );
    assert_eq!(last_freed.take(301), None);
    let old = last_freed.put(Block {
        start: 2,
        size: 301,
    });
    assert_eq!(old.map(|old| (old.start, old.size)), Some((1, 300)));
    assert_eq!(
        (last_freed.take(300), last_freed.take(301)),
        (None, Some(2))
    );
}
