//! What an arena says of itself: where its free memory lies, how many driver calls it made, and whose it is.

use anyhow::{Result, anyhow, ensure};
use cuda_mem::arena::SleepContents;
use cuda_mem::ledger::Recorder;
use cuda_mem::{Arena, MemoryResource as _, Resource};

use crate::environment::Environment;
use crate::foreign;
use crate::hold::hold;

const MIB: usize = 1 << 20;
/// A stream takes at least so much for its small blocks.
const PAGE: usize = 256 << 10;

#[apply(case)]
fn free_space_is_where_it_is_said_to_be(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    ensure!(arena.free_space().wholeness() == 1.0, "nothing is free");
    let (own, other) = (env.stream()?, env.stream()?);
    let block = resource.alloc::<u8>(&own, MIB)?;
    let space = arena.free_space();
    ensure!(space.largest == arena.stats().free(), "{space:?}");
    let small = resource.alloc::<u8>(&own, 1000)?;
    let free = usize::try_from(arena.free_space().bytes)?;
    // All but what the small block's page has.
    let rest = resource.alloc::<u8>(&own, free + 1024 - PAGE)?;
    let space = arena.free_space();
    let page = (PAGE - 1024) as u64;
    ensure!(
        (space.bytes, space.largest, space.kept) == (page, page, PAGE as u64),
        "{space:?}"
    );
    ensure!(space.wholeness() == 1.0, "{space:?}");
    // Two places, of which one is larger.
    drop(block);
    let space = arena.free_space();
    ensure!(space.cached == MIB as u64, "{space:?}");
    ensure!(space.bytes == page + MIB as u64, "{space:?}");
    let is_part = space.wholeness() > 0.0 && space.wholeness() < 1.0;
    ensure!(is_part, "{} of {space:?}", space.wholeness());
    let _held = hold(&other)?;
    small.free_on(&other).map_err(|failed| failed.error)?;
    let space = arena.free_space();
    ensure!(space.pending == 1024, "{space:?}");
    drop(rest);
    Ok(())
}

/// Memory that is not known to be done counts too.
#[apply(case)]
fn the_largest_free_block_may_be_a_busy_streams(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let (own, other) = (env.stream()?, env.stream()?);
    let _small = resource.alloc::<u8>(&other, 1000)?;
    let block = resource.alloc::<u8>(&own, 40 * MIB)?;
    let _held = hold(&own)?;
    drop(block);
    let space = arena.free_space();
    ensure!(space.largest >= 40 << 20, "{space:?}");
    Ok(())
}

#[apply(case)]
fn driver_calls_and_demand_are_counted(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let stream = env.stream()?;
    let mut before = arena.stats().driver_calls;
    let mut made = || {
        let (now, last) = (arena.stats().driver_calls, before);
        before = now;
        now - last
    };
    let block = resource.alloc::<u8>(&stream, 1000)?;
    ensure!(arena.stats().demand_peak == 1024, "{:?}", arena.stats());
    // Addresses, memory, its mapping and the access to it.
    let grown = made();
    // SAFETY: nothing uses the memory before it is woken.
    unsafe { arena.sleep(SleepContents::Keep) }?;
    let slept = made();
    arena.wake()?;
    let woken = made();
    drop(block);
    stream.synchronize()?;
    made();
    arena.trim_to(0)?;
    let trimmed = made();
    ensure!(
        grown >= 4 && slept >= 2 && woken >= 4 && trimmed >= 2,
        "{grown} to grow, {slept} to sleep, {woken} to wake, {trimmed} to trim"
    );
    Ok(())
}

