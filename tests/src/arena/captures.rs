//! Arenas beside captures, which forbid things to the whole process, so these bodies run alone.

use std::alloc::Layout;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::interop::CaptureMode;
use cuda_mem::{Arena, ErrorKind, MemoryResource, Resource, ReusePolicy, Stream};

use super::ends::overlap;
use crate::environment::Environment;
use crate::foreign::{begin, end_well};
use crate::hold::hold;

const MIB: usize = 1 << 20;

/// More than an arena of several streams takes from the device rather than from other streams.
const LARGE: usize = 40 * MIB;

const MODES: [CaptureMode; 3] = [
    CaptureMode::Global,
    CaptureMode::ThreadLocal,
    CaptureMode::Relaxed,
];

/// The mode of a capture in which other streams may do anything.
const RELAXED: u32 = 2;

#[apply(case_alone)]
fn misses_of_other_streams_do_not_spoil_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    for mode in MODES {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let (a, b, captured) = (env.stream()?, env.stream()?, env.stream()?);
        drop(resource.alloc::<u8>(&b, 1000)?);
        let first = resource.alloc::<u8>(&a, LARGE)?;
        let held = hold(&a)?;
        drop(first);
        let before = arena.stats();
        let (_graph, after) = captured
            .capture(mode, |capture| {
                // Looks at the other stream and waits for it, and then the arena grows.
                drop(resource.alloc::<u8>(&b, LARGE)?);
                drop(resource.alloc::<u8>(&a, LARGE + MIB)?);
                let after = arena.stats();
                capture.alloc::<u8>(10)?;
                Ok(after)
            })
            .with_context(|| format!("{mode:?}"))?;
        ensure!(
            after.waits > before.waits && after.grown > before.grown,
            "{mode:?}: {before}, then {after}"
        );
        drop(held);
    }
    Ok(())
}

/// A free that looks how far its stream is, because another stream was short of memory.
#[apply(case_alone)]
fn frees_do_not_spoil_what_others_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    for mode in 0..3 {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let (a, b, captured) = (env.stream()?, env.stream()?, env.stream()?);
        let first = resource.alloc::<u8>(&a, 32 * MIB)?;
        let held = hold(&a)?;
        drop(first);
        // Waits for the first stream.
        let second = resource.alloc::<u8>(&b, 32 * MIB)?;
        let third = resource.alloc::<u8>(&b, 32 * MIB)?;
        // Frees are followed by a query before the next allocation.
        drop(second);
        let before = arena.stats();
        begin(&captured, mode)?;
        drop(third);
        let fourth = resource.alloc::<u8>(&b, 32 * MIB)?;
        let after = arena.stats();
        end_well(&captured).with_context(|| format!("mode {mode}"))?;
        ensure!(
            after.driver_calls > before.driver_calls,
            "mode {mode}: nobody was asked: {before}, then {after}"
        );
        drop((held, fourth));
    }
    Ok(())
}

#[apply(case_alone)]
fn a_trim_does_not_spoil_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    for mode in MODES {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let (stream, captured) = (env.stream()?, env.stream()?);
        drop(resource.alloc::<u8>(&stream, 8 * MIB)?);
        stream.synchronize()?;
        captured
            .capture(mode, |capture| {
                arena.trim_to(0)?;
                capture.alloc::<u8>(10).map(drop)
            })
            .with_context(|| format!("{mode:?}"))?;
        ensure!(
            arena.stats().reserved == 0,
            "{mode:?}: nothing went back: {}",
            arena.stats()
        );
    }
    Ok(())
}

