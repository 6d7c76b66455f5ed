//! Arenas whose driver calls fail.

use std::alloc::Layout;
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::arena::{ArenaStats, SleepContents};
use cuda_mem::ledger::{Recorder, TraceAction};
use cuda_mem::sys::CUresult;
use cuda_mem::{Arena, DeviceBuffer, MemoryResource as _, ReleaseThreshold, Resource};
use cuda_mem_tests::arena::medium;
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::hold::hold;

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
    let arena = Arena::builder(&env.device()?).build()?;
    let (own, other) = (env.stream()?, env.stream()?);
    let layout = Layout::from_size_align(1000, 256)?;
    let address = arena.allocate(layout, &own)?;
    let failures = cuda_mem::base::drop_counts().failures;
    // SAFETY: no block starts there, which the arena is to notice; nothing uses the memory.
    let _ = unsafe { arena.deallocate(address + 256, layout, &other) };
    drop(arena.alloc::<u8>(&own, 40 << 20)?);
    let failures = cuda_mem::base::drop_counts().failures - failures;
    ensure!(failures == 1, "{failures} failures");
    // SAFETY: allocated as this layout, and no work uses it.
    unsafe { arena.deallocate(address, layout, &own) }?;
    Ok(())
}

/// Bytes that the recorder knows as the arena's memory.
fn recorded_bytes(recorder: &Recorder) -> u64 {
    let recording = recorder.recording();
    let entries = recording.entries().iter();
    entries.fold(0, |held, entry| match entry.action {
        TraceAction::Map => held + entry.bytes,
        TraceAction::Unmap => held - entry.bytes,
        _ => held,
    })
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
        let recorder = Recorder::ring(1000);
        let builder = Arena::builder(&env.device()?).record(&recorder);
        let arena = builder.build()?;
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
        let (recorded, held) = (recorded_bytes(&recorder), arena.stats().reserved);
        ensure!(recorded == held, "{function} {nth}: {recorded}, not {held}");
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
        let recorded = recorded_bytes(&recorder);
        ensure!(
            recorded == after.reserved,
            "{function} {nth}: {recorded}, not {after}"
        );
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

/// An arena that wakes can neither write the contents nor give the memory back: it still has them, and the next try writes
/// them, also if it is told to sleep meanwhile.
#[apply(case)]
fn a_wake_that_fails_twice_loses_nothing(env: &Environment) -> Result<()> {
    let control = env.control()?;
    let stream = env.stream()?;
    let unknown = CUresult::CUDA_ERROR_UNKNOWN;
    for sleeps_between in [false, true] {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let mut block = resource.alloc::<u8>(&stream, 9 << 20)?;
        block.fill(7)?;
        stream.synchronize()?;
        let before = arena.stats();
        // SAFETY: nothing uses the block before the arena is awake.
        unsafe { arena.sleep(SleepContents::Keep) }?;
        control.fail_without_effect("cuMemcpyHtoDAsync_v2", 1, unknown);
        control.fail_without_effect("cuMemUnmap", 1, unknown);
        let woken = arena.wake();
        ensure!(woken.is_err(), "woken");
        control.clear_faults();
        let (held, physical) = (arena.stats(), control.live().physical_allocations);
        ensure!(
            held.asleep == before.reserved && (held.reserved > 0) == (physical > 0),
            "{held}, {physical} allocations"
        );
        if sleeps_between {
            // SAFETY: as above.
            unsafe { arena.sleep(SleepContents::Keep) }?;
        }
        arena.wake()?;
        let after = arena.stats();
        ensure!(
            (after.reserved, after.asleep) == (before.reserved, 0),
            "{before}; {after}"
        );
        ensure!(block.to_vec()? == vec![7; block.len()], "other contents");
        drop(block);
        stream.synchronize()?;
        arena.trim_to(0)?;
        let live = control.live();
        let left = (live.mappings, live.physical_allocations);
        ensure!(left == (0, 0), "{live:?}");
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

/// A piece of a growth fails after others: these go back, and their addresses come next.
#[apply(case)]
fn a_growth_that_fails_halfway_takes_nothing(env: &Environment) -> Result<()> {
    const LARGE: usize = 150 << 20;
    let control = env.control()?;
    let stream = env.stream()?;
    let mut expected = None;
    for function in ["", "cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
        // An arena with a limit grows in small pieces.
        let builder = Arena::builder(&env.device()?).max_bytes(1 << 30);
        let arena = builder.build()?;
        let resource = Resource::from(arena.clone());
        let small = resource.alloc::<u8>(&stream, 1000)?;
        let before = (arena.stats().reserved, control.live().mappings);
        if !function.is_empty() {
            control.fail_without_effect(function, 3, CUresult::CUDA_ERROR_UNKNOWN);
            let failed = resource.alloc::<u8>(&stream, LARGE);
            ensure!(failed.is_err(), "{function}: {}", arena.stats());
            control.clear_faults();
            let after = (arena.stats().reserved, control.live().mappings);
            ensure!(after == before, "{function}: {before:?}, then {after:?}");
        }
        let mut large = resource.alloc::<u8>(&stream, LARGE)?;
        large.fill(1)?;
        let reserved = arena.stats().reserved;
        ensure!(
            *expected.get_or_insert(reserved) == reserved,
            "{function}: {}",
            arena.stats()
        );
        drop((small, large));
        stream.synchronize()?;
        arena.trim_to(0)?;
        let live = control.live();
        let left = (live.mappings, live.physical_allocations);
        ensure!(left == (0, 0), "{function}: {live:?}");
    }
    Ok(())
}

#[apply(case)]
fn memory_that_an_arena_cannot_release_at_its_end_is_told(env: &Environment) -> Result<()> {
    let control = env.control()?;
    let stream = env.stream()?;
    let arena = Arena::builder(&env.device()?).build()?;
    drop(arena.alloc::<u8>(&stream, 8 << 20)?);
    stream.synchronize()?;
    let failures = cuda_mem::base::drop_counts().failures;
    control.fail_without_effect("cuMemUnmap", 1, CUresult::CUDA_ERROR_UNKNOWN);
    drop(arena);
    control.clear_faults();
    let failures = cuda_mem::base::drop_counts().failures - failures;
    ensure!(failures == 1, "{failures} failures");
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

/// The thread of an arena has it while the program lets its last handle go. It does not wait for its own end, and all memory goes back.
#[apply(case)]
fn an_arenas_own_thread_may_be_the_last_to_let_it_go(env: &Environment) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let mapped = || -> Result<_> { Ok(env.control()?.live().mappings) };
    let before = mapped()?;
    let (stream, other) = (env.stream()?, env.stream()?);
    // Of two pieces one is kept, until the arena ends.
    let builder =
        Arena::builder(&env.device()?).release_threshold(ReleaseThreshold::Bytes(8 << 20));
    let arena = builder.background_thread(true).build()?;
    let layout = Layout::from_size_align(1000, 256)?;
    let address = arena.allocate(layout, &stream)?;
    drop(arena.alloc::<u8>(&stream, 16 << 20)?);
    // SAFETY: no block starts there, which the arena is to notice; nothing uses the memory.
    unsafe { arena.deallocate(address + 256, layout, &other) }?;
    // SAFETY: allocated as this layout, and no work uses it.
    unsafe { arena.deallocate(address, layout, &stream) }?;
    // The thread finds the block that is none when it gives memory back, and stays in the hook.
    let (tell, told) = channel();
    let (go, may_go) = channel::<()>();
    let ends = Mutex::new((tell, may_go));
    cuda_mem::base::on_drop_failure(move |_| {
        let ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = ends.0.send(());
        let _ = ends.1.recv();
    });
    stream.synchronize()?;
    let told = told.recv_timeout(PATIENCE);
    drop(arena);
    drop(go);
    let begin = Instant::now();
    while mapped()? > before && begin.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    cuda_mem::base::on_drop_failure(|_| {});
    told.context("the thread found nothing")?;
    ensure!(mapped()? == before, "its memory did not go back");
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

/// The stream may still use its memory, so the other one waits.
#[apply(case)]
fn a_query_that_fails_shows_nothing(env: &Environment) -> Result<()> {
    const BYTES: usize = 39 << 20;
    let control = env.control()?;
    for function in ["cuStreamQuery", "cuEventQuery"] {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let (busy, other) = (env.stream()?, env.stream()?);
        let block = resource.alloc::<u8>(&busy, BYTES)?;
        let _small = resource.alloc::<u8>(&other, 1000)?;
        let held = hold(&busy)?;
        drop(block);
        control.fail(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
        let got = resource.alloc::<u8>(&other, BYTES);
        control.clear_faults();
        let stats = arena.stats();
        drop(held);
        drop(got?);
        ensure!(stats.waits == 1, "{function}: {stats}");
    }
    Ok(())
}
