//! Allocates and frees one block, over and over.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;

use super::{Effort, Rival, Row};
use crate::middle;

const SIZES: [usize; 4] = [256, 4 << 10, 1 << 20, 64 << 20];
const WARM_UP: usize = 10;

pub(super) fn run<R: Rival>(
    new: &dyn Fn() -> Result<R>,
    effort: Effort,
    show: &mut dyn FnMut(Row) -> Result<()>,
) -> Result<()> {
    for bytes in SIZES {
        let rival = new()?;
        let stream = rival.stream()?;
        let mut rounds = Vec::new();
        for round in 0..WARM_UP + effort.pair_rounds {
            let start = Instant::now();
            for _ in 0..effort.pairs {
                let block = black_box(rival.allocate(&stream, black_box(bytes))?);
                rival.free(&stream, block)?;
            }
            if round >= WARM_UP {
                rounds.push(start.elapsed().as_nanos() as f64 / effort.pairs as f64);
            }
        }
        rival.synchronize(&stream)?;
        show(Row {
            workload: "pairs",
            threads: 1,
            bytes: Some(bytes),
            operations: effort.pair_rounds * effort.pairs,
            planned: effort.pair_rounds * effort.pairs,
            ns: Some(middle(rounds)),
            ..Row::default()
        })?;
    }
    Ok(())
}
