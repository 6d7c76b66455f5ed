//! Arenas whose driver calls fail.

use std::alloc::Layout;

use anyhow::{Result, ensure};
use cuda_mem::arena::{ArenaStats, SleepContents};
use cuda_mem::sys::CUresult;
use cuda_mem::{Arena, DeviceBuffer, MemoryResource as _, Resource};
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

/// Each driver call of an arena that falls asleep or wakes fails once: nothing is lost, and the next try succeeds.
#[apply(case)]
fn a_sleep_that_fails_loses_nothing(env: &Environment) -> Result<()> {
    let control = env.control()?;
    let stream = env.stream()?;
    let unknown = CUresult::CUDA_ERROR_UNKNOWN;
    let calls = [
        "cuMemcpyDtoHAsync_v2",
        "cuMemUnmap",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemcpyHtoDAsync_v2",
    ];
    for (function, nth) in calls.into_iter().flat_map(|call| [(call, 1), (call, 2)]) {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let mut blocks = Vec::new();
        for number in 0..3_u8 {
            let mut block = resource.alloc::<u8>(&stream, 9 << 20)?;
            block.fill(number)?;
            blocks.push(block);
        }
        let before = arena.stats();
        control.fail_without_effect(function, nth, unknown);
        // SAFETY: nothing uses the blocks before the arena is awake.
        let mut slept = unsafe { arena.sleep(SleepContents::Keep) }.map(drop);
        let mut woken = arena.wake();
        ensure!(
            slept.is_err() != woken.is_err(),
            "{function} {nth}: {slept:?}, {woken:?}"
        );
        control.clear_faults();
        if slept.is_err() {
            // SAFETY: as above.
            slept = unsafe { arena.sleep(SleepContents::Keep) }.map(drop);
            ensure!(
                arena.stats().reserved == 0,
                "{function} {nth}: {}",
                arena.stats()
            );
        }
        if slept.is_ok() {
            woken = arena.wake();
        }
        ensure!(
            slept.is_ok() && woken.is_ok(),
            "{function} {nth}: {slept:?}, {woken:?}"
        );
        let after = arena.stats();
        let sums = |stats: &ArenaStats| (stats.reserved, stats.asleep, stats.live);
        ensure!(
            sums(&after) == sums(&before),
            "{function} {nth}: {before:?}; {after:?}"
        );
        for (number, block) in (0_u8..).zip(&blocks) {
            ensure!(
                block.to_vec()? == vec![number; block.len()],
                "{function} {nth}: block {number}"
            );
        }
        drop(blocks);
        stream.synchronize()?;
        arena.trim_to(0)?;
        let (live, stats) = (control.live(), arena.stats());
        let left = (live.mappings, live.physical_allocations, stats.reserved);
        ensure!(left == (0, 0, 0), "{function} {nth}: {live:?}, {stats}");
    }
    Ok(())
}

/// Each driver call of an arena's move fails once: the request is served in another way or fails, other blocks keep
/// their bytes, and no memory is lost.
#[apply(case)]
fn a_move_within_an_arena_that_fails_loses_nothing(env: &Environment) -> Result<()> {
    const PIECE: usize = 8 << 20;
    let control = env.control()?;
    let stream = env.stream()?;
    let unknown = CUresult::CUDA_ERROR_UNKNOWN;
    for function in ["cuMemMap", "cuMemSetAccess"] {
        for nth in [1, 2] {
            let arena = Arena::builder(&env.device()?).slack(1.0).build()?;
            let resource = Resource::from(arena.clone());
            let blocks = (0..9_u8).map(|number| {
                let mut block = resource.alloc::<u8>(&stream, PIECE)?;
                block.fill(number)?;
                Ok(Some(block))
            });
            let mut blocks = blocks.collect::<Result<Vec<_>>>()?;
            blocks.iter_mut().step_by(2).for_each(|block| *block = None);
            stream.synchronize()?;
            let before = arena.stats();
            control.fail_without_effect(function, nth, unknown);
            let large = resource.alloc::<u8>(&stream, 5 * PIECE);
            control.clear_faults();
            let after = arena.stats();
            ensure!(after.moved > before.moved, "{function}: {after:?}");
            for (number, block) in (0_u8..).zip(&blocks) {
                let bytes = block.as_ref().map(DeviceBuffer::to_vec).transpose()?;
                let is_same = |bytes: Vec<u8>| bytes == vec![number; PIECE];
                ensure!(bytes.is_none_or(is_same), "{function}: block {number}");
            }
            drop((large, blocks));
            stream.synchronize()?;
            // Memory that moved is mapped twice, and goes back to the device only when both mappings have ended.
            control.fail_without_effect("cuMemUnmap", nth, unknown);
            ensure!(arena.trim_to(0).is_err(), "{function} {nth}");
            control.clear_faults();
            arena.trim_to(0)?;
            let (live, stats) = (control.live(), arena.stats());
            let left = (live.mappings, live.physical_allocations, stats.reserved);
            ensure!(left == (0, 0, 0), "{function} {nth}: {live:?}, {stats}");
        }
    }
    Ok(())
}
