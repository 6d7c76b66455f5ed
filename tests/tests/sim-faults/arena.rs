//! Arenas whose driver calls fail.

use std::alloc::Layout;
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::arena::{ArenaStats, SleepContents};
use cuda_mem::base::drop_counts;
use cuda_mem::ledger::{Recorder, TraceAction};
use cuda_mem::sys::CUresult;
use cuda_mem::{Arena, DeviceBuffer, MemoryResource as _, ReleaseThreshold, Resource};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::hold::hold;

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

/// An arena that wakes fails to write the contents or to make the memory accessible, and then to unmap it. It keeps the
/// contents, and the next wake writes them, also after another call of `sleep`.
#[apply(case)]
fn a_wake_that_fails_twice_loses_nothing(env: &Environment) -> Result<()> {
    let control = env.control()?;
    let stream = env.stream()?;
    let unknown = CUresult::CUDA_ERROR_UNKNOWN;
    // Other tests leave memory on purpose.
    let others = control.live();
    let physical = || control.live().physical_allocations - others.physical_allocations;
    let functions = ["cuMemcpyHtoDAsync_v2", "cuMemSetAccess"];
    let both = |function| [(function, false), (function, true)];
    for (function, sleeps_between) in functions.into_iter().flat_map(both) {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let mut block = resource.alloc::<u8>(&stream, 9 << 20)?;
        block.fill(7)?;
        stream.synchronize()?;
        let before = arena.stats();
        // SAFETY: nothing uses the block before the arena is awake.
        unsafe { arena.sleep(SleepContents::Keep) }?;
        control.fail_without_effect(function, 1, unknown);
        control.fail_without_effect("cuMemUnmap", 1, unknown);
        let woken = arena.wake();
        ensure!(woken.is_err(), "woken");
        control.clear_faults();
        let held = arena.stats();
        ensure!(
            (held.asleep, held.reserved, physical()) == (before.reserved, 0, 1),
            "{held}, {} allocations",
            physical()
        );
        let snapshot = arena.snapshot();
        ensure!(snapshot.reserved_bytes() == 0, "{snapshot:?}");
        if sleeps_between {
            // SAFETY: as above.
            let slept = unsafe { arena.sleep(SleepContents::Keep) }?;
            ensure!((slept, physical()) == (0, 0), "{slept}, {}", physical());
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
        ensure!(
            live.mappings == others.mappings && physical() == 0,
            "{live:?}"
        );
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
    let failures = drop_counts().failures;
    control.fail_without_effect("cuMemUnmap", 1, CUresult::CUDA_ERROR_UNKNOWN);
    drop(arena);
    control.clear_faults();
    let failures = drop_counts().failures - failures;
    ensure!(failures == 1, "{failures} failures");
    Ok(())
}

/// The wait itself went well.
#[apply(case)]
fn memory_that_an_arena_cannot_release_after_a_wait_is_told(env: &Environment) -> Result<()> {
    let control = env.control()?;
    let stream = env.stream()?;
    let builder = Arena::builder(&env.device()?);
    let arena = builder
        .release_threshold(ReleaseThreshold::Bytes(0))
        .build()?;
    drop(arena.alloc::<u8>(&stream, 8 << 20)?);
    let failures = drop_counts().failures;
    control.fail_without_effect("cuMemUnmap", 1, CUresult::CUDA_ERROR_UNKNOWN);
    let waited = stream.synchronize();
    control.clear_faults();
    waited?;
    let failures = drop_counts().failures - failures;
    ensure!(failures == 1, "{failures} failures");
    // The next wait tries again.
    stream.synchronize()?;
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    Ok(())
}

/// Failures under the locks of an arena are reported after the locks are released, so the hook may call the arena.
#[apply(case)]
fn the_hook_may_call_the_arena(env: &Environment) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let control = env.control()?;
    // The context ends with its last handle.
    let _context = env.context()?;
    for function in ["cuMemRelease", "cuEventDestroy_v2"] {
        let (stream, other) = (env.stream()?, env.stream()?);
        let arena = Arena::builder(&env.device()?).build()?;
        let held = hold(&stream)?;
        drop(arena.alloc::<u8>(&stream, 40 << 20)?);
        // Records an event in the busy stream.
        drop(arena.alloc::<u8>(&other, 36 << 20)?);
        ensure!(arena.stats().waits == 1, "no event: {}", arena.stats());
        drop(stream);
        drop(held);
        other.synchronize()?;
        let (tell, told) = channel();
        let (called, failures) = (arena.clone(), drop_counts().failures);
        let tell = Mutex::new(tell);
        cuda_mem::base::on_drop_failure(move |failure| {
            let trimmed = called.trim_to(0).map_err(|error| error.to_string());
            let tell = tell.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = tell.send((failure.object, trimmed));
        });
        control.fail(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
        let trimming = arena.clone();
        let trim = std::thread::spawn(move || trimming.trim_to(0));
        let told = told.recv_timeout(PATIENCE);
        let (object, trimmed) = told.with_context(|| format!("{function}: no answer"))?;
        cuda_mem::base::on_drop_failure(|_| {});
        control.clear_faults();
        trimmed.map_err(|error| anyhow!("{object}: {error}"))?;
        let trim = trim.join().map_err(|_| anyhow!("the thread panicked"))?;
        ensure!(
            trim.is_ok() && arena.stats().reserved == 0,
            "{}",
            arena.stats()
        );
        let failures = drop_counts().failures - failures;
        ensure!(failures == 1, "{function}: {failures} failures");
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
