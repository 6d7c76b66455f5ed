//! Numbers that hold: what an arena may have, and what it says.

use std::alloc::Layout;
use std::sync::Barrier;

use anyhow::{Result, ensure};
use cuda_mem::{Arena, Error, ErrorKind, MemoryResource, Resource, ReusePolicy};

use crate::environment::Environment;
use crate::foreign;
use crate::hold::hold;

const MIB: usize = 1 << 20;

#[apply(case)]
fn threads_together_hold_no_more_than_the_arena_may(env: &Environment) -> Result<()> {
    for _ in 0..20 {
        let arena = Arena::builder(&env.device()?).max_bytes(16 << 20).build()?;
        let resource = Resource::from(arena.clone());
        let streams: Result<Vec<_>> = (0..4).map(|_| env.stream()).collect();
        let streams = streams?;
        let together = Barrier::new(streams.len());
        let served: cuda_mem::Result<Vec<_>> = std::thread::scope(|scope| {
            let threads: Vec<_> = streams
                .iter()
                .map(|stream| {
                    scope.spawn(|| {
                        together.wait();
                        let asked = || resource.alloc::<u8>(stream, 6 * MIB);
                        let got: Vec<_> = (0..4).map(|_| asked()).collect();
                        // Nobody lets go before all have asked.
                        together.wait();
                        let mut served = 0;
                        for buffer in got {
                            match buffer {
                                Ok(_) => served += 1,
                                Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
                                Err(error) => return Err(error),
                            }
                        }
                        Ok(served)
                    })
                })
                .collect();
            let other = |_| Err(Error::new(ErrorKind::Other, "a thread panicked"));
            let ends = threads.into_iter().map(|thread| thread.join());
            ends.map(|end| end.unwrap_or_else(other)).collect()
        });
        let served: i32 = served?.into_iter().sum();
        let stats = arena.stats();
        ensure!(stats.reserved_peak <= 16 << 20, "{stats}");
        ensure!(served <= 2, "{served} blocks of 6 MiB in 16 MiB");
    }
    Ok(())
}

/// A stream that was busy often is looked at less often, but not where that decides between memory and none.
#[apply(case)]
fn memory_that_is_done_is_found_before_memory_is_out(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for asked_in_vain in [0, 1, 2, 3, 5, 9, 17, 34, 70] {
        let arena = Arena::builder(&env.device()?)
            .reuse(ReusePolicy::ALLOW_OPPORTUNISTIC)
            .max_bytes(16 << 20)
            .build()?;
        let resource = Resource::from(arena.clone());
        let (a, b) = (env.stream()?, env.stream()?);
        let _small = resource.alloc::<u8>(&b, 1000)?;
        let large = resource.alloc::<u8>(&a, 10 * MIB)?;
        // So that the memory cannot go back to the device.
        let _neighbour = resource.alloc::<u8>(&a, 2 * MIB)?;
        let held = hold(&a)?;
        drop(large);
        for _ in 0..asked_in_vain {
            let refused = resource.alloc::<u8>(&b, 9 * MIB);
            ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::OutOfMemory));
        }
        drop(held);
        a.synchronize()?;
        let got = resource.alloc::<u8>(&b, 9 * MIB);
        ensure!(
            got.is_ok(),
            "after {asked_in_vain} requests in vain: {:?}",
            got.err()
        );
    }
    Ok(())
}

#[apply(case)]
fn a_refused_free_changes_no_number(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).build()?;
    let (a, b) = (env.stream()?, env.stream()?);
    let (large, small) = (
        Layout::from_size_align(MIB, 256)?,
        Layout::from_size_align(1000, 256)?,
    );
    let live = arena.allocate(large, &a)?;
    // With a second stream large blocks do not stand in front, where nothing is checked.
    let other = arena.allocate(small, &b)?;
    let before = arena.stats();
    for layout in [large, small] {
        // SAFETY: it is no memory; the arena is to see that.
        let refused = unsafe { arena.deallocate(0x1234_5600, layout, &a) };
        ensure!(
            refused.is_err_and(|error| error.had_no_effect()),
            "{layout:?} was taken"
        );
        let after = arena.stats();
        ensure!(
            (after.live, after.live_blocks) == (before.live, before.live_blocks),
            "{before}, then {after}"
        );
    }
    // SAFETY: allocated as this layout, and not used.
    unsafe { arena.deallocate(live, large, &a) }?;
    // SAFETY: as above.
    unsafe { arena.deallocate(other, small, &b) }?;
    Ok(())
}

