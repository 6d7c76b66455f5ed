use std::collections::HashMap;

use super::super::header::{Header, State};
use super::super::last_use::LastUse;
use super::super::random::Random;
use super::*;

/// Starts spread like those of blocks: some close together, some whole pages or gigabytes apart.
fn start(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.below(300),
        1 => random.below(300) * 8192,
        2 => random.below(300) << 22,
        _ => (1 << 40) - 1 - random.below(300),
    }
}

#[test]
fn it_finds_what_a_hash_map_finds() {
    let mut random = Random::new(1);
    let (mut headers, mut index) = (Headers::default(), Index::default());
    let mut model = HashMap::new();
    let steps: u32 = if cfg!(miri) { 300 } else { 200_000 };
    for step in 0..steps {
        let start = start(&mut random);
        assert_eq!(index.find(&headers, start), model.get(&start).copied());
        // Phases of growth and of decline alternate.
        let grows = (step / (steps / 3).min(500)).is_multiple_of(2);
        if random.below(4) == 0 || model.contains_key(&start) && !grows {
            let removed = index.remove(&mut headers, start);
            assert_eq!(removed, model.remove(&start));
            if let Some(id) = removed {
                headers.remove(id);
            }
        } else if !model.contains_key(&start) && grows {
            let id = headers.add(Header::new(start, 1, State::Used, LastUse::FREE));
            index.insert(&mut headers, id);
            model.insert(start, id);
        }
        if step % 997 == 0 {
            for (start, id) in &model {
                assert_eq!(index.find(&headers, *start), Some(*id));
            }
            assert_eq!(index.len, model.len());
        }
    }
}

#[test]
fn there_are_one_or_two_chains_for_each_block() {
    let (mut headers, mut index) = (Headers::default(), Index::default());
    for start in 0..1000 {
        let id = headers.add(Header::new(start, 1, State::Used, LastUse::FREE));
        index.insert(&mut headers, id);
        assert!(index.len <= index.heads.len());
        let bytes = 4 * index.len..=8 * index.len.max(32);
        assert!(bytes.contains(&index.bytes()), "{}", index.bytes());
    }
}

/// Blocks of a heap start at regular distances; a lookup must stay short for each of them.
#[test]
fn regular_starts_are_spread_over_the_chains() {
    for distance in [1, 2, 256, 8192, 1 << 22] {
        let (mut headers, mut index) = (Headers::default(), Index::default());
        for block in 0..1000 {
            let start = block * distance;
            let id = headers.add(Header::new(start, 1, State::Used, LastUse::FREE));
            index.insert(&mut headers, id);
        }
        let length = |&first: &Id| {
            let next = |&id: &Id| Some(headers[id].next()).filter(|&id| id != NONE);
            std::iter::successors(Some(first).filter(|&id| id != NONE), next).count()
        };
        let longest = index.heads.iter().map(length).max();
        assert!(longest <= Some(8), "{distance}: {longest:?}");
    }
}

#[test]
fn it_grows_when_there_are_more_blocks_than_chains() {
    let (mut headers, mut index) = (Headers::default(), Index::default());
    let mut sizes = Vec::new();
    for start in 0..129 {
        let id = headers.add(Header::new(start, 1, State::Used, LastUse::FREE));
        index.insert(&mut headers, id);
        sizes.push(index.bytes() / size_of::<Id>());
    }
    let expected = [vec![64; 64], vec![128; 64], vec![256; 1]].concat();
    assert_eq!(sizes, expected);
}
