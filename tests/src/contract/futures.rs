//! Futures of streams, events and copies: what they wait for, who wakes them, and what is left when they are dropped.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::interop::CaptureMode;
use cuda_mem::kernel::Launch;

use crate::environment::Environment;
use crate::executor::{Wakes, block_on, poll, run_all};
use crate::foreign;
use crate::forks;
use crate::hold::hold;
use crate::modules::load;

#[apply(case)]
fn a_completion_wakes_its_task_once_the_stream_is_there(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let stream = env.stream()?;
    let held = hold(&stream)?;
    let mut future = pin!(stream.completion()?);
    let count = Arc::<Wakes>::default();
    ensure!(poll(future.as_mut(), &count).is_pending());
    std::thread::sleep(Duration::from_millis(20));
    ensure!(poll(future.as_mut(), &count).is_pending() && count.count() == 0);
    drop(held);
    count.wait(1)?;
    ensure!(matches!(poll(future, &count), Poll::Ready(Ok(()))));
    // What is done already needs no wake-up.
    stream.synchronize()?;
    ensure!(poll(pin!(stream.completion()?), &count).is_ready());
    Ok(())
}

#[apply(case)]
fn later_work_does_not_delay_a_completion(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let stream = env.stream()?;
    let before = stream.completion()?;
    let held = hold(&stream)?;
    let mut after = pin!(stream.completion()?);
    block_on(before)?;
    let count = Arc::<Wakes>::default();
    ensure!(poll(after.as_mut(), &count).is_pending());
    drop(held);
    block_on(after)?;
    Ok(())
}

#[apply(case)]
fn a_completion_outlives_its_event(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (context, stream) = (env.context()?, env.stream()?);
    let event = context.event()?;
    block_on(event.completion())?; // never recorded
    let held = hold(&stream)?;
    event.record(&stream)?;
    let mut future = pin!(event.completion());
    let count = Arc::<Wakes>::default();
    ensure!(poll(future.as_mut(), &count).is_pending());
    drop((event, stream));
    drop(held);
    count.wait(1)?;
    ensure!(matches!(poll(future, &count), Poll::Ready(Ok(()))));
    Ok(())
}

/// Alone, because freeing pinned memory waits for the device (R131).
#[apply(case_alone)]
fn many_tasks_wait_on_few_threads(env: &Environment) -> Result<()> {
    const LEN: usize = 1000;
    let (context, pool) = (env.context()?, env.pool()?);
    let streams = (0..8).map(|_| context.stream());
    let streams = streams.collect::<cuda_mem::Result<Vec<_>>>()?;
    let task = |number: u32| {
        let stream = &streams[number as usize % streams.len()];
        let (context, pool) = (&context, &pool);
        async move {
            let mut buffer = pool.alloc::<u32>(stream, LEN)?;
            for value in [number, number + 1] {
                buffer.fill(value)?;
                let mut staging = context.pinned::<u32>(LEN)?.lend(stream)?;
                staging.copy_from(&buffer)?;
                let staging = staging.returned().await?;
                ensure!(*staging == [value; LEN], "task {number}");
            }
            stream.completion()?.await?;
            Ok(number)
        }
    };
    let outputs = run_all(3, (0..200).map(task));
    for (expected, output) in (0..).zip(outputs) {
        ensure!(output? == expected);
    }
    Ok(())
}

/// Alone, because freeing pinned memory waits for the device (R131).
#[apply(case_alone)]
fn memory_returns_once_the_work_before_the_future_is_done(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let stream = env.stream()?;
    let mut staging = env.context()?.pinned::<u32>(100)?.lend(&stream)?;
    staging.copy_from(&env.pool()?.alloc_from(&stream, &[7_u32; 100])?)?;
    let mut returned = pin!(staging.returned());
    let held = hold(&stream)?; // later work
    let count = Arc::<Wakes>::default();
    let mut polled = poll(returned.as_mut(), &count);
    if polled.is_pending() {
        count.wait(1).context("it waits for later work")?;
        polled = poll(returned.as_mut(), &count);
    }
    let Poll::Ready(memory) = polled else {
        bail!("it waits for later work");
    };
    let memory = memory?;
    let is_there = *memory == [7; 100];
    drop(held); // the free waits for it
    ensure!(is_there);
    Ok(())
}

