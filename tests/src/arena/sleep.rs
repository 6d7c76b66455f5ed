//! Arenas that give their memory back and keep its addresses, and memory that is held where it is.

use anyhow::{Result, ensure};
use cuda_mem::arena::SleepContents;
use cuda_mem::base::drop_counts;
use cuda_mem::{
    Arena, DeviceBuffer, ErrorKind, MemoryResource as _, ReleaseThreshold, Resource, Stream,
};

use super::upstream_blocks::Trims;
use crate::environment::Environment;
use crate::foreign::{begin, end_well};

const MIB: usize = 1 << 20;

/// The mode of a capture that lets its thread do everything else.
const RELAXED: u32 = 2;
const SIZES: [usize; 4] = [1000, 300_000, 5 * MIB, 33 * MIB];

/// Blocks of many sizes, each full of its number.
fn blocks(resource: &Resource, streams: &[Stream]) -> Result<Vec<DeviceBuffer<u8>>> {
    let mut all = Vec::new();
    for (stream, bytes) in streams
        .iter()
        .flat_map(|stream| SIZES.map(|bytes| (stream, bytes)))
    {
        let mut block = resource.alloc::<u8>(stream, bytes)?;
        block.fill(all.len() as u8)?;
        all.push(block);
    }
    Ok(all)
}

fn check(blocks: &[DeviceBuffer<u8>]) -> Result<()> {
    for (number, block) in blocks.iter().enumerate() {
        let found = block.to_vec()?;
        ensure!(
            found.iter().all(|byte| *byte == number as u8),
            "block {number}"
        );
    }
    Ok(())
}

#[apply(case_alone)]
fn memory_comes_back_where_it_was(env: &Environment) -> Result<()> {
    let (device, streams) = (env.device()?, [env.stream()?, env.stream()?]);
    let arena = Arena::builder(&device).build()?;
    let resource = Resource::from(arena.clone());
    for contents in [
        SleepContents::Keep,
        SleepContents::Discard,
        SleepContents::Keep,
    ] {
        let mut live = blocks(&resource, &streams)?;
        // Free memory needs no copy, and is not made anew.
        drop(resource.alloc::<u8>(&streams[0], 100 * MIB)?);
        let addresses: Vec<_> = live.iter().map(DeviceBuffer::as_raw).collect();
        let before = arena.stats();
        // SAFETY: nothing uses the memory before it is woken.
        let given = unsafe { arena.sleep(contents) }?;
        let asleep = arena.stats();
        ensure!(asleep.reserved == 0 && asleep.asleep > 0, "{asleep:?}");
        ensure!(given == before.reserved, "{given} of {before}");
        // Twice is once.
        // SAFETY: as above.
        ensure!(unsafe { arena.sleep(contents) }? == 0);
        arena.wake()?;
        let awake = arena.stats();
        ensure!(
            awake.asleep == 0 && awake.reserved == asleep.asleep,
            "{awake:?}"
        );
        ensure!(awake.live == before.live, "{before}; {awake}");
        arena.wake()?;
        ensure!(addresses == live.iter().map(DeviceBuffer::as_raw).collect::<Vec<_>>());
        if contents == SleepContents::Discard {
            for (number, block) in live.iter_mut().enumerate() {
                block.fill(number as u8)?;
            }
        }
        check(&live)?;
        // It is an arena as before.
        check(&blocks(&resource, &streams)?)?;
        drop(live);
        for stream in &streams {
            stream.synchronize()?;
        }
        arena.trim_to(0)?;
        ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    }
    Ok(())
}

#[apply(case)]
fn an_arena_that_sleeps_takes_and_gives(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let arena = Arena::builder(&env.device()?)
        .max_bytes(256 << 20)
        .build()?;
    let resource = Resource::from(arena.clone());
    let mut kept = resource.alloc::<u8>(&stream, 50 * MIB)?;
    kept.fill(3)?;
    let freed = resource.alloc::<u8>(&stream, 50 * MIB)?;
    // SAFETY: nothing uses the memory before it is woken.
    unsafe { arena.sleep(SleepContents::Keep) }?;
    drop(freed);
    // Part of it may be where memory sleeps.
    let other = resource.alloc::<u8>(&stream, 220 * MIB)?;
    let asleep = arena.stats();
    ensure!(asleep.reserved + asleep.asleep > 256 << 20, "{asleep:?}");
    // There is no room for all.
    let refused = arena.wake();
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::OutOfMemory));
    drop(other);
    stream.synchronize()?;
    arena.trim_to(0)?;
    arena.wake()?;
    ensure!(kept.to_vec()? == vec![3; kept.len()]);
    ensure!(arena.stats().asleep == 0, "{:?}", arena.stats());
    let mut third = resource.alloc::<u8>(&stream, 100 * MIB)?;
    third.fill(5)?;
    ensure!(third.to_vec()? == vec![5; third.len()]);
    drop(third);

    // Who drops an arena that sleeps leaves nothing.
    // SAFETY: as above.
    unsafe { arena.sleep(SleepContents::Keep) }?;
    drop(kept);
    ensure!(arena.stats().live == 0, "{}", arena.stats());
    drop((resource, arena));
    Ok(())
}

