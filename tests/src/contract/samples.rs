//! What CUDA's samples of the stream-ordered allocator check, on this API. Kernels are not available
//! here, so copies and fills do the work. The samples for several GPUs, processes and graphs have their
//! counterparts in the bodies for those.

use anyhow::{Result, ensure};
use cuda_mem::{MemoryPool, ReleaseThreshold, Stream};

use crate::environment::Environment;

const LEN: usize = 1 << 20;

/// Two inputs go to the device, one output comes back, and everything is freed in order. Returns the
/// addresses that were handed out, the lowest first.
fn one_round(pool: &MemoryPool, stream: &Stream, round: u32) -> Result<[u64; 3]> {
    let first: Vec<u32> = (0..LEN as u32).map(|index| index ^ round).collect();
    let second = vec![round; LEN];
    let a = pool.alloc_from(stream, &first)?;
    let b = pool.alloc_from(stream, &second)?;
    let mut c = pool.alloc::<u32>(stream, LEN)?;
    c.copy_from_device(&b)?;
    ensure!(c.to_vec()? == second);
    c.copy_from_device(&a)?;
    let mut addresses = [a.as_raw(), b.as_raw(), c.as_raw()];
    addresses.sort_unstable();
    a.free()?;
    b.free()?;
    ensure!(c.to_vec()? == first, "the copy came before the frees");
    c.free()?;
    Ok(addresses)
}

/// streamOrderedAllocation, first part.
#[apply(case)]
fn vectors_come_and_go_in_the_order_of_a_stream(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let first = one_round(&pool, &stream, 1)?;
    let second = one_round(&pool, &stream, 2)?;
    ensure!(
        first == second,
        "what was freed in a stream serves it again"
    );
    stream.synchronize()?;
    if env.need(11, 3).is_ok() {
        ensure!(pool.stats()?.used.current == 0);
    }
    Ok(())
}

/// streamOrderedAllocation, second part: with a synchronisation in each round.
#[apply(case)]
fn a_threshold_keeps_memory_over_synchronisations(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _calm = env.shared();
    let stream = env.stream()?;
    for (threshold, keeps) in [
        (ReleaseThreshold::Never, true),
        (ReleaseThreshold::Bytes(0), false),
    ] {
        let pool = MemoryPool::builder(&env.device()?)
            .release_threshold(threshold)
            .build()?;
        let mut highest = 0;
        for round in 0..20 {
            one_round(&pool, &stream, round)?;
            stream.synchronize()?;
            let reserved = pool.stats()?.reserved.current;
            ensure!(
                (reserved > 0) == keeps,
                "{threshold}: {reserved} bytes kept after round {round}"
            );
            ensure!(round == 0 || reserved == highest, "no round needs more");
            highest = reserved;
        }
    }
    Ok(())
}
