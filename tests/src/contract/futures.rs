//! Futures: what they wait for, who wakes them, and what is left when they are dropped.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::interop::CaptureMode;
use cuda_mem::memory::{LimitAdaptor, StatisticsAdaptor};
use cuda_mem::{ErrorKind, Resource};

use crate::environment::Environment;
use crate::executor::{block_on, run_all};
use crate::forks::ends_well;
use crate::hold::hold;

/// Longer than any wake-up takes.
const LONG: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn wait(&self, wakes: usize) -> Result<()> {
        let begun = Instant::now();
        while self.0.load(Ordering::SeqCst) < wakes {
            ensure!(begun.elapsed() < LONG, "it was not woken");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

fn poll<F: Future>(future: Pin<&mut F>, count: &Arc<Count>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(count))))
}

#[apply(case)]
fn a_completion_wakes_its_task_once_the_stream_is_there(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let stream = env.stream()?;
    let held = hold(&stream)?;
    let mut future = pin!(stream.completion()?);
    let count = Arc::<Count>::default();
    ensure!(poll(future.as_mut(), &count).is_pending());
    std::thread::sleep(Duration::from_millis(20));
    ensure!(poll(future.as_mut(), &count).is_pending() && count.0.load(Ordering::SeqCst) == 0);
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
    let count = Arc::<Count>::default();
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
    let count = Arc::<Count>::default();
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
fn futures_that_are_dropped_leave_nothing(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let stream = env.stream()?;
    let held = hold(&stream)?;
    let count = Arc::<Count>::default();
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
    ensure!(
        count.0.load(Ordering::SeqCst) == 1,
        "a dropped future was woken"
    );
    Ok(())
}

#[apply(case_alone)]
fn completions_and_captures_leave_each_other_alone(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream, other) = (env.pool()?, env.stream()?, env.stream()?);
    let result = pool.alloc_zeroed::<u32>(&stream, 100)?;
    let held = hold(&other)?;
    let mut future = pin!(other.completion()?);
    let count = Arc::<Count>::default();
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

#[apply(case)]
fn tasks_wait_for_the_limit_in_turn(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let limit = Arc::new(LimitAdaptor::new(env.pool()?, 1000));
    let direct = Resource::from(Arc::clone(&limit));
    // Also through what is above the limit.
    let above = Resource::new(StatisticsAdaptor::new(Arc::clone(&limit)));
    let first = block_on(limit.alloc_when_free::<u8>(&direct, &stream, 600))?;
    let count = Arc::<Count>::default();
    let mut large = pin!(limit.alloc_when_free::<u32>(&above, &stream, 200));
    let mut gives_up = Box::pin(limit.alloc_when_free::<u8>(&direct, &stream, 300));
    let mut small = pin!(limit.alloc_when_free::<u8>(&direct, &stream, 300));
    ensure!(poll(large.as_mut(), &count).is_pending());
    ensure!(poll(gives_up.as_mut(), &count).is_pending());
    ensure!(
        poll(small.as_mut(), &count).is_pending(),
        "it would fit, and others came before"
    );
    ensure!(limit.waiting() == 3 && limit.allocated() == 600);
    drop(gives_up);
    ensure!(limit.waiting() == 2);
    drop(first);
    count.wait(1)?;
    ensure!(count.0.load(Ordering::SeqCst) == 1, "one fits");
    ensure!((limit.waiting(), limit.allocated()) == (1, 800));
    ensure!(poll(small.as_mut(), &count).is_pending());
    let Poll::Ready(large) = poll(large, &count) else {
        anyhow::bail!("it was woken and is not ready");
    };
    let large = large?;
    ensure!(
        large.len() == 200 && limit.allocated() == 800,
        "counted twice"
    );
    drop(large);
    count.wait(2)?;
    let small = block_on(small)?;
    ensure!((small.len(), limit.allocated(), limit.waiting()) == (300, 300, 0));

    // Bytes that were granted and not taken come back, and so do those of a request that went elsewhere.
    let mut late = Box::pin(limit.alloc_when_free::<u8>(&direct, &stream, 900));
    ensure!(poll(late.as_mut(), &count).is_pending());
    drop(small);
    ensure!(limit.allocated() == 900, "it is granted");
    drop(late);
    ensure!((limit.allocated(), limit.waiting()) == (0, 0));
    let elsewhere = Resource::from(env.pool()?);
    let buffer = block_on(limit.alloc_when_free::<u8>(&elsewhere, &stream, 900))?;
    ensure!(limit.allocated() == 0);
    drop(buffer);

    let error = block_on(limit.alloc_when_free::<u8>(&direct, &stream, 1001));
    let error = error.err().context("more than the limit")?;
    ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    let none = block_on(limit.alloc_when_free::<u8>(&direct, &stream, 0))?;
    ensure!(none.is_empty());
    Ok(())
}

#[apply(case)]
fn threads_and_tasks_share_the_limit(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let limit = LimitAdaptor::new(env.pool()?, 1000).with_wait_timeout(LONG);
    let limit = Arc::new(limit);
    let resource = Resource::from(Arc::clone(&limit));
    std::thread::scope(|scope| {
        let thread = || -> Result<()> {
            let stream = context.stream()?;
            for _ in 0..50 {
                resource.alloc_zeroed::<u8>(&stream, 600)?.free()?;
            }
            Ok(())
        };
        let threads = [(); 2].map(|()| scope.spawn(thread));
        let task = |_: usize| async {
            let stream = context.stream()?;
            for _ in 0..10 {
                let mut buffer = limit.alloc_when_free::<u8>(&resource, &stream, 400).await?;
                buffer.fill(1)?;
                stream.completion()?.await?;
            }
            Ok::<_, cuda_mem::Error>(())
        };
        for output in run_all(2, (0..20).map(task)) {
            output?;
        }
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("it panicked"))??;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    ensure!((limit.allocated(), limit.waiting()) == (0, 0));
    Ok(())
}

#[apply(case_alone)]
fn in_a_fork_no_future_waits(env: &Environment) -> Result<()> {
    let _alone = env.exclusive();
    let stream = env.stream()?;
    let held = hold(&stream)?;
    let mut future = Box::pin(stream.completion()?);
    let count = Arc::<Count>::default();
    ensure!(poll(future.as_mut(), &count).is_pending());
    // SAFETY: the child polls a future, which must fail there, and ends with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let polled = poll(future.as_mut(), &count);
        let refused =
            matches!(&polled, Poll::Ready(Err(error)) if error.kind() == ErrorKind::Forked);
        // SAFETY: nothing of the parent runs in the child after this.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    ends_well(child)?;
    drop(held);
    block_on(future)?;
    Ok(())
}
