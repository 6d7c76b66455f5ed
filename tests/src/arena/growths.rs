//! What a growth takes and moves, and what the statistics say of it.

use std::alloc::Layout;
use std::time::Duration;

use anyhow::{Result, ensure};
use cuda_mem::{Arena, DeviceBuffer, MemoryResource as _, Resource, ReusePolicy};

use super::ends::overlap;
use super::moves::{PIECE, arena, every_other, row};
use crate::environment::Environment;
use crate::hold::hold;

const MIB: usize = 1 << 20;

/// A search for memory that can move, or a wait for it, says nothing of what a stream still uses.
#[apply(case)]
fn memory_in_use_stays_its_streams_after_a_search(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for wait in [Duration::ZERO, Duration::from_millis(5)] {
        let builder = Arena::builder(&env.device()?).slack(1.0).growth_wait(wait);
        let arena = builder.reuse(ReusePolicy::ALLOW_OPPORTUNISTIC).build()?;
        let resource = Resource::from(arena.clone());
        let (own, other) = (env.stream()?, env.stream()?);
        let blocks = row(&resource, &own, 9)?.into_iter().map(Some);
        let mut blocks: Vec<_> = blocks.collect();
        let _small = resource.alloc::<u8>(&other, 1000)?;
        // These are done, and can move.
        blocks[0] = None;
        blocks[2] = None;
        own.synchronize()?;
        let held = hold(&own)?;
        let busy: Vec<_> = [4, 6].map(|place| blocks[place].take()).into();
        let places: Vec<u64> = busy.iter().flatten().map(DeviceBuffer::as_raw).collect();
        drop(busy);
        let _large = resource.alloc::<u8>(&other, 5 * PIECE)?;
        let more = (0..4).map(|_| resource.alloc::<u8>(&other, PIECE));
        let more = more.collect::<cuda_mem::Result<Vec<_>>>()?;
        let stats = arena.stats();
        drop(held);
        for block in &more {
            let taken = (block.as_raw(), PIECE);
            let is_busy = places.iter().any(|place| overlap((*place, PIECE), taken));
            ensure!(!is_busy, "{wait:?}: a stream still uses it: {stats:?}");
        }
    }
    Ok(())
}

/// Searches that find something are never given up.
#[apply(case)]
fn memory_moves_each_time(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env, 1.0)?;
    let stream = env.stream()?;
    for turn in 0..12 {
        let blocks = (0..9).map(|_| resource.alloc::<u8>(&stream, PIECE));
        let (freed, kept) = every_other(blocks.collect::<cuda_mem::Result<_>>()?);
        drop(freed);
        stream.synchronize()?;
        let before = arena.stats();
        let large = resource.alloc::<u8>(&stream, 5 * PIECE)?;
        let after = arena.stats();
        ensure!(
            (after.reserved, after.moved) == (before.reserved, before.moved + 4),
            "turn {turn}: {before:?}; {after:?}"
        );
        drop((kept, large));
        stream.synchronize()?;
        arena.trim_to(0)?;
        ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    }
    Ok(())
}

/// Neither a growth up to the slack, nor a request that moves serve, is one beyond it.
#[apply(case)]
fn growths_within_the_slack_are_not_counted_as_beyond(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env, 1.0)?;
    let stream = env.stream()?;
    let (freed, _kept) = every_other(row(&resource, &stream, 9)?);
    let stats = arena.stats();
    ensure!((stats.beyond_slack, stats.stranded) == (0, 0), "{stats:?}");
    drop(freed);
    stream.synchronize()?;
    let _large = resource.alloc::<u8>(&stream, 5 * PIECE)?;
    let stats = arena.stats();
    ensure!((stats.beyond_slack, stats.moved) == (0, 4), "{stats:?}");
    Ok(())
}

