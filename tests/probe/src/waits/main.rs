//! Do waits between streams hold while streams and threads come and go? Driver calls alone, for as long as is wanted.
//!
//! Three threads write in one of three streams and read in another, which waits for it. Beside them streams are made
//! and destroyed, and threads use the stream of their own and end. A wait that is lost, or memory that is given away
//! too early, shows as a word that was not written there.
//!
//! ```text
//! waits [seconds=20] [memory=pool|plain] [beside=all|streams|threads|none] [beside-memory=pool|plain]
//!       [events=kept|fresh|own-fresh] [reuse=on|off] [end=at-once|waits]
//!       [pools=kept|quiet|gated|gated-all|synced|never|again] [streams=shared|own]
//!       [graphs=none|shared|own|uploaded] [apart=nothing|orders|records|waits|calls]
//! ```
//!
//! The defaults come first. `events=own-fresh` uses no event again that was recorded in a thread's own stream; with
//! `end=waits` a thread waits for its own stream before it ends; `reuse=off` takes every reuse policy from the pool.
//! `pools` other than `kept` makes one for each use, and destroys it when the driver says that nothing of it is
//! outstanding (`quiet`), when no thread waits or is in a call besides (`gated`, `gated-all`), or when the whole context
//! was waited for (`synced`); or does not destroy it (`never`), or uses it again then (`again`). `streams=own` gives each
//! thread three of its own. `graphs` are launched in the three streams, or in one of their own, or uploaded in the three, while other threads make no streams wait
//! (`apart=orders`), do not do one half of that, or name no stream (`apart=calls`).

mod driver;
mod options;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};

use driver::{Driver, Graph, Memory, OWN_STREAM, Stream, WORDS};
use options::{Beside, Graphs, Options};

/// Words that a thread writes in a pass.
const ROUNDS: u32 = 64;

/// How long a pass may take.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let (start, passes) = (Instant::now(), AtomicU64::new(0));
    let result = thread::scope(|scope| {
        let work = scope.spawn(|| run(&options, start, &passes));
        let (mut seen, mut since) = (0, Instant::now());
        while !work.is_finished() {
            thread::sleep(Duration::from_millis(20));
            let now = passes.load(Ordering::Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            if since.elapsed() > PATIENCE {
                println!("{options}: pass {now} has not ended in {PATIENCE:?}");
                std::process::exit(1);
            }
        }
        work.join().map_err(|_| anyhow!("a panic"))?
    });
    let (passes, seconds) = (passes.into_inner(), start.elapsed().as_secs_f64());
    match &result {
        Ok(()) => println!("{options}: {passes} passes in {seconds:.1} s, every word right"),
        Err(error) => println!("{options}: pass {passes} failed after {seconds:.1} s: {error:#}"),
    }
    // A driver whose context is lost may not come back from what the end of `main` does.
    std::process::exit(result.is_err().into())
}

fn run(options: &Options, start: Instant, passes: &AtomicU64) -> Result<()> {
    let driver = Driver::open(options)?;
    let streams = [driver.stream()?, driver.stream()?, driver.stream()?];
    let works = [driver.memory()?, driver.memory()?, driver.memory()?];
    let spare = driver.memory()?;
    let graph = driver.graph(&driver.memory()?)?;
    // One at least.
    loop {
        let pass = passes.load(Ordering::Relaxed) as u32;
        let (driver, streams, spare, graph) = (&driver, &streams, &spare, &graph);
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, memory) in (0..).zip(&works) {
                let work = move || write_and_read(driver, streams, memory, number, pass);
                threads.push(scope.spawn(work));
            }
            if matches!(options.beside, Beside::All | Beside::Streams) {
                threads.push(scope.spawn(|| make_streams(driver, streams, spare)));
            }
            let rounds = match options.beside {
                Beside::All | Beside::Threads => 0..3,
                Beside::Streams | Beside::None => 0..0,
            };
            for round in rounds {
                let work = move || use_own_stream(driver, streams, spare, round);
                threads.push(scope.spawn(work));
            }
            if !matches!(options.graphs, Graphs::Nowhere) {
                threads.push(scope.spawn(|| launch(driver, streams, graph)));
            }
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a panic"))?)
        })?;
        driver.finish_pass()?;
        passes.fetch_add(1, Ordering::Relaxed);
        if start.elapsed() >= options.duration {
            return Ok(());
        }
    }
}

