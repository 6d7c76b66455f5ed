//! What a capture has put off, where the driver gives no answer afterwards.

use std::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cuda_mem::base::{DropCounts, drop_counts};
use cuda_mem::memory::{LimitAdaptor, MemoryProperties, PinnedResource};
use cuda_mem::sys::CUresult;
use cuda_mem::{Arena, DeviceBuffer, MemoryPool, MemoryResource, Resource, Stream};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::foreign::{RELAXED, begin, end_well};
use cuda_mem_tests::hold::hold;

/// Memory whose free waits for its stream.
fn memory(env: &Environment, stream: &Stream) -> Result<DeviceBuffer<u8>> {
    let resource = Resource::new(PinnedResource::new(env.driver));
    Ok(resource.alloc(stream, 100)?)
}

fn drop_in_a_capture(memory: DeviceBuffer<u8>, stream: &Stream) -> Result<()> {
    begin(stream, RELAXED)?;
    drop(memory);
    end_well(stream)
}

/// Waits for another stream, while each query of a stream answers this. Returns what has changed meanwhile.
fn poll(env: &Environment, code: CUresult) -> Result<DropCounts> {
    let (other, control) = (env.stream()?, env.control()?);
    let before = drop_counts();
    for nth in 1..=100 {
        control.fail("cuStreamQuery", nth, code);
    }
    let polled = (0..8).try_for_each(|_| other.synchronize());
    control.clear_faults();
    polled?;
    let mut now = drop_counts();
    now.failures -= before.failures;
    Ok(now)
}

#[apply(case)]
fn memory_of_a_lost_context_is_given_up(env: &Environment) -> Result<()> {
    let (stream, waiting) = (env.stream()?, drop_counts().waiting);
    drop_in_a_capture(memory(env, &stream)?, &stream)?;
    let counts = poll(env, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)?;
    ensure!(
        (counts.failures, counts.waiting) == (2, waiting),
        "{counts:?}"
    );
    Ok(())
}

/// Another failure is reported once, and the memory is freed when the driver answers.
#[apply(case)]
fn memory_whose_stream_gives_no_answer_is_freed_later(env: &Environment) -> Result<()> {
    let (stream, waiting) = (env.stream()?, drop_counts().waiting);
    drop_in_a_capture(memory(env, &stream)?, &stream)?;
    let counts = poll(env, CUresult::CUDA_ERROR_UNKNOWN)?;
    ensure!(
        (counts.failures, counts.waiting) == (1, waiting + 1),
        "{counts:?}"
    );
    env.context()?.synchronize()?;
    ensure!(drop_counts().waiting == waiting, "{:?}", drop_counts());
    Ok(())
}

