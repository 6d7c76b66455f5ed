//! What an arena holds when streams are busy, beside the driver's pool with the same program and policy.

use anyhow::{Result, anyhow, ensure};
use cuda_mem::{Arena, DeviceBuffer, MemoryPool, ReleaseThreshold, Resource, ReusePolicy, Stream};

use crate::lab::{Backend, Lab};

const POLICIES: [ReusePolicy; 4] = [
    ReusePolicy::DRIVER_DEFAULT,
    ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES,
    ReusePolicy::ALLOW_OPPORTUNISTIC,
    ReusePolicy::DETERMINISTIC,
];

/// How much more than the driver's pool an arena may hold. Without leave to wait it is more than it should be: 1.46
/// times on an H200, 2026-11-23.
fn most_over_pool(reuse: ReusePolicy) -> f64 {
    if reuse == ReusePolicy::ALLOW_OPPORTUNISTIC {
        2.0
    } else {
        1.25
    }
}

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
fn busy_thread(lab: &Lab, resource: &Resource, operations: usize, seed: u64) -> Result<()> {
    let stream = lab.stream()?;
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

fn busy_threads(lab: &Lab, resource: &Resource, operations: usize) -> Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=4)
            .map(|seed| {
                let work = move || busy_thread(lab, resource, operations, seed << 40 | 0x9e37_79b9);
                scope.spawn(work)
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })
}

/// Two streams of one thread take turns, 17 KB to 1 MB, at most four alive on each, no work.
fn taking_turns(lab: &Lab, resource: &Resource, operations: usize) -> Result<()> {
    let streams: [Stream; 2] = [lab.stream()?, lab.stream()?];
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

type Program<'a> = &'a dyn Fn(&Resource) -> Result<()>;

/// The arena after a program, and after ten times as much of it, beside the driver's pool.
fn beside_the_pool(lab: &Lab, short: Program<'_>, long: Program<'_>) -> Result<()> {
    let mut too_much = Vec::new();
    for reuse in POLICIES {
        let device = lab.device()?;
        let pool = MemoryPool::builder(&device)
            .reuse(reuse)
            .release_threshold(ReleaseThreshold::Never)
            .build()?;
        long(&Resource::from(pool.clone()))?;
        let of_pool = pool.stats()?.reserved.high;
        let arena = Arena::builder(&device).reuse(reuse).build()?;
        let resource = Resource::from(arena.clone());
        short(&resource)?;
        let early = arena.stats().reserved_peak;
        long(&resource)?;
        let stats = arena.stats();
        println!(
            "{reuse:?}: arena {} MiB, early {} MiB, pool {} MiB; {stats}",
            stats.reserved_peak >> 20,
            early >> 20,
            of_pool >> 20
        );
        let most = (of_pool.max(FIRST_PIECE) as f64 * most_over_pool(reuse)) as u64;
        if stats.reserved_peak > most {
            too_much.push(format!(
                "{reuse:?}: {} bytes, and the driver's pool {of_pool}: {stats}",
                stats.reserved_peak
            ));
        }
    }
    ensure!(too_much.is_empty(), "{too_much:#?}");
    Ok(())
}

pub(super) fn busy_threads_hold_no_more_than_the_drivers_pool(lab: &Lab) -> Result<()> {
    let long = if lab.backend == Backend::Sim {
        400
    } else {
        20_000
    };
    beside_the_pool(
        lab,
        &|resource| busy_threads(lab, resource, long / 10),
        &|resource| busy_threads(lab, resource, long),
    )
}

pub(super) fn streams_that_take_turns_hold_no_more_than_the_drivers_pool(lab: &Lab) -> Result<()> {
    let long = if lab.backend == Backend::Sim {
        10_000
    } else {
        200_000
    };
    beside_the_pool(
        lab,
        &|resource| taking_turns(lab, resource, long / 10),
        &|resource| taking_turns(lab, resource, long),
    )
}
