//! What the hot path does, counted: driver calls by the simulator, heap by a counting allocator.
//!
//! One test at a time, because the simulator counts for the whole process.

mod contexts;
// Under Wine an arena takes 150 KiB once, and later than here; why is not known.
#[cfg(target_os = "linux")]
mod heap;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

use anyhow::{Result, ensure};
use cuda_mem::ledger::{Ledger, LedgerLevel, Recorder};
use cuda_mem::memory::{
    AlignedAdaptor, DirectResource, LimitAdaptor, ManagedResource, PinnedResource,
    StatisticsAdaptor, TrackingAdaptor,
};
use cuda_mem::{Arena, DeviceBuffer, MemoryPool, Resource, Stream};
use cuda_mem_tests::case::{self, Kind, Test};
use cuda_mem_tests::environment::Environment;

/// A pool and stream, used once so that nothing happens for the first time later.
fn warm(env: &Environment) -> Result<(MemoryPool, Stream)> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    drop(pool.alloc::<f32>(&stream, 1000)?);
    env.control()?.reset();
    Ok((pool, stream))
}

#[apply(case)]
fn allocate_and_drop_are_two_driver_calls(env: &Environment) -> Result<()> {
    let (pool, stream) = warm(env)?;
    let control = env.control()?;
    for _ in 0..100 {
        drop(pool.alloc::<f32>(&stream, 1000)?);
    }
    ensure!(control.calls("cuMemAllocFromPoolAsync") == 100);
    ensure!(control.calls("cuMemFreeAsync") == 100);
    ensure!(
        control.calls_total() == 200,
        "{} calls",
        control.calls_total()
    );
    Ok(())
}

#[apply(case)]
fn the_ledger_calls_no_driver_and_sums_touch_no_heap(env: &Environment) -> Result<()> {
    for level in [LedgerLevel::Bytes, LedgerLevel::Origins] {
        let before = Ledger::enable(level);
        let (pool, stream) = warm(env)?;
        let heap = ALLOCATIONS.get();
        for _ in 0..100 {
            drop(pool.alloc::<f32>(&stream, 1000)?);
        }
        let heap = ALLOCATIONS.get() - heap;
        Ledger::enable(before);
        let calls = env.control()?.calls_total();
        ensure!(calls == 200, "{level}: {calls} calls");
        ensure!(
            level == LedgerLevel::Origins || heap == 0,
            "{heap} allocations"
        );
    }
    Ok(())
}

/// The properties of a pool cost a call for each device, and its kind none.
#[apply(case)]
fn the_ledger_asks_resources_nothing_of_the_driver(env: &Environment) -> Result<()> {
    let (pool, stream) = warm(env)?;
    let (device, control) = (env.device()?, env.control()?);
    let limited = LimitAdaptor::new(pool.clone(), 1 << 30);
    for resource in [
        Resource::from(pool),
        Resource::new(AlignedAdaptor::new(limited, 4096)?),
        device.default_resource()?,
    ] {
        drop(resource.alloc::<f32>(&stream, 1000)?);
        let before = Ledger::enable(LedgerLevel::Bytes);
        control.reset();
        for _ in 0..100 {
            drop(resource.alloc::<f32>(&stream, 1000)?);
        }
        Ledger::enable(before);
        let calls = control.calls_total();
        ensure!(calls == 200, "{resource:?}: {calls} calls");
    }
    Ok(())
}

#[apply(case)]
fn allocate_and_drop_touch_no_heap(env: &Environment) -> Result<()> {
    let (pool, stream) = warm(env)?;
    let before = ALLOCATIONS.get();
    // Proves that the counter counts.
    drop(std::hint::black_box(Box::new(1)));
    ensure!(
        ALLOCATIONS.get() == before + 1,
        "the counter does not count"
    );
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        drop(pool.alloc::<f32>(&stream, 1000)?);
    }
    ensure!(
        ALLOCATIONS.get() == before,
        "{} allocations",
        ALLOCATIONS.get() - before
    );
    Ok(())
}

#[apply(case)]
fn a_resource_adds_no_call_and_no_heap(env: &Environment) -> Result<()> {
    let (pool, stream) = warm(env)?;
    let tracked = TrackingAdaptor::new(LimitAdaptor::new(pool, 1 << 30));
    let resource = Resource::new(StatisticsAdaptor::new(AlignedAdaptor::new(tracked, 4096)?));
    // Tables grow at first.
    for _ in 0..10 {
        drop(resource.alloc::<f32>(&stream, 1000)?);
    }
    let default = stream.device().default_resource()?;
    drop(default.alloc::<f32>(&stream, 1000)?);
    let control = env.control()?;
    for resource in [resource, default] {
        control.reset();
        let before = ALLOCATIONS.get();
        for _ in 0..100 {
            drop(resource.alloc::<f32>(&stream, 1000)?);
        }
        ensure!(
            ALLOCATIONS.get() == before,
            "{} allocations",
            ALLOCATIONS.get() - before
        );
        ensure!(control.calls("cuMemAllocFromPoolAsync") == 100);
        ensure!(
            control.calls_total() == 200,
            "{} calls",
            control.calls_total()
        );
    }
    Ok(())
}

