//! What a pool keeps and what goes back, and that an arena does the same.

use std::sync::Barrier;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use cuda_mem::{Arena, MemoryPool, MemoryResource, ReleaseThreshold, Resource};

use crate::environment::Environment;
use crate::executor::block_on;
use crate::hold::hold;

const MIB: u64 = 1 << 20;

/// A pool or an arena.
enum Kept {
    Pool(MemoryPool),
    Arena(Arena),
}

impl Kept {
    fn both(env: &Environment) -> Result<[Self; 2]> {
        Ok([
            Self::Pool(env.pool()?),
            Self::Arena(Arena::builder(&env.device()?).build()?),
        ])
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Pool(_) => "pool",
            Self::Arena(_) => "arena",
        }
    }

    fn resource(&self) -> Resource {
        match self {
            Self::Pool(pool) => Resource::new(pool.clone()),
            Self::Arena(arena) => Resource::from(arena.clone()),
        }
    }

    /// Bytes held, and the most since the peak was reset.
    fn reserved(&self) -> Result<(u64, u64)> {
        Ok(match self {
            Self::Pool(pool) => {
                let reserved = pool.stats()?.reserved;
                (reserved.current, reserved.high)
            }
            Self::Arena(arena) => {
                let stats = arena.stats();
                (stats.reserved, stats.reserved_peak)
            }
        })
    }

    fn reset_peak(&self) -> Result<()> {
        match self {
            Self::Pool(pool) => pool.reset_high_marks()?,
            Self::Arena(arena) => arena.reset_peak(),
        }
        Ok(())
    }

    fn set_threshold(&self, threshold: ReleaseThreshold) -> Result<()> {
        match self {
            Self::Pool(pool) => pool.set_release_threshold(threshold)?,
            Self::Arena(arena) => arena.set_release_threshold(threshold),
        }
        Ok(())
    }

    fn threshold(&self) -> Result<ReleaseThreshold> {
        Ok(match self {
            Self::Pool(pool) => pool.release_threshold()?,
            Self::Arena(arena) => arena.release_threshold(),
        })
    }

    /// Fails with the numbers unless what is held lies between two numbers of bytes. While another thread's wait gives
    /// back, it may take a moment.
    fn holds(&self, least: u64, most: u64, when: &str) -> Result<()> {
        let begin = Instant::now();
        let mut now = self.reserved()?.0;
        while now > most && begin.elapsed() < Duration::from_secs(2) {
            sleep(Duration::from_millis(1));
            now = self.reserved()?.0;
        }
        ensure!(
            (least..=most).contains(&now),
            "the {} holds {now} bytes {when}, and not {least} to {most}",
            self.name()
        );
        Ok(())
    }
}

/// Alone, because waits for other streams may give back, too: a pool may have served them before.
#[apply(case_alone)]
fn what_is_beyond_the_threshold_goes_back_at_a_wait(env: &Environment) -> Result<()> {
    // Statistics of pools.
    env.need(11, 3)?;
    for kept in Kept::both(env)? {
        let resource = kept.resource();
        let context = env.context()?;
        let (stream, other) = (context.stream()?, context.stream()?);
        let alloc = |count: usize| -> Result<Vec<_>> {
            let blocks = (0..count).map(|_| resource.alloc::<u8>(&stream, 32 << 20));
            Ok(blocks.collect::<cuda_mem::Result<_>>()?)
        };
        ensure!(
            kept.threshold()? == ReleaseThreshold::Never,
            "{}",
            kept.name()
        );
        drop(alloc(4)?);
        stream.synchronize()?;
        kept.holds(128 * MIB, u64::MAX, "after a wait without a threshold")?;

        kept.set_threshold(ReleaseThreshold::Bytes(64 * MIB))?;
        ensure!(
            kept.threshold()? == ReleaseThreshold::Bytes(64 * MIB),
            "{}",
            kept.name()
        );
        kept.holds(128 * MIB, u64::MAX, "before the next wait")?;
        stream.synchronize()?;
        kept.holds(0, 64 * MIB, "after a wait of the stream")?;

        kept.set_threshold(ReleaseThreshold::Bytes(0))?;
        let mut blocks = alloc(4)?;
        blocks[1].fill(7)?;
        let live = blocks.swap_remove(1);
        drop(blocks);
        context.synchronize()?;
        kept.holds(32 * MIB, 127 * MIB, "while a block is in use")?;
        ensure!(
            live.to_vec()?.iter().all(|byte| *byte == 7),
            "it was touched"
        );
        drop(live);
        stream.synchronize()?;
        kept.holds(0, 0, "when all is done")?;

        // What is busy stays, whoever waits.
        let blocks = alloc(4)?;
        let held = hold(&stream)?;
        drop(blocks);
        other.synchronize()?;
        kept.holds(128 * MIB, u64::MAX, "while its stream is busy")?;
        drop(held);
        let event = context.event()?;
        event.record(&stream)?;
        event.synchronize()?;
        stream.synchronize()?;
        kept.holds(0, 0, "after the busy stream")?;
    }
    Ok(())
}