/// In turns one stream writes and another, which waits for it, writes over that.
fn write_and_read(
    driver: &Driver,
    streams: &[Stream; 3],
    plain: &Memory,
    thread: u32,
    pass: u32,
) -> Result<()> {
    driver.bind()?;
    let (own, pool) = (driver.stream()?, driver.pool()?);
    let source = driver.options.pool.then_some(pool);
    let own_streams = if driver.options.own_streams {
        Some([driver.stream()?, driver.stream()?, driver.stream()?])
    } else {
        None
    };
    let streams = own_streams.as_ref().unwrap_or(streams);
    let mut home = own;
    let memory = driver.alloc(own, source, plain, ROUNDS)?;
    let first = (3 * pass + thread + 1).wrapping_mul(2 * ROUNDS);
    let mut copies = Vec::new();
    for round in 0..ROUNDS {
        let word = first.wrapping_add(2 * round);
        let at = (round + thread) as usize;
        let (writer, reader) = (streams[at % 3], streams[(at + 1) % 3]);
        if round.is_multiple_of(8) {
            driver.nap(writer)?;
        }
        driver.order(home, writer)?;
        driver.fill(writer, memory, word)?;
        let copy = driver.alloc(writer, source, plain, round)?;
        driver.copy(writer, copy, memory)?;
        copies.push((writer, copy, word));
        driver.order(writer, reader)?;
        home = reader;
        driver.fill(home, memory, word.wrapping_add(1))?;
    }
    for (round, &(stream, copy, word)) in copies.iter().enumerate() {
        let found = driver.read(stream, copy)?;
        let wrong = found.iter().filter(|found| **found != word).count();
        if let Some(other) = found.iter().find(|found| **found != word) {
            bail!(
                "round {round} of thread {thread}: {wrong} of {WORDS} words are {other}, not {word}"
            );
        }
    }
    for (stream, copy, _) in copies {
        driver.free(stream, copy)?;
    }
    driver.free(home, memory)?;
    driver.destroy(own)?;
    for stream in own_streams.into_iter().flatten() {
        driver.destroy(stream)?;
    }
    driver.end_pool(pool)
}

fn launch(driver: &Driver, streams: &[Stream; 3], graph: &Graph) -> Result<()> {
    driver.bind()?;
    let own = driver.stream()?;
    for round in 0..ROUNDS as usize {
        let stream = match driver.options.graphs {
            Graphs::Own => own,
            Graphs::Nowhere | Graphs::Shared | Graphs::Uploaded => streams[round % 3],
        };
        driver.launch(graph, stream)?;
        thread::yield_now();
    }
    driver.destroy(own)
}

fn make_streams(driver: &Driver, streams: &[Stream; 3], spare: &Memory) -> Result<()> {
    driver.bind()?;
    for round in 0..ROUNDS / 4 {
        let own = driver.stream()?;
        pass_by(driver, own, streams, spare, round)?;
        driver.destroy(own)?;
    }
    Ok(())
}

fn use_own_stream(
    driver: &Driver,
    streams: &[Stream; 3],
    spare: &Memory,
    round: u32,
) -> Result<()> {
    driver.bind()?;
    pass_by(driver, OWN_STREAM, streams, spare, round)?;
    if driver.options.thread_waits {
        driver.synchronize(OWN_STREAM)?;
    }
    Ok(())
}

/// A stream that waits for the others, is waited for, and goes.
fn pass_by(
    driver: &Driver,
    own: Stream,
    streams: &[Stream; 3],
    spare: &Memory,
    round: u32,
) -> Result<()> {
    ensure!(round < ROUNDS, "the spare memory has {ROUNDS} parts");
    let pool = driver.pool()?;
    let source = driver.options.pool_beside.then_some(pool);
    let memory = driver.alloc(own, source, spare, round)?;
    if round.is_multiple_of(4) {
        driver.nap(own)?;
    }
    driver.fill(own, memory, round)?;
    for stream in streams {
        driver.order(own, *stream)?;
        driver.order(*stream, own)?;
    }
    driver.free(own, memory)?;
    driver.end_pool(pool)
}
