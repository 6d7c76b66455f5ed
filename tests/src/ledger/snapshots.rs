//! Snapshots: blocks fill segments, sums are those of the statistics, and nothing overlaps while threads allocate.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::arena::SleepContents;
use cuda_mem::ledger::{BlockState, MemoryBlock, MemorySnapshot, Origin, Recorder};
use cuda_mem::{Arena, DeviceBuffer, MemoryPool, MemoryResource as _, Resource, Stream};

use crate::draws::Draws;
use crate::environment::Environment;
use crate::hold::hold;

/// Blocks fill their segment, and segments do not overlap.
pub(super) fn require_whole(snapshot: &MemorySnapshot) -> Result<()> {
    let mut before = 0;
    for segment in &snapshot.segments {
        ensure!(segment.address >= before, "{segment:?} overlaps another");
        ensure!(segment.asleep_bytes <= segment.bytes, "{segment:?}");
        before = segment.end();
        let mut at = segment.address;
        for block in &segment.blocks {
            ensure!(block.address == at, "{block:?} is not at {at:#x}");
            ensure!(block.bytes > 0, "{block:?}");
            at = block.end();
        }
        ensure!(at == segment.end(), "blocks end at {at:#x}: {segment:?}");
    }
    Ok(())
}

/// The sums are those of the statistics, while no other thread is active.
pub(super) fn require_same(arena: &Arena) -> Result<MemorySnapshot> {
    let (snapshot, stats, space) = (arena.snapshot(), arena.stats(), arena.free_space());
    require_whole(&snapshot)?;
    let allocated = snapshot.bytes_in(BlockState::Allocated);
    ensure!(
        (snapshot.reserved_bytes(), allocated) == (stats.reserved, stats.live),
        "{snapshot}, but {stats}"
    );
    let blocks = snapshot.blocks();
    let count = blocks.filter(|block| block.state == BlockState::Allocated);
    ensure!(count.count() as u64 == stats.live_blocks, "{stats}");
    let rest = snapshot.bytes_in(BlockState::Free) + snapshot.bytes_in(BlockState::PendingFree);
    ensure!(rest == space.bytes, "{snapshot}, but {space:?}");
    ensure!(snapshot.unlisted_bytes == 0, "{snapshot}");
    Ok(snapshot)
}

fn block_of<'a>(
    snapshot: &'a MemorySnapshot,
    buffer: &DeviceBuffer<u8>,
) -> Result<&'a MemoryBlock> {
    let found = snapshot
        .blocks()
        .find(|block| block.address == buffer.as_raw());
    let block = found.with_context(|| format!("{buffer:?} is in no block of {snapshot}"))?;
    let bytes = (buffer.len() as u64).next_multiple_of(256);
    ensure!(
        (block.state, block.bytes) == (BlockState::Allocated, bytes),
        "{block:?}"
    );
    Ok(block)
}

/// A random program: sizes of all kinds, frees on other streams.
pub(super) fn run(
    arena: &Arena,
    streams: &[Stream; 2],
    seed: u64,
    count: usize,
) -> Result<Vec<DeviceBuffer<u8>>> {
    let mut draws = Draws::new(seed);
    let mut kept: Vec<DeviceBuffer<u8>> = Vec::new();
    for _ in 0..count {
        let stream = &streams[(draws.next() % 2) as usize];
        let bytes = match draws.next() % 20 {
            0 => 1 + draws.next() % (4 << 20),
            1..4 => 1 + draws.next() % 200_000,
            _ => 1 + draws.next() % 3000,
        };
        kept.push(arena.alloc(stream, bytes as usize)?);
        if kept.len() > 40 {
            let chosen = (draws.next() % (kept.len() as u64)) as usize;
            let freed = kept.swap_remove(chosen);
            match draws.next() % 4 {
                0 => freed.free_after(streams)?,
                1 => freed.free_on(&streams[0]).map_err(|failed| failed.error)?,
                _ => drop(freed),
            }
        }
    }
    Ok(kept)
}

#[apply(case)]
fn blocks_fill_segments_and_sums_are_those_of_the_statistics(env: &Environment) -> Result<()> {
    for is_over_pool in [false, true] {
        let builder = if is_over_pool {
            Arena::builder_over(Resource::from(env.pool()?))
        } else {
            Arena::builder(&env.device()?)
        };
        let arena = builder.build()?;
        ensure!(require_same(&arena)?.segments.is_empty());
        let streams = [env.stream()?, env.stream()?];
        for seed in 0..4 {
            let kept = run(&arena, &streams, seed, 700)?;
            let snapshot = require_same(&arena)?;
            for buffer in &kept {
                let block = block_of(&snapshot, buffer)?;
                let handle = buffer.stream().as_raw().addr() as u64;
                ensure!(block.stream == Some(handle), "{block:?} of {buffer:?}");
                ensure!(
                    (block.requested, &block.origin) == (None, &None),
                    "{block:?}"
                );
            }
            ensure!(snapshot.time.is_none());
            arena.trim_to(8 << 20)?;
            require_same(&arena)?;
            drop(kept);
        }
        require_same(&arena)?;
        arena.trim_to(0)?;
        require_same(&arena)?;
    }
    Ok(())
}

