//! Pools beside captures, which forbid things to the whole process, so these bodies run alone.

use std::thread;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::ReleaseThreshold;

use super::capture_elsewhere::by_another_thread;
use super::graph::MODES;
use crate::environment::Environment;

/// On the thread that captures, and on another.
#[apply(case_alone)]
fn a_pool_is_asked_trimmed_changed_and_closed_beside_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, pool, stream) = (env.device()?, env.pool()?, env.stream()?);
    pool.alloc::<u8>(&stream, 1000)?.free_sync()?;
    let all = || -> cuda_mem::Result<u64> {
        pool.set_release_threshold(ReleaseThreshold::Bytes(4096))?;
        pool.set_reuse_policy(pool.reuse_policy()?)?;
        pool.access(&device)?;
        device.set_current_pool(&pool)?;
        pool.reset_high_marks()?;
        pool.trim_to(0)?;
        Ok(pool.stats()?.reserved.current)
    };
    for mode in MODES {
        let closed = env.pool()?;
        stream
            .capture(mode, |capture| {
                let ended = closed.close().map_err(|failed| failed.error);
                let here = all();
                let elsewhere = thread::scope(|scope| scope.spawn(all).join());
                drop(capture.alloc::<u8>(1000)?);
                Ok((ended, here, elsewhere))
            })
            .with_context(|| format!("{mode:?}: the capture is lost"))
            .and_then(|(_, (ended, here, elsewhere))| {
                ended?;
                ensure!(
                    here? == 0 && matches!(elsewhere, Ok(Ok(0))),
                    "{elsewhere:?}"
                );
                Ok(())
            })?;
    }
    ensure!(pool.release_threshold()? == ReleaseThreshold::Bytes(4096));
    Ok(())
}

/// By the thread that captures, and by another.
#[apply(case_alone)]
fn a_pool_is_built_beside_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    for mode in MODES {
        let (_, pools) = stream
            .capture(mode, |capture| {
                // Such a pool is never a reused one.
                let here = env.shareable_pool();
                let elsewhere = by_another_thread(|| env.shareable_pool());
                drop(capture.alloc::<u8>(1000)?);
                Ok([here, elsewhere])
            })
            .with_context(|| format!("{mode:?}: the capture is lost"))?;
        for pool in pools {
            let pool = pool?;
            ensure!(pool.alloc_from(&other, &[7_u8; 100])?.to_vec()? == [7; 100]);
        }
    }
    Ok(())
}
