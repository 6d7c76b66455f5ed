//! What `cuMemPoolTrimTo` gives back.

use anyhow::Result;

use crate::environment::{Environment, MIB};

pub(crate) fn keep(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.keeper(0)?, env.stream()?);
    let block = env.alloc(pool, 512 * MIB, stream)?;
    env.free(block, stream)?;
    env.synchronise(stream)?;
    for keep in [1024, 512, 511, 100, 33, 32, 1, 0] {
        env.trim(pool, (keep * MIB) as usize)?;
        env.say(format!("{keep} MiB"), env.reserved(pool)?);
    }
    env.end_pool(pool)
}

pub(crate) fn live_and_unseen(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.keeper(0)?, env.stream()?);
    let live = env.alloc(pool, 40 * MIB, stream)?;
    let dead = env.alloc(pool, 100 * MIB, stream)?;
    env.free(dead, stream)?;
    env.let_it_finish();
    env.trim(pool, 0)?;
    env.say(
        "40 MiB live, 100 MiB freed and not seen",
        env.reserved(pool)?,
    );
    env.synchronise(stream)?;
    env.trim(pool, 0)?;
    env.say("seen", env.reserved(pool)?);
    env.free(live, stream)?;
    env.synchronise(stream)?;
    env.trim(pool, 0)?;
    env.say("all freed", env.reserved(pool)?);
    env.end_pool(pool)
}

/// A freed block between two that live: memory in the middle of the range.
pub(crate) fn between_live(env: &Environment) -> Result<()> {
    for middle in [31, 64, 96, 128] {
        let (pool, stream) = (env.keeper(0)?, env.stream()?);
        let low = env.alloc(pool, MIB, stream)?;
        let dead = env.alloc(pool, middle * MIB, stream)?;
        let high = env.alloc(pool, MIB, stream)?;
        let before = env.reserved(pool)?;
        env.free(dead, stream)?;
        env.synchronise(stream)?;
        env.trim(pool, 0)?;
        let after = env.reserved(pool)?;
        env.say(
            format!("1 MiB, freed {middle} MiB, 1 MiB"),
            format!("{before}, then {after}"),
        );
        env.free(low, stream)?;
        env.synchronise(stream)?;
        env.trim(pool, 0)?;
        env.say(
            format!("the same with {middle} MiB, low one freed"),
            env.reserved(pool)?,
        );
        env.free(high, stream)?;
        env.end_pool(pool)?;
    }
    Ok(())
}

/// Close to the largest number.
pub(crate) fn boundary(env: &Environment) -> Result<()> {
    let max = usize::MAX;
    let mib = MIB as usize;
    for (part, keep) in [
        ("the largest", max),
        ("the largest - 4 KiB", max - 4096),
        ("the largest - 16 MiB", max - 16 * mib),
        ("the largest - 32 MiB + 2", max - 32 * mib + 2),
        ("the largest - 32 MiB + 1", max - 32 * mib + 1),
        ("the largest - 32 MiB", max - 32 * mib),
        ("the largest - 64 MiB", max - 64 * mib),
        ("2^63", 1 << 63),
        ("2^62", 1 << 62),
        ("2^50", 1 << 50),
    ] {
        let (pool, stream) = (env.keeper(0)?, env.stream()?);
        let block = env.alloc(pool, 64 * MIB, stream)?;
        env.free(block, stream)?;
        env.synchronise(stream)?;
        env.trim(pool, keep)?;
        env.say(part, env.reserved(pool)?);
        env.end_pool(pool)?;
    }
    Ok(())
}

pub(crate) fn half_used(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.keeper(0)?, env.stream()?);
    let low = env.alloc(pool, MIB, stream)?;
    let high = env.alloc(pool, 100 * MIB, stream)?;
    env.free(high, stream)?;
    env.synchronise(stream)?;
    env.trim(pool, 0)?;
    env.say("1 MiB live in the first step", env.reserved(pool)?);
    let high = env.alloc(pool, 100 * MIB, stream)?;
    env.free(low, stream)?;
    env.synchronise(stream)?;
    env.trim(pool, 0)?;
    env.say("100 MiB live from 1 MiB on", env.reserved(pool)?);
    env.free(high, stream)?;
    env.end_pool(pool)
}
