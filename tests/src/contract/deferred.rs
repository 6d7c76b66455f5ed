//! What cannot be released during a capture, and which call releases it afterwards.
//!
//! A capture forbids things to the whole process, so these bodies run alone.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::interop::CaptureMode;
use cuda_mem::memory::{
    CurrentPool, DirectResource, ManagedResource, PinnedResource, StatisticsAdaptor,
};
use cuda_mem::{DeviceBuffer, MemoryPool, Resource, Stream};

use super::capture_elsewhere::by_another_thread;
use crate::environment::Environment;
use crate::executor::block_on;
use crate::foreign::{RELAXED, begin, end, end_well};
use crate::hold::{hold, hold_for};

/// Only to end a test that fails.
const PATIENCE: Duration = Duration::from_secs(5);

/// The mode of a capture that forbids much to all threads.
const GLOBAL: u32 = 0;

/// Drops a buffer while another library captures its stream. Afterwards it is still allocated.
fn drop_in_a_capture(pool: &MemoryPool, stream: &Stream) -> Result<()> {
    let buffer = pool.alloc::<u8>(stream, 1000)?;
    begin(stream, RELAXED)?;
    drop(buffer);
    end_well(stream)?;
    ensure!(pool.stats()?.used.current == 1000);
    Ok(())
}

type Buffer = DeviceBuffer<u8>;

/// A call, and its name. The buffer that it returns lives on until the pool was looked at: its end would free, too.
type Step<'a> = (
    &'static str,
    Box<dyn FnOnce() -> Result<Option<Buffer>> + 'a>,
);

#[apply(case_alone)]
fn the_next_call_in_the_stream_frees_what_a_capture_kept(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream, other) = (env.pool()?, env.stream()?, env.stream()?);
    let adapted = Resource::new(StatisticsAdaptor::new(env.pool()?));
    let event = env.context()?.event()?;
    let plain = || -> Result<Buffer> { Ok(env.pool()?.alloc(&stream, 1)?) };
    let (dropped, freed) = (plain()?, plain()?);
    let (returned, returned_after) = (adapted.alloc(&stream, 1)?, adapted.alloc(&stream, 1)?);
    let (left, beside) = (adapted.alloc::<u8>(&stream, 1)?, plain()?);
    let give = |buffer: Buffer| Ok(buffer.free().map(|()| None)?);
    let end_after = |buffer: Buffer| Ok(buffer.free_after([&other]).map(|()| None)?);
    let steps: Vec<Step<'_>> = vec![
        ("an allocation", Box::new(|| Ok(Some(stream.alloc(1)?)))),
        (
            "a drop",
            Box::new(|| {
                drop(dropped);
                Ok(None)
            }),
        ),
        ("a free", Box::new(|| give(freed))),
        ("a free to a resource", Box::new(|| give(returned))),
        (
            "a free after others",
            Box::new(|| end_after(returned_after)),
        ),
        (
            "a wait for the stream",
            Box::new(|| Ok(stream.as_ref().synchronize().map(|()| None)?)),
        ),
        (
            "a wait for an event",
            Box::new(|| {
                event.record(&stream)?;
                Ok(event.synchronize().map(|()| None)?)
            }),
        ),
        (
            "a completion",
            Box::new(|| Ok(block_on(stream.completion()?).map(|()| None)?)),
        ),
        (
            "a wait for another stream",
            Box::new(|| Ok(other.synchronize().map(|()| None)?)),
        ),
        (
            "an allocation from a resource",
            Box::new(|| Ok(Some(adapted.alloc(&stream, 1)?))),
        ),
        (
            "a drop to a resource",
            Box::new(|| {
                drop(left);
                Ok(None)
            }),
        ),
        (
            "a free that another capture refuses at first",
            Box::new(|| {
                begin(&other, GLOBAL)?;
                beside.free()?;
                end(&other)?;
                Ok(None)
            }),
        ),
    ];
    for (what, step) in steps {
        drop_in_a_capture(&pool, &stream)?;
        let _alive = step()?;
        ensure!(pool.stats()?.used.current == 0, "{what}");
    }
    Ok(())
}

/// The memory is freed before the wait, so afterwards the host has seen the free.
#[apply(case_alone)]
fn a_wait_covers_the_frees_that_a_capture_put_off(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    let pinned = Resource::new(PinnedResource::new(env.driver));
    let on_host = pinned.alloc_zeroed::<u8>(&stream, 10)?;
    for for_host_memory in [false, true] {
        let pool = env.pool()?;
        drop_in_a_capture(&pool, &stream)?;
        if for_host_memory {
            on_host.host()?;
        } else {
            stream.synchronize()?;
        }
        pool.close().context("it has memory in use")?;
    }
    Ok(())
}

