//! What cannot be released during a capture, and which call releases it afterwards.
//!
//! A capture forbids things to the whole process, so these bodies run alone.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::interop::CaptureMode;
use cuda_mem::memory::{PinnedResource, StatisticsAdaptor};
use cuda_mem::{DeviceBuffer, MemoryPool, Resource, Stream};

use crate::environment::Environment;
use crate::executor::block_on;
use crate::foreign::{begin, end, end_well};
use crate::hold::hold;

/// The mode of a capture that forbids much to all threads.
const GLOBAL: u32 = 0;

/// The mode of a capture that lets its thread do everything else.
const RELAXED: u32 = 2;

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
    let end = |buffer: Buffer| Ok(buffer.free().map(|()| None)?);
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
        ("a free", Box::new(|| end(freed))),
        ("a free to a resource", Box::new(|| end(returned))),
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
    // A wait for a stream may pass over what it has looked at in vain before.
    stream.context().synchronize()?;
    ensure!(Arc::strong_count(&theirs) == 1);
    ensure!(drop_counts().failures == failures);
    Ok(())
}

#[apply(case_alone)]
fn a_pool_that_ends_in_a_capture_is_gone_afterwards(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    drop(pool.alloc::<u8>(&stream, 1000)?);
    stream.synchronize()?;
    let waiting = drop_counts().waiting;
    stream.capture(CaptureMode::Relaxed, |_| {
        drop(pool);
        assert_eq!(drop_counts().waiting, waiting + 1);
        Ok(())
    })?;
    stream.synchronize()?;
    ensure!(drop_counts().waiting == waiting);
    Ok(())
}

/// In global mode the question whether its memory is free is refused, and loses the capture (R110).
#[apply(case_alone)]
fn a_pool_that_ends_in_a_capture_of_another_library_is_gone_afterwards(
    env: &Environment,
) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    drop(pool.alloc::<u8>(&stream, 1000)?);
    stream.synchronize()?;
    let before = drop_counts();
    begin(&stream, GLOBAL)?;
    drop(pool);
    let during = drop_counts();
    end(&stream)?;
    ensure!(during.failures == before.failures, "it is no failure");
    ensure!(during.waiting == before.waiting + 1);
    stream.synchronize()?;
    ensure!(drop_counts().waiting == before.waiting);
    Ok(())
}
