//! Threads that share a stream: each keeps small blocks that it freed.

use std::alloc::Layout;
use std::sync::Barrier;
use std::thread;

use anyhow::{Result, anyhow, ensure};
use cuda_mem::{Arena, MemoryResource as _, Resource, Stream};

use crate::environment::Environment;

const THREADS: usize = 4;
const UNIT: usize = 256;
/// Sizes of small blocks: all multiples of a unit up to 16 KiB.
const SIZES: usize = 64;
/// Bytes of one block of each small size.
const ALL_SIZES: u64 = (UNIT * SIZES * (SIZES + 1) / 2) as u64;

/// More than all threads keep, and as much as an arena grows by at first.
const MOST: u64 = 8 << 20;

/// Allocates and frees on a stream that other threads use at the same time, so often that each gets a cache.
fn share(arena: &Arena, stream: &Stream, turns: &Barrier) -> Result<()> {
    // Whoever comes often in a row takes the stream's own lock over.
    for _ in 0..100 {
        let pairs = (0..16).map(|_| pair(arena, stream, UNIT));
        let done: Result<()> = pairs.collect();
        turns.wait();
        done?;
    }
    Ok(())
}

fn pair(arena: &Arena, stream: &Stream, bytes: usize) -> Result<()> {
    let layout = Layout::from_size_align(bytes, UNIT)?;
    let address = arena.allocate(layout, stream)?;
    // SAFETY: allocated just now, as this layout.
    Ok(unsafe { arena.deallocate(address, layout, stream) }?)
}

/// Runs this on several threads at a time.
fn on_threads(body: impl Fn(usize, &Barrier) -> Result<()> + Sync) -> Result<()> {
    let turns = Barrier::new(THREADS);
    thread::scope(|scope| {
        let (body, turns) = (&body, &turns);
        let workers: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || body(number, turns)))
            .collect();
        let ends = workers.into_iter().map(|worker| {
            let end = worker.join();
            end.map_err(|_| anyhow!("a thread panicked"))?
        });
        // All of them, or the others wait at a barrier for ever.
        ends.fold(Ok(()), Result::and)
    })
}

#[apply(case)]
fn threads_of_one_stream_get_blocks_of_their_own(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?).build()?;
    let (resource, stream) = (Resource::from(arena.clone()), env.stream()?);
    on_threads(|number, turns| {
        share(&arena, &stream, turns)?;
        let mark = number as u8 + 1;
        for round in 0..20 {
            let sizes = (0..8).map(|turn| 1 + (round * 37 + turn * 11) % SIZES);
            let make = |size: usize| {
                let mut buffer = resource.alloc::<u8>(&stream, size * UNIT)?;
                buffer.fill(mark)?;
                anyhow::Ok(buffer)
            };
            let buffers: Result<Vec<_>> = sizes.map(make).collect();
            for buffer in buffers? {
                let found = buffer.to_vec()?;
                ensure!(found.iter().all(|byte| *byte == mark), "{number}, {round}");
            }
        }
        Ok(())
    })?;
    let stats = arena.stats();
    ensure!((stats.live, stats.live_blocks) == (0, 0), "{stats}");
    stream.synchronize()?;
    arena.trim_to(0)?;
    let (stats, space) = (arena.stats(), arena.free_space());
    ensure!(stats.reserved == 0, "{stats}");
    ensure!((space.bytes, space.cached) == (0, 0), "{space:?}");
    Ok(())
}

#[apply(case)]
fn a_thread_keeps_one_block_of_each_small_size(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?).build()?;
    let stream = env.stream()?;
    on_threads(|_, turns| {
        share(&arena, &stream, turns)?;
        for size in 1..=SIZES {
            pair(&arena, &stream, size * UNIT)?;
        }
        Ok(())
    })?;
    let space = arena.free_space();
    let most = (THREADS as u64 + 1) * ALL_SIZES;
    ensure!(space.cached <= most, "{space:?}");
    // One of them may have come to the stream's own lock only.
    ensure!(
        space.cached >= (THREADS as u64 - 1) * ALL_SIZES,
        "{space:?}"
    );
    Ok(())
}

#[apply(case)]
fn threads_that_come_and_go_take_the_caches_of_others_over(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let builder = Arena::builder(&env.device()?);
    let arena = builder.max_bytes(MOST).build()?;
    let stream = env.stream()?;
    for generation in 0..10 {
        on_threads(|_, turns| {
            share(&arena, &stream, turns)?;
            for size in 1..=SIZES {
                pair(&arena, &stream, size * UNIT)?;
            }
            Ok(())
        })?;
        let space = arena.free_space();
        let most = (THREADS as u64 + 1) * ALL_SIZES;
        ensure!(space.cached <= most, "{generation}: {space:?}");
    }
    // What they leave goes to other streams that need it.
    stream.synchronize()?;
    pair(&arena, &env.stream()?, MOST as usize)?;
    let stats = arena.stats();
    ensure!((stats.grown, stats.released) == (1, 0), "{stats}");
    Ok(())
}

/// Each cache has room for four blocks of each small size, with eight bytes for a block.
#[apply(case)]
fn caches_of_threads_are_bookkeeping(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?).build()?;
    let stream = env.stream()?;
    pair(&arena, &stream, UNIT)?;
    let before = arena.free_space().bookkeeping;
    on_threads(|_, turns| share(&arena, &stream, turns))?;
    let after = arena.free_space().bookkeeping;
    // One of them may have come to the stream's own lock only.
    let least = (THREADS - 1) * SIZES * 4 * 8;
    let most = 4 * THREADS * SIZES * 4 * 8;
    let more = after.checked_sub(before).map(usize::try_from).transpose()?;
    ensure!(
        more.is_some_and(|more| (least..=most).contains(&more)),
        "{before} bytes, then {after}"
    );
    Ok(())
}
