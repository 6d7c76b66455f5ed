//! What an arena holds when streams are busy, beside the driver's pool with the same program and policy.

// Also the programs of `bench-arena --footprint`.
#[path = "../../../cuda-mem/benches/common/busy/mod.rs"]
mod busy;

use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use cuda_mem::{Arena, DeviceBuffer, MemoryPool, ReleaseThreshold, Resource, ReusePolicy, Stream};

use crate::environment::{Backend, Environment};

const POLICIES: [ReusePolicy; 4] = [
    ReusePolicy::DRIVER_DEFAULT,
    ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES,
    ReusePolicy::ALLOW_OPPORTUNISTIC,
    ReusePolicy::DETERMINISTIC,
];

/// How much more than the driver's pool an arena may hold.
const MOST: f64 = 1.25;

/// Which thread comes first, and when streams are looked at, is chance: one good run of so many is enough. An arena that
/// grows without bound has none.
const RUNS: usize = 5;

/// Both begin with a piece that has nothing to do with what is asked.
const FIRST_PIECE: u64 = 32 << 20;

/// Numbers without a pattern (xorshift64).
#[derive(Debug)]
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// What a thread does with a stream of its own: blocks of 256 B to 16 MiB, each filled, so that the stream has work; a
/// wait every 64 operations.
fn busy_thread(env: &Environment, resource: &Resource, operations: usize, seed: u64) -> Result<()> {
    let stream = env.stream()?;
    let mut draws = Draws(seed);
    let mut alive: Vec<DeviceBuffer<u8>> = Vec::new();
    for operation in 1..=operations {
        let power = 1_usize << (8 + draws.below(16));
        let bytes = power + draws.below(power);
        let mut buffer = resource.alloc::<u8>(&stream, bytes)?;
        buffer.fill(1)?;
        alive.push(buffer);
        if alive.len() > 8 {
            alive.swap_remove(draws.below(alive.len()));
        }
        if operation % 64 == 0 {
            stream.synchronize()?;
        }
    }
    stream.synchronize()?;
    Ok(())
}

fn busy_threads(env: &Environment, resource: &Resource, operations: usize) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=4)
            .map(|seed| {
                let work = move || busy_thread(env, resource, operations, seed << 40 | 0x9e37_79b9);
                scope.spawn(work)
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })
}

/// Two streams of one thread take turns, 17 KB to 1 MB, at most four alive on each, no work.
fn taking_turns(env: &Environment, resource: &Resource, operations: usize) -> Result<()> {
    let streams: [Stream; 2] = [env.stream()?, env.stream()?];
    let mut draws = Draws(0x9e37_79b9_7f4a_7c15);
    let mut alive: [Vec<DeviceBuffer<u8>>; 2] = Default::default();
    for operation in 0..operations {
        let at = operation % 2;
        let buffer = resource.alloc::<u8>(&streams[at], 17_000 + draws.below(983_000))?;
        alive[at].push(buffer);
        if alive[at].len() > 4 {
            let index = draws.below(alive[at].len());
            alive[at].swap_remove(index);
        }
    }
    Ok(())
}

/// Answers the most bytes that it had allocated, or 0 where that is the same each time.
type Program<'a> = &'a dyn Fn(&Resource) -> Result<u64>;

/// What was held at most, and asked for.
#[derive(Clone, Copy)]
struct Peak {
    reserved: u64,
    asked: u64,
}

/// A pool and an arena after the same program, and what the arena says of itself.
struct Held {
    pool: Peak,
    arena: Peak,
    text: String,
}

impl Held {
    /// Faster threads are further at the same time, and ask for more. `enough` is never too much.
    fn is_too_much(&self, enough: u64) -> bool {
        let asked = self.arena.asked.max(1) as f64 / self.pool.asked.max(1) as f64;
        let most = self.pool.reserved.max(FIRST_PIECE) as f64 * MOST;
        self.arena.reserved as f64 > (most * asked.max(1.0)).max(enough as f64)
    }
}