#[apply(case_alone)]
fn a_stream_that_ends_does_not_spoil_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    for mode in MODES {
        let arena = Arena::builder(&env.device()?).build()?;
        let (stream, captured) = (env.stream()?, env.stream()?);
        drop(arena.alloc::<u8>(&stream, 8 * MIB)?);
        let held = hold(&stream)?;
        // Its end is marked.
        captured
            .capture(mode, |capture| {
                drop(stream);
                capture.alloc::<u8>(10).map(drop)
            })
            .with_context(|| format!("{mode:?}"))?;
        drop(held);
        let next = env.stream()?;
        drop(arena.alloc::<u8>(&next, 8 * MIB)?);
        ensure!(
            arena.stats().grown == 1,
            "{mode:?}: no stream got the memory: {}",
            arena.stats()
        );
    }
    Ok(())
}

#[apply(case_alone)]
fn an_arena_that_ends_does_not_spoil_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    for mode in MODES {
        let arena = Arena::builder(&env.device()?).build()?;
        let (stream, captured) = (env.stream()?, env.stream()?);
        drop(arena.alloc::<u8>(&stream, 8 * MIB)?);
        captured
            .capture(mode, |capture| {
                drop(arena);
                capture.alloc::<u8>(10).map(drop)
            })
            .with_context(|| format!("{mode:?}"))?;
        let context = env.context()?;
        for _ in 0..100 {
            // What was refused in the capture is tried again, but not each time.
            context.synchronize()?;
            if drop_counts().waiting == 0 {
                break;
            }
        }
        ensure!(drop_counts().waiting == 0, "{mode:?}: {:?}", drop_counts());
        if let Ok(control) = env.control() {
            let left = control.live().mappings;
            ensure!(left == 0, "{mode:?}: {left} mappings are left");
        }
    }
    Ok(())
}

/// What stands in front would be served; only what needs the slow way is seen.
#[apply(case_alone)]
fn a_stream_that_somebody_captures_is_refused(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let layout = Layout::from_size_align(1000, 256)?;
    for mode in 0..3 {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let (known, new) = (env.stream()?, env.stream()?);
        let address = arena.allocate(layout, &known)?;
        for (stream, bytes) in [(&new, 1000), (&new, 8 * MIB), (&known, 32 * MIB)] {
            begin(stream, mode)?;
            let refused = resource.alloc::<u8>(stream, bytes);
            end_well(stream).with_context(|| format!("mode {mode}, {bytes} bytes"))?;
            let Err(error) = refused else {
                bail!("mode {mode}: {bytes} bytes on a captured stream");
            };
            ensure!(error.kind() == ErrorKind::Capturing, "mode {mode}: {error}");
        }
        begin(&new, mode)?;
        // SAFETY: allocated as this layout, and not used.
        let freed = unsafe { arena.deallocate(address, layout, &new) };
        end_well(&new).with_context(|| format!("mode {mode}, a free"))?;
        let Err(error) = freed else {
            bail!("mode {mode}: freed on a captured stream");
        };
        ensure!(
            error.kind() == ErrorKind::Capturing && error.had_no_effect(),
            "mode {mode}: {error}"
        );
        ensure!(arena.stats().live_blocks == 1, "{}", arena.stats());
        // SAFETY: as above; it was refused.
        unsafe { arena.deallocate(address, layout, &known) }?;
        ensure!(arena.stats().live_blocks == 0, "{}", arena.stats());
    }
    Ok(())
}

#[apply(case_alone)]
fn what_a_captured_stream_freed_goes_to_others_afterwards(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let (captured, other) = (env.stream()?, env.stream()?);
    let first = resource.alloc::<u8>(&captured, LARGE)?;
    let place = (first.as_raw(), LARGE);
    drop(first);
    begin(&captured, RELAXED)?;
    // To ask the captured stream would be the end of the capture.
    let meanwhile = resource.alloc::<u8>(&other, LARGE);
    end_well(&captured)?;
    let meanwhile = meanwhile?;
    ensure!(
        !overlap(place, (meanwhile.as_raw(), LARGE)),
        "nobody could know that it is done"
    );
    let after = resource.alloc::<u8>(&other, LARGE)?;
    ensure!(
        after.as_raw() == place.0,
        "another place: {}",
        arena.stats()
    );
    Ok(())
}

