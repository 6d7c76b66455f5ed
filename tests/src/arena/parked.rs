//! Blocks that several streams used, freed without that any stream waits.

use std::alloc::Layout;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::interop::CaptureMode;
use cuda_mem::{Arena, ErrorKind, MemoryResource, Resource, ReusePolicy};

use super::ends::overlap;
use super::log::fill;
use super::spots;
use super::streams::borrowed;
use crate::environment::Environment;
use crate::hold::hold;

const MIB: usize = 1 << 20;

/// Small ones, those of the central heap, and ones that are not cached.
const SIZES: [usize; 4] = [1000, 100 << 10, 8 * MIB, 40 * MIB];

const POLICIES: [ReusePolicy; 4] = [
    ReusePolicy::DRIVER_DEFAULT,
    ReusePolicy::ALLOW_OPPORTUNISTIC,
    ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES,
    ReusePolicy::DETERMINISTIC,
];

#[apply(case)]
fn memory_of_several_streams_goes_to_nobody_before_they_are_done(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for (policy, bytes) in POLICIES
        .iter()
        .flat_map(|policy| SIZES.map(|bytes| (*policy, bytes)))
    {
        let arena = Arena::builder(&env.device()?).reuse(policy).build()?;
        let resource = Resource::from(arena.clone());
        let (own, user, third) = (env.stream()?, env.stream()?, env.stream()?);
        let block = resource.alloc::<u8>(&own, bytes)?;
        user.wait_for(&own)?;
        let held = hold(&user)?;
        // As another library uses it, behind the held work: it must not run into somebody else's memory.
        fill(&user, block.as_raw(), bytes / 4, 7)?;
        let live = arena.stats().live;
        block.free_after([&user, &user, &own])?;
        let (stats, space) = (arena.stats(), arena.free_space());
        ensure!(stats.live < live, "{policy:?}: it counts as freed: {stats}");
        ensure!(
            (space.bytes, space.pending) == (stats.free(), live),
            "{policy:?}: {space:?}, {stats}"
        );
        let mut others = Vec::new();
        for stream in [&own, &third, &user, &own] {
            let mut other = resource.alloc::<u8>(stream, bytes)?;
            spots::write(&mut other, 9)?;
            others.push(other);
        }
        drop(held);
        for other in others {
            spots::have(&other, 9).with_context(|| {
                format!("{policy:?}, {bytes} bytes: written by a stream that used it before")
            })?;
        }
    }
    Ok(())
}

/// As [`cuda_mem::DeviceBuffer::free_after`] is meant: another library used the memory.
#[apply(case)]
fn no_stream_waits_for_memory_of_several_streams(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for (policy, bytes) in POLICIES
        .iter()
        .flat_map(|policy| SIZES.map(|bytes| (*policy, bytes)))
    {
        let arena = Arena::builder(&env.device()?).reuse(policy).build()?;
        let resource = Resource::from(arena.clone());
        let (own, user) = (env.stream()?, env.stream()?);
        let mut reserved = 0;
        for round in 0..20 {
            let block = resource.alloc::<u8>(&own, bytes)?;
            user.wait_for(&own)?;
            let held = hold(&user)?;
            block.free_after([&user])?;
            // It would never return if `own` waited for the held stream.
            own.synchronize()?;
            drop(held);
            user.synchronize()?;
            let stats = arena.stats();
            ensure!((stats.live, stats.waits) == (0, 0), "{policy:?}: {stats}");
            if round == 0 {
                reserved = stats.reserved;
            }
            ensure!(
                stats.reserved <= reserved + 8 * MIB as u64,
                "{policy:?}, {bytes} bytes, round {round}: {stats}"
            );
        }
        arena.trim_to(0)?;
        ensure!(arena.stats().reserved == 0, "{policy:?}: {}", arena.stats());
    }
    Ok(())
}

#[apply(case_alone)]
fn an_arena_ends_after_all_users_of_its_memory(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let (own, user) = (context.stream()?, context.stream()?);
    let block = resource.alloc::<u8>(&own, 8 * MIB)?;
    let address = block.as_raw();
    let held = hold(&user)?;
    block.free_after([&user])?;
    drop((resource, arena, own));
    ensure!(env.driver.pointer_info(address)?.is_some(), "it is in use");
    drop(held);
    context.synchronize()?;
    ensure!(
        env.driver.pointer_info(address)?.is_none(),
        "nobody uses it any more"
    );
    Ok(())
}

