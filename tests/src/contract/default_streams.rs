//! The two streams that every context has by itself.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cuda_mem::memory::StatisticsAdaptor;
use cuda_mem::stream::StreamRef;
use cuda_mem::sys::CU_STREAM_PER_THREAD;
use cuda_mem::{DeviceBuffer, ErrorKind, Resource, Stream};

use super::context::{Foreign, set_current};
use crate::environment::Environment;
use crate::hold::{Held, hold};

fn both(env: &Environment) -> Result<[Stream; 2]> {
    let context = env.context()?;
    Ok([context.legacy_stream(), context.per_thread_stream()])
}

#[apply(case)]
fn default_streams_serve_without_a_current_context(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    for stream in both(env)? {
        let other = env.stream()?;
        let mut buffer = pool.alloc_from(&stream, &[1_u16, 2, 3])?;
        ensure!(buffer.to_vec()? == [1, 2, 3]);
        buffer.fill(4)?;
        buffer.on(&other)?.fill(5)?;
        ensure!(buffer.to_vec()? == [5; 3]);
        let mut elsewhere = pool.alloc_zeroed::<u16>(&other, 3)?;
        elsewhere.on(&stream)?.fill(6)?;
        ensure!(elsewhere.to_vec()? == [6; 3]);
        elsewhere.copy_from_device(&buffer)?;
        ensure!(elsewhere.to_vec()? == [5; 3]);
        let event = stream.context().event()?;
        event.record(&stream)?;
        stream.wait_event(&event)?;
        other.wait_for(&stream)?;
        stream.wait_for(&other)?;
        ensure!(pool.alloc::<u8>(&stream, 0)?.is_empty());
        elsewhere.free_on(&stream)?;
        buffer.free()?;
        stream.synchronize()?;
        stream.is_done()?;
    }
    if env.need(11, 3).is_ok() {
        ensure!(pool.stats()?.used.current == 0);
    }
    Ok(())
}

#[apply(case)]
fn default_streams_put_back_what_was_current(env: &Environment) -> Result<()> {
    let table = env.driver.table();
    let current = table.cuCtxGetCurrent.context("no cuCtxGetCurrent")?;
    let now = || {
        let mut context = std::ptr::null_mut();
        // SAFETY: valid for a write of one handle.
        let code = unsafe { current(&raw mut context) };
        ensure!(code.0 == 0, "{code}");
        Ok(context)
    };
    let pool = env.pool()?;
    let before = now()?;
    for stream in both(env)? {
        let mut buffer = pool.alloc::<u8>(&stream, 100)?;
        buffer.fill(1)?;
        drop(buffer);
        stream.synchronize()?;
        ensure!(now()? == before);
    }
    Ok(())
}

#[apply(case)]
fn default_streams_of_a_context_are_told_apart(env: &Environment) -> Result<()> {
    let [legacy, own] = both(env)?;
    ensure!(legacy == env.context()?.legacy_stream());
    ensure!(own == env.context()?.per_thread_stream());
    ensure!(legacy != own && legacy != env.stream()?);
    let another = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| anyhow::Ok(env.context()?.per_thread_stream()));
        theirs.join().map_err(|_| anyhow::anyhow!("panicked"))?
    })?;
    ensure!(another != own, "each thread has its own");
    Ok(())
}

#[apply(case)]
fn a_threads_own_stream_is_refused_elsewhere(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.context()?.per_thread_stream());
    let mut buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            let refused = |error: cuda_mem::Error| error.kind() == ErrorKind::InvalidValue;
            ensure!(stream.synchronize().is_err_and(refused));
            ensure!(pool.alloc::<u8>(&stream, 1).is_err_and(refused));
            ensure!(buffer.fill(1).is_err_and(refused));
            ensure!(buffer.to_vec().is_err_and(refused));
            ensure!(buffer.on(&env.stream()?).is_err_and(refused));
            let mut theirs = pool.alloc::<u8>(&env.stream()?, 1)?;
            ensure!(theirs.on(&stream).is_err_and(refused));
            Ok(())
        });
        there.join().map_err(|_| anyhow::anyhow!("panicked"))?
    })?;
    ensure!(buffer.to_vec()? == [7; 100], "nothing happened to it");
    Ok(())
}

