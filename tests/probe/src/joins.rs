//! Whether free neighbours of different kinds make one place for a block. The pools hold at most
//! 64 MiB, and the neighbours have 30 MiB each.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::Gate;
use crate::lab::{Lab, MIB, cu, name};

/// A pool with two neighbours, allocated and freed by these streams.
fn two(lab: &Lab, flag: u32, a: CUstream, b: CUstream) -> Result<(CUmemoryPool, CUdeviceptr)> {
    let pool = lab.keeper(64 * MIB)?;
    lab.only_reuse(pool, flag)?;
    let first = lab.alloc(pool, 30 * MIB, a)?;
    let second = lab.alloc(pool, 30 * MIB, b)?;
    lab.free(first, a)?;
    lab.free(second, b)?;
    Ok((pool, first.min(second)))
}

/// C waits for A and for B.
pub(crate) fn followed(lab: &Lab) -> Result<()> {
    let (a, b, c) = (lab.stream()?, lab.stream()?, lab.stream()?);
    let (pool, low) = two(lab, 1, a, b)?;
    lab.order(c, a)?;
    lab.order(c, b)?;
    lab.say("two others", lab.where_is(pool, 60 * MIB, c, low)?);
    lab.end_pool(pool)?;
    let (pool, low) = two(lab, 1, a, b)?;
    lab.order(a, b)?;
    lab.say("own and another", lab.where_is(pool, 60 * MIB, a, low)?);
    lab.end_pool(pool)?;
    let (pool, low) = two(lab, 1, a, b)?;
    lab.synchronise(a)?;
    lab.order(c, b)?;
    lab.say("seen and another", lab.where_is(pool, 60 * MIB, c, low)?);
    lab.end_pool(pool)?;
    let (pool, low) = two(lab, 1, a, a)?;
    lab.order(c, a)?;
    lab.say("two of one stream", lab.where_is(pool, 60 * MIB, c, low)?);
    lab.end_pool(pool)
}

pub(crate) fn finished(lab: &Lab) -> Result<()> {
    let (a, b, c) = (lab.stream()?, lab.stream()?, lab.stream()?);
    let (pool, low) = two(lab, 2, a, b)?;
    lab.let_it_finish();
    lab.say("two others", lab.where_is(pool, 60 * MIB, c, low)?);
    lab.end_pool(pool)?;
    let (pool, low) = two(lab, 2, a, b)?;
    lab.let_it_finish();
    lab.say("own and another", lab.where_is(pool, 60 * MIB, a, low)?);
    lab.end_pool(pool)?;
    let (pool, low) = two(lab, 2, a, b)?;
    lab.synchronise(a)?;
    lab.let_it_finish();
    lab.say("seen and another", lab.where_is(pool, 60 * MIB, c, low)?);
    lab.end_pool(pool)
}

/// The driver may insert a wait.
pub(crate) fn waited_for(lab: &Lab) -> Result<()> {
    let (a, b, c) = (lab.stream()?, lab.stream()?, lab.stream()?);
    let gate = Gate::hold(lab, a)?;
    lab.order(b, a)?;
    let (pool, low) = two(lab, 3, a, b)?;
    let answer = lab.where_is(pool, 60 * MIB, c, low)?;
    let busy = name(cu!(lab, cuStreamQuery(c)));
    lab.say("two others", format!("{answer}, the stream answers {busy}"));
    gate.open();
    lab.end_pool(pool)?;
    let gate = Gate::hold(lab, b)?;
    let (pool, low) = two(lab, 3, a, b)?;
    let answer = lab.where_is(pool, 60 * MIB, a, low)?;
    lab.say("own and another", answer);
    gate.open();
    lab.end_pool(pool)?;
    let gate = Gate::hold(lab, b)?;
    let (pool, low) = two(lab, 3, a, b)?;
    lab.synchronise(a)?;
    let answer = lab.where_is(pool, 60 * MIB, c, low)?;
    lab.say("seen and another", answer);
    gate.open();
    lab.end_pool(pool)
}

/// Memory that no block has had yet, beside memory that the stream freed itself.
pub(crate) fn seen_and_own(lab: &Lab) -> Result<()> {
    let pool = lab.keeper(64 * MIB)?;
    lab.only_reuse(pool, 0)?;
    let stream = lab.stream()?;
    let block = lab.alloc(pool, 30 * MIB, stream)?;
    let second = lab.alloc(pool, 30 * MIB, stream)?;
    lab.free(second, stream)?;
    lab.say("30 own and 4 never used, asked for 33", {
        let (code, address) = lab.try_alloc(pool, 33 * MIB, stream);
        let distance = address.saturating_sub(block);
        format!("{}, {distance}", name(code))
    });
    lab.end_pool(pool)?;
    // Part of a pending block is taken: does the rest serve?
    let pool = lab.keeper(64 * MIB)?;
    lab.only_reuse(pool, 0)?;
    let block = lab.alloc(pool, 60 * MIB, stream)?;
    lab.free(block, stream)?;
    let half = lab.alloc(pool, 30 * MIB, stream)?;
    lab.say(
        "half of an own block, at",
        half.wrapping_sub(block).cast_signed(),
    );
    let (code, rest) = lab.try_alloc(pool, 30 * MIB, stream);
    let distance = rest.saturating_sub(block);
    lab.say("the rest, at", format!("{}, {distance}", name(code)));
    lab.end_pool(pool)
}
