//! Bugs that random programs have found, each as a short test.

use anyhow::{Result, anyhow, ensure};
use cuda_mem::{Arena, MemoryPool, MemoryResource as _, Resource};

use crate::environment::Environment;

/// Once its thread has ended, a per-thread stream cannot be queried, even if a handle is left: waits for the context
/// have to show that its work is done. The first trim takes what the arena kept for the stream.
///
/// # Errors
///
/// If it does not come back.
#[apply(case)]
fn memory_that_a_thread_freed_in_its_own_stream_comes_back(env: &Environment) -> Result<()> {
    let (device, context) = (env.device()?, env.context()?);
    for arena in [
        Arena::builder(&device).build()?,
        Arena::over(MemoryPool::builder(&device).build()?),
    ] {
        let resource = Resource::from(arena.clone());
        let _own = std::thread::scope(|scope| {
            let used = scope.spawn(|| {
                let own = context.per_thread_stream();
                drop(resource.alloc_zeroed::<u32>(&own, 4430)?);
                anyhow::Ok(own)
            });
            used.join().map_err(|_| anyhow!("it panicked"))?
        })?;
        for _ in 0..2 {
            context.synchronize()?;
            arena.trim_to(0)?;
        }
        ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    }
    Ok(())
}