/// The free waits for what the buffer's thread has submitted, and the memory is not lost.
#[apply(case)]
fn a_buffer_of_a_threads_own_stream_may_be_dropped_elsewhere(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    let before = cuda_mem::base::drop_counts().failures;
    let buffer = std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            let stream = env.context()?.per_thread_stream();
            let mut buffer = pool.alloc::<u8>(&stream, 1 << 20)?;
            buffer.fill(3)?;
            anyhow::Ok(buffer)
        });
        there.join().map_err(|_| anyhow::anyhow!("panicked"))?
    })?;
    let Err(error) = buffer.to_vec() else {
        bail!("the stream of a thread that has ended was used");
    };
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    drop(buffer);
    ensure!(cuda_mem::base::drop_counts().failures == before);
    if env.need(11, 3).is_ok() {
        ensure!(pool.stats()?.used.current == 0);
    }
    Ok(())
}

/// As a plain free, which waits: this thread can order nothing with that stream.
#[apply(case)]
fn a_buffer_of_a_threads_own_stream_may_be_freed_after_others_elsewhere(
    env: &Environment,
) -> Result<()> {
    // The wait is for the whole context.
    let _pressure = env.exclusive();
    let (context, pool, other) = (env.context()?, env.pool()?, env.stream()?);
    let adapted = Resource::new(StatisticsAdaptor::new(env.pool()?));
    let (from_pool, from_resource) = std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            let own = context.per_thread_stream();
            anyhow::Ok((
                pool.alloc::<u8>(&own, 1000)?,
                adapted.alloc::<u8>(&own, 1000)?,
            ))
        });
        there.join().map_err(|_| anyhow!("panicked"))?
    })?;
    from_pool.free_after([&other])?;
    from_resource.free_after([&other])?;
    if env.need(11, 3).is_ok() {
        ensure!(pool.stats()?.used.current == 0);
    }
    Ok(())
}

/// The host waits for it, since this thread cannot order anything with that stream.
#[apply(case)]
fn a_buffer_that_a_threads_own_stream_uses_may_be_freed_elsewhere(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    // The wait is for the whole context.
    let _pressure = env.exclusive();
    let (context, pool, stream) = (env.context()?, env.pool()?, env.stream()?);
    let used_there = || -> Result<DeviceBuffer<u8>> {
        let mut buffer = pool.alloc::<u8>(&stream, 1000)?;
        std::thread::scope(|scope| {
            let there = scope.spawn(|| -> Result<DeviceBuffer<u8>> {
                let own = context.per_thread_stream();
                let mut lent = buffer.on(&own)?;
                lent.fill(3)?;
                std::mem::forget(lent);
                Ok(buffer)
            });
            there.join().map_err(|_| anyhow!("panicked"))?
        })
    };
    let failures = cuda_mem::base::drop_counts().failures;
    let mut used = used_there()?;
    used.fill(4)?;
    ensure!(used.to_vec()? == [4; 1000], "it can be used elsewhere, too");
    used.free()?;
    used_there()?.free()?;
    drop(used_there()?);
    ensure!(cuda_mem::base::drop_counts().failures == failures);
    ensure!(pool.stats()?.used.current == 0);
    Ok(())
}

#[apply(case)]
fn freeing_a_threads_own_buffer_elsewhere_waits(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    let make = || -> Result<_> {
        let stream = env.context()?.per_thread_stream();
        let mut buffer = pool.alloc::<u8>(&stream, 1000)?;
        buffer.fill(3)?;
        // SAFETY: the memory is that of a buffer which is kept, and nobody uses both.
        let view =
            unsafe { cuda_mem::DeviceBuffer::<u8>::borrow_raw(&stream, buffer.as_raw(), 1000, ()) };
        Ok((buffer, view))
    };
    let (buffer, view) = std::thread::scope(|scope| {
        let there = scope.spawn(make);
        there.join().map_err(|_| anyhow::anyhow!("panicked"))?
    })?;
    view.free()?;
    buffer.free_sync()?;
    Ok(())
}

