//! Captures: what they keep others from, and what becomes of buffers that end meanwhile.
//!
//! A capture forbids things to the whole process, so these bodies run alone.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::driver::{AllocationType, Location, Support};
use cuda_mem::interop::{CaptureMode, Instantiate};
use cuda_mem::memory::LimitAdaptor;
use cuda_mem::sys::CUresult;
use cuda_mem::{ErrorKind, MemoryPool, Resource};

use super::graph::MODES;
use crate::environment::{Environment, Skip};
use crate::foreign::{begin, end, end_well};

#[apply(case_alone)]
fn a_capture_that_fails_leaves_nothing(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    for mode in MODES {
        let given = pool.alloc::<u8>(&stream, 1000)?;
        let failed = stream.capture(mode, |capture| {
            let _given = capture.adopt(given);
            let _memory = capture.alloc::<u8>(1000)?;
            capture.alloc::<u64>(usize::MAX).map(drop)
        });
        let Err(error) = failed else {
            bail!("it did not fail");
        };
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let _ = stream.capture(mode, |capture| -> cuda_mem::Result<()> {
                let _memory = capture.alloc::<u8>(1000)?;
                panic!("as a program may");
            });
        }));
        ensure!(panicked.is_err());
        // The stream works, and what was given to the graph is free.
        stream.synchronize()?;
        ensure!(pool.stats()?.used.current == 0);
        stream.capture(mode, |_| Ok(()))?;
    }
    Ok(())
}

fn is_capturing<T>(result: cuda_mem::Result<T>) -> bool {
    matches!(
        result.map_err(|error| error.kind()),
        Err(ErrorKind::Capturing)
    )
}

#[apply(case_alone)]
fn a_captured_stream_is_refused_to_others(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, context) = (env.pool()?, env.context()?);
    let (stream, other) = (context.stream()?, context.stream()?);
    let (event, mut buffer) = (context.event()?, pool.alloc::<u8>(&stream, 1000)?);
    for mode in MODES {
        let ((), ()) = stream
            .capture(mode, |capture| {
                assert_eq!(*capture.stream(), stream);
                assert!(is_capturing(stream.synchronize()));
                assert!(is_capturing(stream.is_done()));
                assert!(is_capturing(stream.wait_for(&other)));
                assert!(is_capturing(other.wait_for(&stream)));
                assert!(is_capturing(event.record(&stream)));
                assert!(is_capturing(stream.wait_event(&event)));
                assert!(is_capturing(pool.alloc::<u8>(&stream, 10)));
                assert!(is_capturing(stream.alloc::<u8>(10)));
                assert!(is_capturing(buffer.fill(1)));
                assert!(is_capturing(buffer.to_vec()));
                assert!(is_capturing(buffer.on(&other).map(drop)));
                assert!(is_capturing(stream.capture(mode, |_| Ok(()))));
                Ok(())
            })
            .map(|(graph, ())| (drop(graph), ()))?;
    }
    // None of that did any harm.
    buffer.fill(2)?;
    ensure!(buffer.to_vec()? == [2; 1000]);
    Ok(())
}

#[apply(case_alone)]
fn a_buffer_is_freed_after_the_capture_of_its_stream(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    for mode in MODES {
        let buffers = [1, 2, 3].map(|_| pool.alloc_zeroed::<u8>(&stream, 1000));
        let [dropped, freed, lent] = buffers;
        let (dropped, freed, mut lent) = (dropped?, freed?, lent?);
        let other = env.stream()?;
        std::mem::forget(lent.on(&other)?);
        let (graph, freed) = stream.capture(mode, |_| {
            drop(dropped);
            // One with a pending use.
            drop(lent);
            let Err(failed) = freed.free() else {
                panic!("it was freed");
            };
            assert_eq!(failed.error.kind(), ErrorKind::Capturing);
            Ok(failed.object)
        })?;
        let freed = freed.context("it did not come back")?;
        ensure!(pool.stats()?.used.current == 1000, "two were freed");
        ensure!(freed.to_vec()? == [0; 1000]);
        freed.free()?;
        ensure!(pool.stats()?.used.current == 0);
        graph.instantiate(Instantiate::Plain)?.launch(&stream)?;
    }
    Ok(())
}

#[apply(case_alone)]
fn buffers_of_other_streams_do_not_spoil_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream, other) = (env.pool()?, env.stream()?, env.stream()?);
    for mode in MODES {
        let (here, there) = (
            pool.alloc::<u8>(&other, 1000)?,
            pool.alloc::<u8>(&other, 1000)?,
        );
        let ending = env.pool()?;
        drop(ending.alloc::<u8>(&other, 1000)?);
        let (graph, ()) = stream.capture(mode, |capture| {
            drop(here);
            drop(ending);
            std::thread::scope(|scope| {
                scope.spawn(|| drop(there));
            });
            capture.alloc::<u8>(10).map(drop)
        })?;
        drop(graph);
        ensure!(pool.stats()?.used.current == 0);
    }
    Ok(())
}

#[apply(case_alone)]
fn a_capture_of_somebody_else_loses_no_buffer(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let pool = env.pool()?;
    for mode in 0..3 {
        let stream = env.stream()?;
        let (first, second) = (
            pool.alloc::<u8>(&stream, 1000)?,
            pool.alloc::<u8>(&stream, 1000)?,
        );
        begin(&stream, mode)?;
        let Err(failed) = first.free() else {
            bail!("it was freed");
        };
        ensure!(failed.error.kind() == ErrorKind::Capturing, "{failed}");
        let first = failed.object.context("it did not come back")?;
        drop(first);
        drop(second);
        let ended = end(&stream)?;
        ensure!(
            ended == CUresult::CUDA_SUCCESS,
            "the capture is lost: {ended}"
        );
        ensure!(
            pool.stats()?.used.current == 2000,
            "nobody had a chance yet"
        );
        let mark = pool.alloc::<u8>(&stream, 1)?;
        ensure!(
            pool.stats()?.used.current == 1,
            "the next allocation gives back"
        );
        drop(mark);
    }
    Ok(())
}