/// What moves does not suffice, and an arena of this size would else grow by more.
#[apply(case)]
fn only_what_is_missing_is_made(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env, 1.0)?;
    let stream = env.stream()?;
    let (freed, _kept) = every_other(row(&resource, &stream, 9)?);
    drop(freed);
    stream.synchronize()?;
    let before = arena.stats();
    let _large = resource.alloc::<u8>(&stream, 5 * PIECE + 2 * MIB)?;
    let after = arena.stats();
    ensure!(after.moved == before.moved + 4, "{before:?}; {after:?}");
    ensure!(
        after.reserved == before.reserved + (2 << 20),
        "{before}; {after}"
    );
    ensure!((after.beyond_slack, after.stranded) == (1, 0), "{after:?}");
    Ok(())
}

/// Half of one piece is in use, and another one moves.
#[apply(case)]
fn what_could_not_move_is_counted(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env, 1.0)?;
    let stream = env.stream()?;
    let blocks = row(&resource, &stream, 5)?.into_iter().map(Some);
    let mut blocks: Vec<_> = blocks.collect();
    blocks[0] = None;
    let _half = resource.alloc::<u8>(&stream, PIECE / 2)?;
    blocks[2] = None;
    stream.synchronize()?;
    let _large = resource.alloc::<u8>(&stream, 4 * PIECE)?;
    let stats = arena.stats();
    ensure!((stats.moved, stats.beyond_slack) == (1, 1), "{stats:?}");
    ensure!(stats.stranded == PIECE as u64 / 2, "{stats:?}");
    Ok(())
}

/// Small blocks that were freed on another stream wait for it in the cache of their own.
#[apply(case)]
fn what_was_freed_elsewhere_and_is_not_done_is_demand(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (arena, resource) = arena(env, 1.0)?;
    let (own, other, third) = (env.stream()?, env.stream()?, env.stream()?);
    let layout = Layout::from_size_align(16 << 10, 256)?;
    let blocks = (0..2048).map(|_| arena.allocate(layout, &own));
    let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    let held = hold(&other)?;
    for address in blocks {
        // SAFETY: allocated as this layout, and no work uses it.
        unsafe { arena.deallocate(address, layout, &other) }?;
    }
    let space = arena.free_space();
    ensure!(space.pending == 32 << 20, "{space:?}");
    let block = resource.alloc::<u8>(&third, 40 * MIB)?;
    let stats = arena.stats();
    drop(held);
    ensure!(stats.demand_peak >= 72 << 20, "{stats:?}");
    drop(block);
    Ok(())
}

/// It then holds more than the slack allows, which counts only in larger arenas.
#[apply(case)]
fn an_arena_of_32_mib_grows_instead_of_moving_memory(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env, 1.0)?;
    let stream = env.stream()?;
    let first = resource.alloc::<u8>(&stream, 8 * MIB)?;
    let _second = resource.alloc::<u8>(&stream, 8 * MIB)?;
    drop(first);
    stream.synchronize()?;
    let _third = resource.alloc::<u8>(&stream, 16 * MIB)?;
    let stats = arena.stats();
    ensure!(stats.reserved == 32 << 20, "{stats}");
    ensure!((stats.moved, stats.beyond_slack) == (0, 0), "{stats:?}");
    // The same in an arena that is no longer small.
    let _fourth = resource.alloc::<u8>(&stream, 9 * MIB)?;
    let stats = arena.stats();
    ensure!(stats.beyond_slack == 1, "{stats:?}");
    Ok(())
}

/// It is the smallest free piece, and these move first.
#[apply(case)]
fn memory_where_the_request_is_to_be_stays_there(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env, 1.0)?;
    let stream = env.stream()?;
    let (freed, _kept) = every_other(row(&resource, &stream, 4)?);
    let last = resource.alloc::<u8>(&stream, PIECE / 2)?;
    let address = last.as_raw();
    drop((freed, last));
    stream.synchronize()?;
    let large = resource.alloc::<u8>(&stream, 5 * PIECE / 2)?;
    let stats = arena.stats();
    ensure!(large.as_raw() == address, "another place: {stats:?}");
    ensure!(stats.moved == 2, "{stats:?}");
    Ok(())
}
