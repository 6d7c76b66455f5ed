//! Blocks between 16 KiB and 1 MiB of threads with streams of their own, which meet in what all streams share until each
//! stream keeps pages for them.

use std::alloc::Layout;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Result, anyhow, bail, ensure};
use cuda_mem::{Arena, DeviceBuffer, MemoryResource as _, Resource, Stream};

use crate::draws::Draws;
use crate::environment::Environment;
use crate::hold::hold;

const MIB: u64 = 1 << 20;
/// Requests after which it has been decided whether a stream keeps pages.
const TURNS: usize = 1500;
/// Requests of each thread while both wait for each other, and how often they do as many, at most, until both streams keep
/// pages.
const AT_ONCE: usize = 20_000;
const ROUNDS: usize = 200;

fn pair(arena: &Arena, stream: &Stream, bytes: usize) -> Result<()> {
    let layout = Layout::from_size_align(bytes, 256)?;
    let address = arena.allocate(layout, stream)?;
    // SAFETY: allocated just now, as this layout.
    Ok(unsafe { arena.deallocate(address, layout, stream) }?)
}

/// Two threads, each with a stream of its own, take turns, so that no lock becomes the own of either, and none waits for
/// the other one's.
fn take_turns(arena: &Arena, streams: &[Stream; 2]) -> Result<()> {
    let work = |stream: &Stream, mine: Receiver<()>, other: Sender<()>| -> Result<()> {
        for turn in 0..TURNS {
            mine.recv()?;
            // Of two sizes, or the block that was freed last would do.
            pair(arena, stream, (64 << 10) << (turn % 2))?;
            // The other one may be through.
            let _ = other.send(());
        }
        Ok(())
    };
    let (first, second) = (channel(), channel());
    first.0.send(())?;
    thread::scope(|scope| {
        let (to_first, to_second) = (first.0, second.0);
        let one = scope.spawn(move || work(&streams[0], first.1, to_second));
        let two = scope.spawn(move || work(&streams[1], second.1, to_first));
        let ends = [one.join(), two.join()];
        let mut ends = ends.into_iter();
        ends.try_for_each(|end| end.map_err(|_| anyhow!("a thread panicked"))?)
    })
}

/// Two threads, each with a stream of its own, ask at the same time as a third one, whose blocks are too large to keep:
/// else the first stream that keeps pages would leave the other one alone.
fn ask_at_once(arena: &Arena, streams: &[Stream; 2], third: &Stream) -> Result<()> {
    // Of two sizes, or the block that was freed last would do.
    let work = |stream: &Stream| -> Result<()> {
        (0..AT_ONCE).try_for_each(|turn| pair(arena, stream, (64 << 10) << (turn % 2)))
    };
    thread::scope(|scope| {
        let work = &work;
        let threads = streams
            .each_ref()
            .map(|stream| scope.spawn(move || work(stream)));
        for turn in 0.. {
            pair(arena, third, (8 << 20) << (turn % 2))?;
            if threads.iter().all(|thread| thread.is_finished()) {
                break;
            }
        }
        let mut ends = threads.into_iter().map(|thread| thread.join());
        ends.try_for_each(|end| end.map_err(|_| anyhow!("a thread panicked"))?)
    })
}