#[apply(case)]
fn the_initial_bytes_serve_many_streams_without_driver_calls(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for reuse in [
        ReusePolicy::DRIVER_DEFAULT,
        ReusePolicy::ALLOW_OPPORTUNISTIC,
    ] {
        let builder = Arena::builder(&env.device()?).reuse(reuse);
        let arena = builder.initial_bytes(256 << 20).build()?;
        ensure!(arena.stats().reserved == 0, "{}", arena.stats());
        let resource = Resource::from(arena.clone());
        let streams: Result<Vec<_>> = (0..16).map(|_| env.stream()).collect();
        let streams = streams?;
        // Once before a trim, and once after it.
        drop(resource.alloc::<u8>(&streams[0], MIB)?);
        streams[0].synchronize()?;
        arena.trim_to(0)?;
        ensure!(arena.stats().reserved == 0, "{}", arena.stats());
        resource.alloc::<u8>(&streams[0], MIB)?.fill(1)?;
        let first = arena.stats();
        ensure!(first.reserved == 256 << 20, "{first}");
        for turn in 0..400 {
            let stream = &streams[turn % streams.len()];
            let mut block = resource.alloc::<u8>(stream, MIB << (turn % 3))?;
            block.fill(1)?;
        }
        let stats = arena.stats();
        ensure!(stats.reserved == 256 << 20, "{stats}");
        ensure!(stats.driver_calls == first.driver_calls, "{first}; {stats}");
        for stream in &streams {
            stream.synchronize()?;
        }
        arena.trim_to(0)?;
        ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    }
    Ok(())
}

/// No stream has used the rest of them. After a trim that is so anyway.
#[apply(case)]
fn the_initial_bytes_are_everybodys_from_the_first_block_on(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let builder = Arena::builder(&env.device()?).initial_bytes(64 << 20);
    let arena = builder.build()?;
    let resource = Resource::from(arena.clone());
    let (first, second) = (env.stream()?, env.stream()?);
    let _block = resource.alloc::<u8>(&first, MIB)?;
    let held = hold(&first)?;
    let before = arena.stats();
    let _other = resource.alloc::<u8>(&second, MIB)?;
    let after = arena.stats();
    drop(held);
    ensure!(
        (after.driver_calls, after.waits, after.grown)
            == (before.driver_calls, before.waits, before.grown),
        "{before:?}; {after:?}"
    );
    Ok(())
}

#[apply(case)]
fn initial_bytes_that_are_not_to_be_had_are_no_error(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let free = stream.context().memory_info()?.free;
    for initial in [free.saturating_mul(2), u64::MAX] {
        let builder = Arena::builder(&env.device()?).initial_bytes(initial);
        let arena = builder.build()?;
        let block = arena.alloc::<u8>(&stream, 20 * MIB)?;
        let stats = arena.stats();
        ensure!((20 << 20..=free).contains(&stats.reserved), "{stats}");
        drop(block);
    }
    let builder = Arena::builder(&env.device()?).initial_bytes(1 << 30);
    let arena = builder.max_bytes(64 << 20).build()?;
    drop(arena.alloc::<u8>(&stream, MIB)?);
    ensure!(arena.stats().reserved == 64 << 20, "{}", arena.stats());
    Ok(())
}

