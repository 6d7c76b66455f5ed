//! Futures: what they wait for, who wakes them, and what is left when they are dropped.

use std::alloc::Layout;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::interop::CaptureMode;
use cuda_mem::kernel::Launch;
use cuda_mem::memory::{AlignedAdaptor, LimitAdaptor, MemoryProperties, StatisticsAdaptor};
use cuda_mem::{DeviceBuffer, ErrorKind, MemoryResource, Resource, Stream};

use crate::environment::Environment;
use crate::executor::{block_on, run_all};
use crate::foreign;
use crate::forks::ends_well;
use crate::hold::hold;
use crate::modules::load;

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

#[apply(case)]
fn a_future_behind_another_of_its_stream_is_woken(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (stream, busy) = (env.stream()?, env.stream()?);
    let spin = load(&env.context()?)?.function("spin")?;
    let held = hold(&stream)?;
    let mut early = pin!(stream.completion()?);
    // SAFETY: it touches no memory.
    unsafe { spin.launch(&stream, Launch::over(1, 1), (600_000_000_u64,)) }?;
    let mut late = pin!(stream.completion()?);
    let count = Arc::<Count>::default();
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
        let count = Arc::<Count>::default();
        ensure!(poll(other.as_mut(), &count).is_pending());
        drop(held);
        count.wait(1)?;
    }
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

/// A resource that panics, before or after its upstream has allocated.
#[derive(Debug)]
struct Panicking {
    upstream: Resource,
    first: bool,
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl MemoryResource for Panicking {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        if !self.first {
            self.upstream.allocate(layout, stream)?;
        }
        panic!("on purpose");
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        // SAFETY: the caller's.
        unsafe { self.upstream.deallocate(address, layout, stream) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.upstream.memory_properties()
    }
}

/// Alone, because the panic hook prints.
#[apply(case_alone)]
fn a_panic_leaves_the_limit_as_it_was(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let panics = |limit: &LimitAdaptor<Resource>, resource: &Resource| {
        let alloc = limit.alloc_when_free::<u8>(resource, &stream, 900);
        catch_unwind(AssertUnwindSafe(|| block_on(alloc))).is_err()
    };
    // Below the limit, and above it, where the request has not come to the limit yet.
    let upstream = Resource::from(env.pool()?);
    let below = Panicking {
        upstream,
        first: true,
    };
    let limit = Arc::new(LimitAdaptor::new(Resource::new(below), 1000));
    ensure!(panics(&limit, &Resource::from(Arc::clone(&limit))));
    ensure!(limit.allocated() == 0, "{}", limit.allocated());

    let limit = Arc::new(LimitAdaptor::new(Resource::from(env.pool()?), 1000));
    let direct = Resource::from(Arc::clone(&limit));
    let above = Panicking {
        upstream: direct.clone(),
        first: true,
    };
    ensure!(panics(&limit, &Resource::new(above)));
    ensure!(limit.allocated() == 0, "{}", limit.allocated());
    let buffer = direct.alloc::<u8>(&stream, 900)?;
    let second = direct
        .alloc::<u8>(&stream, 900)
        .err()
        .map(|error| error.kind());
    ensure!(second == Some(ErrorKind::OutOfMemory), "the grant was left");
    drop(buffer);
    ensure!(limit.allocated() == 0);
    Ok(())
}

#[apply(case)]
fn a_waker_may_own_memory_of_the_limit(env: &Environment) -> Result<()> {
    struct Owner {
        _buffer: Mutex<DeviceBuffer<u8>>,
    }
    impl Wake for Owner {
        fn wake(self: Arc<Self>) {}
    }
    let stream = env.stream()?;
    let limit = Arc::new(LimitAdaptor::new(env.pool()?, 1000));
    let resource = Resource::from(Arc::clone(&limit));
    let owned = resource.alloc::<u8>(&stream, 600)?;
    let rest = resource.alloc::<u8>(&stream, 300)?;
    let mut future = pin!(limit.alloc_when_free::<u8>(&resource, &stream, 900));
    let waker = Waker::from(Arc::new(Owner {
        _buffer: Mutex::new(owned),
    }));
    ensure!(
        future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    drop(waker);
    // The last poll's waker is dropped, and with it the buffer.
    let count = Arc::<Count>::default();
    ensure!(poll(future.as_mut(), &count).is_pending());
    ensure!(limit.allocated() == 300);
    drop(rest);
    count.wait(1)?;
    ensure!(block_on(future)?.len() == 900);
    Ok(())
}

#[apply(case)]
fn a_resource_above_the_limit_may_ask_for_more(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let limit = LimitAdaptor::new(env.pool()?, 10_000).with_wait_timeout(LONG);
    let limit = Arc::new(limit);
    let aligned = Resource::new(AlignedAdaptor::new(Arc::clone(&limit), 4096)?);
    let buffer = block_on(limit.alloc_when_free::<u8>(&aligned, &stream, 6000))?;
    let allocated = limit.allocated();
    ensure!(allocated > 6000 && allocated <= 10_000, "{allocated}");
    // What does not fit besides is refused at once: the future would wait for itself.
    let begun = Instant::now();
    let error = block_on(limit.alloc_when_free::<u8>(&aligned, &stream, 100));
    ensure!(error.is_err_and(|error| error.kind() == ErrorKind::OutOfMemory));
    ensure!(begun.elapsed() < LONG / 2, "it waited");
    drop(buffer);
    ensure!(limit.allocated() == 0);
    Ok(())
}