/// Whether each stream cuts blocks from pages of its own.
fn keep(arena: &Arena, streams: &[Stream; 2]) -> Result<bool> {
    let resource = Resource::from(arena.clone());
    let mut blocks = Vec::new();
    for stream in streams {
        // One stream alone would keep half a block beside two.
        for _ in 0..2 {
            blocks.push(resource.alloc::<u8>(stream, 1 << 20)?);
        }
        if arena.free_space().kept < blocks.len() as u64 * MIB {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An arena with 64 MiB, two streams and the one that asked for them.
fn three_streams(env: &Environment) -> Result<(Arena, [Stream; 2], Stream)> {
    let arena = Arena::builder(&env.device()?).build()?;
    let streams = [env.stream()?, env.stream()?];
    // Streams keep blocks of a part of what the arena holds.
    let third = env.stream()?;
    pair(&arena, &third, 64 << 20)?;
    Ok((arena, streams, third))
}

/// An arena of two streams, each of which keeps pages for blocks of these sizes.
///
/// # Errors
///
/// They never came to keep any.
pub fn arena_that_keeps(env: &Environment) -> Result<(Arena, [Stream; 2])> {
    let (arena, streams, third) = three_streams(env)?;
    for _ in 0..ROUNDS {
        ask_at_once(&arena, &streams, &third)?;
        if keep(&arena, &streams)? {
            return Ok((arena, streams));
        }
    }
    bail!("it does not keep pages: {:?}", arena.free_space())
}

#[apply(case)]
fn threads_that_seldom_meet_keep_no_pages(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (arena, streams, _third) = three_streams(env)?;
    take_turns(&arena, &streams)?;
    let block = arena.alloc::<u8>(&streams[0], 1 << 20)?;
    let space = arena.free_space();
    ensure!(space.kept == 0, "{space:?}");
    drop(block);
    Ok(())
}

#[apply(case)]
fn threads_that_mix_sizes_live_from_pages_of_their_own(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (arena, streams) = arena_that_keeps(env)?;
    let resource = Resource::from(arena.clone());
    thread::scope(|scope| {
        let workers: Vec<_> = (1..)
            .zip(&streams)
            .map(|(seed, stream)| {
                let (arena, resource) = (&arena, &resource);
                scope.spawn(move || mix(arena, resource, stream, seed))
            })
            .collect();
        let ends = workers.into_iter().map(|worker| {
            let end = worker.join();
            end.map_err(|_| anyhow!("a thread panicked"))?
        });
        ends.fold(Ok(()), Result::and)
    })?;
    let stats = arena.stats();
    // Where threads are kept waiting by other programs, a stream finds out later that it is to keep pages.
    ensure!(
        stats.driver_calls < (stats.hits + stats.fits) / 50,
        "{stats}"
    );
    for stream in &streams {
        stream.synchronize()?;
    }
    arena.trim_to(0)?;
    let (stats, space) = (arena.stats(), arena.free_space());
    ensure!((stats.reserved, stats.live) == (0, 0), "{stats}");
    ensure!((space.bytes, space.kept) == (0, 0), "{space:?}");
    Ok(())
}

/// Up to 16 buffers of up to 1 MiB at a time, each filled and looked at.
fn mix(arena: &Arena, resource: &Resource, stream: &Stream, seed: u64) -> Result<()> {
    let mut draws = Draws::new(seed);
    let mut live: [Option<(DeviceBuffer<u8>, u8)>; 16] = Default::default();
    for turn in 0..1000_u32 {
        let place = draws.next() as usize % live.len();
        let bytes = 256_usize << (draws.next() % 13);
        let mark = turn as u8;
        let mut buffer = resource.alloc::<u8>(stream, bytes)?;
        buffer.fill(mark)?;
        if let Some((old, mark)) = live[place].replace((buffer, mark))
            && turn % 8 == 0
        {
            let found = old.to_vec()?;
            ensure!(found.iter().all(|byte| *byte == mark), "{turn}");
        }
    }
    let used: usize = live.iter().flatten().map(|(buffer, _)| buffer.len()).sum();
    let space = arena.free_space();
    ensure!(space.kept >= used as u64, "{used} in use, {space:?}");
    Ok(())
}

#[apply(case)]
fn pages_that_an_idle_stream_keeps_go_to_others(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (arena, streams) = arena_that_keeps(env)?;
    let resource = Resource::from(arena.clone());
    let alloc = |stream: &Stream, count: usize| -> Result<Vec<_>> {
        let buffers = (0..count).map(|_| resource.alloc::<u8>(stream, 1 << 20));
        Ok(buffers.collect::<cuda_mem::Result<_>>()?)
    };
    let blocks = alloc(&streams[0], 64)?;
    let kept = arena.free_space().kept;
    ensure!(kept >= 64 * MIB, "{kept}");
    drop(blocks);
    for stream in &streams {
        stream.synchronize()?;
    }
    let before = arena.stats();
    // The rest would not do.
    ensure!(before.reserved - kept < kept, "{before}, {kept} kept");
    let third = env.stream()?;
    let elsewhere = alloc(&third, (kept / MIB) as usize)?;
    let after = arena.stats();
    ensure!(after.reserved == before.reserved, "{before}; {after}");
    drop(elsewhere);
    Ok(())
}

#[apply(case)]
fn blocks_that_are_freed_elsewhere_are_not_kept(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (arena, streams) = arena_that_keeps(env)?;
    let resource = Resource::from(arena.clone());
    for _ in 0..4000 {
        let block = resource.alloc::<u8>(&streams[0], 1 << 20)?;
        streams[1].wait_for(&streams[0])?;
        block.free_on(&streams[1])?;
    }
    for stream in &streams {
        stream.synchronize()?;
    }
    let block = resource.alloc::<u8>(&streams[0], 1 << 20)?;
    block.free()?;
    arena.trim_to(0)?;
    let blocks: Result<Vec<_>, _> = (0..8)
        .map(|_| resource.alloc::<u8>(&streams[0], 1 << 20))
        .collect();
    let blocks = blocks?;
    let (stats, space) = (arena.stats(), arena.free_space());
    ensure!(space.kept == 0, "{space:?}");
    ensure!(stats.reserved_peak <= 128 * MIB, "{stats}");
    drop(blocks);
    Ok(())
}

#[apply(case)]
fn pages_go_back_when_little_is_in_use_for_long(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (arena, streams) = arena_that_keeps(env)?;
    let resource = Resource::from(arena.clone());
    let blocks = (0..64).map(|_| resource.alloc::<u8>(&streams[0], 1 << 20));
    let mut blocks: Vec<_> = blocks.collect::<cuda_mem::Result<_>>()?;
    let full = arena.free_space().kept;
    ensure!(full >= 64 * MIB, "{full}");
    blocks.truncate(8);
    for _ in 0..40_000 {
        pair(&arena, &streams[0], 1 << 20)?;
    }
    let kept = arena.free_space().kept;
    // With the block that comes and goes, and the two that the other stream had, a quarter more, and up to 1 MiB for each
    // of the two streams.
    ensure!(kept <= (9 + 2) * MIB * 5 / 4 + 2 * MIB, "{kept}");
    let (stats, space) = (arena.stats(), arena.free_space());
    ensure!(space.bytes == stats.free(), "{space:?}, {stats}");
    Ok(())
}

#[apply(case)]
fn blocks_that_others_freed_come_back_when_a_stream_keeps_no_more(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (arena, streams) = arena_that_keeps(env)?;
    let resource = Resource::from(arena.clone());
    // Fewer than are looked through at once.
    let mut held = Vec::new();
    for _ in 0..3 {
        let blocks = (0..60).map(|_| resource.alloc::<u8>(&streams[0], 1 << 20));
        let blocks: Vec<_> = blocks.collect::<cuda_mem::Result<_>>()?;
        streams[1].wait_for(&streams[0])?;
        for block in blocks {
            block.free_on(&streams[1])?;
        }
        streams[1].synchronize()?;
        held.push(arena.stats().reserved);
    }
    ensure!(held[1..] == [held[0], held[0]], "{held:?}");
    Ok(())
}

/// They may still be in use: the stream waits for them rather than that the arena grows.
#[apply(case)]
fn a_stream_that_keeps_pages_takes_those_of_others(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (arena, streams) = arena_that_keeps(env)?;
    let resource = Resource::from(arena.clone());
    for stream in &streams {
        stream.synchronize()?;
    }
    arena.trim_to(0)?;
    let third = env.stream()?;
    let block = resource.alloc::<u8>(&third, 64 << 20)?;
    let held = hold(&third)?;
    drop(block);
    let before = arena.stats();
    let blocks = (0..24).map(|_| resource.alloc::<u8>(&streams[0], 1 << 20));
    let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    let (after, space) = (arena.stats(), arena.free_space());
    drop(held);
    ensure!(after.reserved == before.reserved, "{before}; {after}");
    ensure!(space.kept >= 24 * MIB, "it keeps none: {space:?}");
    drop(blocks);
    Ok(())
}

/// The largest that a stream ever keeps, in an arena that is large enough for that.
#[apply(case)]
fn blocks_of_16_mib_come_back_to_the_pages_that_a_stream_keeps(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (arena, streams) = arena_that_keeps(env)?;
    let layout = Layout::from_size_align(16 << 20, 256)?;
    // Three streams keep blocks of up to an eighth of their share.
    let _large = arena.alloc::<u8>(&streams[1], 512 << 20)?;
    let before = arena.stats();
    let blocks = (0..3).map(|_| arena.allocate(layout, &streams[0]));
    let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    let space = arena.free_space();
    ensure!(space.kept >= 48 * MIB, "not of such pages: {space:?}");
    for address in blocks {
        // SAFETY: allocated as this layout, and no work uses it.
        unsafe { arena.deallocate(address, layout, &streams[0]) }?;
    }
    let after = arena.stats();
    ensure!(
        (after.live, after.live_blocks) == (before.live, before.live_blocks),
        "{before}; {after}"
    );
    Ok(())
}
