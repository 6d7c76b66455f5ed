//! Access of two devices beside captures, which forbid things to the whole process, so these bodies run alone.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::interop::CaptureMode;
use cuda_mem::{Access, MemoryPool};

use super::{Pair, pair};
use crate::environment::Environment;

/// In the mode that forbids it to every thread.
#[apply(case_of_two_alone)]
fn a_pool_is_opened_to_a_peer_beside_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let Pair {
        devices: [own, peer],
        streams: [stream, _],
        ..
    } = pair(env)?;
    let (_, pools) = stream
        .capture(CaptureMode::Global, |capture| {
            let built = MemoryPool::builder(&own).accessible_from([&peer]).build();
            let given = MemoryPool::builder(&own).build().and_then(|pool| {
                pool.set_access([(peer, Access::ReadWrite)])?;
                Ok(pool)
            });
            drop(capture.alloc::<u8>(1000)?);
            Ok([built, given])
        })
        .context("the capture is lost")?;
    for pool in pools {
        ensure!(pool?.access(&peer)? == Access::ReadWrite);
    }
    Ok(())
}

#[apply(case_of_two_alone)]
fn an_imported_pool_is_opened_to_a_peer_beside_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let Pair {
        devices: [own, peer],
        streams: [stream, other],
        ..
    } = pair(env)?;
    let pool = env.shareable_pool()?;
    let imported = crate::handles::import_pool(&own, &crate::handles::of_pool(&pool)?)?;
    let (_, given) = stream
        .capture(CaptureMode::Global, |capture| {
            let given = imported.set_access([(peer, Access::ReadWrite)]);
            drop(capture.alloc::<u8>(1000)?);
            Ok(given)
        })
        .context("the capture is lost")?;
    given?;
    let buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    stream.synchronize()?;
    let shared = buffer.export()?;
    // SAFETY: the buffer lives longer, and nobody writes to it.
    let view = unsafe { imported.import::<u8>(&other, &shared) }?;
    ensure!(view.to_vec()? == [7; 100]);
    Ok(())
}
