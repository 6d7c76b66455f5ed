//! Where in a pool a new block goes.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB};

/// Live blocks of these sizes in MiB, one after the other.
fn row(
    env: &Environment,
    pool: CUmemoryPool,
    stream: CUstream,
    sizes: &[u64],
) -> Result<Vec<CUdeviceptr>> {
    sizes
        .iter()
        .map(|bytes| env.alloc(pool, bytes * MIB, stream))
        .collect()
}

/// Which of these blocks a new one begins at.
fn which(address: CUdeviceptr, blocks: &[(CUdeviceptr, &str)]) -> String {
    let found = blocks.iter().find(|(block, _)| *block == address);
    found.map_or("elsewhere", |(_, what)| what).to_owned()
}

pub(crate) fn fresh(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.keeper(0)?, env.stream()?);
    let first = env.alloc(pool, MIB, stream)?;
    for (part, bytes) in [
        ("1 MiB", MIB),
        ("2 MiB", 2 * MIB),
        ("40 MiB", 40 * MIB),
        ("1 B", 1),
    ] {
        let next = env.alloc(pool, bytes, stream)?;
        let distance = next.wrapping_sub(first).cast_signed();
        env.say(
            format!("then {part}, from the first block"),
            format!("{distance} B"),
        );
    }
    Ok(())
}

/// Two gaps of different size, freed by the stream itself, by another, and seen by the host.
pub(crate) fn tightest(env: &Environment) -> Result<()> {
    for (part, seen) in [("own, pending", false), ("seen by the host", true)] {
        let (pool, stream) = (env.keeper(0)?, env.stream()?);
        let blocks = row(env, pool, stream, &[6, 1, 4, 1, 5, 1])?;
        for at in [0, 2, 4] {
            env.free(blocks[at], stream)?;
        }
        if seen {
            env.synchronise(stream)?;
        }
        let new = env.alloc(pool, 4 * MIB - 1, stream)?;
        let names = [
            (blocks[0], "lowest"),
            (blocks[2], "tightest"),
            (blocks[4], "last freed"),
        ];
        env.say(part, which(new, &names));
    }
    Ok(())
}

pub(crate) fn equal(env: &Environment) -> Result<()> {
    for (part, seen) in [("own, pending", false), ("seen by the host", true)] {
        let (pool, stream) = (env.keeper(0)?, env.stream()?);
        let blocks = row(env, pool, stream, &[4, 1, 4, 1, 4, 1])?;
        for at in [2, 4, 0] {
            env.free(blocks[at], stream)?;
        }
        if seen {
            env.synchronise(stream)?;
        }
        let names = [
            (blocks[0], "lowest"),
            (blocks[2], "first freed"),
            (blocks[4], "highest"),
        ];
        let new = env.alloc(pool, 4 * MIB, stream)?;
        env.say(part, which(new, &names));
    }
    Ok(())
}

/// One gap is the stream's own and pending, the other was seen freed.
pub(crate) fn order_of_frees(env: &Environment) -> Result<()> {
    for (part, own_first) in [("own gap lower", true), ("own gap higher", false)] {
        let (pool, stream) = (env.keeper(0)?, env.stream()?);
        let blocks = row(env, pool, stream, &[4, 1, 4, 1])?;
        let (own, seen) = if own_first { (0, 2) } else { (2, 0) };
        env.free(blocks[seen], stream)?;
        env.synchronise(stream)?;
        env.free(blocks[own], stream)?;
        let new = env.alloc(pool, 4 * MIB, stream)?;
        env.say(
            part,
            which(new, &[(blocks[own], "own"), (blocks[seen], "seen")]),
        );
    }
    Ok(())
}

/// The own gap is larger than the one that was seen freed.
pub(crate) fn own_or_tighter(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.keeper(0)?, env.stream()?);
    let blocks = row(env, pool, stream, &[6, 1, 4, 1])?;
    env.free(blocks[2], stream)?;
    env.synchronise(stream)?;
    env.free(blocks[0], stream)?;
    let new = env.alloc(pool, 4 * MIB, stream)?;
    env.say(
        "own of 6 MiB, seen of 4 MiB",
        which(new, &[(blocks[0], "own"), (blocks[2], "seen")]),
    );
    // The stream's own gap, against one that it may use because it waited for another stream.
    let (pool, other) = (env.keeper(0)?, env.stream()?);
    env.only_reuse(pool, 1)?;
    let blocks = row(env, pool, stream, &[4, 1, 6, 1])?;
    env.free(blocks[0], other)?;
    env.free(blocks[2], stream)?;
    env.order(stream, other)?;
    let new = env.alloc(pool, 4 * MIB, stream)?;
    let names = [(blocks[0], "followed"), (blocks[2], "own")];
    env.say("own of 6 MiB, followed of 4 MiB", which(new, &names));
    // One that was seen freed, against a followed one.
    let pool = env.keeper(0)?;
    env.only_reuse(pool, 1)?;
    let blocks = row(env, pool, stream, &[6, 1, 4, 1])?;
    env.free(blocks[0], stream)?;
    env.synchronise(stream)?;
    env.free(blocks[2], other)?;
    env.order(stream, other)?;
    let new = env.alloc(pool, 4 * MIB, stream)?;
    let names = [(blocks[0], "seen"), (blocks[2], "followed")];
    env.say("seen of 6 MiB, followed of 4 MiB", which(new, &names));
    Ok(())
}

/// A request larger than the gap at the end of what the pool has.
pub(crate) fn grows_from(env: &Environment) -> Result<()> {
    for (part, seen) in [("own, pending", false), ("seen by the host", true)] {
        let (pool, stream) = (env.keeper(0)?, env.stream()?);
        let block = env.alloc(pool, 30 * MIB, stream)?;
        env.free(block, stream)?;
        if seen {
            env.synchronise(stream)?;
        }
        let new = env.alloc(pool, 60 * MIB, stream)?;
        let distance = new.wrapping_sub(block).cast_signed();
        let answer = format!("{distance} B on, reserved {}", env.reserved(pool)?);
        env.say(format!("30 MiB {part}, then 60 MiB"), answer);
    }
    // Live memory ends in the middle of a step.
    let (pool, stream) = (env.keeper(0)?, env.stream()?);
    let block = env.alloc(pool, 30 * MIB, stream)?;
    let new = env.alloc(pool, 60 * MIB, stream)?;
    let distance = new.wrapping_sub(block).cast_signed();
    let answer = format!("{distance} B on, reserved {}", env.reserved(pool)?);
    env.say("30 MiB live, then 60 MiB", answer);
    Ok(())
}

/// After a trim from the middle: is the hole filled before the range grows?
pub(crate) fn fills_hole(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.keeper(0)?, env.stream()?);
    let blocks = row(env, pool, stream, &[1, 96, 1])?;
    env.free(blocks[1], stream)?;
    env.synchronise(stream)?;
    env.trim(pool, 0)?;
    env.say("reserved after the trim", env.reserved(pool)?);
    let new = env.alloc(pool, 96 * MIB, stream)?;
    env.say("96 MiB again", which(new, &[(blocks[1], "in the hole")]));
    env.say("reserved then", env.reserved(pool)?);
    Ok(())
}
