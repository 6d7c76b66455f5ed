//! The device's own pool, and the pool that is current.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::driver::{AllocationType, Location, Support};
use cuda_mem::memory::CurrentPool;
use cuda_mem::sys::CUresult;
use cuda_mem::{MemoryPool, ReleaseThreshold, ReusePolicy};

use crate::environment::{Environment, Skip};

/// What is current is a state of the whole process.
pub(super) static CURRENT: Mutex<()> = Mutex::new(());

#[apply(case)]
fn the_default_pool_serves_and_keeps_its_settings(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let pool = device.default_pool()?;
    ensure!(pool == device.default_pool()?, "there is one");
    ensure!(
        pool.release_threshold()? == ReleaseThreshold::Bytes(0),
        "the driver's own default"
    );
    ensure!(pool.reuse_policy()? == ReusePolicy::DRIVER_DEFAULT);
    let buffer = pool.alloc_from(&stream, &[9_u8; 1000])?;
    ensure!(buffer.to_vec()? == [9; 1000] && buffer.device() == Some(device));
    drop(pool);
    ensure!(buffer.to_vec()? == [9; 1000]);
    Ok(())
}

#[apply(case)]
fn the_current_pool_is_the_default_until_another_is_set(env: &Environment) -> Result<()> {
    let _alone = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let device = env.device()?;
    ensure!(device.current_pool()? == CurrentPool::Default(device.default_pool()?));
    let pool = env.pool()?;
    device.set_current_pool(&pool)?;
    ensure!(device.current_pool()? == CurrentPool::Owned(pool.clone()));
    device.set_current_pool(&*device.default_pool()?)?;
    ensure!(device.current_pool()? == CurrentPool::Default(device.default_pool()?));
    device.set_current_pool(&pool)?;
    drop(pool);
    ensure!(
        device.current_pool()? == CurrentPool::Default(device.default_pool()?),
        "a destroyed pool is not current"
    );
    Ok(())
}

#[apply(case)]
fn a_plain_allocation_comes_from_the_current_pool(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _alone = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let (device, pool, stream) = (env.device()?, env.pool()?, env.stream()?);
    let table = env.driver.table();
    let (allocate, free) = (
        table.cuMemAllocAsync.context("no cuMemAllocAsync")?,
        table.cuMemFreeAsync.context("no cuMemFreeAsync")?,
    );
    device.set_current_pool(&pool)?;
    let mut address = 0;
    // SAFETY: the stream is live, and `address` is valid for a write.
    let code = unsafe { allocate(&raw mut address, 12_345, stream.as_raw()) };
    let ours = stream.alloc::<u8>(55);
    device.set_current_pool(&*device.default_pool()?)?;
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    ensure!(pool.stats()?.used.current == 12_400);
    ours?.free()?;
    // SAFETY: allocated above, and never used.
    let code = unsafe { free(address, stream.as_raw()) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    stream.synchronize()?;
    ensure!(pool.stats()?.used.current == 0);
    Ok(())
}

#[apply(case)]
fn a_pool_that_somebody_else_made_is_only_a_handle(env: &Environment) -> Result<()> {
    let _alone = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let device = env.device()?;
    let table = env.driver.table();
    let props = cuda_mem::sys::CUmemPoolProps {
        allocType: cuda_mem::sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: cuda_mem::sys::location(
            cuda_mem::sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            device.as_raw(),
        ),
        ..Default::default()
    };
    let create = table.cuMemPoolCreate.context("no cuMemPoolCreate")?;
    let set = table.cuDeviceSetMemPool.context("no cuDeviceSetMemPool")?;
    let destroy = table.cuMemPoolDestroy.context("no cuMemPoolDestroy")?;
    let mut foreign = std::ptr::null_mut();
    // SAFETY: the properties are complete, and `foreign` is valid for a write.
    ensure!(unsafe { create(&raw mut foreign, &raw const props) } == CUresult::CUDA_SUCCESS);
    // SAFETY: device and pool are live.
    ensure!(unsafe { set(device.as_raw(), foreign) } == CUresult::CUDA_SUCCESS);
    let current = device.current_pool();
    // SAFETY: made above, and nothing was allocated from it.
    ensure!(unsafe { destroy(foreign) } == CUresult::CUDA_SUCCESS);
    ensure!(current? == CurrentPool::Foreign(foreign));
    ensure!(device.current_pool()? == CurrentPool::Default(device.default_pool()?));
    Ok(())
}

/// Its handle may be that of a pool that has ended.
#[apply(case)]
fn a_current_pool_is_known_after_others_of_its_kind(env: &Environment) -> Result<()> {
    let _alone = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let device = env.device()?;
    let ends: [fn(MemoryPool) -> Result<()>; 2] = [
        |pool| Ok(pool.close()?),
        |pool| {
            drop(pool);
            Ok(())
        },
    ];
    for end in ends {
        end(env.pool()?)?;
        let pool = env.pool()?;
        device.set_current_pool(&pool)?;
        let current = device.current_pool();
        device.set_current_pool(&*device.default_pool()?)?;
        ensure!(current? == CurrentPool::Owned(pool.clone()));
    }
    Ok(())
}

/// There are pools before and behind it in the list of those that live, and they end.
#[apply(case)]
fn the_current_pool_is_told_from_others(env: &Environment) -> Result<()> {
    let _alone = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let device = env.device()?;
    let (first, pool, last) = (env.pool()?, env.pool()?, env.pool()?);
    device.set_current_pool(&pool)?;
    let before = device.current_pool();
    first.close()?;
    drop(last);
    let after = device.current_pool();
    device.set_current_pool(&*device.default_pool()?)?;
    ensure!(before? == CurrentPool::Owned(pool.clone()));
    ensure!(after? == CurrentPool::Owned(pool.clone()));
    Ok(())
}

#[apply(case)]
fn a_pool_of_the_host_that_ends_leaves_another_current(env: &Environment) -> Result<()> {
    env.need(13, 0)?;
    let (driver, place) = (env.driver, (Location::Host, AllocationType::Pinned));
    let builder = MemoryPool::builder_at(driver, place.0, place.1);
    if let Support::No(reason) = builder.support()? {
        return Err(Skip(format!("no pools of the host: {reason}")).into());
    }
    let _alone = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let (pool, other) = (builder.clone().build()?, builder.build()?);
    driver.set_current_pool_at(&pool)?;
    other.close()?;
    let current = driver.current_pool_at(place.0, place.1)?;
    ensure!(current == CurrentPool::Owned(pool.clone()));
    drop((pool, current));
    let default = driver.default_pool_at(place.0, place.1)?;
    let current = driver.current_pool_at(place.0, place.1)?;
    ensure!(current == CurrentPool::Default(default));
    Ok(())
}
