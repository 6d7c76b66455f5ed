use std::collections::HashMap;

use super::super::node::{Node, State};
use super::super::random::Random;
use super::super::stamp::Stamp;
use super::*;

/// Starts that lie as blocks do: some close together, some whole pages or gigabytes apart.
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
    let (mut nodes, mut index) = (Nodes::default(), Index::default());
    let mut model = HashMap::new();
    let steps: u32 = if cfg!(miri) { 300 } else { 200_000 };
    for step in 0..steps {
        let start = start(&mut random);
        assert_eq!(index.find(&nodes, start), model.get(&start).copied());
        // Times of growth and times of decline.
        let grows = (step / (steps / 3).min(500)).is_multiple_of(2);
        if random.below(4) == 0 || model.contains_key(&start) && !grows {
            let removed = index.remove(&mut nodes, start);
            assert_eq!(removed, model.remove(&start));
            if let Some(id) = removed {
                nodes.remove(id);
            }
        } else if !model.contains_key(&start) && grows {
            let id = nodes.add(Node::new(start, 1, State::Used, Stamp::FREE));
            index.insert(&mut nodes, id);
            model.insert(start, id);
        }
        if step % 997 == 0 {
            for (start, id) in &model {
                assert_eq!(index.find(&nodes, *start), Some(*id));
            }
            assert_eq!(index.len, model.len());
        }
    }
}

#[test]
fn there_are_one_or_two_chains_for_each_block() {
    let (mut nodes, mut index) = (Nodes::default(), Index::default());
    for start in 0..1000 {
        let id = nodes.add(Node::new(start, 1, State::Used, Stamp::FREE));
        index.insert(&mut nodes, id);
        assert!(index.len <= index.heads.len());
        assert!(index.bytes() <= 8 * index.len.max(32));
    }
}