#[apply(case)]
fn misuse_of_a_parked_block_is_an_error(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?).build()?;
    let (own, user) = (env.stream()?, env.stream()?);
    let _held = hold(&user)?;
    for bytes in [1000, MIB] {
        let layout = Layout::from_size_align(bytes, 256)?;
        let address = arena.allocate(layout, &own)?;
        let wrong = address + 512 * 1024 * 1024;
        // SAFETY: nothing was allocated there, which is the question.
        let refused = unsafe { arena.deallocate_after(wrong, layout, &own, &[&user]) };
        ensure!(
            refused.is_err_and(|error| error.kind() == ErrorKind::InvalidValue),
            "{bytes} bytes"
        );
        let live = arena.stats().live_blocks;
        ensure!(live == 1, "{live} blocks");
        // SAFETY: allocated above, and used by nobody.
        unsafe { arena.deallocate_after(address, layout, &own, &[&user]) }?;
        ensure!(arena.stats().live_blocks == 0, "{}", arena.stats());
    }
    // SAFETY: no bytes.
    unsafe { arena.deallocate_after(0, Layout::new::<()>(), &own, &[&user]) }?;
    Ok(())
}

/// The freeing stream is made to wait for one of two users. The other one cannot be waited for, and is done first.
#[apply(case_alone)]
fn a_wait_for_one_of_two_users_does_not_free_a_block(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for bytes in SIZES {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let (own, busy, captured) = (env.stream()?, env.stream()?, env.stream()?);
        let third = env.stream()?;
        let block = resource.alloc::<u8>(&own, bytes)?;
        busy.wait_for(&own)?;
        let held = hold(&busy)?;
        fill(&busy, block.as_raw(), bytes / 4, 7)?;
        fill(&captured, block.as_raw(), bytes / 4, 6)?;
        block.free_after([&busy, &captured])?;
        own.synchronize()?;
        // Enough that the arena would rather have the stream wait than grow.
        let (_, _kept) = captured.capture(CaptureMode::Relaxed, |_| {
            let sizes = [40 * MIB, 40 * MIB, 40 * MIB, bytes];
            let kept = sizes.map(|bytes| resource.alloc::<u8>(&own, bytes));
            kept.into_iter().collect::<cuda_mem::Result<Vec<_>>>()
        })?;
        captured.synchronize()?;
        let mut filled = Vec::new();
        for _ in 0..4 {
            let mut other = resource.alloc::<u8>(&third, bytes)?;
            spots::write(&mut other, 9)?;
            filled.push(other);
        }
        drop(held);
        for other in filled {
            spots::have(&other, 9).with_context(|| {
                format!("{bytes} bytes: written by a stream that used it before")
            })?;
        }
    }
    Ok(())
}

/// A stream that the arena does not know is named, while what a stream left that ended is busy.
#[apply(case)]
fn a_stream_that_is_named_first_waits_for_nothing(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let (left, own) = (env.stream()?, env.stream()?);
    drop(resource.alloc::<u8>(&borrowed(&left), 8 * MIB)?);
    let block = resource.alloc::<u8>(&own, MIB)?;
    let held = hold(&left)?;
    drop(resource.alloc::<u8>(&borrowed(&left), 8 * MIB)?);
    let (other, new) = (env.stream()?, env.stream()?);
    block.free_after([&other])?;
    resource.alloc::<u8>(&own, MIB)?.free_on(&new)?;
    // They would never return if these waited for the held stream.
    other.synchronize()?;
    new.synchronize()?;
    drop(held);
    ensure!(arena.stats().waits == 0, "{}", arena.stats());
    Ok(())
}

/// A small block in a page of one stream, freed by another one and after a third.
#[apply(case)]
fn one_trim_gives_all_back(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for bytes in SIZES {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let (own, freeing, user) = (env.stream()?, env.stream()?, env.stream()?);
        let mut block = resource.alloc::<u8>(&own, bytes)?;
        block.set_stream(&freeing)?;
        user.wait_for(&own)?;
        let held = hold(&user)?;
        block.free_after([&user])?;
        drop(held);
        for stream in [&own, &freeing, &user] {
            stream.synchronize()?;
        }
        arena.trim_to(0)?;
        ensure!(arena.stats().reserved == 0, "{bytes}: {}", arena.stats());
    }
    Ok(())
}

/// The block is of another stream's pages: it comes back there, and is found when that looks for memory.
#[apply(case)]
fn a_block_parked_on_another_stream_comes_back(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let (own, other, user) = (env.stream()?, env.stream()?, env.stream()?);
    for _ in 0..3000 {
        let block = resource.alloc::<u8>(&own, 16 << 10)?;
        let block = block.move_to(&other).map_err(|failed| failed.error)?;
        let held = hold(&user)?;
        block.free_after([&user])?;
        drop(held);
        for stream in [&own, &other, &user] {
            stream.synchronize()?;
        }
    }
    let stats = arena.stats();
    ensure!(stats.reserved <= 16 << 20, "{stats}");
    Ok(())
}