#[apply(case)]
fn peaks_and_trims_are_those_of_a_pool(env: &Environment) -> Result<()> {
    // Statistics of pools.
    env.need(11, 3)?;
    let _calm = env.shared();
    for kept in Kept::both(env)? {
        let resource = kept.resource();
        let stream = env.stream()?;
        let blocks = (0..4).map(|_| resource.alloc::<u8>(&stream, 32 << 20));
        let mut blocks: Vec<_> = blocks.collect::<cuda_mem::Result<_>>()?;
        let (now, peak) = kept.reserved()?;
        ensure!(
            peak == now,
            "the {}: {peak} at most and {now} now",
            kept.name()
        );
        let last = blocks.pop();
        drop(blocks);
        stream.synchronize()?;
        resource.trim_to(96 * MIB)?;
        kept.holds(32 * MIB, now, "after a trim to more than is in use")?;
        let (after, _) = kept.reserved()?;
        ensure!(
            after >= 96 * MIB || after == 32 * MIB,
            "the {} has {after}",
            kept.name()
        );
        resource.trim_to(0)?;
        kept.holds(32 * MIB, 64 * MIB, "after a trim with a block in use")?;
        let (now, high) = kept.reserved()?;
        ensure!(
            high == peak,
            "the {}: {high}, and {peak} before",
            kept.name()
        );
        kept.reset_peak()?;
        ensure!(kept.reserved()? == (now, now), "the {}", kept.name());
        drop(last);
        stream.synchronize()?;
        resource.trim_to(0)?;
        kept.holds(0, 0, "after a trim of all")?;
        ensure!(kept.reserved()? == (0, now), "the {}", kept.name());
    }
    Ok(())
}

/// Whoever waits last, all is back when the last wait has returned. Waits of other tests would give back too.
#[apply(case_alone)]
fn threads_that_wait_at_a_time_give_all_back(env: &Environment) -> Result<()> {
    const THREADS: usize = 4;
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .build()?;
    let resource = Resource::from(arena.clone());
    let context = env.context()?;
    let streams: Result<Vec<_>, _> = (0..THREADS).map(|_| context.stream()).collect();
    let streams = streams?;
    for round in 0..100 {
        let start = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            let threads = streams.iter().map(|stream| {
                let (resource, start) = (&resource, &start);
                scope.spawn(move || -> Result<()> {
                    let block = resource.alloc::<u8>(stream, 4 << 20);
                    // Whoever fails must come to the barrier too, or the others wait for ever.
                    start.wait();
                    drop(block?);
                    stream.synchronize()?;
                    Ok(())
                })
            });
            let threads: Vec<_> = threads.collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
        })?;
        let left = arena.stats().reserved;
        ensure!(left == 0, "{left} bytes are left in round {round}");
    }
    Ok(())
}

/// Alone, because any other wait of the process gives back, too.
#[apply(case_alone)]
fn every_kind_of_wait_gives_back_for_every_arena(env: &Environment) -> Result<()> {
    let (device, context, stream) = (env.device()?, env.context()?, env.stream()?);
    let event = context.event()?;
    let arena = || Arena::builder(&device).release_threshold(ReleaseThreshold::Bytes(0));
    let arenas = [arena().build()?, arena().build()?];
    let waits: [(&str, &dyn Fn() -> cuda_mem::Result<()>); 5] = [
        ("a stream", &|| stream.synchronize()),
        ("a borrowed stream", &|| stream.as_ref().synchronize()),
        ("an event", &|| {
            event.record(&stream)?;
            event.synchronize()
        }),
        ("a completion", &|| block_on(stream.completion()?)),
        ("a context", &|| context.synchronize()),
    ];
    for (what, wait) in waits {
        for arena in &arenas {
            drop(Resource::from(arena.clone()).alloc::<u8>(&stream, 32 << 20)?);
            ensure!(arena.stats().reserved > 0);
        }
        wait()?;
        for arena in &arenas {
            let left = arena.stats().reserved;
            ensure!(left == 0, "{left} bytes are left after a wait for {what}");
        }
    }
    Ok(())
}
