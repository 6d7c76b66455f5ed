//! What happens when something cannot be had.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::base::Failed;
use cuda_mem::mapped::RegisterFlags;
use cuda_mem::memory::DirectResource;
use cuda_mem::{Arena, ErrorKind, MemoryPool, ReleaseThreshold, Resource, Stream};

use crate::environment::Environment;
use crate::forks;

#[apply(case)]
fn a_size_that_overflows_is_refused(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    for len in [usize::MAX, usize::MAX / 4, usize::MAX / 8 + 1] {
        let Err(error) = pool.alloc::<u64>(&stream, len) else {
            anyhow::bail!("{len} elements of 8 bytes were allocated");
        };
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(error.code().is_none(), "the driver was not asked");
    }
    Ok(())
}

#[apply(case)]
fn too_much_memory_says_how_much_there_was(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (pool, stream) = (env.pool()?, env.stream()?);
    let live = pool.alloc::<u8>(&stream, 1000)?;
    for asked in [1_usize << 50, usize::MAX] {
        let Err(error) = pool.alloc::<u8>(&stream, asked) else {
            anyhow::bail!("{asked} bytes were allocated");
        };
        ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
        let Some(memory) = error.out_of_memory() else {
            anyhow::bail!("no numbers: {error}");
        };
        ensure!(memory.asked == asked as u64);
        ensure!(
            memory.device_total.is_some_and(|total| total > 0),
            "{error}"
        );
        ensure!(memory.device_free.is_some(), "{error}");
        if env.need(11, 3).is_ok() {
            ensure!(memory.pool_used == Some(1000), "{error}");
            ensure!(memory.pool_reserved >= Some(1000), "{error}");
            ensure!(memory.pool_used_high >= memory.pool_used, "{error}");
            ensure!(memory.pool_reserved_high >= memory.pool_reserved, "{error}");
        }
    }
    drop(live);
    Ok(())
}

#[apply(case)]
fn memory_that_is_no_pools_says_how_much_the_device_has(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let stream = env.stream()?;
    let direct = Resource::new(DirectResource::new(env.device()?));
    for answer in [
        direct.alloc::<u8>(&stream, 1 << 50),
        stream.alloc::<u8>(1 << 50),
    ] {
        let error = answer.map(drop).expect_err("more than any device has");
        let memory = error.out_of_memory().context("no numbers")?;
        ensure!(memory.asked == 1 << 50, "{error}");
        ensure!(
            memory.device_free.is_some() && memory.device_free <= memory.device_total,
            "{error}"
        );
    }
    Ok(())
}

/// For such a size a driver has returned an address that it does not have (R173).
#[apply(case)]
fn more_bytes_than_there_are_addresses_are_refused_without_the_driver(
    env: &Environment,
) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    for bytes in [1 << 57, usize::MAX] {
        for answer in [pool.alloc::<u8>(&stream, bytes), stream.alloc(bytes)] {
            let error = answer.map(drop).expect_err("more than any machine has");
            ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
            ensure!(error.code().is_none(), "the driver was asked: {error}");
        }
    }
    Ok(())
}

#[apply(case)]
fn a_pool_works_after_running_out(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (pool, stream) = (env.pool()?, env.stream()?);
    ensure!(pool.alloc::<u8>(&stream, 1 << 50).is_err());
    let buffer = pool.alloc_from(&stream, &[1u8; 100])?;
    ensure!(buffer.to_vec()? == [1; 100]);
    if env.need(11, 3).is_ok() {
        ensure!(
            pool.stats()?.used.current == 100,
            "the failed request counts nothing"
        );
    }
    Ok(())
}

/// Measured, and said nowhere: before the driver answers that memory is out, it takes back what every
/// pool of the device keeps, whatever their thresholds.
#[apply(case)]
fn running_out_takes_what_other_pools_keep(env: &Environment) -> Result<()> {
    env.need(12, 2)?;
    let _pressure = env.exclusive();
    let (keeper, stream) = (env.pool()?, env.stream()?);
    let small = MemoryPool::builder(&env.device()?)
        .max_size(64 << 20)
        .build()?;
    let kept = |what: &str, expected: bool| -> Result<()> {
        let stats = keeper.stats()?;
        ensure!((stats.reserved.current > 0) == expected, "{what}: {stats}");
        Ok(())
    };
    drop(keeper.alloc::<u8>(&stream, 100 << 20)?);
    stream.synchronize()?;
    kept("nothing has happened", true)?;
    let half = small.alloc::<u8>(&stream, 40 << 20)?;
    ensure!(small.alloc::<u8>(&stream, 40 << 20).is_err());
    kept("a request that does not fit now", false)?;

    // What is in use, or whose free the host has not seen, stays.
    let live = keeper.alloc_from(&stream, &[7_u8; 1000])?;
    ensure!(small.alloc::<u8>(&stream, 40 << 20).is_err());
    ensure!(live.to_vec()? == [7; 1000]);
    drop((half, live));
    Ok(())
}

#[apply(case)]
fn dropping_counts_no_failure(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    for _ in 0..100 {
        drop(pool.alloc::<u8>(&stream, 100)?);
    }
    ensure!(cuda_mem::base::drop_counts().failures == 0);
    Ok(())
}

