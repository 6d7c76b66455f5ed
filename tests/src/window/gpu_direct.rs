//! What is around windows: the order of what others write.

use anyhow::{Result, bail, ensure};
use cuda_mem::interop::{FlushOptions, FlushScope, WritesOrdering};
use cuda_mem::memory::DirectResource;
use cuda_mem::{ErrorKind, Resource};

use crate::environment::Environment;

#[apply(case)]
fn a_device_says_what_it_offers(env: &Environment) -> Result<()> {
    let offers = env.device()?.gpu_direct()?;
    let capabilities = env.device()?.capabilities()?;
    ensure!(offers.rdma == capabilities.gpu_direct_rdma, "{offers:?}");
    ensure!(!offers.dma_buf_mapping || offers.dma_buf, "{offers:?}");
    ensure!(offers.needs_flush(FlushScope::Owner) == (offers.ordering < WritesOrdering::Owner));
    Ok(())
}

#[apply(case)]
fn memory_is_told_to_wait_for_copies(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let plain = Resource::new(DirectResource::new(env.device()?));
    let mut buffer = plain.alloc::<u8>(&stream, 2 << 20)?;
    ensure!(!buffer.sync_memops()?);
    buffer.set_sync_memops(true)?;
    ensure!(buffer.sync_memops()?);
    buffer.fill(1)?;
    ensure!(buffer.to_vec()?.iter().all(|byte| *byte == 1));
    let mut none = env.pool()?.alloc::<u8>(&stream, 0)?;
    none.set_sync_memops(true)?;
    ensure!(!none.sync_memops()?);
    Ok(())
}

#[apply(case)]
fn writes_of_others_are_flushed(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let offers = env.device()?.gpu_direct()?;
    for scope in [FlushScope::Owner, FlushScope::AllDevices] {
        let flushed = context.flush_gpu_direct_writes(scope);
        let can = !offers.needs_flush(scope) || offers.flush.contains(FlushOptions::HOST);
        match flushed {
            Ok(()) => ensure!(can, "{offers:?}"),
            Err(error) if error.kind() == ErrorKind::NotSupported => ensure!(!can, "{error}"),
            Err(error) => bail!("{offers:?}: {error}"),
        }
    }
    Ok(())
}
