//! What is leaked, and what is left at the end.

use std::mem::forget;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::MemoryPool;
use cuda_mem::interop::CaptureMode;
use cuda_mem::mapped::RegisterFlags;
use cuda_mem::sys::CUresult;

use super::pattern;
use super::registered::end;
use crate::environment::Environment;
use crate::hold::hold;

const LEN: usize = 1 << 20;

#[apply(case_alone)]
fn a_leaked_loan_keeps_its_memory(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let pool = env.pool()?;
    let mut buffer = pool.alloc_from(&stream, &pattern(LEN, 1))?;
    let mut pinned = context.pinned::<u8>(LEN)?.lend(&stream)?;
    let boxed = vec![0u8; LEN].into_boxed_slice();
    let mut boxed = context
        .register_boxed(boxed, RegisterFlags::default())?
        .lend(&stream)?;
    let addresses = [pinned.as_raw(), boxed.as_raw()];
    let held = hold(&stream)?;
    pinned.copy_from(&buffer)?;
    boxed.copy_from(&buffer)?;
    buffer.fill(0)?;
    forget((pinned, boxed));
    drop(held);
    stream.synchronize()?;
    // Nobody else has got the memory. Asked for only now: with the stream held the driver might wait.
    let other = context.pinned::<u8>(LEN)?;
    let address = other.device_address(&context)?;
    ensure!(
        addresses
            .iter()
            .all(|leaked| leaked.abs_diff(address) >= LEN as u64)
    );
    ensure!(other.iter().all(|byte| *byte == 0));
    for leaked in addresses {
        let leaked = std::ptr::with_exposed_provenance::<u8>(leaked as usize);
        // SAFETY: the memory was leaked, the stream is done with it, and nobody writes.
        let bytes = unsafe { std::slice::from_raw_parts(leaked, LEN) };
        ensure!(*bytes == pattern(LEN, 1)[..], "the copy went elsewhere");
    }
    if let Ok(control) = env.control() {
        let live = control.live();
        ensure!((live.host_allocations, live.registrations) == (2, 1));
        ensure!(control.reports().is_empty(), "{:?}", control.reports());
    }
    Ok(())
}

#[apply(case_alone)]
fn a_leaked_registration_is_still_known(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let mut memory = pattern(LEN, 2);
    let address = memory.as_ptr();
    forget(context.register(&mut memory, RegisterFlags::default())?);
    // The slice is as good as any: copies of it wait.
    let buffer = env.pool()?.alloc_from(&stream, &memory)?;
    memory.fill(0);
    buffer.copy_to(&mut memory)?;
    ensure!(memory == pattern(LEN, 2));
    ensure!(end(env, address)? == CUresult::CUDA_SUCCESS);
    Ok(())
}

#[apply(case_alone)]
fn memory_is_given_back_after_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (context, stream) = (env.context()?, env.stream()?);
    let buffer = env.pool()?.alloc_from(&stream, &pattern(LEN, 3))?;
    let (mut kept, mut dropped) = (
        context.pinned::<u8>(LEN)?.lend(&stream)?,
        context.pinned::<u8>(LEN)?.lend(&stream)?,
    );
    kept.copy_from(&buffer)?;
    dropped.copy_from(&buffer)?;
    let (graph, kept) = stream.capture(CaptureMode::Global, |capture| {
        drop(dropped);
        let refused = kept.take_back().expect_err("the stream is captured");
        assert_eq!(refused.error.kind(), cuda_mem::ErrorKind::Capturing);
        let mut memory = capture.alloc::<u32>(100)?;
        memory.as_mut_slice().fill(3)?;
        memory.free()?;
        Ok(refused.object.expect("the loan goes on"))
    })?;
    drop(graph.instantiate(cuda_mem::interop::Instantiate::Plain)?);
    stream.synchronize()?;
    ensure!(*kept.take_back()? == pattern(LEN, 3)[..]);
    ensure!(cuda_mem::base::drop_counts().failures == 0);
    if let Ok(control) = env.control() {
        ensure!(control.live().host_allocations == 0, "{:?}", control.live());
    }
    Ok(())
}

/// Nothing can be ordered with such a stream here, so the host waits for the other one, too.
#[apply(case_alone)]
fn a_loan_of_a_threads_own_stream_ends_elsewhere_although_others_read_it(
    env: &Environment,
) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let lend = || -> Result<_> {
        let lent = context
            .pinned::<u8>(LEN)?
            .lend(&context.per_thread_stream())?;
        forget(lent.as_slice().read_on(&stream)?);
        Ok(lent)
    };
    let (first, second) = std::thread::scope(|scope| {
        let there = scope.spawn(|| Ok::<_, anyhow::Error>((lend()?, lend()?)));
        there.join().map_err(|_| anyhow::anyhow!("panicked"))?
    })?;
    drop(hold(&stream)?);
    ensure!(first.take_back()?.len() == LEN && stream.is_done()?);
    drop(second);
    if let Ok(control) = env.control() {
        ensure!(control.live().host_allocations == 0, "it leaked");
    }
    Ok(())
}

