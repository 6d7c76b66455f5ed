//! Pools: what they hold, what they give back, how they end.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{ErrorKind, MemoryPool, ReleaseThreshold, ReusePolicy};

use crate::environment::Environment;
use crate::hold::hold;

const MIB: u64 = 1 << 20;

#[apply(case)]
fn a_new_pool_holds_nothing(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _calm = env.shared();
    let pool = env.pool()?;
    ensure!(pool.stats()? == cuda_mem::PoolStats::default());
    ensure!(pool.device() == Some(env.device()?));
    Ok(())
}

#[apply(case)]
fn used_counts_the_bytes_asked_for(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    let mut live = Vec::new();
    let mut asked = 0;
    for len in [1, 511, 512, 513, 65_537, (2 << 20) + 1] {
        live.push(pool.alloc::<u8>(&stream, len)?);
        asked += len as u64;
        let used = pool.stats()?.used.current;
        // Exact on every device measured; rounding to the alignment would do too.
        ensure!(
            (asked..asked + 512 * live.len() as u64).contains(&used),
            "{used} for {asked}"
        );
    }
    drop(live);
    ensure!(pool.stats()?.used.current == 0, "a free counts at once");
    Ok(())
}

#[apply(case)]
fn reserved_covers_used_and_highs_cover_both(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _calm = env.shared();
    let (pool, stream) = (env.pool()?, env.stream()?);
    for round in 1..6_usize {
        let _first = pool.alloc::<u8>(&stream, round << 21)?;
        let _second = pool.alloc::<u8>(&stream, round << 23)?;
        let stats = pool.stats()?;
        ensure!(stats.reserved.current >= stats.used.current, "{stats}");
        ensure!(stats.reserved.high >= stats.reserved.current, "{stats}");
        ensure!(stats.used.high >= stats.used.current, "{stats}");
    }
    let stats = pool.stats()?;
    ensure!(
        stats.used.current == 0 && stats.used.high >= (5 << 21) + (5 << 23),
        "{stats}"
    );
    Ok(())
}

#[apply(case)]
fn settings_read_back_as_set(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    ensure!(
        pool.release_threshold()? == ReleaseThreshold::Never,
        "the default"
    );
    let mut default = ReusePolicy::DRIVER_DEFAULT;
    // Older drivers can reuse memory too early under it.
    default.set(ReusePolicy::ALLOW_OPPORTUNISTIC, env.need(11, 5).is_ok());
    ensure!(pool.reuse_policy()? == default, "the default");
    for threshold in [
        ReleaseThreshold::Bytes(0),
        ReleaseThreshold::Bytes(12_345),
        ReleaseThreshold::Never,
    ] {
        pool.set_release_threshold(threshold)?;
        ensure!(pool.release_threshold()? == threshold);
    }
    let built = MemoryPool::builder(&env.device()?)
        .release_threshold(ReleaseThreshold::Bytes(64 * MIB))
        .reuse(ReusePolicy::DETERMINISTIC)
        .build()?;
    ensure!(built.release_threshold()? == ReleaseThreshold::Bytes(64 * MIB));
    ensure!(built.reuse_policy()? == ReusePolicy::DETERMINISTIC);
    Ok(())
}

#[apply(case)]
fn every_reuse_policy_reads_back(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    for bits in 0..8 {
        let policy = ReusePolicy::from_bits_truncate(bits);
        pool.set_reuse_policy(policy)?;
        ensure!(pool.reuse_policy()? == policy, "{policy:?}");
    }
    Ok(())
}

#[apply(case)]
fn a_threshold_of_zero_gives_back_at_a_synchronise(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _calm = env.shared();
    let stream = env.stream()?;
    let pool = MemoryPool::builder(&env.device()?)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .build()?;
    drop(pool.alloc::<u8>(&stream, 100 << 20)?);
    ensure!(
        pool.stats()?.reserved.current >= 100 * MIB,
        "not at the free"
    );
    stream.synchronize()?;
    ensure!(pool.stats()?.reserved.current == 0, "{}", pool.stats()?);
    Ok(())
}

#[apply(case)]
fn no_threshold_keeps_the_memory(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _calm = env.shared();
    let (pool, stream) = (env.pool()?, env.stream()?);
    drop(pool.alloc::<u8>(&stream, 100 << 20)?);
    stream.synchronize()?;
    ensure!(
        pool.stats()?.reserved.current >= 100 * MIB,
        "{}",
        pool.stats()?
    );
    Ok(())
}

