//! Captures that begin at the same moment as other work.
//!
//! A capture forbids things to the whole process, so these bodies run alone.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context as _, Error, Result, anyhow, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::interop::{CaptureMode, Instantiate};

use crate::environment::Environment;

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

/// A capture that begins between the look for captures and the wait is lost unless it waits.
#[apply(case_alone)]
fn waits_of_another_thread_for_the_context_spoil_no_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (context, stream) = (env.context()?, env.stream()?);
    let is_over = AtomicBool::new(false);
    let count = AtomicUsize::new(0);
    let wait = || -> Result<()> {
        while !is_over.load(Ordering::Relaxed) {
            match context.synchronize() {
                Ok(()) => _ = count.fetch_add(1, Ordering::Relaxed),
                Err(error) => ensure!(error.kind() == ErrorKind::Capturing, "{error}"),
            }
        }
        Ok(())
    };
    let (captured, waits) = std::thread::scope(|scope| {
        let waits = scope.spawn(wait);
        let enough =
            |meeting: &usize| *meeting < 10 * MEETINGS || count.load(Ordering::Relaxed) == 0;
        let captured = (0..).take_while(enough).try_for_each(|meeting| {
            wait_a_little(meeting * 11 % 300);
            let capture = stream.capture(CaptureMode::Relaxed, |_| {
                wait_a_little(300);
                Ok(())
            });
            capture.map(drop).with_context(|| meeting.to_string())
        });
        is_over.store(true, Ordering::Relaxed);
        (captured, waits.join())
    });
    captured?;
    waits.map_err(|_| anyhow!("the waiting thread panicked"))?
}

fn wait_a_little(turns: usize) {
    for _ in 0..turns {
        std::hint::spin_loop();
    }
}
