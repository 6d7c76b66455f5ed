//! Pools of host memory, used as staging from both sides.

use anyhow::{Result, ensure};
use cuda_mem::MemoryPool;
use cuda_mem::driver::{AllocationType, Location, MemoryKind, Support};
use cuda_mem::kernel::Launch;

use crate::environment::{Environment, Skip};
use crate::modules::load;

const COUNT: usize = 10_000;

#[apply(case)]
fn a_pool_of_the_host_serves_both_sides(env: &Environment) -> Result<()> {
    env.need(13, 0)?;
    serve(env, Location::Host)
}

#[apply(case)]
fn a_pool_of_a_node_serves_both_sides(env: &Environment) -> Result<()> {
    env.need(12, 2)?;
    serve(env, Location::HostNuma(0))
}

/// A kernel writes to the pool's memory, and the host reads it after a copy and in its place.
fn serve(env: &Environment, location: Location) -> Result<()> {
    let (device, context, stream) = (env.device()?, env.context()?, env.stream()?);
    let builder = MemoryPool::builder_at(env.driver, location, AllocationType::Pinned);
    if let Support::No(reason) = builder.support()? {
        return Err(Skip(format!("no pools of {location:?}: {reason}")).into());
    }
    let pool = builder.accessible_from([&device]).build()?;
    let numbers: Vec<u32> = (0..COUNT as u32).collect();
    let ours = env.pool()?.alloc_from(&stream, &numbers)?;
    let mut staging = pool.alloc_zeroed::<u32>(&stream, COUNT)?;
    let copy = load(&context)?.function("copy")?;
    // SAFETY: as the kernel says.
    unsafe {
        let launch = Launch::over(COUNT, 256);
        copy.launch(&stream, launch, (&mut staging, &ours, COUNT as u64))
    }?;
    ensure!(staging.to_vec()? == numbers);
    let info = env.driver.pointer_info(staging.as_raw())?;
    ensure!(info.is_some_and(|info| info.kind == MemoryKind::Host));
    let mut memory = context.pinned::<u32>(COUNT)?.lend(&stream)?;
    let mut back = env.pool()?.alloc::<u32>(&stream, COUNT)?;
    back.copy_from_device(&staging)?;
    memory.copy_from(&back)?;
    ensure!(*memory.take_back()? == numbers[..]);
    Ok(())
}
