//! What an arena does for memory of several streams, with an adaptor over it.

use std::alloc::Layout;

use anyhow::{Result, ensure};
use cuda_mem::{Arena, MemoryResource, Resource};

use crate::environment::Environment;
use crate::hold::hold;
use crate::resources::ADAPTORS;

#[apply(case)]
fn no_stream_waits_for_another_through_an_adaptor(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let layout = Layout::from_size_align(10_000, 256)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    for (name, adapt) in ADAPTORS {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = adapt(Resource::from(arena.clone()))?;
        let block = resource.allocate(layout, &stream)?;
        other.wait_for(&stream)?;
        let held = hold(&other)?;
        // SAFETY: allocated above; the streams that used it are these two.
        unsafe { resource.deallocate_after(block, layout, &stream, &[&other]) }?;
        // Waits for the stream alone, which another library would have to do, too.
        stream.synchronize()?;
        let next = resource.allocate(layout, &stream)?;
        ensure!(next != block, "{name}: the other stream still uses it");
        drop(held);
        // SAFETY: allocated above, and unused.
        unsafe { resource.deallocate(next, layout, &stream) }?;
        other.synchronize()?;
        stream.synchronize()?;
        drop(resource);
        let stats = arena.stats();
        ensure!(stats.live == 0, "{name}: {stats}");
    }
    Ok(())
}
