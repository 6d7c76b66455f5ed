//! Requests and frees that an arena answers without memory, or refuses, and shortages that are none of its own.

use std::alloc::Layout;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::ledger::Recorder;
use cuda_mem::mapped::PhysicalMemory;
use cuda_mem::memory::LimitAdaptor;
use cuda_mem::{Arena, Device, Error, ErrorKind, MemoryResource as _, Resource};

use crate::environment::Environment;
use crate::forks;

const MIB: usize = 1 << 20;

/// On a stream that the arena knows, with which the usual path begins.
#[apply(case)]
fn a_request_for_no_bytes_takes_nothing(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let nothing = Layout::from_size_align(0, 256)?;
    for is_recorded in [false, true] {
        let mut builder = Arena::builder(&env.device()?);
        if is_recorded {
            builder = builder.record(&Recorder::ring(1000));
        }
        let arena = builder.build()?;
        let _block = arena.alloc::<u8>(&stream, 1000)?;
        let before = arena.stats();
        let address = arena.allocate(nothing, &stream)?;
        ensure!(address == 0, "recorded: {is_recorded}, {address:#x}");
        ensure!(arena.stats() == before, "{before}; {}", arena.stats());
        // SAFETY: nothing is there.
        unsafe { arena.deallocate(address, nothing, &stream) }?;
        ensure!(arena.stats() == before, "{before}; {}", arena.stats());
    }
    Ok(())
}

/// Alone, because a fork copies only the thread that forks. The memory is the parent's, on a stream that the arena knows.
#[apply(case_alone)]
fn a_fork_gets_no_memory_and_frees_none(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).build()?;
    let stream = env.stream()?;
    let layout = Layout::from_size_align(1000, 256)?;
    let address = arena.allocate(layout, &stream)?;
    // SAFETY: the child asks the arena, which must make no driver call there, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        let refused = |error: Error| error.kind() == ErrorKind::Forked;
        let asked = arena.allocate(layout, &stream);
        // SAFETY: allocated as this layout, and no work uses it.
        let freed = unsafe { arena.deallocate(address, layout, &stream) };
        forks::end_child(asked.is_err_and(refused) && freed.is_err_and(refused));
    }
    forks::ends_well(child)?;
    // SAFETY: as above.
    unsafe { arena.deallocate(address, layout, &stream) }?;
    ensure!(arena.stats().live == 0, "{}", arena.stats());
    Ok(())
}

/// A device that is not the one under test.
fn another(env: &Environment) -> Result<Device> {
    let device = env.device()?;
    let mut others = env.driver.devices()?.into_iter();
    others
        .find(|other| *other != device)
        .context("there is one device")
}

/// Nor does a pool for captures serve them.
#[apply(case_of_two)]
fn streams_of_a_device_out_of_reach_are_refused(env: &Environment) -> Result<()> {
    let own = env.stream()?;
    let theirs = another(env)?.primary_context()?.stream()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let pool = arena.external_capture_pool()?;
    let layout = Layout::from_size_align(1000, 256)?;
    let address = arena.allocate(layout, &own)?;
    let before = arena.stats();
    // SAFETY: nothing uses the memory, and the arena is to refuse.
    let freed = unsafe { arena.deallocate(address, layout, &theirs) }.err();
    let asked = [
        arena.allocate(layout, &theirs).err(),
        pool.allocate(1000, &theirs).err(),
    ];
    for refused in asked.into_iter().chain([freed]) {
        let error = refused.context("the stream was served")?;
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    }
    let after = arena.stats();
    ensure!(
        (after.live, after.streams) == (before.live, before.streams),
        "{before}; {after}"
    );
    // SAFETY: allocated as this layout, and no work uses it.
    unsafe { arena.deallocate(address, layout, &own) }?;
    // SAFETY: nothing was captured with its memory.
    unsafe { pool.release() };
    Ok(())
}

/// An arena of the device that is short gives back what is free.
#[apply(case_of_two)]
fn a_shortage_of_one_device_leaves_the_arenas_of_others_alone(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (short, other) = (env.device()?, another(env)?);
    let streams = [
        short.primary_context()?.stream()?,
        other.primary_context()?.stream()?,
    ];
    let arenas = [
        Arena::builder(&short).build()?,
        Arena::builder(&other).build()?,
    ];
    for (arena, stream) in arenas.iter().zip(&streams) {
        drop(arena.alloc::<u8>(stream, 8 * MIB)?);
        stream.synchronize()?;
    }
    let before = arenas[1].stats();
    let refused = PhysicalMemory::builder(&short).build(2 * short.total_memory()?);
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::OutOfMemory));
    let [own, theirs] = arenas.each_ref().map(Arena::stats);
    ensure!(own.reserved == 0, "{own}");
    ensure!(
        theirs.reserved == before.reserved && theirs.reserved > 0,
        "{before}; {theirs}"
    );
    Ok(())
}

/// Nothing that others give back helps a request that is larger than a limit. Alone, because others may be out of memory.
#[apply(case_alone)]
fn a_request_beyond_a_limit_leaves_arenas_alone(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let arena = Arena::builder(&device).build()?;
    drop(arena.alloc::<u8>(&stream, 8 * MIB)?);
    stream.synchronize()?;
    let before = arena.stats();
    let limited = Resource::new(LimitAdaptor::new(env.pool()?, 1000));
    let too_much = usize::try_from(device.total_memory()?)?;
    let refused = limited.alloc::<u8>(&stream, too_much);
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::OutOfMemory));
    let after = arena.stats();
    ensure!(
        after.reserved == before.reserved && after.reserved > 0,
        "{before}; {after}"
    );
    Ok(())
}
