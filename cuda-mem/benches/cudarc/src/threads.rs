//! Many threads at once, each with its own stream.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use cudarc::driver::CudaContext;
use serde_json::{Value, json};

use crate::pairs::run;
use crate::{Effort, middle};

const BYTES: usize = 4 << 10;
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
/// Maximum number of rounds, which take long with many threads.
const MOST_ROUNDS: usize = 21;

pub(crate) struct Row {
    threads: usize,
    pairs_per_second: f64,
}

pub(crate) fn method(effort: Effort) -> String {
    format!(
        "pairs of {BYTES} bytes of all threads together in a second, each thread with its own stream; \
         median of {} rounds of {} pairs a thread after {} pairs each to warm up; a round is from the \
         first thread's start to the last one's end",
        effort.rounds.min(MOST_ROUNDS),
        effort.pairs,
        effort.warm_up
    )
}

pub(crate) fn measure(context: &Arc<CudaContext>, effort: Effort) -> Result<Vec<Row>> {
    THREADS
        .into_iter()
        .map(|threads| {
            Ok(Row {
                threads,
                pairs_per_second: together(context, threads, effort)?,
            })
        })
        .collect()
}

fn together(context: &Arc<CudaContext>, threads: usize, effort: Effort) -> Result<f64> {
    let rounds = effort.rounds.min(MOST_ROUNDS);
    let barrier = Barrier::new(threads);
    // Created before any thread starts: creation can wait for the device, and a failure would leave the others at the
    // barrier.
    let streams = (0..threads)
        .map(|_| Ok(context.new_stream()?))
        .collect::<Result<Vec<_>>>()?;
    let spans: Vec<Vec<(Instant, Instant)>> = thread::scope(|scope| {
        let barrier = &barrier;
        let workers: Vec<_> = streams
            .iter()
            .map(|stream| {
                scope.spawn(move || {
                    let mut spans = Vec::with_capacity(rounds);
                    let mut outcome = run(stream, BYTES, effort.warm_up);
                    for _ in 0..rounds {
                        barrier.wait();
                        let start = Instant::now();
                        // Still reaches the barrier after an error, for the same reason.
                        outcome = outcome.and_then(|()| run(stream, BYTES, effort.pairs));
                        spans.push((start, Instant::now()));
                    }
                    outcome.map(|()| spans)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow!("a thread panicked"))?)
            .collect::<Result<_>>()
    })?;
    let rates = (0..rounds)
        .filter_map(|round| {
            let start = spans.iter().map(|spans| spans[round].0).min()?;
            let end = spans.iter().map(|spans| spans[round].1).max()?;
            let wall = (end - start).max(Duration::from_nanos(1));
            Some((threads * effort.pairs) as f64 / wall.as_secs_f64())
        })
        .collect();
    for stream in &streams {
        stream.synchronize()?;
    }
    Ok(middle(rates))
}

impl Row {
    pub(crate) fn json(&self) -> Value {
        json!({ "threads": self.threads, "bytes": BYTES, "pairs_per_second": self.pairs_per_second })
    }
}

pub(crate) fn show(rows: &[Row]) {
    println!("{:>14} {:>14}", "threads", "pairs/s");
    for row in rows {
        println!("{:>14} {:>14.0}", row.threads, row.pairs_per_second);
    }
}