#[apply(case)]
fn trimming_needs_the_free_to_be_seen(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _calm = env.shared();
    let (pool, stream) = (env.pool()?, env.stream()?);
    drop(pool.alloc::<u8>(&stream, 100 << 20)?);
    let before = pool.stats()?.reserved.current;
    pool.trim_to(0)?;
    ensure!(
        pool.stats()?.reserved.current == before,
        "nobody has seen the free yet"
    );
    stream.synchronize()?;
    pool.trim_to(0)?;
    ensure!(pool.stats()?.reserved.current == 0, "{}", pool.stats()?);
    Ok(())
}

#[apply(case)]
fn trimming_keeps_what_is_asked_and_what_lives(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _calm = env.shared();
    let (pool, stream) = (env.pool()?, env.stream()?);
    let live = pool.alloc::<u8>(&stream, 40 << 20)?;
    drop(pool.alloc::<u8>(&stream, 400 << 20)?);
    stream.synchronize()?;
    pool.trim_to(200 * MIB)?;
    let kept = pool.stats()?.reserved.current;
    ensure!((200 * MIB..400 * MIB).contains(&kept), "kept {kept}");
    pool.trim_to(0)?;
    let kept = pool.stats()?.reserved.current;
    ensure!(
        (40 * MIB..200 * MIB).contains(&kept),
        "kept {kept} with 40 MiB alive"
    );
    drop(live);
    Ok(())
}

#[apply(case)]
fn trimming_to_more_than_held_is_nothing(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _calm = env.shared();
    let (pool, stream) = (env.pool()?, env.stream()?);
    drop(pool.alloc::<u8>(&stream, 10 << 20)?);
    stream.synchronize()?;
    let before = pool.stats()?.reserved.current;
    ensure!(before > 0);
    // A driver rounds this number up; the largest must not come out as zero.
    for keep in [before + 1, 1 << 40, u64::MAX - (1 << 20), u64::MAX] {
        pool.trim_to(keep)?;
        let after = pool.stats()?.reserved.current;
        ensure!(after == before, "{after} of {before} after keeping {keep}");
    }
    Ok(())
}

#[apply(case)]
fn high_marks_go_back_to_now(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _calm = env.shared();
    let (pool, stream) = (env.pool()?, env.stream()?);
    let small = pool.alloc::<u8>(&stream, 1 << 20)?;
    drop(pool.alloc::<u8>(&stream, 100 << 20)?);
    ensure!(pool.stats()?.used.high > pool.stats()?.used.current);
    stream.synchronize()?;
    pool.trim_to(0)?;
    pool.reset_high_marks()?;
    let stats = pool.stats()?;
    ensure!(stats.used.high == stats.used.current, "{stats}");
    ensure!(stats.reserved.high == stats.reserved.current, "{stats}");
    drop(small);
    Ok(())
}

#[apply(case)]
fn a_maximum_size_is_kept(env: &Environment) -> Result<()> {
    let builder = MemoryPool::builder(&env.device()?).max_size(64 * MIB);
    if env.need(12, 2).is_err() {
        // What a driver is too old for is refused, and never sent to it.
        let Err(error) = builder.build() else {
            anyhow::bail!("an old driver took a maximum size");
        };
        ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
        ensure!(error.needs_version() == Some(cuda_mem::CudaVersion::new(12, 2)));
        return Ok(());
    }
    let _pressure = env.exclusive();
    let (pool, stream) = (builder.build()?, env.stream()?);
    let first = pool.alloc::<u8>(&stream, 32 << 20)?;
    let Err(error) = pool.alloc::<u8>(&stream, 48 << 20) else {
        anyhow::bail!("80 MiB fit into 64");
    };
    ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    let second = pool.alloc::<u8>(&stream, 20 << 20)?;
    drop((first, second));
    Ok(())
}

#[apply(case)]
fn a_maximum_of_zero_is_refused(env: &Environment) -> Result<()> {
    env.need(12, 2)?;
    let Err(error) = MemoryPool::builder(&env.device()?).max_size(0).build() else {
        anyhow::bail!("a pool of nothing was made");
    };
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    Ok(())
}