/// Alone, because freeing pinned memory waits for the device (R131).
#[apply(case_alone)]
fn futures_that_are_dropped_leave_nothing(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let stream = env.stream()?;
    let held = hold(&stream)?;
    let count = Arc::<Wakes>::default();
    for _ in 0..100 {
        let mut future = pin!(stream.completion()?);
        ensure!(poll(future.as_mut(), &count).is_pending());
    }
    ensure!(Arc::strong_count(&count) == 1, "a waker is left");
    let staging = env.context()?.pinned::<u32>(100)?.lend(&stream)?;
    let mut returned = pin!(staging.returned());
    ensure!(poll(returned.as_mut(), &count).is_pending());
    drop(held);
    count.wait(1)?;
    ensure!(count.count() == 1, "a dropped future was woken");
    Ok(())
}

#[apply(case_alone)]
fn completions_and_captures_leave_each_other_alone(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream, other) = (env.pool()?, env.stream()?, env.stream()?);
    let result = pool.alloc_zeroed::<u32>(&stream, 100)?;
    let held = hold(&other)?;
    let mut future = pin!(other.completion()?);
    let count = Arc::<Wakes>::default();
    ensure!(poll(future.as_mut(), &count).is_pending());
    // The thread that waits asks the driver all the time.
    let (graph, result) = stream.capture(CaptureMode::Global, |capture| {
        let refused = stream.completion().err().map(|error| error.kind());
        assert_eq!(refused, Some(ErrorKind::Capturing));
        let result = capture.adopt(result);
        let mut memory = capture.alloc::<u32>(100)?;
        memory.as_mut_slice().fill(7)?;
        std::thread::sleep(Duration::from_millis(20));
        let polled = poll(future.as_mut(), &count);
        assert!(polled.is_pending(), "{polled:?}");
        memory.copy_out(&result)?;
        Ok(result)
    })?;
    drop(held);
    block_on(future)?;
    let mut exec = graph.instantiate(cuda_mem::interop::Instantiate::Plain)?;
    exec.launch(&stream)?;
    block_on(stream.completion()?)?;
    ensure!(exec.buffer(&result)?.to_vec()? == [7; 100]);
    Ok(())
}

#[apply(case_alone)]
fn in_a_fork_no_future_waits(env: &Environment) -> Result<()> {
    let _alone = env.exclusive();
    let stream = env.stream()?;
    let held = hold(&stream)?;
    let mut future = Box::pin(stream.completion()?);
    let count = Arc::<Wakes>::default();
    ensure!(poll(future.as_mut(), &count).is_pending());
    // SAFETY: the child polls a future, which must fail there, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        let polled = poll(future.as_mut(), &count);
        let refused =
            matches!(&polled, Poll::Ready(Err(error)) if error.kind() == ErrorKind::Forked);
        forks::end_child(refused);
    }
    forks::ends_well(child)?;
    drop(held);
    block_on(future)?;
    Ok(())
}

/// Alone, because loading code waits for the device.
#[apply(case_alone)]
fn a_future_behind_another_of_its_stream_is_woken(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (stream, busy) = (env.stream()?, env.stream()?);
    let spin = load(&env.context()?)?.function("spin")?;
    // The thread that waits has then been idle for longer than it may look at the first of each stream alone.
    let held = hold(&busy)?;
    let mut before = pin!(busy.completion()?);
    ensure!(poll(before.as_mut(), &Arc::default()).is_pending());
    drop(held);
    block_on(before)?;
    std::thread::sleep(Duration::from_millis(20));
    let held = hold(&stream)?;
    let mut early = pin!(stream.completion()?);
    // SAFETY: it touches no memory.
    unsafe { spin.launch(&stream, Launch::over(1, 1), (600_000_000_u64,)) }?;
    let mut late = pin!(stream.completion()?);
    let count = Arc::<Wakes>::default();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Others succeed all the time.
        let others = scope.spawn(|| -> cuda_mem::Result<()> {
            while !stop.load(Ordering::Relaxed) {
                block_on(busy.completion()?)?;
            }
            Ok(())
        });
        let pending = poll(late.as_mut(), &Arc::default()).is_pending()
            && poll(early.as_mut(), &count).is_pending();
        drop(held);
        let woken = count.wait(1);
        let late_is_done = stream.is_done();
        stop.store(true, Ordering::Relaxed);
        others
            .join()
            .map_err(|_| anyhow::anyhow!("it panicked"))??;
        woken?;
        ensure!(
            pending && !late_is_done?,
            "it was woken with the one behind it"
        );
        Ok(())
    })?;
    block_on(early)?;
    block_on(late)?;
    Ok(())
}