#[apply(case)]
fn what_cannot_sleep_says_so(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let over = Arena::over(env.pool()?);
    // SAFETY: nothing uses it.
    let refused = unsafe { over.sleep(SleepContents::Discard) };
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::NotSupported));
    over.wake()?;

    let arena = Arena::builder(&device).build()?;
    let block = arena.alloc::<u8>(&stream, 5 * MIB)?;
    let pin = arena.pin(block.as_raw(), 5 << 20)?;
    // SAFETY: as above.
    let refused = unsafe { arena.sleep(SleepContents::Discard) };
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::InUse));
    ensure!(
        arena.stats().asleep == 0 && arena.stats().reserved > 0,
        "{}",
        arena.stats()
    );
    drop(pin);
    // SAFETY: as above.
    unsafe { arena.sleep(SleepContents::Discard) }?;
    let refused = arena.pin(block.as_raw(), 5 << 20);
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    arena.wake()?;
    drop(arena.pin(block.as_raw(), 5 << 20)?);
    Ok(())
}

#[apply(case)]
fn pinned_memory_stays_where_it_is(env: &Environment) -> Result<()> {
    const PIECE: usize = 32 * MIB;
    let (device, stream) = (env.device()?, env.stream()?);
    for is_over in [false, true] {
        let arena = if is_over {
            Arena::over(env.pool()?)
        } else {
            Arena::builder(&device).slack(1.0).build()?
        };
        let resource = Resource::from(arena.clone());
        let mut row: Vec<_> = (0..9)
            .map(|_| resource.alloc::<u8>(&stream, PIECE).map(Some))
            .collect::<cuda_mem::Result<_>>()?;
        let pinned = row[4]
            .as_mut()
            .map(|block| block.fill(7).map(|()| block.as_raw()));
        let address = pinned.transpose()?.unwrap_or_default();
        let piece = arena.piece_at(address);
        ensure!(
            piece.as_ref().is_some_and(|piece| piece.contains(&address)),
            "{piece:?}"
        );
        let pin = arena.pin(address, PIECE as u64)?;
        let twice = arena.pin(address + 100, 1)?;
        row.iter_mut().step_by(2).for_each(|block| *block = None);
        stream.synchronize()?;
        drop(resource.alloc::<u8>(&stream, 5 * PIECE)?);
        stream.synchronize()?;
        arena.trim_to(0)?;
        ensure!(arena.piece_at(address) == piece, "{}", arena.stats());
        drop(pin);
        arena.trim_to(0)?;
        ensure!(arena.piece_at(address) == piece, "{}", arena.stats());
        // Who holds the address still finds what was there.
        // SAFETY: the memory is mapped, and no block of it is handed out now.
        let view = unsafe { DeviceBuffer::<u8>::borrow_raw(&stream, address, PIECE, ()) };
        ensure!(view.to_vec()? == vec![7; PIECE]);
        drop((view, twice));
        arena.trim_to(0)?;
        ensure!(arena.piece_at(address).is_none(), "{}", arena.stats());
        let live = arena.stats().live;
        ensure!(
            live >= 4 * PIECE as u64 && arena.stats().reserved <= live + (12 << 20),
            "{}",
            arena.stats()
        );

        for (address, bytes) in [(0, 1), (address, 1), (address, 0), (u64::MAX - 5, 100)] {
            let refused = arena.pin(address, bytes);
            ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
        }
    }
    Ok(())
}

#[apply(case)]
fn a_pin_keeps_its_arena(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let mut block = arena.alloc::<u8>(&stream, MIB)?;
    block.fill(9)?;
    let (address, pin) = (block.as_raw(), arena.pin(block.as_raw(), 1 << 20)?);
    drop((block, arena));
    stream.synchronize()?;
    // SAFETY: the memory is mapped, and no block of it is handed out.
    let view = unsafe { DeviceBuffer::<u8>::borrow_raw(&stream, address, MIB, ()) };
    ensure!(view.to_vec()? == vec![9; MIB]);
    drop((view, pin));
    Ok(())
}

