//! Rules of the driver that no promise of this crate shows by itself: what it answers to calls that the
//! crate never makes, or keeps its users from.

use std::ffi::c_void;
use std::sync::PoisonError;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::driver::{AllocationType, Location};
use cuda_mem::memory::CurrentPool;
use cuda_mem::sys::{CUmemPool_attribute, CUresult};
use cuda_mem::{Access, ErrorKind, MemoryPool, Pool, ReusePolicy};

use crate::environment::{Environment, Skip};

/// More than half of what a small pool may hold.
const BLOCK: usize = 40 << 20;

fn small_pool(env: &Environment) -> Result<MemoryPool> {
    env.need(12, 2)?;
    Ok(MemoryPool::builder(&env.device()?)
        .max_size(64 << 20)
        .reuse(ReusePolicy::NONE)
        .build()?)
}

const REFUSED: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// At least what NVIDIA documents; an H200 gives 512 (R15).
#[apply(case)]
fn addresses_suit_every_type(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let mut live = Vec::new();
    for bytes in [1, 3, 255, 257, 4097, 65_537, (2 << 20) + 1] {
        let buffer = pool.alloc::<u8>(&stream, bytes)?;
        ensure!(buffer.as_raw() % 256 == 0, "{:#x}", buffer.as_raw());
        live.push(buffer);
    }
    Ok(())
}

/// And every stream gets it then. The crate never frees so, because the pool goes on counting the memory
/// (R11, R89).
#[apply(case)]
fn the_host_may_free_pool_memory(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (pool, stream, other) = (small_pool(env)?, env.stream()?, env.stream()?);
    let free = env.driver.table().cuMemFree_v2.context("no cuMemFree")?;
    let address = pool.alloc::<u8>(&stream, BLOCK)?.into_raw()?;
    stream.synchronize()?;
    let context = env.context()?;
    let _current = context.bind()?;
    // SAFETY: out of the buffer's hand, and never used.
    let freed = unsafe { free(address) };
    ensure!(freed == CUresult::CUDA_SUCCESS, "{freed}");
    context.synchronize()?;
    let next = pool.alloc::<u8>(&other, BLOCK)?;
    ensure!(next.as_raw() == address, "there is no other place for it");
    Ok(())
}

/// Memory whose free the host has not seen is not given back by a trim either (R18).
#[apply(case)]
fn running_out_may_pass_after_a_synchronise(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (pool, first, second) = (small_pool(env)?, env.stream()?, env.stream()?);
    drop(pool.alloc::<u8>(&first, BLOCK)?);
    let runs_out = || match pool.alloc::<u8>(&second, BLOCK) {
        Ok(_) => bail!("memory was handed out whose free nobody had seen"),
        Err(error) => {
            ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
            Ok(())
        }
    };
    runs_out()?;
    pool.trim_to(0)?;
    runs_out()?;
    first.synchronize()?;
    drop(pool.alloc::<u8>(&second, BLOCK)?);
    Ok(())
}

fn is_there_for_good(env: &Environment, pool: &Pool) -> Result<()> {
    let destroy = env.driver.table().cuMemPoolDestroy;
    let destroy = destroy.context("no cuMemPoolDestroy")?;
    // SAFETY: a default pool: the driver refuses, which is what this is about.
    let code = unsafe { destroy(pool.as_raw()) };
    ensure!(code == REFUSED, "{pool:?}: {code}");
    pool.release_threshold()?;
    Ok(())
}

/// No method does that, so the driver is asked itself (R20, R21).
#[apply(case)]
fn default_pools_cannot_be_destroyed(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let pool = device.default_pool()?;
    ensure!(pool.access(&device)? == Access::ReadWrite);
    is_there_for_good(env, &pool)?;
    for (location, kind) in [
        (Location::Host, AllocationType::Pinned),
        (Location::Anywhere, AllocationType::Managed),
    ] {
        // Which places have a pool depends on the driver and the machine.
        if let Ok(pool) = env.driver.default_pool_at(location, kind) {
            is_there_for_good(env, &pool)?;
        }
    }
    Ok(())
}

/// And nowhere else, and the default one after its end (R24, R25).
#[apply(case)]
fn a_pool_of_the_host_is_current_on_the_host(env: &Environment) -> Result<()> {
    env.need(13, 0)?;
    let (driver, place) = (env.driver, (Location::Host, AllocationType::Pinned));
    let _alone = super::default_pool::CURRENT
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let Ok(default) = driver.default_pool_at(place.0, place.1) else {
        return Err(Skip("the host has no pool".to_owned()).into());
    };
    let current = || driver.current_pool_at(place.0, place.1);
    let pool = MemoryPool::builder_at(driver, place.0, place.1).build()?;
    let device = env.device()?;
    let elsewhere = device.set_current_pool(&pool);
    ensure!(elsewhere.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    let before = device.current_pool()?;
    driver.set_current_pool_at(&pool)?;
    ensure!(current()? == CurrentPool::Owned(pool.clone()));
    ensure!(device.current_pool()? == before, "the device has its own");
    pool.close()?;
    ensure!(current()? == CurrentPool::Default(default));
    Ok(())
}

/// What is counted is the driver's; a high mark can only be set back (R32, R35).
#[apply(case)]
fn numbers_cannot_be_set_and_marks_only_to_zero(env: &Environment) -> Result<()> {
    use CUmemPool_attribute as A;
    env.need(11, 3)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    let live = pool.alloc::<u8>(&stream, 1000)?;
    let set = env.driver.table().cuMemPoolSetAttribute;
    let set = set.context("no cuMemPoolSetAttribute")?;
    let set = |attribute, mut value: u64| {
        let input: *mut c_void = (&raw mut value).cast();
        // SAFETY: the pool is live, and `input` is valid for the 8 bytes of the widest attribute.
        unsafe { set(pool.as_raw(), attribute, input) }
    };
    let before = pool.stats()?;
    for number in [
        A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
        A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
    ] {
        ensure!(set(number, 0) == REFUSED && set(number, 1) == REFUSED);
    }
    for mark in [
        A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
        A::CU_MEMPOOL_ATTR_USED_MEM_HIGH,
    ] {
        ensure!(set(mark, 1) == REFUSED);
    }
    ensure!(set(CUmemPool_attribute(10_000), 0) == REFUSED);
    ensure!(pool.stats()? == before, "nothing has changed");
    for mark in [
        A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
        A::CU_MEMPOOL_ATTR_USED_MEM_HIGH,
    ] {
        ensure!(set(mark, 0) == CUresult::CUDA_SUCCESS);
    }
    drop(live);
    Ok(())
}