#[apply(case)]
fn a_share_of_the_device_is_a_limit_too(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let total = device.total_memory()?;
    let share = 64.0 * MIB as f64 / total as f64;
    for (builder, most) in [
        (Arena::builder(&device).max_share(share), 64 * MIB),
        (
            Arena::builder(&device).max_share(share).max_bytes(32 << 20),
            32 * MIB,
        ),
        (
            Arena::builder(&device).max_share(0.5).max_bytes(16 << 20),
            16 * MIB,
        ),
    ] {
        let arena = builder.build()?;
        let resource = Resource::from(arena.clone());
        drop(resource.alloc::<u8>(&stream, most - 4 * MIB)?);
        let refused = resource.alloc::<u8>(&stream, most + 4 * MIB);
        ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::OutOfMemory));
        ensure!(
            arena.stats().reserved_peak <= most as u64,
            "{}",
            arena.stats()
        );
    }
    for share in [0.0, -1.0, f64::NAN] {
        ensure!(
            Arena::builder(&device).max_share(share).build().is_err(),
            "{share}"
        );
    }
    // All of it, and more than there is, limit nothing.
    for share in [1.0, 2.0, f64::INFINITY] {
        let arena = Arena::builder(&device).max_share(share).build()?;
        ensure!(arena.max_bytes() == u64::MAX, "{share}");
    }
    Ok(())
}

/// A growth takes more than it must, and the addresses that were reserved end before that.
#[apply(case_alone)]
fn growth_stays_within_its_addresses(env: &Environment) -> Result<()> {
    let total = env.device()?.total_memory()?.next_multiple_of(2 << 20);
    let arena = Arena::builder(&env.device()?)
        .slack(f64::INFINITY)
        .build()?;
    let resource = Resource::from(arena.clone());
    let stream = env.stream()?;
    // Of which addresses are left.
    let mut left = total;
    let mut take = |bytes: u64| -> Result<_> {
        let before = arena.stats().reserved;
        let block = resource.alloc::<u8>(&stream, bytes as usize)?;
        left -= arena.stats().reserved - before;
        Ok((block, left))
    };
    let mut kept = Vec::new();
    // A part of the device at a time, and what keeps its end.
    let part = (total / 8) >> 21 << 21;
    let mut first = u64::MAX;
    let left = loop {
        let (large, _) = take(part)?;
        first = first.min(large.as_raw());
        let (small, left) = take(32 << 20)?;
        drop(large);
        kept.push(small);
        stream.synchronize()?;
        arena.trim_to(0)?;
        if left < 2 * part {
            break left;
        }
    };
    let (_large, left) = take(left - (4 << 20))?;
    ensure!(left == 4 << 20, "{left} bytes of addresses are left");
    let _last = resource.alloc::<u8>(&stream, 3 * MIB)?;
    // No address is left behind the last one, and those that were given back are used again.
    let again = resource.alloc::<u8>(&stream, part as usize)?;
    ensure!(
        (first..first + total).contains(&again.as_raw()),
        "{:#x} is not in the {total} bytes from {first:#x}",
        again.as_raw()
    );
    Ok(())
}

/// Blocks cut from pages, and blocks of the central heap.
#[apply(case)]
fn a_block_takes_little_of_the_host(env: &Environment) -> Result<()> {
    let (stream, others) = (env.stream()?, [env.stream()?, env.stream()?]);
    for (bytes, count) in [(256, 50_000), (17 << 10, 10_000)] {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        for other in &others {
            drop(resource.alloc::<u8>(other, bytes)?);
        }
        let blocks = (0..count).map(|_| resource.alloc::<u8>(&stream, bytes));
        let blocks: Vec<_> = blocks.collect::<cuda_mem::Result<_>>()?;
        let each = arena.free_space().bookkeeping / blocks.len() as u64;
        ensure!(
            (16..=96).contains(&each),
            "{bytes} bytes: {each} of the host for a block"
        );
    }
    Ok(())
}