/// Once it has grown, and knows which cache is the stream's.
#[apply(case)]
fn a_block_of_an_arena_is_no_call(env: &Environment) -> Result<()> {
    let (device, stream, control) = (env.device()?, env.stream()?, env.control()?);
    let recorded = Arena::builder(&device).record(&Recorder::ring(1000));
    for builder in [Arena::builder(&device), recorded] {
        let arena = builder.build()?;
        let pairs = |count: usize| -> Result<()> {
            for _ in 0..count {
                drop(arena.alloc::<u8>(&stream, 1000)?);
                drop(arena.alloc::<u8>(&stream, 4 << 20)?);
            }
            Ok(())
        };
        pairs(2)?;
        control.reset();
        pairs(100)?;
        let calls = control.calls_total();
        ensure!(calls == 0, "{calls} calls");
    }
    Ok(())
}

/// A program may ask again and again until there is room.
#[apply(case)]
fn a_refusal_by_a_full_limit_is_no_call(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    let limited = Resource::new(LimitAdaptor::new(env.pool()?, 1000));
    let _kept = limited.alloc::<u8>(&stream, 900)?;
    control.reset();
    ensure!(limited.alloc::<u8>(&stream, 200).is_err());
    let calls = control.calls_total();
    ensure!(calls == 0, "{calls} calls");
    Ok(())
}

/// A thread's own stream is looked up at each request, because another thread's has the same handle.
#[cfg(target_os = "linux")]
#[apply(case)]
fn requests_in_a_threads_own_stream_keep_nothing_of_the_host(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let _current = context.bind()?;
    let arena = Resource::from(cuda_mem::Arena::builder(&env.device()?).build()?);
    let own = context.per_thread_stream();
    let pairs = |count: usize| -> Result<()> {
        for _ in 0..count {
            drop(arena.alloc::<u8>(&own, 1000)?);
        }
        Ok(())
    };
    // Tables grow at first.
    pairs(100)?;
    let before = BYTES.load(Ordering::Relaxed);
    pairs(10_000)?;
    let kept = BYTES.load(Ordering::Relaxed) - before;
    ensure!(kept < 1 << 10, "{kept} bytes");
    Ok(())
}

/// Their free would wait by itself on the simulator, and need not on a GPU (R96): so the calls are counted.
#[apply(case)]
fn memory_of_no_pool_is_freed_behind_a_wait(env: &Environment) -> Result<()> {
    let (_pool, stream) = warm(env)?;
    let control = env.control()?;
    for resource in [
        Resource::new(DirectResource::new(env.device()?)),
        Resource::new(PinnedResource::new(env.driver)),
        Resource::new(ManagedResource::new(env.driver)),
    ] {
        control.reset();
        control.start_call_log();
        drop(resource.alloc::<u8>(&stream, 1000)?);
        let log = control.call_log();
        let at = |name: &str| log.iter().position(|call| call.starts_with(name));
        let (Some(waits), Some(frees)) = (at("cuStreamSynchronize"), at("cuMemFree")) else {
            anyhow::bail!("{resource:?}: {log:?}");
        };
        ensure!(waits < frees, "{resource:?}: {log:?}");
    }
    Ok(())
}

#[apply(case)]
fn nothing_to_allocate_is_no_call(env: &Environment) -> Result<()> {
    let (pool, stream) = warm(env)?;
    let other = stream.context().stream()?;
    env.control()?.reset();
    let mut empty: DeviceBuffer<u8> = pool.alloc(&stream, 0)?;
    empty.fill(1)?;
    ensure!(empty.to_vec()?.is_empty());
    drop(empty.on(&other)?);
    drop(empty);
    drop(pool.alloc::<[u8; 0]>(&stream, 1000)?);
    ensure!(env.control()?.calls_total() == 0);
    Ok(())
}

#[apply(case)]
fn lending_is_two_calls_and_four_at_its_end_and_none_at_home(env: &Environment) -> Result<()> {
    let (pool, stream) = warm(env)?;
    let other = stream.context().stream()?;
    let mut buffer = pool.alloc::<u8>(&stream, 100)?;
    drop(buffer.on(&other)?);
    let control = env.control()?;
    control.reset();
    for _ in 0..10 {
        drop(buffer.on(&other)?);
    }
    ensure!(control.calls("cuEventRecord") == 20);
    ensure!(control.calls("cuStreamWaitEvent") == 20);
    // At its end it may be that one of the two streams is captured, and the other must not be drawn into the graph.
    ensure!(control.calls("cuStreamIsCapturing") == 20);
    ensure!(
        control.calls_total() == 60,
        "{} calls",
        control.calls_total()
    );
    control.reset();
    drop(buffer.on(&stream)?);
    ensure!(control.calls_total() == 0);
    Ok(())
}