#[apply(case)]
fn handles_are_equal_if_they_are_of_one_pool(env: &Environment) -> Result<()> {
    let (pool, other) = (env.pool()?, env.pool()?);
    ensure!(pool.clone() == pool && pool != other);
    Ok(())
}

#[apply(case)]
fn a_pool_with_two_handles_is_not_closed(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    let clone = pool.clone();
    let Err(failed) = pool.close() else {
        anyhow::bail!("a pool was closed under another handle");
    };
    ensure!(failed.error.kind() == ErrorKind::InUse, "{}", failed.error);
    drop(clone);
    failed
        .object
        .context("the pool was not given back")?
        .close()?;
    Ok(())
}

/// Its memory stays with the live buffer, and another pool does not get it.
#[apply(case)]
fn a_buffer_outlives_its_pool(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let mut buffer = pool.alloc_from(&stream, &[5u8; 5000])?;
    drop(pool);
    let next = env.pool()?.alloc_from(&stream, &[6u8; 5000])?;
    ensure!(buffer.to_vec()? == [5; 5000]);
    buffer.fill(7)?;
    ensure!(buffer.to_vec()? == [7; 5000] && next.to_vec()? == [6; 5000]);
    buffer.free()?;
    Ok(())
}

/// Destroying it before that corrupts a driver (R26).
#[apply(case)]
fn closing_wants_all_memory_back_and_seen(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    env.need(11, 3)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    let in_use = |pool: MemoryPool, when: &str| -> Result<MemoryPool> {
        let Err(failed) = pool.close() else {
            anyhow::bail!("closed {when}");
        };
        ensure!(failed.error.kind() == ErrorKind::InUse, "{}", failed.error);
        failed.object.context("the pool was not given back")
    };
    let buffer = pool.alloc_from(&stream, &[5u8; 100])?;
    let pool = in_use(pool, "with a live buffer")?;
    ensure!(buffer.to_vec()? == [5; 100], "the buffer was not harmed");
    let held = hold(&stream)?;
    drop(buffer);
    let pool = in_use(pool, "with a free to come")?;
    drop(held);
    stream.synchronize()?;
    pool.close()?;
    Ok(())
}

/// Many pools in a row that end with a live block, or with a free that has not happened: drivers that
/// take it amiss do so some pools later.
#[apply(case)]
fn pools_that_end_early_do_no_harm(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (context, stream) = (env.context()?, env.stream()?);
    for round in 0..50_u8 {
        let pool = env.pool()?;
        let mut buffer = pool.alloc::<u8>(&stream, 4096)?;
        buffer.fill(round)?;
        if round % 2 == 0 {
            drop(pool);
            ensure!(buffer.to_vec()? == [round; 4096]);
            buffer.free()?;
        } else {
            let held = (round % 4 == 1).then(|| hold(&stream)).transpose()?;
            buffer.free()?;
            drop(pool);
            drop(held);
        }
        context.synchronize()?;
        let next = env.pool()?.alloc_zeroed::<u8>(&stream, 100)?;
        ensure!(next.to_vec()? == [0; 100]);
    }
    Ok(())
}

#[apply(case)]
fn handles_may_be_dropped_in_any_order(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let first = pool.alloc_from(&stream, &[1u32; 1000])?;
    let second = pool.alloc_from(&stream, &[2u32; 1000])?;
    drop(pool);
    drop(stream);
    ensure!(first.to_vec()? == [1; 1000]);
    drop(first);
    ensure!(
        second.to_vec()? == [2; 1000],
        "the buffer keeps stream and context"
    );
    Ok(())
}

#[apply(case)]
fn many_threads_share_a_pool(env: &Environment) -> Result<()> {
    let (pool, context) = (env.pool()?, env.context()?);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8_u8)
            .map(|thread| {
                let (pool, context) = (&pool, &context);
                scope.spawn(move || -> Result<()> {
                    let stream = context.stream()?;
                    for round in 0..20_u8 {
                        let mark = thread * 20 + round;
                        let mut buffer = pool.alloc::<u8>(&stream, 1000 + usize::from(mark))?;
                        buffer.fill(mark)?;
                        ensure!(buffer.to_vec()?.iter().all(|byte| *byte == mark));
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })
    })
}