/// A growth takes more than it must only where there is more.
#[apply(case)]
fn the_last_bytes_that_an_arena_may_hold_are_served(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for (max, asked) in [(2, 2), (4, 3), (40, 40)] {
        let builder = Arena::builder(&env.device()?).max_bytes(max << 20);
        let arena = builder.build()?;
        let block = arena.alloc::<u8>(&stream, asked * MIB)?;
        ensure!(arena.stats().reserved <= max << 20, "{}", arena.stats());
        drop(block);
    }
    Ok(())
}

/// What a full arena finds at last is where it says: memory that went back first, or that the trim has seen to be done.
#[apply(case)]
fn what_a_full_arena_finds_at_last_can_be_used(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for is_one_piece in [false, true] {
        let builder = Arena::builder(&env.device()?).max_bytes(16 << 20);
        let mut builder = builder.reuse(ReusePolicy::DETERMINISTIC);
        if is_one_piece {
            builder = builder.initial_bytes(16 << 20);
        }
        let arena = builder.build()?;
        let resource = Resource::from(arena.clone());
        let (a, b) = (env.stream()?, env.stream()?);
        let first = resource.alloc::<u8>(&a, 10 * MIB)?;
        let _second = resource.alloc::<u8>(&a, 2 * MIB)?;
        let _small = resource.alloc::<u8>(&b, 1000)?;
        // Under this policy only a trim sees that it is done.
        drop(first);
        let mut found = resource.alloc::<u8>(&b, 9 * MIB)?;
        found.fill(7)?;
        ensure!(found.to_vec()?.iter().all(|byte| *byte == 7));
        let stats = arena.stats();
        // One piece does not go back while a block is left in it.
        ensure!(stats.released == u64::from(!is_one_piece), "{stats:?}");
    }
    Ok(())
}

/// An arena would grow up to them before it reuses memory.
#[apply(case)]
fn initial_bytes_that_are_not_to_be_had_are_forgotten(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (a, b) = (env.stream()?, env.stream()?);
    // An arena never wants more than the whole device.
    let _taken = env.pool()?.alloc::<u8>(&a, 64 * MIB)?;
    let builder = Arena::builder(&env.device()?).initial_bytes(u64::MAX);
    let arena = builder.build()?;
    drop(arena.alloc::<u8>(&a, 40 * MIB)?);
    let _block = arena.alloc::<u8>(&b, 36 * MIB)?;
    let stats = arena.stats();
    ensure!((stats.grown, stats.moved) == (1, 0), "{stats:?}");
    Ok(())
}

/// Nor where that decides whether the arena grows.
#[apply(case)]
fn memory_that_is_done_is_found_before_the_arena_grows(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for (is_parked, asked_in_vain) in [false, true]
        .into_iter()
        .flat_map(|is_parked| [0, 1, 2, 3, 5, 9].map(|times| (is_parked, times)))
    {
        let builder = Arena::builder(&env.device()?).reuse(ReusePolicy::ALLOW_OPPORTUNISTIC);
        let arena = builder.build()?;
        let resource = Resource::from(arena.clone());
        let (a, b) = (env.stream()?, env.stream()?);
        let _small = resource.alloc::<u8>(&b, 1000)?;
        let own = if is_parked { &b } else { &a };
        let large = resource.alloc::<u8>(own, 34 * MIB)?;
        let held = hold(&a)?;
        if is_parked {
            large.free_after([&a])?;
        } else {
            drop(large);
        }
        // None fits into what is free.
        let kept = (0..asked_in_vain).map(|_| resource.alloc::<u8>(&b, 8 * MIB));
        let kept = kept.collect::<cuda_mem::Result<Vec<_>>>()?;
        let before = arena.stats();
        drop(held);
        foreign::synchronize(&a)?;
        let got = resource.alloc::<u8>(&b, 34 * MIB)?;
        let after = arena.stats();
        ensure!(
            after.grown == before.grown,
            "parked: {is_parked}, after {asked_in_vain} requests in vain: {before}; {after}"
        );
        drop((kept, got));
    }
    Ok(())
}