/// Nothing can be ordered with such a stream, and waiting for its context would spoil every capture there (R110).
#[apply(case_alone)]
fn loans_of_a_threads_own_stream_wait_for_captures(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (context, stream) = (env.context()?, env.stream()?);
    let buffer = env.pool()?.alloc_from(&stream, &pattern(LEN, 5))?;
    stream.synchronize()?;
    let make = || -> Result<_> {
        let own = context.per_thread_stream();
        let mut loans = Vec::new();
        for _ in 0..3 {
            let mut loan = context.pinned::<u8>(LEN)?.lend(&own)?;
            loan.copy_from(&buffer)?;
            loans.push(loan);
        }
        // The last handle of this one's stream goes with it.
        let mut alone = context
            .pinned::<u8>(LEN)?
            .lend(&context.per_thread_stream())?;
        alone.copy_from(&buffer)?;
        let memory = env.pool()?.alloc::<u8>(&context.per_thread_stream(), LEN)?;
        Ok((own, loans, alone, memory))
    };
    let (own, mut loans, alone, memory) = std::thread::scope(|scope| {
        let there = scope.spawn(make);
        there.join().map_err(|_| anyhow::anyhow!("panicked"))?
    })?;
    let (kept, dropped) = (loans.pop(), loans.pop());
    let (kept, last) = (kept.context("three")?, loans);
    let (graph, kept) = stream.capture(CaptureMode::Global, |capture| {
        drop((dropped, alone, memory));
        let refused = kept.take_back().expect_err("it would spoil the capture");
        assert_eq!(refused.error.kind(), cuda_mem::ErrorKind::Capturing);
        assert!(refused.error.to_string().contains("another thread"));
        let mut memory = capture.alloc::<u32>(100)?;
        memory.as_mut_slice().fill(3)?;
        memory.free()?;
        Ok(refused.object.expect("the loan goes on"))
    })?;
    graph
        .instantiate(cuda_mem::interop::Instantiate::Plain)?
        .launch(&stream)?;
    stream.synchronize()?;
    ensure!(*kept.take_back()? == pattern(LEN, 5)[..]);
    drop((last, own, buffer));
    // One gives the buffer back, and then its pool can go, which is not looked at every time.
    for _ in 0..100 {
        context.synchronize()?;
    }
    let counts = cuda_mem::base::drop_counts();
    ensure!((counts.failures, counts.waiting) == (0, 0), "{counts:?}");
    if let Ok(control) = env.control() {
        ensure!(control.live().host_allocations == 0, "{:?}", control.live());
    }
    Ok(())
}

/// Such a stream cannot be asked whether it is done.
#[apply(case_alone)]
fn a_loan_that_a_threads_own_stream_used_is_released_after_the_context(
    env: &Environment,
) -> Result<()> {
    env.need(11, 4)?;
    let (context, stream, other) = (env.context()?, env.stream()?, env.stream()?);
    let loan = context.pinned::<u8>(LEN)?.lend(&stream)?;
    std::thread::scope(|scope| {
        let uses = || -> Result<()> {
            // Its use is never over.
            forget(loan.as_slice().read_on(&context.per_thread_stream())?);
            Ok(())
        };
        let there = scope.spawn(uses);
        there.join().map_err(|_| anyhow::anyhow!("panicked"))?
    })?;
    other.capture(CaptureMode::Global, |_| {
        drop(loan);
        Ok(())
    })?;
    stream.synchronize()?;
    let counts = cuda_mem::base::drop_counts();
    ensure!((counts.failures, counts.waiting) == (0, 1), "{counts:?}");
    context.synchronize()?;
    let counts = cuda_mem::base::drop_counts();
    ensure!((counts.failures, counts.waiting) == (0, 0), "{counts:?}");
    if let Ok(control) = env.control() {
        ensure!(control.live().host_allocations == 0, "{:?}", control.live());
    }
    Ok(())
}

#[apply(case_alone)]
fn a_capture_is_not_disturbed(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (context, stream, other) = (env.context()?, env.stream()?, env.stream()?);
    let mut memory = pattern(LEN, 1);
    let buffer = env.pool()?.alloc_from(&other, &memory)?;
    let before = context.pinned::<u8>(100)?;
    let (graph, ()) = stream.capture(CaptureMode::Global, |capture| {
        drop(before);
        let mut loan = context.pinned::<u8>(LEN)?.lend(&other)?;
        loan.copy_from(&buffer)?;
        drop(loan.take_back()?);
        drop(context.register(&mut memory, RegisterFlags::default())?);
        let mut memory = capture.alloc::<u32>(100)?;
        memory.as_mut_slice().fill(3)?;
        memory.free()
    })?;
    graph
        .instantiate(cuda_mem::interop::Instantiate::Plain)?
        .launch(&stream)?;
    stream.synchronize()?;
    ensure!(cuda_mem::base::drop_counts().failures == 0);
    Ok(())
}

#[apply(case_of_sim_alone)]
fn nothing_is_left(env: &Environment) -> Result<()> {
    let control = env.control()?;
    let before = control.live();
    {
        let (context, stream) = (env.context()?, env.stream()?);
        let pool = env.pool()?;
        let mut memory = pattern(LEN, 1);
        let registered = context.register(&mut memory, RegisterFlags::default())?;
        let boxed = context.register_boxed(vec![1u8; LEN].into(), RegisterFlags::default())?;
        let mut buffer = pool.alloc::<u8>(&stream, LEN)?;
        let live = control.live();
        ensure!((live.host_allocations, live.registrations) == (0, 2));
        let mut pinned = context.pinned::<u8>(LEN)?.lend(&stream)?;
        let boxed = boxed.lend(&stream)?;
        boxed.copy_to(&mut buffer)?;
        pinned.copy_from(&buffer)?;
        ensure!(control.live().host_allocations == 1);
        // The stream and the context may go first.
        drop(buffer);
        stream.synchronize()?;
        drop((pool, stream, context));
        drop((pinned, boxed, registered));
    }
    // SAFETY: this is the only thread.
    unsafe { MemoryPool::destroy_spares() }?;
    ensure!(control.live() == before, "{:?}", control.live());
    ensure!(control.reports().is_empty(), "{:?}", control.reports());
    Ok(())
}
