//! What goes back to the device, by a trim and by a wait.

use std::alloc::Layout;

use anyhow::{Result, ensure};
use cuda_mem::{Arena, MemoryResource as _, ReleaseThreshold, ReusePolicy};

use crate::environment::Environment;

const MIB: usize = 1 << 20;

/// The policy forbids requests to look at streams, and a trim has to: the memory may be gone only when it is done.
#[apply(case)]
fn a_trim_looks_at_streams_that_freed_blocks_of_others_under_every_policy(
    env: &Environment,
) -> Result<()> {
    let _calm = env.shared();
    let layout = Layout::from_size_align(1000, 256)?;
    for reuse in [
        ReusePolicy::empty(),
        ReusePolicy::DETERMINISTIC,
        ReusePolicy::DRIVER_DEFAULT,
    ] {
        let arena = Arena::builder(&env.device()?).reuse(reuse).build()?;
        let (own, other) = (env.stream()?, env.stream()?);
        let address = arena.allocate(layout, &own)?;
        // SAFETY: allocated as this layout, and no work uses it.
        unsafe { arena.deallocate(address, layout, &other) }?;
        // Both streams are idle, and nobody has waited for them.
        arena.trim_to(0)?;
        ensure!(arena.stats().reserved == 0, "{reuse:?}: {}", arena.stats());
    }
    Ok(())
}

/// It is a piece as small as any that goes back. Alone, because a trim for another thread's wait would do as well.
#[apply(case_alone)]
fn a_wait_gives_back_an_arenas_only_2_mib(env: &Environment) -> Result<()> {
    let builder = Arena::builder(&env.device()?).max_bytes(2 << 20);
    let arena = builder
        .release_threshold(ReleaseThreshold::Bytes(0))
        .build()?;
    let stream = env.stream()?;
    drop(arena.alloc::<u8>(&stream, MIB)?);
    ensure!(arena.stats().reserved == 2 << 20, "{}", arena.stats());
    stream.synchronize()?;
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    Ok(())
}