#[apply(case)]
fn an_arena_that_records_knows_sizes_and_lines(env: &Environment) -> Result<()> {
    let recorder = Recorder::ring(1 << 16);
    let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
    let stream = env.stream()?;
    let line = line!() + 1;
    let small = arena.alloc::<u8>(&stream, 1000)?;
    let large = arena.alloc::<u8>(&stream, 5_000_000)?;
    drop(arena.alloc::<u8>(&stream, 3000)?);
    let snapshot = require_same(&arena)?;
    for (buffer, line) in [(&small, line), (&large, line + 1)] {
        let block = block_of(&snapshot, buffer)?;
        ensure!(block.requested == Some(buffer.len() as u64), "{block:?}");
        let Some(Origin::Line(origin)) = &block.origin else {
            anyhow::bail!("{block:?}");
        };
        ensure!(
            (origin.file(), origin.line()) == (file!(), line),
            "{origin}"
        );
    }
    let mut free = snapshot.blocks();
    ensure!(free.all(|block| block.state == BlockState::Allocated || block.origin.is_none()));
    let last = recorder
        .recording()
        .entries()
        .last()
        .map(|entry| entry.time);
    ensure!(snapshot.time >= last, "{:?}", snapshot.time);
    Ok(())
}

#[apply(case)]
fn a_block_of_several_streams_is_pending(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).build()?;
    let (own, user) = (env.stream()?, env.stream()?);
    let blocks = [1000, 40 << 20].map(|bytes| arena.alloc::<u8>(&own, bytes));
    user.wait_for(&own)?;
    let held = hold(&user)?;
    let mut addresses = Vec::new();
    for block in blocks {
        let block = block?;
        addresses.push(block.as_raw());
        block.free_after([&user])?;
    }
    let snapshot = require_same(&arena)?;
    let pending = snapshot
        .blocks()
        .filter(|block| block.state == BlockState::PendingFree);
    let pending: Vec<&MemoryBlock> = pending.collect();
    let mut places: Vec<u64> = pending.iter().map(|block| block.address).collect();
    addresses.sort_unstable();
    places.sort_unstable();
    ensure!(places == addresses, "{pending:?}");
    let handle = own.as_raw().addr() as u64;
    ensure!(
        pending.iter().all(|block| block.stream == Some(handle)),
        "{pending:?}"
    );
    drop(held);
    user.synchronize()?;
    arena.trim_to(0)?;
    let snapshot = require_same(&arena)?;
    ensure!(
        snapshot.bytes_in(BlockState::PendingFree) == 0,
        "{snapshot}"
    );
    Ok(())
}

/// Threads that share a stream have caches of their own, which keep their blocks when they end.
#[apply(case)]
fn blocks_in_caches_of_threads_are_free(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).build()?;
    let stream = env.stream()?;
    let kept = arena.alloc::<u8>(&stream, 1000)?;
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (arena, stream) = (&arena, &stream);
            scope.spawn(move || {
                for nth in 0..5000 {
                    let bytes = 256 * (1 + (nth + thread) % 7);
                    drop(arena.alloc::<u8>(stream, bytes).expect("memory"));
                }
            });
        }
    });
    ensure!(arena.free_space().cached > 0);
    let snapshot = require_same(&arena)?;
    block_of(&snapshot, &kept)?;
    Ok(())
}

#[apply(case)]
fn memory_that_sleeps_keeps_its_blocks(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).build()?;
    let stream = env.stream()?;
    let kept = arena.alloc_from::<u8>(&stream, &[7; 1000])?;
    drop(arena.alloc::<u8>(&stream, 1 << 20)?);
    // SAFETY: nothing uses the block until the arena is awake.
    unsafe { arena.sleep(SleepContents::Discard) }?;
    let snapshot = arena.snapshot();
    require_whole(&snapshot)?;
    block_of(&snapshot, &kept)?;
    let asleep: u64 = snapshot
        .segments
        .iter()
        .map(|segment| segment.asleep_bytes)
        .sum();
    let stats = arena.stats();
    ensure!(
        (asleep, snapshot.reserved_bytes()) == (stats.asleep, stats.reserved),
        "{snapshot}, but {stats}"
    );
    arena.wake()?;
    let snapshot = require_same(&arena)?;
    block_of(&snapshot, &kept)?;
    Ok(())
}

