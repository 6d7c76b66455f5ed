//! Pools that end beside threads that wait, and those that serve again.

use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use cuda_mem::{MemoryPool, ReleaseThreshold, ReusePolicy, Stream};

use crate::environment::Environment;
use crate::executor::block_on;
use crate::foreign::synchronize;
use crate::hold::hold;

/// Returns when another thread of this process waits: then a pool for other processes cannot go at once.
fn wait_for_a_wait(env: &Environment) -> Result<()> {
    let before = cuda_mem::base::drop_counts().waiting;
    while cuda_mem::base::drop_counts().waiting <= before {
        thread::sleep(Duration::from_millis(1));
        env.shareable_pool()?.close()?;
    }
    Ok(())
}

/// Twenty pools that were used in a stream, end while another thread waits for it.
fn end_beside_a_wait(
    env: &Environment,
    pool: impl Fn() -> Result<MemoryPool>,
    end: fn(MemoryPool) -> Result<()>,
) -> Result<()> {
    let stream = env.stream()?;
    let pools: Vec<MemoryPool> = (0..20).map(|_| pool()).collect::<Result<_>>()?;
    for pool in &pools {
        pool.alloc::<u8>(&stream, 4096)?.free()?;
    }
    stream.synchronize()?;
    let held = hold(&stream)?;
    thread::scope(|scope| {
        let waits = scope.spawn(|| stream.synchronize());
        wait_for_a_wait(env)?;
        let ended = pools.into_iter().try_for_each(end);
        ensure!(!waits.is_finished());
        drop(held);
        waits.join().map_err(|_| anyhow!("a panic"))??;
        ended
    })
}

/// Destroying it then crashes a driver (R178).
#[apply(case_alone)]
fn a_pool_may_end_while_a_thread_waits_for_a_stream_that_used_it(env: &Environment) -> Result<()> {
    end_beside_a_wait(
        env,
        || env.pool(),
        |pool| {
            drop(pool);
            Ok(())
        },
    )?;
    end_beside_a_wait(env, || env.pool(), |pool| Ok(pool.close()?))
}

#[apply(case_alone)]
fn a_pool_for_other_processes_is_destroyed_when_nobody_waits(env: &Environment) -> Result<()> {
    let pool = || env.shareable_pool();
    end_beside_a_wait(env, pool, |pool| {
        let before = cuda_mem::base::drop_counts().waiting;
        drop(pool);
        ensure!(cuda_mem::base::drop_counts().waiting == before + 1);
        Ok(())
    })?;
    env.context()?.synchronize()?;
    ensure_waiting(0)
}

/// It may be one that has ended.
#[apply(case)]
fn a_pool_after_others_is_as_new(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _calm = env.shared();
    let (device, stream) = (env.device()?, env.stream()?);
    let fresh = env.pool()?;
    let (threshold, reuse) = (fresh.release_threshold()?, fresh.reuse_policy()?);
    for _ in 0..3 {
        let pool = MemoryPool::builder(&device)
            .release_threshold(ReleaseThreshold::Bytes(1 << 20))
            .reuse(ReusePolicy::DETERMINISTIC)
            .build()?;
        drop(pool.alloc::<u8>(&stream, 5000)?);
        stream.synchronize()?;
        pool.close()?;
        let next = env.pool()?;
        ensure!(next.stats()? == cuda_mem::PoolStats::default());
        ensure!((next.release_threshold()?, next.reuse_policy()?) == (threshold, reuse));
    }
    Ok(())
}

#[apply(case_of_sim_alone)]
fn a_pool_that_has_ended_serves_as_the_next_of_its_kind(env: &Environment) -> Result<()> {
    let (device, control) = (env.device()?, env.control()?);
    let small = || MemoryPool::builder(&device).max_size(64 << 20).build();
    let (first, other) = (env.pool()?, small()?);
    let (handle, small_handle) = (first.as_raw(), other.as_raw());
    first.close()?;
    drop(other);
    ensure!(small()?.as_raw() == small_handle && env.pool()?.as_raw() == handle);
    ensure!(control.live().pools == 2);
    // SAFETY: this is the only thread.
    ensure!(unsafe { MemoryPool::destroy_spares() }? == 2);
    ensure!(control.live().pools == 0);
    Ok(())
}

/// A program may wait through other libraries only.
#[apply(case_alone)]
fn making_a_pool_ends_one_whose_memory_was_freed_since(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    let handle = pool.as_raw();
    let buffer = pool.alloc::<u8>(&stream, 4096)?;
    drop(pool);
    ensure!(env.pool()?.as_raw() != handle, "its memory is in use");
    buffer.free()?;
    synchronize(&stream)?;
    ensure!(env.pool()?.as_raw() == handle, "it does not serve again");
    Ok(())
}

/// So many releases are pending.
fn ensure_waiting(count: u64) -> Result<()> {
    let waiting = cuda_mem::base::drop_counts().waiting;
    ensure!(waiting == count, "{waiting} things wait");
    Ok(())
}

/// Frees memory of a pool that ends, while the stream is held, and lets the stream get there unseen.
fn end_unseen(env: &Environment, stream: &Stream) -> Result<()> {
    let pool = env.pool()?;
    let held = {
        // A default stream's context has to be current (R8).
        let _current = stream.context().bind()?;
        hold(stream)?
    };
    pool.alloc::<u8>(stream, 4096)?.free()?;
    drop(pool);
    drop(held);
    // The question is no wait (R86).
    while !stream.is_done()? {
        thread::yield_now();
    }
    ensure_waiting(1)
}

/// What was freed in it is then free for all.
#[apply(case_alone)]
fn the_end_of_a_stream_ends_pools_that_waited_for_it(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let stream = env.stream()?;
    // Its end would end them, too.
    let _context = stream.context().clone();
    end_unseen(env, &stream)?;
    drop(stream);
    ensure_waiting(0)
}

/// A library's stream is destroyed by its owner.
#[apply(case_alone)]
fn the_end_of_a_borrowed_stream_ends_pools_that_waited_for_it(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let context = env.context()?;
    let theirs = context.stream()?;
    let raw = theirs.as_raw();
    // SAFETY: the owner that is kept keeps the stream.
    let stream = unsafe { Stream::borrow_raw(&context, raw, theirs) };
    end_unseen(env, &stream)?;
    drop(stream);
    ensure_waiting(0)
}

/// A program may await all that it does, and wait for nothing.
#[apply(case_alone)]
fn awaiting_a_stream_ends_pools_that_waited_for_it(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let stream = env.stream()?;
    end_unseen(env, &stream)?;
    block_on(stream.completion()?)?;
    ensure_waiting(0)
}

/// A default stream has no end of its own.
#[apply(case_alone)]
fn the_end_of_a_context_ends_pools_that_waited_for_its_streams(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let stream = env.context()?.legacy_stream();
    end_unseen(env, &stream)?;
    drop(stream);
    ensure!(!env.device()?.has_active_context()?);
    ensure_waiting(0)
}
