//! Lists of what has ended do not grow.

use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use cuda_mem::Arena;
use cuda_mem_tests::environment::Environment;

use super::BYTES;

/// Does something many times, which must leave less than so many bytes on the heap each time.
fn leaves_less_than(bytes: isize, what: &str, work: impl Fn() -> Result<()>) -> Result<()> {
    const TIMES: isize = 256;
    // Tables grow to their size.
    (0..TIMES).try_for_each(|_| work())?;
    let before = BYTES.load(Ordering::Relaxed);
    (0..TIMES).try_for_each(|_| work())?;
    let left = BYTES.load(Ordering::Relaxed) - before;
    ensure!(left < bytes * TIMES, "{what}: {left} bytes are left");
    Ok(())
}

#[apply(case)]
fn what_comes_and_goes_leaves_nothing_on_the_heap(env: &Environment) -> Result<()> {
    let (device, context, stream) = (env.device()?, env.context()?, env.stream()?);
    leaves_less_than(8, "a handle of a context", || {
        drop(device.primary_context()?);
        Ok(())
    })?;
    leaves_less_than(8, "the thread's own stream", || {
        drop(context.per_thread_stream());
        Ok(())
    })?;
    // SAFETY: `context` keeps it alive.
    let handed_in = unsafe { env.driver.context_from_raw(context.as_raw()) }?;
    leaves_less_than(8, "the thread's own stream of a foreign context", || {
        drop(handed_in.per_thread_stream());
        Ok(())
    })?;
    leaves_less_than(8, "own streams of foreign contexts that end", || {
        // SAFETY: `context` keeps it alive.
        let ending = unsafe { env.driver.context_from_raw(context.as_raw()) }?;
        drop(ending.per_thread_stream());
        Ok(())
    })?;
    let arena = Arena::builder(&device).build()?;
    leaves_less_than(8, "a handle of the legacy stream", || {
        let legacy = context.legacy_stream();
        drop(arena.alloc::<u8>(&legacy, 1000)?);
        Ok(())
    })?;
    // Its thread may end a little later.
    leaves_less_than(100, "an arena", || {
        let arena = Arena::builder(&device).build()?;
        drop(arena.alloc::<u8>(&stream, 1000)?);
        drop(arena);
        Ok(stream.synchronize()?)
    })
}