/// As above, where another stream cannot be waited for.
#[apply(case)]
fn memory_whose_streams_cannot_be_ordered_is_freed_later(env: &Environment) -> Result<()> {
    let (other, control) = (env.stream()?, env.control()?);
    let limit = Arc::new(LimitAdaptor::new(env.pool()?, 1 << 20));
    let resource = Resource::from(Arc::clone(&limit));
    let stream = env.stream()?;
    let memory = resource.alloc::<u8>(&stream, 1000)?;
    begin(&stream, RELAXED)?;
    let Err(refused) = memory.free_after([&other]) else {
        bail!("freed in a capture");
    };
    drop(refused);
    end_well(&stream)?;
    for function in ["cuEventRecord", "cuStreamWaitEvent"] {
        control.fail_without_effect(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
        other.synchronize()?;
        ensure!(limit.allocated() == 1000, "{function}");
    }
    env.context()?.synchronize()?;
    ensure!(limit.allocated() == 0, "{} bytes", limit.allocated());
    Ok(())
}

/// As above, where the last handle of the memory's stream is gone and there is no other stream to free in.
#[apply(case)]
fn memory_whose_stream_has_no_successor_is_freed_later(env: &Environment) -> Result<()> {
    let (context, control) = (env.context()?, env.control()?);
    let limit = Arc::new(LimitAdaptor::new(env.pool()?, 1 << 20));
    let resource = Resource::from(Arc::clone(&limit));
    let stream = env.stream()?;
    let memory = resource.alloc::<u8>(&stream, 1000)?;
    begin(&stream, RELAXED)?;
    drop(memory);
    control.fail_without_effect("cuStreamCreate", 1, CUresult::CUDA_ERROR_UNKNOWN);
    drop(stream);
    ensure!(limit.allocated() == 1000, "{} bytes", limit.allocated());
    context.synchronize()?;
    ensure!(limit.allocated() == 0, "{} bytes", limit.allocated());
    Ok(())
}

/// Nothing can be asked about the own stream of another thread.
#[apply(case)]
fn memory_of_a_lost_context_is_given_up_without_its_stream(env: &Environment) -> Result<()> {
    let (context, waiting) = (env.context()?, drop_counts().waiting);
    let (tell, is_dropped) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let owner = move || -> Result<()> {
        let (_current, own) = (context.bind()?, context.per_thread_stream());
        drop_in_a_capture(memory(env, &own)?, &own)?;
        tell.send(())?;
        let _ = may_go.recv();
        Ok(())
    };
    let polls = || -> Result<DropCounts> {
        is_dropped.recv().context("the other thread failed")?;
        ensure!(drop_counts().waiting == waiting + 1, "{:?}", drop_counts());
        // Any other answer about this thread's own stream says nothing of that one.
        let counts = poll(env, CUresult::CUDA_ERROR_UNKNOWN)?;
        ensure!(
            (counts.failures, counts.waiting) == (0, waiting + 1),
            "{counts:?}"
        );
        poll(env, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS)
    };
    let counts = std::thread::scope(|scope| {
        let owner = scope.spawn(owner);
        let polled = polls();
        drop(go);
        owner.join().map_err(|_| anyhow!("the thread panicked"))??;
        polled
    })?;
    ensure!(
        (counts.failures, counts.waiting) == (2, waiting),
        "{counts:?}"
    );
    Ok(())
}

/// A resource whose end panics.
#[derive(Debug)]
struct Fragile(MemoryPool);

// SAFETY: the pool's.
unsafe impl MemoryResource for Fragile {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        self.0.allocate(layout, stream)
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        // SAFETY: the caller's.
        unsafe { self.0.deallocate(address, layout, stream) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.0.memory_properties()
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("as a destructor may"));
    }
}

/// The last owner is the buffer that a capture has put off, and some other buffer's end releases it.
#[apply(case)]
fn a_destructor_that_panics_harms_no_other_buffer(env: &Environment) -> Result<()> {
    let (stream, pool) = (env.stream()?, env.pool()?);
    let memory = Resource::new(Fragile(pool.clone())).alloc(&stream, 100)?;
    let other = Arc::new(env.pool()?);
    let innocent = Resource::from(Arc::clone(&other)).alloc::<u8>(&stream, 100)?;
    drop_in_a_capture(memory, &stream)?;
    let failures = drop_counts().failures;
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(innocent)));
    ensure!(dropped.is_ok(), "the panic is another buffer's");
    ensure!(
        drop_counts().failures == failures + 1,
        "{:?}",
        drop_counts()
    );
    ensure!(Arc::strong_count(&other) == 1, "its resource is kept");
    ensure!(pool.stats()?.used.current == 0, "not freed");
    Ok(())
}

/// As above, where the last owner is an arena whose memory was in use when it ended.
#[apply(case)]
fn a_destructor_that_panics_harms_no_wait(env: &Environment) -> Result<()> {
    let (stream, waiting) = (env.stream()?, drop_counts().waiting);
    let pool = env.pool()?;
    let arena = Arena::over(Fragile(pool.clone()));
    let memory = arena.alloc::<u8>(&stream, 1000)?;
    let held = hold(&stream)?;
    drop((memory, arena));
    let before = drop_counts();
    ensure!(before.waiting == waiting + 1, "{before:?}");
    drop(held);
    let waited = catch_unwind(AssertUnwindSafe(|| stream.synchronize()));
    ensure!(matches!(waited, Ok(Ok(()))), "the panic is the wait's");
    let failures = drop_counts().failures - before.failures;
    ensure!(failures == 1, "{failures}");
    Ok(())
}
