//! Single calls about pools that fail.

use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::interop::CaptureMode;
use cuda_mem::sys::{CUmemPool_attribute, CUresult};
use cuda_mem::{ErrorKind, MemoryPool};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::handles;

#[cfg(target_os = "linux")]
const EXPORT: &str = "cuMemPoolExportToShareableHandle";
#[cfg(target_os = "linux")]
const DESTROY: &str = "cuMemPoolDestroy";

#[apply(case)]
fn every_spare_pool_is_destroyed_though_one_cannot_be(env: &Environment) -> Result<()> {
    let control = env.control()?;
    // SAFETY: no other thread runs.
    let destroy = || unsafe { MemoryPool::destroy_spares() };
    destroy()?;
    drop([env.pool()?, env.pool()?, env.pool()?]);
    control.reset();
    control.fail("cuMemPoolDestroy", 1, CUresult::CUDA_ERROR_UNKNOWN);
    let error = destroy().err().context("the failure was lost")?;
    ensure!(
        error.code() == Some(CUresult::CUDA_ERROR_UNKNOWN),
        "{error}"
    );
    ensure!(control.calls("cuMemPoolDestroy") == 3);
    ensure!(destroy()? == 0);
    Ok(())
}

#[apply(case)]
fn a_pool_that_could_not_be_closed_comes_back(env: &Environment) -> Result<()> {
    let (pool, stream, control) = (env.shareable_pool()?, env.stream()?, env.control()?);
    control.fail_without_effect("cuMemPoolDestroy", 1, CUresult::CUDA_ERROR_INVALID_VALUE);
    let Err(failed) = pool.close() else {
        bail!("the failure was lost");
    };
    ensure!(failed.error.code() == Some(CUresult::CUDA_ERROR_INVALID_VALUE));
    let pool = failed.object.context("the pool was not given back")?;
    drop(pool.alloc::<u8>(&stream, 10)?);
    stream.synchronize()?;
    pool.close()?;
    Ok(())
}

/// A driver may crash where such a pool is destroyed (R192).
#[cfg(target_os = "linux")]
#[apply(case)]
fn a_pool_whose_export_failed_serves_no_more_and_is_never_destroyed(
    env: &Environment,
) -> Result<()> {
    let (pool, stream, control) = (env.shareable_pool()?, env.stream()?, env.control()?);
    let mut buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    control.fail_without_effect(EXPORT, 1, CUresult::CUDA_ERROR_OPERATING_SYSTEM);
    let failed = pool.export_fd().err().context("the failure was lost")?;
    ensure!(failed.code() == Some(CUresult::CUDA_ERROR_OPERATING_SYSTEM));
    for error in [pool.alloc::<u8>(&stream, 10).err(), pool.export_fd().err()] {
        let kind = error.as_ref().map(cuda_mem::Error::kind);
        ensure!(kind == Some(ErrorKind::NotPermitted), "{error:?}");
    }
    buffer.fill(8)?;
    ensure!(buffer.to_vec()? == [8; 100]);
    let destroyed = control.calls(DESTROY);
    drop(buffer);
    stream.synchronize()?;
    let kept = pool
        .close()
        .err()
        .context("the pool is said to have ended")?;
    ensure!(kept.object.is_none() && kept.error.to_string().contains("until the process ends"));
    drop(env.shareable_pool()?.export_fd()?);
    ensure!(
        control.calls(DESTROY) == destroyed + 1,
        "the second pool alone"
    );
    Ok(())
}

/// The value to go back to is not lost with the call that failed.
#[apply(case)]
fn a_threshold_that_could_not_be_put_back_is_put_back_later(env: &Environment) -> Result<()> {
    use cuda_mem::ReleaseThreshold::{Bytes, Never};
    let pool = env.pool()?;
    pool.set_release_threshold(Bytes(1000))?;
    let raised = pool.raise_release_threshold(Never)?;
    let control = env.control()?;
    control.fail("cuMemPoolSetAttribute", 1, CUresult::CUDA_ERROR_UNKNOWN);
    drop(raised);
    ensure!(pool.release_threshold()? == Never, "it failed");
    drop(pool.raise_release_threshold(Bytes(2000))?);
    ensure!(pool.release_threshold()? == Bytes(1000));
    Ok(())
}

#[apply(case)]
fn a_raise_that_fails_changes_no_later_one(env: &Environment) -> Result<()> {
    use cuda_mem::ReleaseThreshold::{Bytes, Never};
    let (pool, control) = (env.pool()?, env.control()?);
    pool.set_release_threshold(Bytes(1000))?;
    let unknown = CUresult::CUDA_ERROR_UNKNOWN;
    control.fail_without_effect("cuMemPoolSetAttribute", 1, unknown);
    ensure!(pool.raise_release_threshold(Never).is_err());
    ensure!(pool.release_threshold()? == Bytes(1000));
    let raised = pool.raise_release_threshold(Bytes(2000))?;
    ensure!(pool.release_threshold()? == Bytes(2000));
    drop(raised);
    ensure!(pool.release_threshold()? == Bytes(1000));
    Ok(())
}