/// Runs one thing over a new pool and another one over a new arena of the same policy.
fn measure(
    env: &Environment,
    reuse: ReusePolicy,
    over_pool: Program<'_>,
    over_arena: Program<'_>,
) -> Result<Held> {
    let device = env.device()?;
    let pool = MemoryPool::builder(&device)
        .reuse(reuse)
        .release_threshold(ReleaseThreshold::Never)
        .build()?;
    let asked = over_pool(&Resource::from(pool.clone()))?;
    let reserved = pool.stats()?.reserved.high;
    let of_pool = Peak { reserved, asked };
    let arena = Arena::builder(&device).reuse(reuse).build()?;
    let asked = over_arena(&Resource::from(arena.clone()))?;
    let stats = arena.stats();
    let reserved = stats.reserved_peak;
    Ok(Held {
        pool: of_pool,
        arena: Peak { reserved, asked },
        text: stats.to_string(),
    })
}

/// An error unless one of some runs holds no more than it may, or no more than `times` what was asked for.
fn one_is_good(name: &str, times: u64, run: impl Fn() -> Result<Held>) -> Result<()> {
    let mut last = None;
    for _ in 0..RUNS {
        let held = run()?;
        println!(
            "{name}: arena {} MiB, pool {} MiB; {}",
            held.arena.reserved >> 20,
            held.pool.reserved >> 20,
            held.text
        );
        if !held.is_too_much(held.arena.asked * times) {
            return Ok(());
        }
        last = Some(held.text);
    }
    bail!("{name}: too much in each of {RUNS} runs, the last one {last:?}")
}

/// The arena after a program and then ten times as much of it, beside the driver's pool.
fn beside_the_pool(env: &Environment, short: Program<'_>, long: Program<'_>) -> Result<()> {
    for reuse in POLICIES {
        one_is_good(&format!("{reuse:?}"), 0, || {
            let both = |resource: &Resource| short(resource).and_then(|_| long(resource));
            measure(env, reuse, long, &both)
        })?;
    }
    Ok(())
}

/// Of the sixty kinds of programs those in which the first generation of arenas grew most.
const SAMPLE: [usize; 10] = [0, 5, 12, 13, 16, 23, 32, 39, 46, 54];

/// In this one the driver's pool holds one of two amounts, which differ by more than twice, and an arena nearly the larger
/// one. It may hold so many times what is asked for; in eleven runs on H200s it was 3.6 to 4.2 times.
const TWO_AMOUNTS: usize = 39;
const MOST_OF_ASKED: u64 = 5;

#[apply(case_alone)]
fn a_sample_of_busy_programs_holds_no_more_than_the_drivers_pool(env: &Environment) -> Result<()> {
    let (all, met) = busy::coverage(busy::CELLS);
    ensure!(met == all, "{met} of {all} pairs of choices meet");
    let cells = busy::cells(busy::CELLS);
    let device = env.device()?;
    for number in SAMPLE {
        let cell = cells[number];
        ensure!(!cell.forbids_reuse(), "{cell} can only grow");
        let length = busy::Length {
            operations: 4_000 / cell.threads,
            time: Duration::from_millis(500),
        };
        let program = |resource: &Resource| {
            let done = busy::run(&device, resource, cell, length)?;
            println!("{number}: {done:?}");
            ensure!(
                done.operations > 0 && done.seconds > 0.0,
                "nothing was done"
            );
            Ok(done.asked)
        };
        let times = if number == TWO_AMOUNTS {
            MOST_OF_ASKED
        } else {
            0
        };
        one_is_good(&format!("{number}, {cell}"), times, || {
            measure(env, cell.reuse, &program, &program)
        })?;
    }
    Ok(())
}

#[apply(case_alone)]
fn busy_threads_hold_no_more_than_the_drivers_pool(env: &Environment) -> Result<()> {
    let long = if env.backend == Backend::Sim {
        400
    } else {
        20_000
    };
    beside_the_pool(
        env,
        &|resource| busy_threads(env, resource, long / 10).map(|()| 0),
        &|resource| busy_threads(env, resource, long).map(|()| 0),
    )
}

#[apply(case_alone)]
fn streams_that_take_turns_hold_no_more_than_the_drivers_pool(env: &Environment) -> Result<()> {
    let long = if env.backend == Backend::Sim {
        10_000
    } else {
        200_000
    };
    beside_the_pool(
        env,
        &|resource| taking_turns(env, resource, long / 10).map(|()| 0),
        &|resource| taking_turns(env, resource, long).map(|()| 0),
    )
}