#[apply(case)]
fn blocks_do_not_overlap_while_threads_allocate(env: &Environment) -> Result<()> {
    const THREADS: u64 = 3;
    const SNAPSHOTS: usize = 100;
    let recorder = Recorder::ring(10_000);
    for (is_over_pool, records) in [(false, false), (false, true), (true, false)] {
        let builder = if is_over_pool {
            Arena::builder_over(Resource::from(env.pool()?))
        } else {
            Arena::builder(&env.device()?)
        };
        let builder = if records {
            builder.record(&recorder)
        } else {
            builder
        };
        let arena = builder.build()?;
        let shared = env.stream()?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let threads = (0..THREADS).map(|seed| {
                let (arena, is_over, shared) = (&arena, &is_over, &shared);
                scope.spawn(move || -> Result<()> {
                    let streams = [env.stream()?, shared.clone()];
                    for round in 0.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        drop(run(arena, &streams, seed + THREADS * round, 300)?);
                        if seed == 0 {
                            arena.trim_to(4 << 20)?;
                        }
                    }
                    Ok(())
                })
            });
            let threads: Vec<_> = threads.collect();
            let whole = (0..SNAPSHOTS).try_for_each(|_| require_whole(&arena.snapshot()));
            is_over.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().expect("no thread panics")?;
            }
            whole
        })?;
        require_same(&arena)?;
    }
    Ok(())
}

#[apply(case)]
fn a_pool_that_records_lists_its_blocks(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let (device, stream) = (env.device()?, env.stream()?);
    let recorder = Recorder::ring(1000);
    let pool = MemoryPool::builder(&device).record(&recorder).build()?;
    let other = MemoryPool::builder(&device).record(&recorder).build()?;
    let elsewhere = other.alloc::<u8>(&stream, 500)?;
    let line = line!() + 1;
    let kept = pool.alloc::<u8>(&stream, 1000)?;
    drop(pool.alloc::<u8>(&stream, 2000)?);
    let snapshot = pool.snapshot()?;
    require_whole(&snapshot)?;
    let [segment] = &snapshot.segments[..] else {
        anyhow::bail!("{snapshot:?}");
    };
    let handle = Some(stream.as_raw().addr() as u64);
    ensure!(
        (segment.address, segment.bytes) == (kept.as_raw(), 1000),
        "{segment:?}"
    );
    ensure!(
        (segment.device, segment.stream) == (Some(device), handle),
        "{segment:?}"
    );
    let block = &segment.blocks[0];
    ensure!(
        (block.requested, block.stream) == (Some(1000), handle),
        "{block:?}"
    );
    let origin = block.origin.as_ref().map(ToString::to_string);
    ensure!(origin == Some(format!("{}:{line}", file!())), "{origin:?}");
    let reserved = pool.stats()?.reserved.current;
    ensure!(snapshot.reserved_bytes() == reserved, "{snapshot}");
    ensure!(snapshot.unlisted_bytes == reserved - 1000, "{snapshot}");
    drop((kept, elsewhere));
    ensure!(pool.snapshot()?.segments.is_empty());
    Ok(())
}

#[apply(case)]
fn a_pool_without_a_recorder_lists_no_blocks(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let stream = env.stream()?;
    let pool = MemoryPool::builder(&env.device()?).build()?;
    let kept = pool.alloc::<u8>(&stream, 1000)?;
    let snapshot = pool.snapshot()?;
    ensure!(snapshot.segments.is_empty() && snapshot.time.is_none());
    let reserved = pool.stats()?.reserved.current;
    ensure!(snapshot.unlisted_bytes == reserved, "{snapshot}");
    drop(kept);
    Ok(())
}

/// The first block in a chunk has the chunk's address.
#[apply(case)]
fn a_chunk_of_an_arena_has_the_line_of_its_own_request(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let recorder = Recorder::ring(1000);
    let pool = MemoryPool::builder(&env.device()?)
        .record(&recorder)
        .build()?;
    let arena = Arena::builder_over(Resource::from(pool.clone()));
    let arena = arena.record(&recorder).build()?;
    let stream = env.stream()?;
    let line = line!() + 1;
    drop(arena.alloc::<u8>(&stream, 1000)?);
    let chunk = pool.snapshot()?;
    let chunk: Vec<u64> = chunk.blocks().map(|block| block.address).collect();
    ensure!(chunk.len() == 1, "{chunk:x?}");
    let mut kept = Vec::new();
    while kept.last().map(cuda_mem::DeviceBuffer::as_raw) != Some(chunk[0]) {
        kept.push(arena.alloc::<u8>(&stream, 1000)?);
        ensure!(kept.len() < 100_000, "no block has the chunk's address");
    }
    for block in pool.snapshot()?.blocks() {
        let Some(Origin::Line(origin)) = &block.origin else {
            bail!("{block:?}");
        };
        ensure!(
            block.address != chunk[0] || origin.line() == line,
            "{block:?}"
        );
    }
    Ok(())
}
