//! Taking the access of a device back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::sys::CUresult;
use cuda_mem::{Access, Device, ErrorKind, MemoryPool};

use super::{Pair, open_pool, pair};
use crate::environment::Environment;
use crate::handles;
use crate::hold::hold;

/// It is refused without a word from the driver, and nothing is changed.
fn ensure_kept(pool: &MemoryPool, device: Device) -> Result<()> {
    let Err(error) = pool.set_access([(device, Access::None)]) else {
        bail!("access was taken from memory that is in use");
    };
    ensure!(
        error.kind() == ErrorKind::InUse && error.code().is_none(),
        "{error}"
    );
    ensure!(pool.access(&device)? == Access::ReadWrite);
    Ok(())
}

#[apply(case_of_two)]
fn access_is_not_taken_from_work_that_is_queued(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let Pair {
        devices, streams, ..
    } = pair(env)?;
    let pool = open_pool(&devices[0], &devices[1])?;
    let mut buffer = pool.alloc_zeroed::<u8>(&streams[0], 1 << 20)?;
    streams[0].synchronize()?;
    let held = hold(&streams[1])?;
    buffer.on(&streams[1])?.fill(7)?;
    ensure_kept(&pool, devices[1]).context("a fill is queued")?;
    drop(held);
    ensure!(buffer.to_vec()?.iter().all(|byte| *byte == 7));
    ensure_kept(&pool, devices[1]).context("a buffer lives")?;
    let held = hold(&streams[1])?;
    buffer.on(&streams[1])?.fill(8)?;
    drop(buffer);
    ensure_kept(&pool, devices[1]).context("the free waits for a fill")?;
    // What it had before, it has still.
    pool.set_access([(devices[1], Access::ReadWrite)])?;
    let foreign = pool.alloc::<u8>(&streams[1], 1000)?;
    drop(held);
    streams[1].synchronize()?;
    streams[0].synchronize()?;
    ensure_kept(&pool, devices[1]).context("a buffer of the other device lives")?;
    drop(foreign);
    streams[1].synchronize()?;
    pool.set_access([(devices[1], Access::None)])?;
    ensure!(pool.access(&devices[1])? == Access::None);
    // Nobody has anything to lose.
    let _buffer = pool.alloc::<u8>(&streams[0], 1000)?;
    pool.set_access([(devices[1], Access::None)])?;
    Ok(())
}

#[apply(case_of_two)]
fn access_is_taken_unchecked_where_the_caller_knows(env: &Environment) -> Result<()> {
    let Pair {
        devices, streams, ..
    } = pair(env)?;
    let pool = open_pool(&devices[0], &devices[1])?;
    let mut buffer = pool.alloc_zeroed::<u8>(&streams[0], 100)?;
    buffer.on(&streams[1])?.fill(1)?;
    ensure!(buffer.to_vec()? == [1; 100]);
    // SAFETY: the other device has done its work, as the copy has waited for it, and gets no more.
    unsafe { pool.set_access_unchecked([(devices[1], Access::None)]) }?;
    ensure!(pool.access(&devices[1])? == Access::None);
    let lent = buffer.on(&streams[1]).map(drop);
    ensure!(lent.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    ensure!(buffer.to_vec()? == [1; 100]);
    Ok(())
}

/// What it gets it can use; else it gets nothing, by an error of ours.
#[apply(case_of_two)]
fn a_thread_that_allocates_meanwhile_loses_nothing(env: &Environment) -> Result<()> {
    const ROUNDS: usize = 200;
    let _calm = env.shared();
    let Pair {
        devices, streams, ..
    } = pair(env)?;
    let pool = open_pool(&devices[0], &devices[1])?;
    let (done, stream) = (AtomicBool::new(false), &streams[1]);
    thread::scope(|scope| {
        let user = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                match pool.alloc::<u8>(stream, 4096) {
                    Ok(mut buffer) => {
                        buffer
                            .fill(3)
                            .context("what was allocated cannot be used")?;
                        ensure!(buffer.to_vec()? == [3; 4096]);
                    }
                    Err(error) => ensure!(
                        error.kind() == ErrorKind::InvalidValue && error.code().is_none(),
                        "{error}"
                    ),
                }
                stream.synchronize()?;
            }
            Ok(())
        });
        let changed = (0..ROUNDS).try_for_each(|_| {
            match pool.set_access([(devices[1], Access::None)]) {
                Err(error) if error.kind() == ErrorKind::InUse => {}
                taken => taken?,
            }
            thread::yield_now();
            pool.set_access([(devices[1], Access::ReadWrite)])?;
            thread::yield_now();
            anyhow::Ok(())
        });
        done.store(true, Ordering::Relaxed);
        let joined = user.join();
        joined.map_err(|_| anyhow::anyhow!("the thread panicked"))??;
        changed
    })?;
    pool.set_access([(devices[1], Access::ReadWrite)])?;
    let buffer = pool.alloc_from(stream, &[5_u8; 10])?;
    ensure!(buffer.to_vec()? == [5; 10]);
    Ok(())
}

