//! Arenas that may not look how far streams are.

use std::alloc::Layout;

use anyhow::{Result, ensure};
use cuda_mem::{Arena, MemoryResource as _, Resource, ReusePolicy};

use super::ends::overlap;
use super::rules::Scene;
use crate::environment::Environment;

const MIB: usize = 1 << 20;

/// Nobody looks whether the stream is done that freed a block of another one, except a trim.
#[apply(case)]
fn without_leave_blocks_that_others_freed_wait_for_a_trim(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let scene = Scene::new(env, ReusePolicy::DETERMINISTIC)?;
    let layout = Layout::from_size_align(1000, 256)?;
    let address = scene.arena.allocate(layout, &scene.a)?;
    // SAFETY: allocated as this layout, and no work uses it.
    unsafe { scene.arena.deallocate(address, layout, &scene.b) }?;
    // More than a page has, so that all that may be found is found.
    let blocks = (0..600).map(|_| scene.on_a(1000));
    let blocks = blocks.collect::<Result<Vec<_>>>()?;
    let space = scene.arena.free_space();
    ensure!(space.pending == 1024, "{space:?}");
    ensure!(blocks.iter().all(|block| block.as_raw() != address));
    drop(blocks);
    scene.arena.trim_to(0)?;
    ensure!(scene.arena.stats().reserved == 0, "{}", scene.arena.stats());
    Ok(())
}

/// With leave, frees in an arena of this size have their streams queried early.
#[apply(case)]
fn without_leave_streams_keep_to_themselves_in_a_large_arena(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let builder = Arena::builder(&env.device()?).reuse(ReusePolicy::DETERMINISTIC);
    let arena = builder.initial_bytes(1 << 30).build()?;
    let resource = Resource::from(arena.clone());
    let (a, b) = (env.stream()?, env.stream()?);
    // Streams are known by what they have allocated.
    drop(resource.alloc::<u8>(&b, MIB)?);
    let place = (resource.alloc::<u8>(&a, 1000 * MIB)?.as_raw(), 1000 * MIB);
    let other = resource.alloc::<u8>(&b, 32 * MIB)?;
    ensure!(
        !overlap(place, (other.as_raw(), 32 * MIB)),
        "given to another stream: {}",
        arena.stats()
    );
    Ok(())
}
