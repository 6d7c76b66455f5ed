//! Arenas whose memory cannot be released when they end.

use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use cuda_mem::base::{DropCounts, drop_counts};
use cuda_mem::mapped::PhysicalMemory;
use cuda_mem::sys::CUresult;
use cuda_mem::{Arena, ErrorKind, MemoryResource as _, Stream};
use cuda_mem_tests::arena::moody::{Mood, moody};
use cuda_mem_tests::environment::Environment;
use cuda_sim::control::Control;

/// What the driver answers to each question about a stream from now on.
fn answer_all(control: &Control, code: CUresult) {
    const QUESTIONS: [&str; 3] = ["cuStreamQuery", "cuEventRecord", "cuEventQuery"];
    for question in QUESTIONS {
        (1..=200).for_each(|nth| control.fail(question, nth, code));
    }
}

/// Looks at what waits, several times, and ends the faults. Returns the counts after that.
fn poll(control: &Control, other: &Stream) -> Result<DropCounts> {
    let polled = (0..16).try_for_each(|_| other.synchronize());
    control.clear_faults();
    polled?;
    Ok(drop_counts())
}

/// Its work is never known to be done. That is reported, and the arena does not wait for an answer that cannot come.
#[apply(case)]
fn an_arena_of_a_lost_context_is_given_up(env: &Environment) -> Result<()> {
    for stream_ends_first in [false, true] {
        let (stream, other, control) = (env.stream()?, env.stream()?, env.control()?);
        let arena = Arena::builder(&env.device()?).build()?;
        drop(arena.alloc::<u8>(&stream, 1000)?);
        let before = drop_counts();
        answer_all(control, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        let kept = (!stream_ends_first).then_some(stream);
        drop(arena);
        poll(control, &other)?;
        drop(kept);
        let now = drop_counts();
        ensure!(
            now.waiting == before.waiting,
            "stream ends first: {stream_ends_first}, {now:?}"
        );
        ensure!(
            now.failures == before.failures + 2,
            "{now:?}, before {before:?}"
        );
    }
    Ok(())
}

/// Another answer may be followed by a better one.
#[apply(case)]
fn an_arena_whose_stream_gives_no_answer_ends_later(env: &Environment) -> Result<()> {
    let (stream, other, control) = (env.stream()?, env.stream()?, env.control()?);
    let arena = Arena::builder(&env.device()?).build()?;
    drop(arena.alloc::<u8>(&stream, 1000)?);
    let before = drop_counts();
    answer_all(control, CUresult::CUDA_ERROR_UNKNOWN);
    drop(arena);
    let now = poll(control, &other)?;
    ensure!(
        (now.failures, now.waiting) == (before.failures, before.waiting + 1),
        "{now:?}, before {before:?}"
    );
    stream.context().synchronize()?;
    ensure!(
        drop_counts().waiting == before.waiting,
        "{:?}",
        drop_counts()
    );
    Ok(())
}

/// Its memory may be in use for good, so the resource that it came from stays, which might free it. Alone, because that keeps the
/// context.
#[apply(case_alone)]
fn what_is_below_an_arena_of_a_lost_context_stays(env: &Environment) -> Result<()> {
    let (stream, other, control) = (env.stream()?, env.stream()?, env.control()?);
    let (below, arena) = moody(env)?;
    drop(arena.alloc::<u8>(&stream, 1000)?);
    let before = drop_counts();
    answer_all(control, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    drop(arena);
    let now = poll(control, &other)?;
    ensure!(
        (now.failures, now.waiting) == (before.failures + 2, before.waiting),
        "{now:?}, before {before:?}"
    );
    ensure!(below.counts() == (1, 0), "{:?}", below.counts());
    ensure!(Arc::strong_count(&below) == 2, "only the test has it");
    Ok(())
}

/// As above, where the stream was busy when it ended, so that only its last event can tell.
#[apply(case)]
fn an_arena_whose_last_event_is_lost_is_given_up(env: &Environment) -> Result<()> {
    let (stream, other, control) = (env.stream()?, env.stream()?, env.control()?);
    let arena = Arena::builder(&env.device()?).build()?;
    drop(arena.alloc::<u8>(&stream, 1000)?);
    let before = drop_counts();
    for nth in 1..=200 {
        control.fail("cuStreamQuery", nth, CUresult::CUDA_ERROR_NOT_READY);
        control.fail("cuEventQuery", nth, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    drop((stream, arena));
    let now = poll(control, &other)?;
    ensure!(
        (now.failures, now.waiting) == (before.failures + 2, before.waiting),
        "{now:?}, before {before:?}"
    );
    Ok(())
}

/// As above, of a stream that only another thread can ask.
#[apply(case)]
fn an_arena_of_another_threads_stream_is_given_up(env: &Environment) -> Result<()> {
    let (context, other, control) = (env.context()?, env.stream()?, env.control()?);
    let own = context.per_thread_stream();
    let arena = Arena::builder(&env.device()?).build()?;
    drop(arena.alloc::<u8>(&own, 1000)?);
    let before = drop_counts();
    for nth in 1..=200 {
        control.fail("cuStreamQuery", nth, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    let elsewhere = || {
        drop(arena);
        (0..16).try_for_each(|_| other.synchronize())
    };
    let polled = std::thread::scope(|scope| scope.spawn(elsewhere).join());
    control.clear_faults();
    polled.map_err(|_| anyhow!("the thread panicked"))??;
    let now = drop_counts();
    ensure!(now.waiting == before.waiting, "{now:?}");
    Ok(())
}

/// The arena could not use a block, and its upstream did not take it back. That is tried again after the arena's end.
#[apply(case)]
fn a_block_that_was_refused_goes_back_after_the_arenas_end(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    for is_captured in [true, false] {
        let (below, arena) = moody(env)?;
        below.set(Mood::IsCaptured);
        control.fail_without_effect("cuStreamWaitEvent", 1, CUresult::CUDA_ERROR_UNKNOWN);
        ensure!(arena.alloc::<u8>(&stream, 8 << 20).is_err());
        ensure!(below.counts() == (1, 0), "{:?}", below.counts());
        let before = drop_counts();
        if !is_captured {
            below.set(Mood::Refuses);
        }
        drop(arena);
        let now = drop_counts();
        let (failures, waiting) = (now.failures - before.failures, now.waiting - before.waiting);
        let wanted = if is_captured { (0, 1) } else { (1, 0) };
        ensure!((failures, waiting) == wanted, "{is_captured}: {now:?}");
        below.set(Mood::Good);
        for _ in 0..16 {
            stream.synchronize()?;
        }
        let wanted = if is_captured { (1, 1) } else { (1, 0) };
        ensure!(
            below.counts() == wanted,
            "{is_captured}: {:?}",
            below.counts()
        );
    }
    Ok(())
}

/// As above, while the arena lives: a trim tells that it was refused, unless a capture was the reason, and a request of others
/// that finds no memory gets the block.
#[apply(case)]
fn a_block_that_was_refused_goes_back_where_memory_is_out(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    let (below, arena) = moody(env)?;
    below.set(Mood::IsCaptured);
    control.fail_without_effect("cuStreamWaitEvent", 1, CUresult::CUDA_ERROR_UNKNOWN);
    ensure!(arena.alloc::<u8>(&stream, 8 << 20).is_err());
    arena.trim_to(0)?;
    below.set(Mood::Refuses);
    let refused = arena.trim_to(0);
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::NotPermitted));
    ensure!(below.counts() == (1, 0), "{:?}", below.counts());
    below.set(Mood::Good);
    control.fail("cuMemCreate", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let memory = PhysicalMemory::builder(&env.device()?).build(2 << 20);
    control.clear_faults();
    ensure!(below.counts() == (1, 1), "{:?}", below.counts());
    drop(memory?);
    drop(arena);
    Ok(())
}
