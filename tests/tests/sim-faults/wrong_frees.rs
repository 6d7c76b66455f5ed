//! Frees of blocks that are none: an arena notices, tells, and loses nothing.

use std::alloc::Layout;

use anyhow::{Result, ensure};
use cuda_mem::arena::SleepContents;
use cuda_mem::ledger::Recorder;
use cuda_mem::{Arena, MemoryResource as _};
use cuda_mem_tests::arena::medium;
use cuda_mem_tests::environment::Environment;

/// On another stream that is noticed when the block comes to its cache, at the latest when the arena ends.
#[apply(case)]
fn an_arena_keeps_memory_of_a_block_that_was_never_freed(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).build()?;
    let (own, other) = (env.stream()?, env.stream()?);
    let layout = Layout::from_size_align(1000, 256)?;
    let address = arena.allocate(layout, &own)?;
    // SAFETY: no block starts there, which the arena is to notice; nothing uses the memory.
    let _ = unsafe { arena.deallocate(address + 256, layout, &other) };
    let free = || -> Result<u64> { Ok(env.context()?.memory_info()?.free) };
    let (failures, before) = (cuda_mem::base::drop_counts().failures, free()?);
    drop(arena);
    // The block that is none, and the arena whose block is still there.
    let failures = cuda_mem::base::drop_counts().failures - failures;
    ensure!(failures == 2, "{failures} failures");
    ensure!(free()? <= before, "memory of a live block went back");
    Ok(())
}

/// As above; falling asleep looks there, too.
#[apply(case)]
fn a_sleep_tells_of_a_block_that_is_none(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).build()?;
    let (own, other) = (env.stream()?, env.stream()?);
    let layout = Layout::from_size_align(1000, 256)?;
    let address = arena.allocate(layout, &own)?;
    let failures = cuda_mem::base::drop_counts().failures;
    // SAFETY: no block starts there, which the arena is to notice; nothing uses the memory.
    let _ = unsafe { arena.deallocate(address + 256, layout, &other) };
    // SAFETY: nothing uses the memory before it is woken.
    unsafe { arena.sleep(SleepContents::Discard) }?;
    let failures = cuda_mem::base::drop_counts().failures - failures;
    ensure!(failures == 1, "{failures} failures");
    arena.wake()?;
    // SAFETY: allocated as this layout, and no work uses it.
    unsafe { arena.deallocate(address, layout, &own) }?;
    Ok(())
}

/// As above; a request that finds too little looks there, too.
#[apply(case)]
fn a_request_tells_of_a_block_that_is_none(env: &Environment) -> Result<()> {
    for is_recorded in [false, true] {
        let mut builder = Arena::builder(&env.device()?);
        if is_recorded {
            builder = builder.record(&Recorder::ring(1000));
        }
        let arena = builder.build()?;
        let (own, other) = (env.stream()?, env.stream()?);
        let layout = Layout::from_size_align(1000, 256)?;
        let address = arena.allocate(layout, &own)?;
        let failures = cuda_mem::base::drop_counts().failures;
        // SAFETY: no block starts there, which the arena is to notice; nothing uses the memory.
        let _ = unsafe { arena.deallocate(address + 256, layout, &other) };
        drop(arena.alloc::<u8>(&own, 40 << 20)?);
        let failures = cuda_mem::base::drop_counts().failures - failures;
        ensure!(failures == 1, "{is_recorded}: {failures} failures");
        // SAFETY: allocated as this layout, and no work uses it.
        unsafe { arena.deallocate(address, layout, &own) }?;
    }
    Ok(())
}

/// Frees on another stream are looked at 64 at a time. None of these is one.
#[apply(case)]
fn wrong_frees_on_another_stream_are_told_without_a_request(env: &Environment) -> Result<()> {
    const MANY: u64 = 64;
    let arena = Arena::builder(&env.device()?).build()?;
    let (own, other) = (env.stream()?, env.stream()?);
    let layout = Layout::from_size_align(1000, 256)?;
    let blocks = (0..MANY).map(|_| arena.allocate(layout, &own));
    let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    let failures = cuda_mem::base::drop_counts().failures;
    for address in &blocks {
        // SAFETY: no block starts there, which the arena is to notice; nothing uses the memory.
        unsafe { arena.deallocate(*address + 256, layout, &other) }?;
    }
    let failures = cuda_mem::base::drop_counts().failures - failures;
    ensure!(failures == MANY, "{failures} failures");
    for address in blocks {
        // SAFETY: allocated as this layout, and no work uses it.
        unsafe { arena.deallocate(address, layout, &own) }?;
    }
    Ok(())
}

/// The second free is seen when the block goes back among its neighbours, which later frees cause.
#[apply(case)]
fn a_block_that_was_freed_twice_is_told(env: &Environment) -> Result<()> {
    const COUNT: usize = 40;
    let stream = env.stream()?;
    for (bytes, elsewhere) in [(1000, false), (1000, true), (8 << 20, false)] {
        let arena = Arena::builder(&env.device()?).build()?;
        let layout = Layout::from_size_align(bytes, 256)?;
        let blocks = (0..COUNT).map(|_| arena.allocate(layout, &stream));
        let mut blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
        blocks.insert(COUNT / 2, blocks[COUNT / 2]);
        let failures = cuda_mem::base::drop_counts().failures;
        let free_all = || {
            blocks.iter().try_for_each(|address| {
                // SAFETY: nothing uses the memory; the arena is to notice the second free.
                unsafe { arena.deallocate(*address, layout, &stream) }
            })
        };
        if elsewhere {
            let freed = std::thread::scope(|scope| scope.spawn(free_all).join());
            freed.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        } else {
            free_all()?;
        }
        let failures = cuda_mem::base::drop_counts().failures - failures;
        ensure!(failures == 1, "{bytes}, {elsewhere}: {failures} failures");
    }
    Ok(())
}

/// Of pages that the stream keeps. The block is too large a part of them to be cached, so the second free is seen at once.
#[apply(case)]
fn a_medium_block_that_was_freed_twice_is_told(env: &Environment) -> Result<()> {
    let (arena, [own, _other]) = medium::arena_that_keeps(env)?;
    let layout = Layout::from_size_align(2 << 20, 256)?;
    let blocks = (0..5).map(|_| arena.allocate(layout, &own));
    let mut blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    blocks.insert(0, blocks[0]);
    let failures = cuda_mem::base::drop_counts().failures;
    for address in blocks {
        // SAFETY: nothing uses the memory; the arena is to notice the second free.
        unsafe { arena.deallocate(address, layout, &own) }?;
    }
    let failures = cuda_mem::base::drop_counts().failures - failures;
    ensure!(failures == 1, "{failures} failures");
    Ok(())
}