/// Closing takes the access of peers back first.
#[apply(case_of_sim_alone)]
fn a_pool_that_cannot_be_closed_is_open_to_its_peers_as_before(env: &Environment) -> Result<()> {
    let control = env.control()?;
    let Pair {
        devices, streams, ..
    } = pair(env)?;
    // Pools of other kinds are kept instead of destroyed.
    let pool = MemoryPool::builder(&devices[0])
        .handle_types(handles::KIND)
        .accessible_from([&devices[1]])
        .build()?;
    let refuse = |function| {
        control.fail_without_effect(function, 1, CUresult::CUDA_ERROR_NOT_PERMITTED);
    };
    let fail_to_close = |pool: MemoryPool| -> Result<MemoryPool> {
        let failed = pool.close().err().context("it was closed")?;
        ensure!(failed.error.function() == Some("cuMemPoolDestroy"));
        failed.object.context("the pool did not come back")
    };
    let use_there = |pool: &MemoryPool| -> cuda_mem::Result<Vec<u8>> {
        let mut buffer = pool.alloc_zeroed::<u8>(&streams[0], 100)?;
        buffer.on(&streams[1])?.fill(7)?;
        let bytes = buffer.to_vec()?;
        buffer.free_sync()?;
        Ok(bytes)
    };
    ensure!(use_there(&pool)? == [7; 100]);
    streams[1].synchronize()?;

    refuse("cuMemPoolDestroy");
    let pool = fail_to_close(pool)?;
    ensure!(pool.access(&devices[1])? == Access::ReadWrite);
    ensure!(use_there(&pool)? == [7; 100]);
    streams[1].synchronize()?;

    // Access cannot be given again: what the driver says is what this crate says.
    refuse("cuMemPoolDestroy");
    control.fail_without_effect("cuMemPoolSetAccess", 2, CUresult::CUDA_ERROR_NOT_PERMITTED);
    let pool = fail_to_close(pool)?;
    ensure!(pool.access(&devices[1])? == Access::None);
    let refused = [
        use_there(&pool).err(),
        pool.alloc::<u8>(&streams[1], 100).err(),
    ];
    for error in refused {
        let error = error.context("the other device has lost access")?;
        let is_ours = error.kind() == ErrorKind::InvalidValue && error.code().is_none();
        ensure!(is_ours, "{error}");
    }
    streams[0].synchronize()?;
    pool.set_access([(devices[1], Access::ReadWrite)])?;
    ensure!(use_there(&pool)? == [7; 100]);
    streams[1].synchronize()?;
    pool.close()?;
    ensure!(control.reports().is_empty(), "{:?}", control.reports());
    Ok(())
}

/// The pool serves others once it has ended, and they did not ask for that access.
#[apply(case_of_sim_alone)]
fn access_that_may_have_been_given_is_taken_back_at_the_end(env: &Environment) -> Result<()> {
    let (control, Pair { devices, .. }) = (env.control()?, pair(env)?);
    // It is carried out all the same, as when it reports earlier work.
    control.fail("cuMemPoolSetAccess", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let builder = || MemoryPool::builder(&devices[0]);
    let built = builder().accessible_from([&devices[1]]).build();
    let error = built.err().context("the failure was lost")?;
    ensure!(error.kind() == ErrorKind::DeviceFault, "{error}");
    let calls = control.calls("cuMemPoolSetAccess");
    ensure!(calls == 2, "{calls} calls: nothing is taken back");
    let pool = builder().build()?;
    ensure!(pool.access(&devices[1])? == Access::None);
    // Its own device keeps it, or the driver would refuse.
    control.reset();
    control.fail("cuMemPoolSetAccess", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let both = devices[..2].iter();
    let set = pool.set_access(both.map(|device| (*device, Access::ReadWrite)));
    ensure!(set.is_err(), "the failure was lost");
    pool.close()?;
    let calls = control.calls("cuMemPoolSetAccess");
    ensure!(calls == 2, "{calls} calls: nothing is taken back");
    Ok(())
}
