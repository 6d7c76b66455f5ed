//! What waits for the whole device when it is released, and the calls that leave it to a wait of the program.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::cpu_mapping::{CpuMappingKind, CpuMappingOptions};
use cuda_mem::memory::{ManagedResource, PinnedResource};
use cuda_mem::{Arena, MemoryPool, Resource};

use crate::environment::Environment;
use crate::executor::block_on;
use crate::foreign::{RELAXED, begin, end_well};
use crate::hold::{hold, hold_for};

/// Only to end a test that fails.
const PATIENCE: Duration = Duration::from_secs(5);

/// The driver waits for the whole device when it frees host memory. A call that must not wait for that leaves it to one
/// that waits anyway: what the device is busy with may wait for the host.
#[apply(case_alone)]
fn what_waits_for_the_device_ends_after_a_wait(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let (busy, other) = (env.stream()?, env.stream()?);
    let options = CpuMappingOptions::new().only([CpuMappingKind::Copies]);
    let pool = env.pool()?;
    let mut words = pool.alloc_zeroed::<u32>(&busy, 16)?;
    let mut mailbox = options.open(&mut words)?;
    mailbox.store(0, 7)?;
    let arena = Arena::over(PinnedResource::new(env.driver));
    let staging = arena.alloc::<u8>(&busy, 1000)?;
    let first_hold = hold(&busy)?;
    let completion = busy.completion()?;
    drop((staging, arena));
    ensure!(drop_counts().waiting == 1, "{:?}", drop_counts());
    // Host functions run one after the other.
    let second_hold = hold_for(&other, 4 * PATIENCE)?;
    drop(first_hold);
    let begin = Instant::now();
    while !busy.is_done()? && begin.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    let calls = move || -> Result<u64> {
        ensure!(mailbox.load(0)? == 7);
        block_on(completion)?;
        drop(context.stream()?);
        drop(MemoryPool::builder(&env.device()?).build()?);
        Ok(drop_counts().waiting)
    };
    let waiting = beside(second_hold, calls)?;
    ensure!(waiting >= 1, "nothing was left to release");
    other.synchronize()?;
    ensure!(drop_counts().waiting == 0, "{:?}", drop_counts());
    Ok(())
}

/// What the calls return while this is held, which they must not wait for.
fn beside<T: Send>(held: impl Sized, calls: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let calls = scope.spawn(calls);
        let begin = Instant::now();
        while !calls.is_finished() && begin.elapsed() < PATIENCE {
            thread::yield_now();
        }
        let is_in_time = calls.is_finished();
        drop(held);
        let answer = calls.join().map_err(|_| anyhow!("the thread panicked"))?;
        ensure!(is_in_time, "a call waited for another stream");
        answer
    })
}

/// The buffer's free does not wait for the device, but takes the arena with it, whose end does.
#[apply(case_alone)]
fn the_last_buffer_of_an_arena_may_end_after_any_call(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let (first, stream, other) = (env.stream()?, env.stream()?, env.stream()?);
    let arena = Arena::over(PinnedResource::new(env.driver));
    // The arena has nothing in the stream, so it refuses the free during the capture.
    let mut staging = arena.alloc::<u8>(&first, 1000)?;
    staging.set_stream(&stream)?;
    begin(&stream, RELAXED)?;
    drop((staging, arena));
    end_well(&stream)?;
    ensure!(drop_counts().waiting == 1, "{:?}", drop_counts());
    let held = hold(&other)?;
    let waiting = beside(held, move || {
        drop(context.stream()?);
        Ok(drop_counts().waiting)
    })?;
    ensure!(waiting >= 1, "nothing was left to release");
    other.synchronize()?;
    ensure!(drop_counts().waiting == 0, "{:?}", drop_counts());
    Ok(())
}

/// So is memory whose free a capture has put off.
#[apply(case_alone)]
fn memory_that_a_capture_put_off_ends_after_a_wait(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let (stream, other) = (env.stream()?, env.stream()?);
    let pinned = Resource::new(PinnedResource::new(env.driver)).alloc::<u8>(&stream, 1000)?;
    begin(&stream, RELAXED)?;
    drop(pinned);
    end_well(&stream)?;
    ensure!(drop_counts().waiting == 1, "{:?}", drop_counts());
    let held = hold(&other)?;
    let waiting = beside(held, move || {
        drop(context.stream()?);
        Ok(drop_counts().waiting)
    })?;
    ensure!(waiting == 1, "a call has freed it");
    other.synchronize()?;
    ensure!(drop_counts().waiting == 0, "{:?}", drop_counts());
    Ok(())
}

/// A request to the driver itself waits for no thread and runs no code of the program, so that it need not wait for the
/// device before. A copy of host memory is a wait that the program asked for.
#[apply(case_alone)]
fn a_request_leaves_what_waits_for_the_device_to_the_next_copy(env: &Environment) -> Result<()> {
    let (pool, stream, other) = (env.pool()?, env.stream()?, env.stream()?);
    let resources = [
        Resource::new(PinnedResource::new(env.driver)),
        Resource::new(ManagedResource::new(env.driver)),
    ];
    let mut target = pool.alloc::<u8>(&other, 1)?;
    let staging = resources[0].alloc::<u8>(&stream, 1000)?;
    begin(&stream, RELAXED)?;
    drop(staging);
    end_well(&stream)?;
    ensure!(drop_counts().waiting == 1, "{:?}", drop_counts());
    for resource in &resources {
        let _more = resource.alloc::<u8>(&other, 1000)?;
        ensure!(
            drop_counts().waiting == 1,
            "{resource:?}: {:?}",
            drop_counts()
        );
    }
    target.copy_from(&[7])?;
    ensure!(drop_counts().waiting == 0, "{:?}", drop_counts());
    Ok(())
}

/// A request to an arena asks no resource of the program, and waits for nothing: it need not make room before.
#[apply(case_alone)]
fn a_request_to_an_arena_leaves_what_waits_for_the_device(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    let arena = Arena::builder(&env.device()?).build()?;
    drop(arena.alloc::<u8>(&stream, 1000)?);
    let pinned = Resource::new(PinnedResource::new(env.driver)).alloc::<u8>(&stream, 1000)?;
    begin(&stream, RELAXED)?;
    drop(pinned);
    end_well(&stream)?;
    ensure!(drop_counts().waiting == 1, "{:?}", drop_counts());
    let held = hold(&other)?;
    let waiting = beside(held, || {
        drop(arena.alloc::<u8>(&stream, 1000)?);
        Ok(drop_counts().waiting)
    })?;
    ensure!(waiting == 1, "the request has freed it");
    other.synchronize()?;
    ensure!(drop_counts().waiting == 0, "{:?}", drop_counts());
    Ok(())
}