/// The copies wait for their stream, and a wait releases what could not be released in a capture.
#[apply(case_alone)]
fn what_is_released_after_the_copies_may_use_the_arena(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, stream) = (env.device()?, env.stream()?);
    let arena = Arena::builder(&device).build()?;
    let resource = Resource::from(arena.clone());
    let live = blocks(&resource, std::slice::from_ref(&stream))?;
    // SAFETY: nothing uses the memory before it is woken.
    unsafe { arena.sleep(SleepContents::Keep) }?;
    let trims = Resource::new(Trims::new(device, &arena));
    let view = trims.alloc::<u8>(&stream, 1000)?;
    begin(&stream, RELAXED)?;
    drop(view);
    end_well(&stream)?;
    ensure!(drop_counts().waiting == 1, "{:?}", drop_counts());
    arena.wake()?;
    check(&live)?;
    stream.context().synchronize()?;
    ensure!(drop_counts().waiting == 0, "{:?}", drop_counts());
    Ok(())
}

/// Nobody else may use the card.
#[apply(case_of_full_card)]
fn a_sleeping_arena_leaves_the_card_to_others(env: &Environment) -> Result<()> {
    const GIB: usize = 1 << 30;
    let (device, stream) = (env.device()?, env.stream()?);
    let context = stream.context().clone();
    let arena = Arena::builder(&device).build()?;
    let resource = Resource::from(arena.clone());
    let free = usize::try_from(context.memory_info()?.free)?;
    let mut weights = resource.alloc::<u32>(&stream, 16 << 20)?;
    weights.fill(7)?;
    let mut cache = Vec::new();
    for _ in 0..free / GIB - 8 {
        cache.push(resource.alloc::<u8>(&stream, GIB)?);
    }
    let full = usize::try_from(context.memory_info()?.free)?;
    ensure!(full < 10 * GIB, "{full} of {free} bytes are free");
    drop(cache);
    // SAFETY: nothing uses the weights before the arena is awake.
    let given = unsafe { arena.sleep(SleepContents::Keep) }?;
    ensure!(given >= (free - 10 * GIB) as u64, "{given} of {free}");
    let pool = env.pool()?;
    let most = usize::try_from(context.memory_info()?.free)? - 2 * GIB;
    ensure!(most > free - 4 * GIB, "{most} of {free} bytes are free");
    drop(pool.alloc::<u8>(&stream, most)?);
    stream.synchronize()?;
    pool.trim_to(0)?;
    arena.wake()?;
    ensure!(weights.to_vec()? == vec![7; weights.len()]);
    Ok(())
}

#[apply(case_alone)]
fn waits_trim_beside_memory_that_sleeps(env: &Environment) -> Result<()> {
    let builder = Arena::builder(&env.device()?);
    let arena = builder
        .release_threshold(ReleaseThreshold::Bytes(0))
        .build()?;
    let resource = Resource::from(arena.clone());
    let stream = env.stream()?;
    let _kept = resource.alloc::<u8>(&stream, 200 * MIB)?;
    // SAFETY: nothing uses the block.
    unsafe { arena.sleep(SleepContents::Discard) }?;
    drop(resource.alloc::<u8>(&stream, 100 * MIB)?);
    stream.synchronize()?;
    let stats = arena.stats();
    ensure!(stats.reserved == 0, "{stats}");
    Ok(())
}

#[apply(case)]
fn an_arena_wakes_though_its_own_free_memory_is_in_the_way(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?)
        .max_bytes(300 << 20)
        .build()?;
    let resource = Resource::from(arena.clone());
    let stream = env.stream()?;
    let _kept = resource.alloc::<u8>(&stream, 200 * MIB)?;
    // SAFETY: nothing uses the block.
    unsafe { arena.sleep(SleepContents::Discard) }?;
    drop(resource.alloc::<u8>(&stream, 150 * MIB)?);
    stream.synchronize()?;
    arena.wake()?;
    ensure!(arena.stats().asleep == 0, "{}", arena.stats());
    Ok(())
}

/// What could not leave is free memory as before, and no more than that.
#[apply(case)]
fn pinned_memory_that_is_free_serves_requests(env: &Environment) -> Result<()> {
    const PIECE: usize = 32 * MIB;
    let stream = env.stream()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let first = resource.alloc::<u8>(&stream, PIECE)?;
    let second = resource.alloc::<u8>(&stream, PIECE)?;
    let address = first.as_raw();
    let pin = arena.pin(address, PIECE as u64)?;
    drop(first);
    stream.synchronize()?;
    arena.trim_to(0)?;
    let (stats, space) = (arena.stats(), arena.free_space());
    ensure!(space.bytes == stats.free(), "{space:?}, {stats}");
    let again = resource.alloc::<u8>(&stream, PIECE)?;
    ensure!(again.as_raw() == address, "{}", arena.stats());
    drop((pin, second, again));
    Ok(())
}

#[apply(case_of_sim_alone)]
fn waking_an_arena_that_is_awake_asks_nothing(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let block = arena.alloc::<u8>(&stream, MIB)?;
    let (woken, calls) = env.control()?.record(|| arena.wake());
    woken?;
    ensure!(calls.is_empty(), "{calls:?}");
    drop(block);
    Ok(())
}