/// The capture ends with the stream, and before that somebody looks at the stream.
#[apply(case_alone)]
fn memory_of_a_stream_that_ends_in_its_capture_goes_to_others(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    // Its end would show as much.
    let _context = env.context()?;
    for reuse in [ReusePolicy::default(), ReusePolicy::ALLOW_OPPORTUNISTIC] {
        for mode in 0..3 {
            let arena = Arena::builder(&env.device()?).reuse(reuse).build()?;
            let captured = env.stream()?;
            drop(arena.alloc::<u8>(&captured, LARGE)?);
            begin(&captured, mode)?;
            drop(captured);
            drop(arena.alloc::<u8>(&env.stream()?, LARGE)?);
            ensure!(
                arena.stats().grown == 1,
                "{reuse:?}, mode {mode}: no stream got the memory: {}",
                arena.stats()
            );
        }
    }
    Ok(())
}

/// The stream belongs to the program, so its capture goes on, and the arena cannot query it.
#[apply(case_alone)]
fn memory_of_a_borrowed_stream_in_a_capture_is_free_after_the_context(
    env: &Environment,
) -> Result<()> {
    env.need(11, 4)?;
    let arena = Arena::builder(&env.device()?).build()?;
    let theirs = env.stream()?;
    // SAFETY: `theirs` lives longer.
    let borrowed = unsafe { Stream::borrow_raw(theirs.context(), theirs.as_raw(), ()) };
    drop(arena.alloc::<u8>(&borrowed, LARGE)?);
    begin(&theirs, RELAXED)?;
    drop(borrowed);
    end_well(&theirs)?;
    drop(theirs);
    ensure!(!env.device()?.has_active_context()?);
    drop(arena.alloc::<u8>(&env.stream()?, LARGE)?);
    ensure!(
        arena.stats().grown == 1,
        "no stream got the memory: {}",
        arena.stats()
    );
    Ok(())
}

/// In the capture nobody can ask, but the program has seen before that the stream is done.
#[apply(case_alone)]
fn what_was_seen_done_before_a_capture_goes_to_others_in_it(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    type Look = fn(&Stream) -> cuda_mem::Result<()>;
    let ask: Look = |stream| {
        while !stream.is_done()? {
            std::thread::yield_now();
        }
        Ok(())
    };
    for look in [Stream::synchronize as Look, ask] {
        let arena = Arena::builder(&env.device()?).build()?;
        let (captured, other) = (env.stream()?, env.stream()?);
        let first = arena.alloc::<u8>(&captured, LARGE)?;
        let place = (first.as_raw(), LARGE);
        drop(first);
        look(&captured)?;
        begin(&captured, RELAXED)?;
        let meanwhile = arena.alloc::<u8>(&other, LARGE);
        end_well(&captured)?;
        ensure!(
            overlap(place, (meanwhile?.as_raw(), LARGE)),
            "another place: {}",
            arena.stats()
        );
    }
    Ok(())
}

/// Their own stream frees them once its capture is over. A new stream for each would also get a cache for each.
#[apply(case_alone)]
fn buffers_that_end_in_a_capture_bring_no_streams(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let arena = Arena::builder(&env.device()?).build()?;
    let stream = env.stream()?;
    let buffers = (0..100).map(|_| arena.alloc::<u8>(&stream, 1000));
    let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
    let before = arena.stats();
    let (_graph, waiting) = stream.capture(CaptureMode::Relaxed, |_| {
        drop(buffers);
        Ok(drop_counts().waiting)
    })?;
    ensure!(waiting == 100, "{waiting} buffers wait for the capture");
    stream.synchronize()?;
    let after = arena.stats();
    ensure!(after.live == 0 && drop_counts().waiting == 0, "{after}");
    ensure!(
        after.streams == before.streams,
        "{before}, and then {after}"
    );
    let calls = after.driver_calls - before.driver_calls;
    ensure!(calls <= 10, "{calls} driver calls to free 100 buffers");
    Ok(())
}