/// Alone, because a fork copies only the thread that forks.
#[apply(case_alone)]
fn a_forked_child_leaves_the_parents_memory_alone(env: &Environment) -> Result<()> {
    let (pool, stream, other) = (env.pool()?, env.stream()?, env.stream()?);
    let first = pool.alloc_from(&stream, &[3u8; 1000])?;
    let second = pool.alloc_from(&stream, &[4u8; 1000])?;
    // SAFETY: the child drops GPU objects, which must do nothing there, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        let refused = |error: cuda_mem::Error| error.kind() == ErrorKind::Forked;
        let made = MemoryPool::builder(&stream.device()).build();
        let context = stream.device().primary_context();
        let allocated = pool.alloc::<u8>(&stream, 10);
        let read = first.to_vec();
        let waited = stream.wait_for(&other).and_then(|()| stream.fork([&other]));
        let loaded = cuda_mem::Driver::load();
        let freed = second.free().map_err(|failed| failed.error);
        drop(first);
        drop(pool);
        drop(stream);
        let fine = made.is_err_and(refused)
            && context.is_err_and(refused)
            && allocated.is_err_and(refused)
            && read.is_err_and(refused)
            && waited.is_err_and(refused)
            && loaded.is_err_and(refused)
            && freed.is_err_and(refused)
            && cuda_mem::base::drop_counts().failures == 0
            // Two buffers, the pool, the stream and its context.
            && cuda_mem::base::drop_counts().after_fork == 5;
        forks::end_child(fine);
    }
    forks::ends_well(child)?;
    ensure!(
        first.to_vec()? == [3; 1000],
        "the parent's memory is as it was"
    );
    ensure!(second.to_vec()? == [4; 1000]);
    if env.need(11, 3).is_ok() {
        ensure!(pool.stats()?.used.current == 2000);
    }
    Ok(())
}

/// Alone, because a fork copies only the thread that forks. Locks and driver calls refuse; what is consumed comes back.
#[apply(case_alone)]
fn a_forked_child_gets_its_objects_back(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let (context, device) = (stream.context().clone(), stream.device());
    let buffer = pool.alloc_from(&stream, &[3u8; 1000])?;
    let empty = pool.alloc::<u8>(&stream, 0)?;
    let closed = env.pool()?;
    let pinned = context.pinned::<u8>(1000)?;
    let mut memory = vec![0u8; 1000];
    let registered = context.register(&mut memory, RegisterFlags::default())?;
    let _scope = device.use_resource(&device.default_resource()?)?;
    // SAFETY: the child hands GPU objects in, which must come back there, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        fn comes_back<T, O>(result: std::result::Result<T, Failed<O>>) -> bool {
            let failed = result.map(drop).err();
            failed.is_some_and(|failed| {
                failed.error.kind() == ErrorKind::Forked && failed.object.is_some()
            })
        }
        fn is_refused<T>(result: cuda_mem::Result<T>) -> bool {
            result.is_err_and(|error| error.kind() == ErrorKind::Forked)
        }
        let mut fine = is_refused(device.default_pool())
            && is_refused(device.default_resource())
            && is_refused(device.current_resource())
            && is_refused(device.reset_current_resource())
            && is_refused(MemoryPool::builder(&device).support())
            && is_refused(pool.set_release_threshold(ReleaseThreshold::Never))
            && is_refused(pool.raise_release_threshold(ReleaseThreshold::Never))
            && is_refused(cuda_mem::cpu_mapping::Gdr::load());
        fine &= comes_back(buffer.free());
        fine &= comes_back(empty.free());
        fine &= comes_back(closed.close());
        fine &= comes_back(pinned.free());
        fine &= comes_back(registered.unregister());
        fine &= cuda_mem::base::drop_counts().failures == 0;
        forks::end_child(fine);
    }
    forks::ends_well(child)?;
    ensure!(buffer.to_vec()? == [3; 1000], "the parent's is as it was");
    closed.close()?;
    pinned.free()?;
    registered.unregister().map_err(|failed| failed.error)?;
    Ok(())
}

/// Alone, because a fork copies only the thread that forks. What the other one was counting at that moment, nobody
/// finishes there.
#[apply(case_alone)]
fn a_forked_child_drops_what_another_thread_counts(env: &Environment) -> Result<()> {
    let resource = ManuallyDrop::new(Resource::from(Arena::builder(&env.device()?).build()?));
    let stream = ManuallyDrop::new(env.stream()?);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(resource.alloc::<u8>(&stream, 100)?);
            }
            anyhow::Ok(())
        });
        let dropped = (0..30).try_for_each(|_| drop_in_a_fork(&resource, &stream));
        stop.store(true, Ordering::Relaxed);
        let worked = worker.join();
        dropped?;
        worked.map_err(|_| anyhow::anyhow!("the thread panicked"))?
    })?;
    drop(ManuallyDrop::into_inner(resource));
    drop(ManuallyDrop::into_inner(stream));
    Ok(())
}

/// Drops the last handles in a forked child, which has to come to its end.
fn drop_in_a_fork(resource: &ManuallyDrop<Resource>, stream: &ManuallyDrop<Stream>) -> Result<()> {
    // SAFETY: the child drops GPU objects, which must do nothing there, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        // SAFETY: nobody in the child uses it, or drops it again.
        drop(unsafe { std::ptr::read(&raw const **resource) });
        // SAFETY: as above.
        drop(unsafe { std::ptr::read(&raw const **stream) });
        let fine = cuda_mem::base::drop_counts().failures == 0;
        forks::end_child(fine);
    }
    forks::ends_within(child, Duration::from_secs(10))
}