/// A block that its stream waited for is that stream's from the wait on, and not from the free on, which the host has seen.
#[apply(case)]
fn what_a_stream_waited_for_is_not_done_before_it(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?)
        .reuse(ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES)
        .max_bytes(64 << 20)
        .build()?;
    let resource = Resource::from(arena.clone());
    let (own, user, third) = (env.stream()?, env.stream()?, env.stream()?);
    let _small = resource.alloc::<u8>(&third, 1000)?;
    let block = resource.alloc::<u8>(&own, 48 * MIB)?;
    let place = (block.as_raw(), 48 * MIB);
    user.wait_for(&own)?;
    let held = hold(&user)?;
    fill(&user, block.as_raw(), 48 * MIB / 4, 7)?;
    block.free_after([&user])?;
    own.synchronize()?;
    let first = resource.alloc::<u8>(&own, 20 * MIB)?;
    let mut other = resource.alloc::<u8>(&third, 24 * MIB)?;
    spots::write(&mut other, 9)?;
    let stats = arena.stats();
    drop(held);
    ensure!(overlap(place, (other.as_raw(), 24 * MIB)), "{stats}");
    ensure!(stats.waits == 2, "the third stream does not wait: {stats}");
    spots::have(&other, 9)?;
    drop(first);
    Ok(())
}

/// Another stream could only wait for one of the two that may still use it.
#[apply(case)]
fn no_other_stream_takes_a_parked_block(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let (own, user, third) = (env.stream()?, env.stream()?, env.stream()?);
    let _small = resource.alloc::<u8>(&third, 1000)?;
    let block = resource.alloc::<u8>(&own, 48 * MIB)?;
    let place = (block.as_raw(), 48 * MIB);
    let held = hold(&user)?;
    own.wait_for(&user)?;
    block.free_after([&user])?;
    let other = resource.alloc::<u8>(&third, 40 * MIB)?;
    let stats = arena.stats();
    drop(held);
    ensure!(!overlap(place, (other.as_raw(), 40 * MIB)), "{stats}");
    ensure!(stats.waits == 0, "{stats}");
    Ok(())
}

/// The block is of another stream's pages, and that stream is not ordered after the one that freed it.
#[apply(case)]
fn a_parked_block_comes_back_after_the_stream_that_freed_it(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let builder = Arena::builder(&env.device()?).reuse(ReusePolicy::ALLOW_OPPORTUNISTIC);
    let arena = builder.build()?;
    let resource = Resource::from(arena.clone());
    let (own, freeing, user) = (env.stream()?, env.stream()?, env.stream()?);
    let mut block = resource.alloc::<u8>(&own, 1000)?;
    let address = block.as_raw();
    block.set_stream(&freeing)?;
    let held = hold(&freeing)?;
    block.free_after([&user])?;
    user.synchronize()?;
    // More than a page has, so that all that is done is found.
    let blocks = (0..600).map(|_| resource.alloc::<u8>(&own, 1000));
    let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    let space = arena.free_space();
    drop(held);
    ensure!(space.pending == 1024, "{space:?}");
    ensure!(blocks.iter().all(|block| block.as_raw() != address));
    Ok(())
}

/// The free marks its place in the other stream: what comes there later does not delay the block, and nobody has to wait.
#[apply(case)]
fn later_work_of_another_stream_does_not_delay_a_block(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for bytes in SIZES {
        let builder = Arena::builder(&env.device()?).reuse(ReusePolicy::ALLOW_OPPORTUNISTIC);
        let arena = builder.build()?;
        let resource = Resource::from(arena.clone());
        let (own, user) = (env.stream()?, env.stream()?);
        let block = resource.alloc::<u8>(&own, bytes)?;
        let first = hold(&user)?;
        block.free_after([&user])?;
        ensure!(arena.free_space().pending > 0, "{bytes} bytes");
        drop(first);
        // The stream gets there after all that came before.
        let later = hold(&user)?;
        // More than is free, so that all that is done is found.
        let _large = resource.alloc::<u8>(&own, 100 * MIB)?;
        let space = arena.free_space();
        drop(later);
        ensure!(space.pending == 0, "{bytes} bytes: {space:?}");
    }
    Ok(())
}

/// The stream that frees a block may be named among those that used it.
#[apply(case)]
fn a_block_of_one_stream_is_reused_there_at_once(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for bytes in SIZES {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let own = env.stream()?;
        let block = resource.alloc::<u8>(&own, bytes)?;
        let address = block.as_raw();
        let _held = hold(&own)?;
        block.free_after([&own])?;
        let space = arena.free_space();
        ensure!(space.pending == 0, "{bytes} bytes: {space:?}");
        let again = resource.alloc::<u8>(&own, bytes)?;
        ensure!(
            again.as_raw() == address,
            "{bytes} bytes: {}",
            arena.stats()
        );
    }
    Ok(())
}