/// Looks at streams are a few calls more.
#[apply(case)]
fn calls_for_memory_are_counted_for_each_piece(env: &Environment) -> Result<()> {
    const PIECE: usize = 32 * MIB;
    let arena = Arena::builder(&env.device()?).slack(1.0).build()?;
    let resource = Resource::from(arena.clone());
    let stream = env.stream()?;
    let mut before = 0;
    let mut made = || {
        let (now, last) = (arena.stats().driver_calls, before);
        before = now;
        now - last
    };
    let row = (0..17).map(|_| resource.alloc::<u8>(&stream, PIECE));
    let row = row.collect::<cuda_mem::Result<Vec<_>>>()?;
    let kept: Vec<_> = row.into_iter().skip(1).step_by(2).collect();
    stream.synchronize()?;
    made();
    let large = resource.alloc::<u8>(&stream, 9 * PIECE)?;
    let moving = made();
    ensure!(arena.stats().moved == 8, "{:?}", arena.stats());
    ensure!(moving >= 2 * 8, "{moving}: a mapping and its access");
    drop(large);
    stream.synchronize()?;
    made();
    arena.trim_to(0)?;
    let trimming = made();
    let stats = arena.stats();
    ensure!(stats.reserved == 8 * PIECE as u64, "{stats}");
    // Nine pieces, of which eight are mapped at two addresses.
    ensure!(trimming >= 2 * 9 + 8, "{trimming}: mappings and memory");
    // SAFETY: nothing uses the memory before the arena is awake.
    unsafe { arena.sleep(SleepContents::Discard) }?;
    let sleeping = made();
    ensure!(sleeping >= 2 * 8, "{sleeping}: a mapping and its memory");
    arena.wake()?;
    drop(kept);
    Ok(())
}

#[apply(case)]
fn an_arena_knows_its_handles_and_what_it_is_made_of(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let (recorder, other) = (Recorder::ring(100), Recorder::ring(100));
    let arena = Arena::builder(&device).record(&recorder).build()?;
    ensure!(arena.is_same(&arena.clone()));
    let plain = Arena::builder(&device).build()?;
    ensure!(!arena.is_same(&plain));
    let recorded_by = |recorder| arena.recorder().is_some_and(|own| own.is_same(recorder));
    ensure!(recorded_by(&recorder) && !recorded_by(&other));
    ensure!(plain.recorder().is_none() && plain.pool().is_none());
    let over = Arena::over(env.pool()?);
    ensure!(over.pool().is_some());
    // Such an arena is what its pool is.
    for refused in [
        Arena::builder_over(env.pool()?).accessible_from([&device]),
        Arena::builder_over(env.pool()?).max_share(0.5),
    ] {
        ensure!(refused.build().is_err());
    }
    Ok(())
}

/// A look at a stream is two calls, for it may be captured; a mark, a look at one, and a wait are one call each.
#[apply(case_alone)]
fn looks_marks_waits_and_misses_are_counted(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let (own, other) = (env.stream()?, env.stream()?);
    let blocks = (0..3).map(|_| resource.alloc::<u8>(&own, 40 * MIB));
    let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    let [first, second, third] = <[_; 3]>::try_from(blocks).map_err(|_| anyhow!("three blocks"))?;
    // The arena grows by more, of which the other stream gets a page.
    let _rest = resource.alloc::<u8>(&own, MIB)?;
    let _small = resource.alloc::<u8>(&other, 1000)?;
    let mut before = arena.stats();
    let mut made = || {
        let now = arena.stats();
        let last = std::mem::replace(&mut before, now);
        (
            now.driver_calls - last.driver_calls,
            (now.refills - last.refills, now.waits - last.waits),
            now.taken_over - last.taken_over,
        )
    };
    let held = hold(&own)?;
    drop(first);
    let _first = resource.alloc::<u8>(&other, 40 * MIB)?;
    let counted = made();
    ensure!(
        counted == (2 + 1 + 1 + 1, (1, 1), 1),
        "a look, a mark, a look at it, a wait: {counted:?}"
    );
    drop(second);
    let _second = resource.alloc::<u8>(&other, 40 * MIB)?;
    let counted = made();
    ensure!(
        counted == (2 + 1, (1, 1), 1),
        "no look at a busy stream, a mark if it is not captured, a wait: {counted:?}"
    );
    drop(held);
    foreign::synchronize(&own)?;
    drop(third);
    let _third = resource.alloc::<u8>(&other, 40 * MIB)?;
    let counted = made();
    ensure!(
        counted == (2 + 2, (0, 0), 1),
        "a look at the first and the last mark, a look, no miss: {counted:?}"
    );
    Ok(())
}
