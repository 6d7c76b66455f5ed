//! What holds for an imported pool, however it came.

use anyhow::{Result, ensure};
use cuda_mem::interop::{ImportedPool, SharedBuffer};
use cuda_mem::{MemoryPool, Stream};

#[cfg(target_os = "linux")]
use crate::{environment::Environment, hold::hold};

/// A pool and its import in the same process have the same memory, at two addresses.
pub(super) fn ensure_same_memory(
    pool: &MemoryPool,
    imported: &ImportedPool,
    stream: &Stream,
) -> Result<()> {
    ensure!(imported.as_raw() != pool.as_raw());
    let mut buffer = pool.alloc_from(stream, &[1_u16; 100])?;
    let shared = SharedBuffer::from_bytes(&buffer.export()?.to_bytes())?;
    // SAFETY: one stream orders everything; the buffer lives longer.
    let mut view = unsafe { imported.import::<u16>(stream, &shared) }?;
    ensure!(view.as_raw() != buffer.as_raw(), "another mapping");
    view.fill(2)?;
    ensure!(buffer.to_vec()? == [2; 100]);
    drop(view);
    buffer.fill(3)?;
    ensure!(buffer.to_vec()? == [3; 100]);
    Ok(())
}

/// A server keeps one view of what it serves, and makes one for each request.
#[cfg(target_os = "linux")]
#[apply(case_of_sim)]
fn short_views_keep_no_streams_beside_a_long_one(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.shareable_pool()?, env.stream()?);
    let imported = ImportedPool::from_fd(&env.device()?, &pool.export_fd()?)?;
    let buffer = pool.alloc_from(&stream, &[1_u16; 100])?;
    let shared = SharedBuffer::from_bytes(&buffer.export()?.to_bytes())?;
    stream.synchronize()?;
    // SAFETY: the buffer lives longer, and is only read.
    let long = unsafe { imported.import::<u16>(&stream, &shared) }?;
    let control = env.control()?;
    let before = control.live().streams;
    for _ in 0..20 {
        let other = env.stream()?;
        // SAFETY: as above.
        let short = unsafe { imported.import::<u16>(&other, &shared) }?;
        ensure!(short.to_vec()? == [1; 100]);
        drop(short);
    }
    let now = control.live().streams;
    ensure!(now <= before + 1, "{before} streams, then {now}");
    // One that is busy is waited for by the last.
    let other = env.stream()?;
    // SAFETY: as above.
    let mut short = unsafe { imported.import::<u16>(&other, &shared) }?;
    let held = hold(&other)?;
    short.fill(2)?;
    drop((short, long));
    drop(held);
    ensure!(buffer.to_vec()?.len() == 100);
    other.synchronize()?;
    ensure!(control.reports().is_empty(), "{:?}", control.reports());
    Ok(())
}