/// Without a handle, nothing can be ordered behind the stream any more.
#[apply(case_alone)]
fn what_a_stream_without_handles_kept_is_freed_once_its_context_was_waited_for(
    env: &Environment,
) -> Result<()> {
    env.need(11, 4)?;
    let (context, pool, other) = (env.context()?, env.pool()?, env.stream()?);
    let theirs = context.stream()?;
    for other_is_waited_for in [false, true] {
        // SAFETY: the stream is of this context and lives longer.
        let borrowed = unsafe { Stream::borrow_raw(&context, theirs.as_raw(), ()) };
        let buffer = pool.alloc::<u8>(&borrowed, 1000)?;
        begin(&theirs, RELAXED)?;
        drop((buffer, borrowed));
        end_well(&theirs)?;
        if other_is_waited_for {
            other.synchronize()?;
            ensure!(
                pool.stats()?.used.current == 1000,
                "the stream may still use it"
            );
        }
        context.synchronize()?;
        ensure!(pool.stats()?.used.current == 0);
    }
    Ok(())
}

#[apply(case_alone)]
fn an_owner_is_let_go_once_the_captured_stream_is_done(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    let theirs = Arc::new(env.pool()?.alloc_zeroed::<u8>(&stream, 1000)?);
    // SAFETY: the memory is that of `theirs`, which is kept and frees in the same stream.
    let view = unsafe {
        let owner = Arc::clone(&theirs);
        DeviceBuffer::<u8>::borrow_raw(&stream, theirs.as_raw(), 1000, owner)
    };
    let failures = drop_counts().failures;
    let held = hold(&stream)?;
    stream.capture(CaptureMode::Relaxed, |_| {
        drop(view);
        // Looks at what waits.
        other.synchronize()
    })?;
    other.synchronize()?;
    ensure!(Arc::strong_count(&theirs) == 2, "the stream is still busy");
    drop(held);
    // A wait for another stream may pass over what it has looked at in vain before.
    stream.context().synchronize()?;
    ensure!(Arc::strong_count(&theirs) == 1);
    ensure!(drop_counts().failures == failures);
    Ok(())
}

/// No handle of that stream is left, and another thread's own one says nothing of it.
#[apply(case_alone)]
fn what_a_threads_own_stream_kept_is_freed_elsewhere_only_after_a_wait(
    env: &Environment,
) -> Result<()> {
    env.need(11, 4)?;
    let (context, pool, other) = (env.context()?, env.pool()?, env.stream()?);
    let _current = context.bind()?;
    let buffer = pool.alloc::<u8>(&context.per_thread_stream(), 1000)?;
    begin(&context.per_thread_stream(), RELAXED)?;
    drop(buffer);
    end_well(&context.per_thread_stream())?;
    by_another_thread(|| Ok(other.synchronize()?))?;
    ensure!(
        pool.stats()?.used.current == 1000,
        "this thread's stream may still use it"
    );
    by_another_thread(|| Ok(context.synchronize()?))?;
    ensure!(pool.stats()?.used.current == 0);
    Ok(())
}

/// Such memory is freed after a wait for its stream, which no call about others should make.
#[apply(case_alone)]
fn memory_whose_free_waits_is_freed_once_its_stream_is_done(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    let direct = Resource::new(DirectResource::new(env.device()?));
    for resource in [
        direct.clone(),
        Resource::new(StatisticsAdaptor::new(direct)),
        Resource::new(ManagedResource::new(env.driver)),
    ] {
        let buffer = resource.alloc::<u8>(&stream, 1000)?;
        let held = hold_for(&stream, PATIENCE)?;
        stream.capture(CaptureMode::Relaxed, |_| {
            drop(buffer);
            Ok(())
        })?;
        // By now most of these pass it over, and the wait for its own stream does not.
        (0..100).try_for_each(|_| other.synchronize())?;
        ensure!(!stream.is_done()?, "something has waited for the stream");
        ensure!(drop_counts().waiting == 1);
        drop(held);
        stream.synchronize()?;
        let counts = drop_counts();
        ensure!((counts.failures, counts.waiting) == (0, 0), "{counts:?}");
    }
    Ok(())
}

#[apply(case_alone)]
fn a_pool_ends_in_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    for mode in [CaptureMode::Global, CaptureMode::Relaxed] {
        let pool = env.pool()?;
        drop(pool.alloc::<u8>(&stream, 1000)?);
        stream.synchronize()?;
        let before = drop_counts();
        stream.capture(mode, |_| {
            drop(pool);
            Ok(())
        })?;
        ensure!(drop_counts() == before, "{mode:?}: {:?}", drop_counts());
    }
    Ok(())
}

/// Its memory is freed only after the capture.
#[apply(case_alone)]
fn a_pool_with_memory_in_a_captured_stream_ends_afterwards(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    let buffer = pool.alloc::<u8>(&stream, 1000)?;
    let before = drop_counts();
    stream.capture(CaptureMode::Global, |_| {
        drop((buffer, pool));
        assert!(drop_counts().waiting > before.waiting);
        Ok(())
    })?;
    stream.synchronize()?;
    ensure!(drop_counts() == before, "{:?}", drop_counts());
    Ok(())
}

