//! Threads that mix sizes, each on its own stream, without any device work.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};

use super::{Effort, Rival, Row};
use crate::middle;
use crate::mix::{Mix, UP_TO_1_MIB, asked};

const THREADS: [usize; 2] = [1, 16];
const WARM_UP: usize = 1000;

pub(super) fn run<R: Rival>(
    new: &dyn Fn() -> Result<R>,
    effort: Effort,
    show: &mut dyn FnMut(Row) -> Result<()>,
) -> Result<()> {
    for threads in THREADS {
        let pairs = effort.mixed_pairs / threads;
        let (mut millions, mut reserved) = (Vec::new(), 0);
        for _ in 0..effort.mixed_runs {
            let rival = new()?;
            millions.push(together(&rival, threads, pairs)?);
            reserved = reserved.max(rival.reserved_peak()?);
        }
        show(Row {
            workload: "mixed",
            threads,
            operations: threads * pairs,
            planned: threads * pairs,
            million_pairs_per_second: Some(middle(millions)),
            asked: Some(asked(threads, WARM_UP + pairs, UP_TO_1_MIB)?),
            reserved: Some(reserved),
            ..Row::default()
        })?;
    }
    Ok(())
}

/// Million pairs per second over all threads.
fn together<R: Rival>(rival: &R, threads: usize, pairs: usize) -> Result<f64> {
    let streams: Result<Vec<R::Stream>> = (0..threads).map(|_| rival.stream()).collect();
    let streams = streams?;
    let start = &Barrier::new(threads);
    let times: Result<Vec<f64>> = thread::scope(|scope| {
        let workers: Vec<_> = (1..)
            .zip(&streams)
            .map(|(seed, stream)| {
                scope.spawn(move || -> Result<f64> {
                    let mut mix = Mix::new(seed, UP_TO_1_MIB);
                    // A thread that fails must also reach the barrier, or the others would wait forever.
                    let ready = mix.run(rival, stream, WARM_UP);
                    start.wait();
                    ready?;
                    let begin = Instant::now();
                    mix.run(rival, stream, pairs)?;
                    let seconds = begin.elapsed().as_secs_f64();
                    mix.end(rival, stream)?;
                    rival.synchronize(stream)?;
                    Ok(seconds)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow!("a thread panicked"))?)
            .collect()
    });
    let slowest = times?.into_iter().reduce(f64::max).context("no thread")?;
    Ok((threads * pairs) as f64 / slowest / 1e6)
}
