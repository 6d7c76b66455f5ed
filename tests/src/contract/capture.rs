//! Captures: what they keep others from, and what becomes of buffers that end meanwhile.
//!
//! A capture forbids things to the whole process, so these bodies run alone.

use std::panic::AssertUnwindSafe;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};
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

/// How often a copy and a capture begin at the same moment.
const MEETINGS: usize = 1000;

#[apply(case_alone)]
fn a_capture_takes_no_work_of_another_thread(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    let buffer = env.pool()?.alloc_from(&stream, &[1_u8; 4096])?;
    let barrier = Barrier::new(2);
    // Both sides come to every barrier, whatever fails.
    let (copies, launched) = std::thread::scope(|scope| {
        let copies = scope.spawn(|| {
            let mut refused = 0;
            let mut slice = stream.context().pinned::<u8>(4096).map_err(Error::from);
            for meeting in 0..MEETINGS {
                barrier.wait();
                wait_a_little(meeting * 7 % 300);
                let loan = slice.and_then(|slice| {
                    let mut loan = slice.lend(&stream).map_err(|failed| failed.error)?;
                    refused += usize::from(loan.copy_from(&buffer).is_err());
                    Ok(loan)
                });
                barrier.wait(); // the capture is over
                slice = loan.and_then(|loan| {
                    let mut slice = loan.take_back().map_err(|failed| failed.error)?;
                    slice.fill(5);
                    Ok(slice)
                });
                barrier.wait(); // the graph is launched
                barrier.wait();
                slice = slice.and_then(|slice| {
                    let is_ours = slice.iter().all(|byte| *byte == 5);
                    ensure!(is_ours, "a graph wrote to what was given back, {meeting}");
                    Ok(slice)
                });
            }
            slice.map(|_| refused)
        });
        let mut launched = Ok(0);
        for meeting in 0..MEETINGS {
            barrier.wait();
            wait_a_little(meeting * 11 % 300);
            let captured = stream.capture(CaptureMode::Relaxed, |_| {
                wait_a_little(500);
                Ok(())
            });
            barrier.wait();
            barrier.wait();
            let launch = captured.and_then(|(graph, ())| {
                let mut exec = graph.instantiate(Instantiate::default())?;
                exec.launch(&stream)?;
                stream.synchronize()
            });
            launched = launched.and_then(|before| launch.map(|()| before + 1));
            barrier.wait();
        }
        (copies.join(), launched)
    });
    let refused = copies.map_err(|_| anyhow!("the copying thread panicked"))??;
    ensure!(launched? == MEETINGS);
    ensure!(refused < MEETINGS, "no copy came before its capture");
    Ok(())
}

/// A question that the driver is asked while the stream is captured makes the capture worthless.
#[apply(case_alone)]
fn questions_of_another_thread_spoil_no_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    let is_over = AtomicBool::new(false);
    let answers = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let is_asked = |answers: &AtomicUsize, ask: &dyn Fn() -> cuda_mem::Result<bool>| {
        while !is_over.load(Ordering::Relaxed) {
            match ask() {
                Ok(_) => _ = answers.fetch_add(1, Ordering::Relaxed),
                Err(error) => ensure!(error.kind() == ErrorKind::Capturing, "{error}"),
            }
        }
        Ok(())
    };
    let is_answered = || {
        let mut all = answers.iter();
        all.all(|answers| answers.load(Ordering::Relaxed) > 0)
    };
    let (captured, asked) = std::thread::scope(|scope| {
        let asks = scope.spawn(|| is_asked(&answers[0], &|| stream.is_done()));
        let waits = scope.spawn(|| is_asked(&answers[1], &|| stream.synchronize().map(|()| true)));
        let enough = |meeting: &usize| *meeting < MEETINGS || !is_answered();
        let captured = (0..).take_while(enough).try_for_each(|meeting| {
            wait_a_little(meeting * 11 % 300);
            let capture = stream.capture(CaptureMode::Global, |_| {
                wait_a_little(300);
                Ok(())
            });
            capture.map(drop)
        });
        is_over.store(true, Ordering::Relaxed);
        (captured, [asks.join(), waits.join()])
    });
    captured?;
    for asked in asked {
        asked.map_err(|_| anyhow!("a thread that asks panicked"))??;
    }
    Ok(())
}

fn wait_a_little(turns: usize) {
    for _ in 0..turns {
        std::hint::spin_loop();
    }
}
