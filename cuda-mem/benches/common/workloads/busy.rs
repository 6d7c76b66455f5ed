//! Threads that submit work to their streams: every block is filled, and streams lag behind.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::{Effort, Rival, Row};
use crate::draws::Draws;

const THREADS: usize = 4;
const PLACES: usize = 8;
const SYNCHRONIZE_EVERY: usize = 64;

/// A run ends when it reserves more than this, or takes longer.
const MOST_RESERVED: u64 = 60 << 30;
const LONGEST: Duration = Duration::from_secs(20);

pub(super) fn run<R: Rival>(
    new: &dyn Fn() -> Result<R>,
    effort: Effort,
    show: &mut dyn FnMut(Row) -> Result<()>,
) -> Result<()> {
    for operations in effort.busy_operations {
        let rival = new()?;
        show(together(&rival, operations)?)?;
    }
    Ok(())
}

/// The state shared by the threads of a run.
struct Shared {
    start: Barrier,
    live: AtomicU64,
    asked: AtomicU64,
    is_stopped: AtomicBool,
    why: Mutex<Option<String>>,
}

impl Shared {
    fn asks(&self, bytes: u64) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.asked.fetch_max(live, Ordering::Relaxed);
    }

    fn stop(&self, why: String) {
        let mut first = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(why);
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

/// The results of one thread.
struct Done {
    operations: usize,
    calls: Duration,
    seconds: f64,
}

fn together<R: Rival>(rival: &R, operations: usize) -> Result<Row> {
    let shared = &Shared {
        start: Barrier::new(THREADS),
        live: AtomicU64::new(0),
        asked: AtomicU64::new(0),
        is_stopped: AtomicBool::new(false),
        why: Mutex::new(None),
    };
    let streams: Result<Vec<R::Stream>> = (0..THREADS).map(|_| rival.stream()).collect();
    let streams = streams?;
    let done: Result<Vec<Done>> = thread::scope(|scope| {
        let workers: Vec<_> = streams
            .iter()
            .enumerate()
            .map(|(thread, stream)| {
                scope.spawn(move || alone(rival, stream, thread, operations, shared))
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| anyhow!("a thread panicked"))?)
            .collect()
    });
    let done = done?;
    let planned = operations * THREADS;
    let operations: usize = done.iter().map(|done| done.operations).sum();
    let slowest = done.iter().map(|done| done.seconds).fold(0.0, f64::max);
    let calls: Duration = done.iter().map(|done| done.calls).sum();
    let why = shared.why.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Row {
        workload: "busy",
        threads: THREADS,
        operations,
        planned,
        ns: Some(slowest * 1e9 * THREADS as f64 / operations as f64),
        call_ns: Some(calls.as_nanos() as f64 / operations as f64),
        asked: Some(shared.asked.load(Ordering::Relaxed)),
        reserved: Some(rival.reserved_peak()?),
        stopped: why.clone(),
        ..Row::default()
    })
}

fn alone<R: Rival>(
    rival: &R,
    stream: &R::Stream,
    thread: usize,
    operations: usize,
    shared: &Shared,
) -> Result<Done> {
    let mut worker = Worker {
        rival,
        stream,
        shared,
        draws: Draws::new(thread as u64 + 1),
        live: std::array::from_fn(|_| None),
        calls: Duration::ZERO,
    };
    shared.start.wait();
    let start = Instant::now();
    let mut finished = 0;
    while finished < operations && !shared.is_stopped.load(Ordering::Relaxed) {
        let mut step = worker.operation();
        finished += usize::from(step.is_ok());
        if step.is_ok() && finished % SYNCHRONIZE_EVERY == 0 {
            step = rival.synchronize(stream);
            if thread == 0 && step.is_ok() {
                step = check(rival, start, shared);
            }
        }
        if let Err(error) = step {
            shared.stop(format!("{error:#}"));
        }
    }
    rival.synchronize(stream)?;
    let seconds = start.elapsed().as_secs_f64();
    for (block, _) in worker.live.iter_mut().filter_map(Option::take) {
        rival.free(stream, block)?;
    }
    rival.synchronize(stream)?;
    Ok(Done {
        operations: finished,
        calls: worker.calls,
        seconds,
    })
}

fn check<R: Rival>(rival: &R, start: Instant, shared: &Shared) -> Result<()> {
    if rival.reserved_peak()? > MOST_RESERVED {
        shared.stop(format!("more than {} GiB reserved", MOST_RESERVED >> 30));
    } else if start.elapsed() > LONGEST {
        shared.stop(format!("longer than {} s", LONGEST.as_secs()));
    }
    Ok(())
}

struct Worker<'a, R: Rival> {
    rival: &'a R,
    stream: &'a R::Stream,
    shared: &'a Shared,
    draws: Draws,
    live: [Option<(R::Block, u64)>; PLACES],
    /// Time spent in the allocator.
    calls: Duration,
}

impl<R: Rival> Worker<'_, R> {
    /// Frees the block at a random place, if any, puts a new one there and fills it.
    fn operation(&mut self) -> Result<()> {
        let place = self.draws.next() as usize % PLACES;
        // Log-uniform from 256 bytes to 8 MiB, and any size up to the next power of two.
        let least = 256 << (self.draws.next() % 16);
        let bytes = least + self.draws.next() % least;
        if let Some((block, old)) = self.live[place].take() {
            let start = Instant::now();
            self.rival.free(self.stream, block)?;
            self.calls += start.elapsed();
            self.shared.live.fetch_sub(old, Ordering::Relaxed);
        }
        self.shared.asks(bytes);
        let start = Instant::now();
        let mut block = self.rival.allocate(self.stream, bytes as usize)?;
        self.calls += start.elapsed();
        self.rival.fill(self.stream, &mut block)?;
        self.live[place] = Some((block, bytes));
        Ok(())
    }
}