#[apply(case)]
fn a_raise_that_failed_puts_back_nothing_later(env: &Environment) -> Result<()> {
    use cuda_mem::ReleaseThreshold::{Bytes, Never};
    let (pool, control) = (env.pool()?, env.control()?);
    let set = env.driver.table().cuMemPoolSetAttribute;
    let set = set.context("no cuMemPoolSetAttribute")?;
    pool.set_release_threshold(Bytes(1000))?;
    let unknown = CUresult::CUDA_ERROR_UNKNOWN;
    control.fail_without_effect("cuMemPoolSetAttribute", 1, unknown);
    ensure!(pool.raise_release_threshold(Never).is_err());
    // Another library changes it meanwhile.
    let (threshold, mut bytes) = (
        CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
        3000_u64,
    );
    // SAFETY: the pool is live, and the attribute is 8 bytes wide.
    let code = unsafe { set(pool.as_raw(), threshold, (&raw mut bytes).cast()) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    drop(pool.raise_release_threshold(Never)?);
    ensure!(pool.release_threshold()? == Bytes(3000));
    Ok(())
}

const EXCHANGE: &str = "cuThreadExchangeStreamCaptureMode";

/// What cannot be kept from disturbing captures is done later, and that is no failure.
#[apply(case)]
fn a_pool_ends_later_on_a_thread_whose_capture_mode_cannot_be_set(env: &Environment) -> Result<()> {
    let (pool, stream, control) = (env.pool()?, env.stream()?, env.control()?);
    let before = drop_counts();
    control.fail(EXCHANGE, 1, CUresult::CUDA_ERROR_UNKNOWN);
    drop(pool);
    let now = drop_counts();
    ensure!(
        (now.failures, now.waiting) == (before.failures, before.waiting + 1),
        "{now:?}, before {before:?}"
    );
    stream.synchronize()?;
    ensure!(drop_counts() == before, "{:?}", drop_counts());
    Ok(())
}

/// The `nth` time that the thread's capture mode is put back, perhaps under a lock, that fails. The hook, which needs
/// that lock, runs after it.
fn fail_to_put_mode_back(
    env: &Environment,
    nth: u64,
    action: impl FnOnce() -> cuda_mem::Result<()> + Send + 'static,
    hook: impl Fn() -> cuda_mem::Result<()> + Send + Sync + 'static,
) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    cuda_mem::base::on_drop_failure(move |failure| {
        let outcome = hook();
        let tell = tell.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = tell.send((failure.object, outcome));
    });
    // Each exchange that relaxes it is followed by one that puts it back.
    env.control()?
        .fail(EXCHANGE, 2 * nth, CUresult::CUDA_ERROR_UNKNOWN);
    let acting = thread::spawn(action);
    let told = told.recv_timeout(PATIENCE).context("no answer");
    cuda_mem::base::on_drop_failure(|_| {});
    let (object, outcome) = told?;
    outcome.with_context(|| format!("in the hook of a {object}"))?;
    acting
        .join()
        .map_err(|_| anyhow!("the thread panicked"))??;
    Ok(())
}

#[apply(case)]
fn the_hook_may_use_the_pool_whose_threshold_is_put_back(env: &Environment) -> Result<()> {
    use cuda_mem::ReleaseThreshold::{Bytes, Never};
    let pool = env.pool()?;
    let raised = pool.raise_release_threshold(Never)?;
    fail_to_put_mode_back(
        env,
        1,
        || {
            drop(raised);
            Ok(())
        },
        move || pool.raise_release_threshold(Bytes(1000)).map(drop),
    )
}

#[apply(case)]
fn the_hook_may_use_the_pool_whose_threshold_is_set(env: &Environment) -> Result<()> {
    use cuda_mem::ReleaseThreshold::{Bytes, Never};
    let pool = env.pool()?;
    let called = pool.clone();
    let mut outcome = Ok(());
    // Only then are calls on pools made in a mode that disturbs no capture.
    env.stream()?.capture(CaptureMode::Relaxed, |_| {
        outcome = fail_to_put_mode_back(
            env,
            1,
            move || pool.set_release_threshold(Never),
            move || called.raise_release_threshold(Bytes(1000)).map(drop),
        );
        Ok(())
    })?;
    outcome
}

/// Pools of this kind are not kept for others, and two do not end at once.
#[apply(case)]
fn the_hook_may_end_a_pool_where_another_one_ends(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let build = move || {
        MemoryPool::builder(&device)
            .handle_types(handles::KIND)
            .build()
    };
    let control = env.control()?;
    let pool = build()?;
    control.reset();
    pool.close()?;
    let times = control.calls(EXCHANGE) / 2;
    ensure!(times > 1, "{times} times");
    for nth in 1..=times {
        let pool = build()?;
        fail_to_put_mode_back(
            env,
            nth,
            move || Ok(pool.close()?),
            move || Ok(build()?.close()?),
        )
        .with_context(|| format!("time {nth}"))?;
    }
    Ok(())
}