/// Its end asks the driver for things that global mode forbids (R110).
#[apply(case_alone)]
fn the_end_of_a_pool_spoils_no_capture_of_another_library(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, stream) = (env.device()?, env.stream()?);
    for is_current in [false, true] {
        let pool = env.pool()?;
        drop(pool.alloc::<u8>(&stream, 1000)?);
        stream.synchronize()?;
        if is_current {
            device.set_current_pool(&pool)?;
        }
        let before = drop_counts();
        begin(&stream, GLOBAL)?;
        drop(pool);
        let after = drop_counts();
        end_well(&stream)?;
        ensure!(after == before, "current: {is_current}: {after:?}");
        let current = device.current_pool()?;
        ensure!(matches!(current, CurrentPool::Default(_)), "{current:?}");
    }
    Ok(())
}

/// Nothing can be ordered with that stream on this thread.
#[apply(case_alone)]
fn what_another_threads_own_stream_used_is_freed_once_its_context_was_waited_for(
    env: &Environment,
) -> Result<()> {
    env.need(11, 4)?;
    let (context, pool, stream) = (env.context()?, env.pool()?, env.stream()?);
    for stream_is_waited_for in [true, false] {
        let mut buffer = pool.alloc::<u8>(&stream, 1000)?;
        let buffer = thread::scope(|scope| {
            let lends = scope.spawn(|| -> Result<Buffer> {
                let own = context.per_thread_stream();
                std::mem::forget(buffer.on(&own)?);
                Ok(buffer)
            });
            lends.join().map_err(|_| anyhow!("panicked"))?
        })?;
        stream.capture(CaptureMode::Relaxed, |_| {
            drop(buffer);
            Ok(())
        })?;
        if stream_is_waited_for {
            stream.synchronize()?;
            ensure!(
                pool.stats()?.used.current == 1000,
                "the thread's stream may still use it"
            );
        }
        // One wait is enough.
        context.synchronize()?;
        ensure!(pool.stats()?.used.current == 0);
    }
    Ok(())
}

/// Other work of the stream may be the owner's to wait for.
#[apply(case_alone)]
fn the_owner_of_no_memory_is_let_go_after_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, owner) = (env.stream()?, Arc::new(()));
    // SAFETY: address 0 means no bytes.
    let empty = unsafe { DeviceBuffer::<u8>::borrow_raw(&stream, 0, 0, Arc::clone(&owner)) };
    let failures = drop_counts().failures;
    let (graph, during) = stream.capture(CaptureMode::Relaxed, |_| {
        drop(empty);
        Ok(Arc::strong_count(&owner))
    })?;
    drop(graph);
    ensure!(during == 2, "the stream is captured");
    stream.context().synchronize()?;
    ensure!(Arc::strong_count(&owner) == 1, "it is kept for good");
    ensure!(drop_counts().failures == failures);
    Ok(())
}

/// Each handle of a default stream is one of its own, and the one that the buffer had may be gone.
#[apply(case_alone)]
fn what_a_default_stream_kept_is_freed_by_any_handle_of_it(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (context, pool) = (env.context()?, env.pool()?);
    // For the captures by other code.
    let _current = context.bind()?;
    let by_wait: fn(&Stream) -> Result<()> = |stream| Ok(stream.synchronize()?);
    let by_borrowed_wait: fn(&Stream) -> Result<()> = |stream| Ok(stream.as_ref().synchronize()?);
    let by_allocation: fn(&Stream) -> Result<()> = |stream| {
        drop(stream.alloc::<u8>(1)?);
        Ok(())
    };
    // The allocation first: after a wait all that waits is looked at anyway.
    for releases in [by_allocation, by_wait, by_borrowed_wait] {
        for _ in 0..3 {
            let buffer = pool.alloc::<u8>(&context.per_thread_stream(), 1000)?;
            begin(&context.per_thread_stream(), RELAXED)?;
            drop(buffer);
            end_well(&context.per_thread_stream())?;
            ensure!(pool.stats()?.used.current == 1000);
            releases(&context.per_thread_stream())?;
            ensure!(pool.stats()?.used.current == 0);
        }
    }
    // The end of a capture of this crate is enough.
    let buffer = pool.alloc::<u8>(&context.per_thread_stream(), 1000)?;
    context
        .per_thread_stream()
        .capture(CaptureMode::Relaxed, |_| {
            drop(buffer);
            Ok(())
        })?;
    ensure!(pool.stats()?.used.current == 0);
    // Nothing may be done in the legacy default stream beside a capture of that one.
    let buffer = pool.alloc::<u8>(&context.legacy_stream(), 1000)?;
    context
        .per_thread_stream()
        .capture(CaptureMode::Relaxed, |_| {
            drop(buffer);
            Ok(())
        })?;
    context.legacy_stream().synchronize()?;
    ensure!(pool.stats()?.used.current == 0);
    Ok(())
}

/// A wait for the stream covers the frees, which come before it.
#[apply(case_alone)]
fn a_wait_for_a_default_stream_covers_what_another_handle_put_off(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let context = env.context()?;
    let _current = context.bind()?;
    for is_alive in [false, true] {
        let (pool, first) = (env.pool()?, context.per_thread_stream());
        let second = context.per_thread_stream();
        drop_in_a_capture(&pool, &first)?;
        let _first = is_alive.then_some(first);
        second.synchronize()?;
        pool.close().context("it has memory in use")?;
    }
    Ok(())
}
