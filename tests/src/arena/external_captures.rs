//! Graphs that other code captures, with memory of an arena.

use anyhow::{Result, anyhow, ensure};
use cuda_mem::{Arena, DeviceBuffer, ErrorKind, MemoryResource as _, Resource};

use crate::environment::Environment;
use crate::foreign::{begin, end_into_exec, end_well, fill};

const LEN: usize = 1 << 17;
const BYTES: usize = 4 * LEN;

#[apply(case_alone)]
fn a_foreign_graph_keeps_its_memory(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (captured, other, launching) = (env.stream()?, env.stream()?, env.stream()?);
    for mode in 0..3 {
        let arena = Arena::builder(&env.device()?).slack(1.0).build()?;
        let resource = Resource::from(arena.clone());
        let pool = arena.external_capture_pool()?;
        // The pool gets memory that another stream still works with.
        let mut before = resource.alloc::<u32>(&other, 64 * LEN)?;
        before.fill(1)?;
        drop(before);
        arena.set_max_bytes(arena.stats().reserved);
        begin(&captured, mode)?;
        let first = pool.allocate(BYTES, &captured)?;
        fill(first, 7, LEN, &captured)?;
        let kept = pool.allocate(BYTES, &captured)?;
        ensure!(kept != first && kept != 0);
        fill(kept, 5, LEN, &captured)?;
        // SAFETY: all that follows in the capture is ordered after what used it.
        unsafe { pool.deallocate(first, &captured) }?;
        ensure!(pool.allocate(BYTES, &captured)? == first, "reused");
        ensure!(pool.contains(kept) && !pool.contains(0));
        ensure!(pool.live_bytes() == 2 * BYTES as u64);
        // Other streams use the arena meanwhile.
        drop(resource.alloc::<u32>(&other, LEN)?);
        let exec = end_into_exec(&captured, &launching)?;
        arena.set_max_bytes(u64::MAX);
        exec.run()?;
        // Whatever else the arena hands out is not the graph's.
        let mut blocks = Vec::new();
        for value in 0..80 {
            let mut block = resource.alloc::<u32>(&other, LEN)?;
            block.fill(100 + value)?;
            blocks.push(block);
        }
        other.synchronize()?;
        arena.trim_to(0)?;
        exec.run()?;
        for (value, block) in blocks.iter().enumerate() {
            ensure!(
                block.to_vec()? == vec![100 + value as u32; LEN],
                "{mode}: {value}"
            );
        }
        // SAFETY: the pool has this memory, which the graph has filled.
        let view = unsafe { DeviceBuffer::<u32>::borrow_raw(&launching, kept, LEN, ()) };
        ensure!(view.to_vec()? == vec![5; LEN], "{mode}");
        drop((blocks, view, exec));
        // SAFETY: the graph is gone, and was waited for.
        unsafe { pool.release() };
        other.synchronize()?;
        launching.synchronize()?;
        arena.trim_to(0)?;
        ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    }
    Ok(())
}

#[apply(case_alone)]
fn streams_of_a_capture_share_no_free_memory(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (a, b) = (env.stream()?, env.stream()?);
    let arena = Arena::builder(&env.device()?).build()?;
    let pool = arena.external_capture_pool()?;
    begin(&a, 0)?;
    let of_a = pool.allocate(1000, &a)?;
    // SAFETY: nothing uses it.
    let refused = unsafe { pool.deallocate(of_a, &b) };
    // SAFETY: as above.
    unsafe { pool.deallocate(of_a, &a) }?;
    // `b` is not ordered after `a`.
    let of_b = pool.allocate(1000, &b)?;
    ensure!(of_b != of_a);
    ensure!(pool.allocate(1000, &a)? == of_a);
    // SAFETY: as above.
    let inside = unsafe { pool.deallocate(of_a + 256, &a) };
    ensure!(pool.allocate(0, &a)? == 0);
    // SAFETY: nothing is there.
    unsafe { pool.deallocate(0, &a) }?;
    end_well(&a)?;
    for refused in [refused, inside] {
        let error = refused.expect_err("no block of that stream");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    }
    ensure!(pool.live_bytes() == 2 * 1024, "{pool:?}");
    let error = pool.allocate(usize::MAX, &a).expect_err("too much");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    arena.set_max_bytes(arena.stats().reserved);
    let error = pool.allocate(64 << 20, &a).expect_err("no more");
    ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    // SAFETY: nothing was captured with its memory.
    unsafe { pool.release() };
    Ok(())
}

/// The pool of a graph that may still be launched is not reused.
#[apply(case)]
fn a_dropped_pool_leaks_rather_than_reuses(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let pool = arena.external_capture_pool()?;
    let address = pool.allocate(BYTES, &stream)?;
    let held = pool.held_bytes();
    drop(pool);
    ensure!(arena.stats().live == held, "{}", arena.stats());
    let buffer = arena.alloc::<u8>(&stream, BYTES)?;
    ensure!(buffer.as_raw() != address);
    Ok(())
}

/// A pool takes a share of what it holds, so that it seldom has to.
#[apply(case)]
fn a_pool_takes_less_where_there_is_less(env: &Environment) -> Result<()> {
    const MIB: usize = 1 << 20;
    let stream = env.stream()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let pool = arena.external_capture_pool()?;
    pool.allocate(64 * MIB, &stream)?;
    arena.set_max_bytes(arena.stats().reserved);
    // What is left of the arena, but for one piece.
    let mut others = Vec::new();
    while let Ok(block) = resource.alloc::<u8>(&stream, 2 * MIB) {
        others.push(block);
    }
    arena.set_max_bytes(arena.stats().reserved + (2 << 20));
    let held = pool.held_bytes();
    pool.allocate(MIB, &stream)?;
    ensure!(pool.held_bytes() == held + (2 << 20), "{pool:?}");
    // SAFETY: nothing was captured with its memory.
    unsafe { pool.release() };
    Ok(())
}

#[apply(case)]
fn threads_own_streams_share_no_free_memory(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let pool = arena.external_capture_pool()?;
    let own = context.per_thread_stream();
    let of_own = pool.allocate(1000, &own)?;
    // SAFETY: nothing uses it.
    unsafe { pool.deallocate(of_own, &own) }?;
    let elsewhere = std::thread::scope(|scope| {
        let allocate = || pool.allocate(1000, &context.per_thread_stream());
        scope.spawn(allocate).join()
    });
    let elsewhere = elsewhere.map_err(|_| anyhow!("the thread panicked"))??;
    ensure!(elsewhere != of_own, "{pool:?}");
    // SAFETY: nothing was captured with its memory.
    unsafe { pool.release() };
    Ok(())
}