#[apply(case)]
fn slices_wait_once(env: &Environment) -> Result<()> {
    let (pool, stream) = warm(env)?;
    let (a, b) = (stream.context().stream()?, stream.context().stream()?);
    let mut buffer = pool.alloc::<u8>(&stream, 100)?;
    drop(buffer.on(&a)?);
    let control = env.control()?;
    let waits = |wanted: u64, what: &str| {
        let (records, waits) = (
            control.calls("cuEventRecord"),
            control.calls("cuStreamWaitEvent"),
        );
        control.reset();
        ensure!(
            (records, waits) == (wanted, wanted),
            "{what}: {records} {waits}"
        );
        Ok(())
    };
    control.reset();
    let mut all = buffer.as_mut_slice();
    let (mut low, high) = all.split_at_mut(50)?;
    for chunk in low.chunks_mut(10)? {
        ensure!(chunk.slice(..5)?.len() == 5);
    }
    ensure!(control.calls_total() == 0, "dividing asks nothing");
    low.fill(1)?;
    waits(0, "a fill at home")?;
    // Bound to one stream, and on to another: no wait but those of the two ends.
    let mut on_a = high.on(&a)?;
    let mut on_b = on_a.as_mut_slice().on(&b)?;
    waits(2, "two begins")?;
    for _ in 0..10 {
        on_b.fill(2)?;
        on_b.slice_mut(..10)?.zero()?;
    }
    waits(0, "fills on the third stream")?;
    drop(on_b);
    drop(on_a);
    waits(2, "two ends")?;
    // A use that was leaked is waited for once.
    std::mem::forget(buffer.on(&a)?);
    waits(1, "a begin")?;
    for wanted in [1, 0, 0] {
        buffer.slice_mut(..10)?.fill(3)?;
        waits(wanted, "a fill after a leak")?;
    }
    Ok(())
}

#[apply(case)]
fn statistics_are_four_calls(env: &Environment) -> Result<()> {
    let (pool, _stream) = warm(env)?;
    pool.stats()?;
    ensure!(env.control()?.calls("cuMemPoolGetAttribute") == 4);
    ensure!(env.control()?.calls_total() == 4);
    Ok(())
}

#[apply(case)]
fn the_whole_contract_kept_the_order(env: &Environment) -> Result<()> {
    // The simulator's order sanitizer sees every test of these in one process.
    let is_seen = |test: &Test| {
        test.kind == Kind::Any && !test.alone && (test.is_in("contract") || test.is_in("resources"))
    };
    for test in case::all().into_iter().filter(is_seen) {
        (test.body)(env).map_err(|error| error.context(test.name()))?;
    }
    let reports = env.control()?.reports();
    ensure!(reports.is_empty(), "{reports:#?}");
    Ok(())
}

#[apply(case)]
fn the_sanitizer_sees_a_missing_wait(env: &Environment) -> Result<()> {
    let (pool, stream) = warm(env)?;
    let other = stream.context().stream()?;
    let buffer = pool.alloc::<u8>(&stream, 100)?;
    let Some(fill) = env.driver.table().cuMemsetD8Async else {
        anyhow::bail!("no cuMemsetD8Async");
    };
    {
        let _current = other.context().bind()?;
        // SAFETY: not ordered, which is the point; the simulator reports it and goes on.
        let code = unsafe { fill(buffer.as_raw(), 1, 100, other.as_raw()) };
        ensure!(code.0 == 0, "{code}");
    }
    other.synchronize()?;
    let reports = env.control()?.reports();
    ensure!(
        !reports.is_empty(),
        "a fill in an unordered stream was not noticed"
    );
    env.control()?.reset();
    Ok(())
}

/// A context that was made anew has the handle of the one before it, which may still be current.
#[apply(case)]
fn a_context_that_was_made_anew_is_made_current_again(env: &Environment) -> Result<()> {
    let control = env.control()?;
    let bound = || -> Result<()> {
        let (first, set) = (env.context()?, "cuCtxSetCurrent");
        std::mem::forget(first.bind()?);
        control.reset();
        drop(first.bind()?);
        ensure!(control.calls(set) == 0, "it is current");
        let handle = first.as_raw();
        drop(first);
        let second = env.context()?;
        ensure!(second.as_raw() == handle);
        control.reset();
        drop(second.bind()?);
        ensure!(control.calls(set) == 1, "{} calls", control.calls(set));
        drop(second.bind()?);
        ensure!(control.calls(set) == 1, "once is enough");
        Ok(())
    };
    // What stays current goes with the thread.
    std::thread::scope(|scope| {
        let joined = scope.spawn(bound).join();
        joined.map_err(|_| anyhow::anyhow!("the thread panicked"))?
    })
}

/// Counts the allocations of each thread. The simulator has an allocator of its own.
struct Counting;

/// Bytes on the heap, of all threads: what one allocates another may free.
static BYTES: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // While a thread ends its counter is gone, and nothing is counted.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        BYTES.fetch_add(layout.size().cast_signed(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size().cast_signed(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