/// Alone, because the panic hook prints.
#[apply(case_alone)]
fn a_waker_that_panics_stops_no_other_future(env: &Environment) -> Result<()> {
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("on purpose, by what a panic carries");
            }
        }
    }
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::panic_any(Payload);
        }
    }
    let stream = env.stream()?;
    for _ in 0..3 {
        let held = hold(&stream)?;
        let mut future = pin!(stream.completion()?);
        let waker = Waker::from(Arc::new(Panics));
        ensure!(
            future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        let mut other = pin!(stream.completion()?);
        let count = Arc::<Wakes>::default();
        ensure!(poll(other.as_mut(), &count).is_pending());
        drop(held);
        count.wait(1)?;
    }
    Ok(())
}

#[apply(case_of_sim_alone)]
fn a_dropped_completion_keeps_nothing(env: &Environment) -> Result<()> {
    let (context, stream, control) = (env.context()?, env.stream()?, env.control()?);
    let held = hold(&stream)?;
    let before = control.live().events;
    let event = context.event()?;
    event.record(&stream)?;
    let mut future = Box::pin(event.completion());
    ensure!(poll(future.as_mut(), &Arc::default()).is_pending());
    drop((future, event));
    // The thread that waits for futures may be looking at it, and lets it go right afterwards.
    let begun = Instant::now();
    while control.live().events > before {
        let is_late = begun.elapsed() > Duration::from_secs(10);
        ensure!(!is_late, "the event is kept");
        std::thread::yield_now();
    }
    drop(held);
    Ok(())
}

/// Alone, because other tests' calls would spoil the capture.
#[apply(case_alone)]
fn completions_leave_captures_of_others_alone(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    let held = hold(&other)?;
    let mut future = pin!(other.completion()?);
    ensure!(poll(future.as_mut(), &Arc::default()).is_pending());
    for mode in [0, 1, 2] {
        foreign::begin(&stream, mode)?;
        let refused = stream.completion().err().map(|error| error.kind());
        std::thread::sleep(Duration::from_millis(10));
        let polled = poll(future.as_mut(), &Arc::default());
        foreign::end_well(&stream)?;
        ensure!(refused == Some(ErrorKind::Capturing), "{refused:?}");
        ensure!(polled.is_pending(), "{polled:?}");
    }
    drop(held);
    block_on(future)?;
    Ok(())
}

/// The question invalidates the capture, and its answer is no reason to go on asking.
#[apply(case_alone)]
fn the_future_of_an_event_in_a_capture_is_an_error(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, event) = (env.stream()?, env.context()?.event()?);
    foreign::begin(&stream, 2)?;
    event.record(&stream)?;
    let polled = poll(pin!(event.completion()), &Arc::default());
    foreign::end(&stream)?;
    let Poll::Ready(Err(error)) = polled else {
        anyhow::bail!("it is no error");
    };
    ensure!(error.kind() == ErrorKind::Capturing, "{error}");
    ensure!(error.code().is_some(), "the driver's answer: {error}");
    Ok(())
}

/// Whether this process has the thread that waits for futures.
#[cfg(target_os = "linux")]
fn a_thread_waits() -> Result<bool> {
    for task in std::fs::read_dir("/proc/self/task")? {
        // It may have ended since.
        let name = std::fs::read_to_string(task?.path().join("comm"));
        if name.is_ok_and(|name| name.trim_end() == "cuda-mem-waits") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Alone, because it looks at the threads of the process.
#[cfg(target_os = "linux")]
#[apply(case_alone)]
fn the_thread_that_waits_ends_when_nothing_is_pending(env: &Environment) -> Result<()> {
    use crate::executor::LONG;
    let stream = env.stream()?;
    let held = hold(&stream)?;
    let count = Arc::<Wakes>::default();
    let mut future = pin!(stream.completion()?);
    ensure!(poll(future.as_mut(), &count).is_pending());
    let wait_until = |is_there: bool| -> Result<()> {
        let begun = Instant::now();
        while a_thread_waits()? != is_there {
            ensure!(begun.elapsed() < LONG, "the thread is there: {}", !is_there);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    wait_until(true)?;
    drop(held);
    block_on(future)?;
    wait_until(false)?;
    // The next one gets another.
    let held = hold(&stream)?;
    let mut future = pin!(stream.completion()?);
    ensure!(poll(future.as_mut(), &count).is_pending());
    drop(held);
    Ok(block_on(future)?)
}