/// A thread that holds a stream with `hold_one` does not end before that is let go.
fn ensure_ends_late(hold_one: impl Fn() -> Result<Held> + Sync) -> Result<()> {
    let (send, receive) = channel();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let there = scope.spawn(|| -> Result<()> { Ok(send.send(hold_one()?)?) });
        let held = receive.recv()?;
        let joined = scope.spawn(|| {
            // Unlike the end of the scope, this comes after the destructors of thread-local values.
            let outcome = there.join();
            has_ended.store(true, Ordering::Relaxed);
            outcome
        });
        sleep(Duration::from_millis(30));
        let is_early = has_ended.load(Ordering::Relaxed);
        drop(held);
        let outcome = joined.join().map_err(|_| anyhow!("panicked"))?;
        outcome.map_err(|_| anyhow!("panicked"))??;
        ensure!(!is_early, "it ended while its stream was held");
        Ok(())
    })
}

/// The driver lets no thread end whose own stream is busy (R177).
#[apply(case)]
fn a_thread_waits_for_its_own_stream_at_its_end(env: &Environment) -> Result<()> {
    env.not_on_windows("threads end under the loader's lock there, where nothing may wait")?;
    let _calm = env.shared();
    let context = env.context()?;
    ensure_ends_late(|| {
        // The handle of the context goes before the thread.
        let context = env.context()?;
        let _current = context.bind()?;
        hold(&context.per_thread_stream())
    })?;
    context.synchronize()?;
    Ok(())
}

#[apply(case)]
fn a_thread_waits_for_its_own_stream_of_each_context(env: &Environment) -> Result<()> {
    env.not_on_windows("threads end under the loader's lock there, where nothing may wait")?;
    let _calm = env.shared();
    let (primary, first, second) = (env.context()?, Foreign::new(env)?, Foreign::new(env)?);
    // Both are on the stack.
    set_current(env.driver, null_mut())?;
    set_current(env.driver, null_mut())?;
    // SAFETY: they end after everything that is made in them here.
    let [idle, busy] = [first.1, second.1].map(|raw| unsafe { env.driver.context_from_raw(raw) });
    let (idle, busy) = (idle?, busy?);
    ensure_ends_late(|| {
        // The busy one is neither the first nor the last.
        drop(primary.per_thread_stream());
        let _current = busy.bind()?;
        let held = hold(&busy.per_thread_stream())?;
        drop(idle.per_thread_stream());
        Ok(held)
    })?;
    busy.synchronize()?;
    Ok(())
}

/// The legacy stream waits for all threads' own ones. A host function there that another test has launched would wait for
/// the one that holds the stream here, and this test for that.
#[apply(case)]
fn a_held_stream_does_not_hold_the_default_streams(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    // Streams of this crate do not synchronise with the legacy stream.
    let stream = env.stream()?;
    let held = hold(&stream)?;
    for free in both(env)? {
        free.synchronize()?;
        ensure!(!stream.is_done()?);
    }
    drop(held);
    stream.synchronize()?;
    Ok(())
}

/// Named by its handle, as other libraries do.
#[apply(case)]
fn a_thread_waits_at_its_end_for_its_own_stream_that_was_borrowed(env: &Environment) -> Result<()> {
    env.not_on_windows("threads end under the loader's lock there, where nothing may wait")?;
    let _calm = env.shared();
    let (context, stream) = (env.context()?, env.stream()?);
    ensure_ends_late(|| {
        // SAFETY: it is this thread's own stream, which lives as long as the context.
        let own = unsafe { StreamRef::borrow_raw(&context, CU_STREAM_PER_THREAD) };
        let held = hold(&stream)?;
        own.wait_for(&stream)?;
        Ok(held)
    })?;
    context.synchronize()?;
    Ok(())
}

/// It would take a tenth of a second, and some hundred MB of the device.
#[apply(case_of_sim_alone)]
fn a_thread_makes_no_context_at_its_end(env: &Environment) -> Result<()> {
    env.not_on_windows("threads end under the loader's lock there, where nothing may wait")?;
    let control = env.control()?;
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            // The context ends with it.
            drop(env.context()?.per_thread_stream());
            control.reset();
            anyhow::Ok(())
        });
        there.join().map_err(|_| anyhow!("panicked"))?
    })?;
    let calls = |name| control.calls(name);
    ensure!(calls("cuDevicePrimaryCtxGetState") == 1, "it looks");
    ensure!(calls("cuDevicePrimaryCtxRetain") == 0, "and leaves it so");
    Ok(())
}