/// Nothing can be known before the call, so the capture is lost; the memory is not.
#[apply(case_alone)]
fn a_forbidden_free_elsewhere_is_done_all_the_same(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream, other) = (env.pool()?, env.stream()?, env.stream()?);
    for (mode, outcome) in [
        (0, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        (1, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        (2, CUresult::CUDA_SUCCESS),
    ] {
        let (first, second) = (
            pool.alloc::<u8>(&other, 1000)?,
            pool.alloc::<u8>(&other, 1000)?,
        );
        begin(&stream, mode)?;
        drop(first);
        second.free()?;
        let ended = end(&stream)?;
        ensure!(ended == outcome, "{ended}");
        ensure!(pool.stats()?.used.current == 0);
    }
    Ok(())
}

/// The wait for the copy is forbidden at first, which loses the capture; the copy is not lost.
#[apply(case_alone)]
fn a_copy_beside_a_capture_of_somebody_else_is_finished(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream, other) = (env.pool()?, env.stream()?, env.stream()?);
    let mut buffer = pool.alloc_zeroed::<u8>(&stream, 1000)?;
    for mode in 0..3_u8 {
        begin(&other, u32::from(mode))?;
        let copied = buffer.copy_from(&[mode + 1; 1000]);
        let seen = buffer.to_vec();
        end(&other)?;
        copied.with_context(|| format!("mode {mode}"))?;
        ensure!(seen? == [mode + 1; 1000], "mode {mode}");
    }
    Ok(())
}

/// The driver would only record such a copy, and a wait for it would spoil all captures of the context.
#[apply(case_alone)]
fn a_copy_in_a_stream_that_other_code_captures_spoils_nothing(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream, theirs) = (env.pool()?, env.stream()?, env.stream()?);
    let mut buffer = pool.alloc_zeroed::<u8>(&theirs, 1000)?;
    for mode in 0..3 {
        begin(&theirs, mode)?;
        let captured = stream.capture(CaptureMode::Relaxed, |capture| {
            let mut seen = [9; 1000];
            let answers = [buffer.copy_from(&[1; 1000]), buffer.copy_to(&mut seen)];
            drop(capture.alloc::<u8>(1000)?);
            Ok((answers.map(is_capturing), seen))
        });
        end_well(&theirs).with_context(|| format!("mode {mode}"))?;
        let (_, (refused, seen)) = captured.with_context(|| format!("mode {mode}: lost"))?;
        ensure!(refused == [true; 2] && seen == [9; 1000], "mode {mode}");
    }
    ensure!(buffer.to_vec()? == [0; 1000]);
    Ok(())
}

#[apply(case_alone)]
fn a_stream_that_ends_in_a_capture_gives_back_what_waits(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let pool = env.pool()?;
    for mode in 0..3 {
        let stream = env.stream()?;
        let buffer = pool.alloc::<u8>(&stream, 1000)?;
        begin(&stream, mode)?;
        drop(buffer);
        drop(stream);
        ensure!(pool.stats()?.used.current == 0);
    }
    if let Ok(control) = env.control() {
        ensure!(control.live().graphs == 0, "{:?}", control.live());
    }
    Ok(())
}

#[apply(case_alone)]
fn two_streams_are_captured_at_a_time(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    let (_, (_, refused)) = stream.capture(CaptureMode::Relaxed, |_| {
        other.capture(CaptureMode::Relaxed, |_| {
            Ok(stream.capture(CaptureMode::Relaxed, |_| Ok(())).map(drop))
        })
    })?;
    let refused = refused.err().context("it was captured twice")?;
    ensure!(refused.kind() == ErrorKind::Capturing && refused.code().is_none());
    Ok(())
}

/// In a capture nothing waits, because the thread that would give back may wait for the capture.
#[apply(case_alone)]
fn a_limit_is_waited_for_again_after_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    let limited = LimitAdaptor::new(env.pool()?, 1000);
    let resource = Resource::new(limited.with_wait_timeout(Duration::from_millis(20)));
    let _all = resource.alloc::<u8>(&stream, 1000)?;
    stream.capture(CaptureMode::Relaxed, |_| Ok(()))?;
    let error = resource.alloc::<u8>(&stream, 1).map(drop);
    let text = error.expect_err("the limit").to_string();
    ensure!(text.contains("after waiting for"), "{text}");
    Ok(())
}

#[apply(case_alone)]
fn a_capture_of_somebody_else_takes_no_managed_memory_of_anywhere(env: &Environment) -> Result<()> {
    env.need(13, 0)?;
    let stream = env.stream()?;
    let builder = MemoryPool::builder_at(env.driver, Location::Anywhere, AllocationType::Managed);
    if let Support::No(reason) = builder.support()? {
        return Err(Skip(format!("no pools of managed memory: {reason}")).into());
    }
    let pool = builder.build()?;
    begin(&stream, 2)?;
    ensure!(is_capturing(pool.alloc::<u8>(&stream, 100)));
    end_well(&stream)?;
    drop(pool.alloc_zeroed::<u8>(&stream, 100)?);
    Ok(())
}
