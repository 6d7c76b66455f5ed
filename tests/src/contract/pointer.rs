//! What the driver knows about an address.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::driver::MemoryKind;
use cuda_mem::sys::CUresult;

use crate::environment::Environment;

#[apply(case)]
fn an_address_of_a_pool_knows_pool_and_range(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let buffer = pool.alloc::<u8>(&stream, 1000)?;
    for inside in [0, 1, 999] {
        let info = env.driver.pointer_info(buffer.as_raw() + inside)?;
        let info = info.with_context(|| format!("byte {inside} is not known"))?;
        ensure!(
            info.kind == MemoryKind::Device
                && i64::from(info.device) == i64::from(env.device()?.ordinal()),
            "{info:?}"
        );
        ensure!(
            info.start == buffer.as_raw() && info.bytes == 1000,
            "{info:?}"
        );
        ensure!(info.pool == Some(pool.as_raw()), "{info:?}");
        ensure!(
            !info.legacy_ipc,
            "the older calls do not share pool memory: {info:?}"
        );
    }
    Ok(())
}

/// Alone, because `cuMemFree` waits for every stream of the context and keeps other threads from calling
/// the driver meanwhile, also the one that holds the stream.
#[apply(case_alone)]
fn plain_memory_has_no_pool(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let table = env.driver.table();
    let allocate = table.cuMemAlloc_v2.context("no cuMemAlloc_v2")?;
    let free = table.cuMemFree_v2.context("no cuMemFree_v2")?;
    let _current = context.bind()?;
    let mut address = 0;
    // SAFETY: the context is current, and `address` is valid for a write.
    ensure!(unsafe { allocate(&raw mut address, 5000) } == CUresult::CUDA_SUCCESS);
    let info = env.driver.pointer_info(address);
    // SAFETY: allocated above, and not used.
    ensure!(unsafe { free(address) } == CUresult::CUDA_SUCCESS);
    let info = info?.context("it is not known")?;
    ensure!(
        info.kind == MemoryKind::Device && info.pool.is_none(),
        "{info:?}"
    );
    ensure!(info.bytes == 5000 && info.legacy_ipc, "{info:?}");
    Ok(())
}

#[apply(case)]
fn memory_of_the_program_is_not_known(env: &Environment) -> Result<()> {
    let value = 5_u64;
    let address = std::ptr::from_ref(&value).addr() as u64;
    ensure!(env.driver.pointer_info(address)?.is_none());
    ensure!(env.driver.pointer_info(0)?.is_none());
    Ok(())
}
