//! The release threshold, for good and for the length of a scope.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::ReleaseThreshold;
use cuda_mem::sys::{CUmemPool_attribute, CUresult};

use crate::environment::Environment;

const MIB: u64 = 1 << 20;

#[apply(case)]
fn a_scope_raises_the_threshold_and_puts_it_back(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    pool.set_release_threshold(ReleaseThreshold::Bytes(MIB))?;
    let raised = pool.raise_release_threshold(ReleaseThreshold::Bytes(64 * MIB))?;
    ensure!(pool.release_threshold()? == ReleaseThreshold::Bytes(64 * MIB));
    drop(raised);
    ensure!(pool.release_threshold()? == ReleaseThreshold::Bytes(MIB));
    Ok(())
}

#[apply(case)]
fn the_highest_of_several_scopes_holds(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    pool.set_release_threshold(ReleaseThreshold::Bytes(10 * MIB))?;
    let now = || pool.release_threshold();
    let low = pool.raise_release_threshold(ReleaseThreshold::Bytes(MIB))?;
    ensure!(now()? == ReleaseThreshold::Bytes(10 * MIB), "never lowered");
    let high = pool
        .clone()
        .raise_release_threshold(ReleaseThreshold::Never)?;
    let middle = pool.raise_release_threshold(ReleaseThreshold::Bytes(20 * MIB))?;
    ensure!(now()? == ReleaseThreshold::Never);
    drop(high);
    ensure!(now()? == ReleaseThreshold::Bytes(20 * MIB));
    // What is set meanwhile holds afterwards, and at least.
    pool.set_release_threshold(ReleaseThreshold::Bytes(15 * MIB))?;
    ensure!(now()? == ReleaseThreshold::Bytes(20 * MIB));
    drop(middle);
    ensure!(now()? == ReleaseThreshold::Bytes(15 * MIB));
    drop(low);
    ensure!(now()? == ReleaseThreshold::Bytes(15 * MIB));
    Ok(())
}

#[apply(case)]
fn scopes_of_several_threads_end_in_any_order(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    pool.set_release_threshold(ReleaseThreshold::Bytes(0))?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..9_u64)
            .map(|thread| {
                let pool = &pool;
                scope.spawn(move || -> Result<()> {
                    for round in 0..20 {
                        let bytes = (thread * 20 + round) * MIB;
                        let wanted = ReleaseThreshold::Bytes(bytes);
                        let _raised = pool.raise_release_threshold(wanted)?;
                        let found = pool.release_threshold()?;
                        ensure!(
                            matches!(found, ReleaseThreshold::Bytes(found) if found >= bytes),
                            "{found} although {bytes} were asked for"
                        );
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })
    })?;
    ensure!(pool.release_threshold()? == ReleaseThreshold::Bytes(0));
    Ok(())
}

#[apply(case)]
fn a_scope_keeps_memory_that_goes_afterwards(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _calm = env.shared();
    let (pool, stream) = (env.pool()?, env.stream()?);
    pool.set_release_threshold(ReleaseThreshold::Bytes(0))?;
    let raised = pool.raise_release_threshold(ReleaseThreshold::Never)?;
    drop(pool.alloc::<u8>(&stream, 100 << 20)?);
    stream.synchronize()?;
    ensure!(pool.stats()?.reserved.current >= 100 * MIB);
    drop(raised);
    // The next synchronisation that has something to look at gives it back.
    drop(pool.alloc::<u8>(&stream, 1)?);
    stream.synchronize()?;
    ensure!(pool.stats()?.reserved.current == 0, "{}", pool.stats()?);
    Ok(())
}

#[apply(case)]
fn handles_of_the_default_pool_share_their_scopes(env: &Environment) -> Result<()> {
    let _alone = super::default_pool::CURRENT
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let device = env.device()?;
    let before = device.default_pool()?.release_threshold()?;
    let one = device
        .default_pool()?
        .raise_release_threshold(ReleaseThreshold::Bytes(10 * MIB))?;
    let two = device
        .default_pool()?
        .raise_release_threshold(ReleaseThreshold::Bytes(20 * MIB))?;
    drop(one);
    let now = device.default_pool()?.release_threshold()?;
    drop(two);
    ensure!(now == ReleaseThreshold::Bytes(20 * MIB), "{now}");
    ensure!(device.default_pool()?.release_threshold()? == before);
    Ok(())
}

/// The value to go back to is that of the moment at which the first scope begins.
#[apply(case)]
fn a_scope_goes_back_to_what_another_library_has_set(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    let set = env.driver.table().cuMemPoolSetAttribute;
    let set = set.context("no cuMemPoolSetAttribute")?;
    let set_elsewhere = |mut bytes: u64| -> Result<()> {
        let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool is live, and the attribute is 8 bytes wide.
        let code = unsafe { set(pool.as_raw(), threshold, (&raw mut bytes).cast()) };
        ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
        Ok(())
    };
    pool.set_release_threshold(ReleaseThreshold::Bytes(MIB))?;
    for bytes in [3 * MIB, 2 * MIB] {
        set_elsewhere(bytes)?;
        drop(pool.raise_release_threshold(ReleaseThreshold::Never)?);
        ensure!(pool.release_threshold()? == ReleaseThreshold::Bytes(bytes));
    }
    Ok(())
}
