//! Whether free neighbours of different kinds make one place for a block. The pools hold at most
//! 64 MiB, and the neighbours have 30 MiB each.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, cu, name};
use crate::gate::Gate;

/// A pool with two neighbours, allocated and freed by these streams.
fn two(
    env: &Environment,
    flag: u32,
    a: CUstream,
    b: CUstream,
) -> Result<(CUmemoryPool, CUdeviceptr)> {
    let pool = env.keeper(64 * MIB)?;
    env.only_reuse(pool, flag)?;
    let first = env.alloc(pool, 30 * MIB, a)?;
    let second = env.alloc(pool, 30 * MIB, b)?;
    env.free(first, a)?;
    env.free(second, b)?;
    Ok((pool, first.min(second)))
}

/// C waits for A and for B.
pub(crate) fn followed(env: &Environment) -> Result<()> {
    let (a, b, c) = (env.stream()?, env.stream()?, env.stream()?);
    let (pool, low) = two(env, 1, a, b)?;
    env.order(c, a)?;
    env.order(c, b)?;
    env.say("two others", env.where_is(pool, 60 * MIB, c, low)?);
    env.end_pool(pool)?;
    let (pool, low) = two(env, 1, a, b)?;
    env.order(a, b)?;
    env.say("own and another", env.where_is(pool, 60 * MIB, a, low)?);
    env.end_pool(pool)?;
    let (pool, low) = two(env, 1, a, b)?;
    env.synchronise(a)?;
    env.order(c, b)?;
    env.say("seen and another", env.where_is(pool, 60 * MIB, c, low)?);
    env.end_pool(pool)?;
    let (pool, low) = two(env, 1, a, a)?;
    env.order(c, a)?;
    env.say("two of one stream", env.where_is(pool, 60 * MIB, c, low)?);
    env.end_pool(pool)
}

pub(crate) fn finished(env: &Environment) -> Result<()> {
    let (a, b, c) = (env.stream()?, env.stream()?, env.stream()?);
    let (pool, low) = two(env, 2, a, b)?;
    env.let_it_finish();
    env.say("two others", env.where_is(pool, 60 * MIB, c, low)?);
    env.end_pool(pool)?;
    let (pool, low) = two(env, 2, a, b)?;
    env.let_it_finish();
    env.say("own and another", env.where_is(pool, 60 * MIB, a, low)?);
    env.end_pool(pool)?;
    let (pool, low) = two(env, 2, a, b)?;
    env.synchronise(a)?;
    env.let_it_finish();
    env.say("seen and another", env.where_is(pool, 60 * MIB, c, low)?);
    env.end_pool(pool)
}

/// The driver may insert a wait.
pub(crate) fn waited_for(env: &Environment) -> Result<()> {
    let (a, b, c) = (env.stream()?, env.stream()?, env.stream()?);
    let gate = Gate::hold(env, a)?;
    env.order(b, a)?;
    let (pool, low) = two(env, 3, a, b)?;
    let answer = env.where_is(pool, 60 * MIB, c, low)?;
    let busy = name(cu!(env, cuStreamQuery(c)));
    env.say("two others", format!("{answer}, the stream answers {busy}"));
    gate.open();
    env.end_pool(pool)?;
    let gate = Gate::hold(env, b)?;
    let (pool, low) = two(env, 3, a, b)?;
    let answer = env.where_is(pool, 60 * MIB, a, low)?;
    env.say("own and another", answer);
    gate.open();
    env.end_pool(pool)?;
    let gate = Gate::hold(env, b)?;
    let (pool, low) = two(env, 3, a, b)?;
    env.synchronise(a)?;
    let answer = env.where_is(pool, 60 * MIB, c, low)?;
    env.say("seen and another", answer);
    gate.open();
    env.end_pool(pool)
}

/// Memory that no block has had yet, beside memory that the stream freed itself.
pub(crate) fn seen_and_own(env: &Environment) -> Result<()> {
    let pool = env.keeper(64 * MIB)?;
    env.only_reuse(pool, 0)?;
    let stream = env.stream()?;
    let block = env.alloc(pool, 30 * MIB, stream)?;
    let second = env.alloc(pool, 30 * MIB, stream)?;
    env.free(second, stream)?;
    env.say("30 own and 4 never used, asked for 33", {
        let (code, address) = env.try_alloc(pool, 33 * MIB, stream);
        let distance = address.saturating_sub(block);
        format!("{}, {distance}", name(code))
    });
    env.end_pool(pool)?;
    // Part of a pending block is taken: does the rest serve?
    let pool = env.keeper(64 * MIB)?;
    env.only_reuse(pool, 0)?;
    let block = env.alloc(pool, 60 * MIB, stream)?;
    env.free(block, stream)?;
    let half = env.alloc(pool, 30 * MIB, stream)?;
    env.say(
        "half of an own block, at",
        half.wrapping_sub(block).cast_signed(),
    );
    let (code, rest) = env.try_alloc(pool, 30 * MIB, stream);
    let distance = rest.saturating_sub(block);
    env.say("the rest, at", format!("{}, {distance}", name(code)));
    env.end_pool(pool)
}
