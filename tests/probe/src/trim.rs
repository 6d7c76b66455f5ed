//! What `cuMemPoolTrimTo` gives back.

use anyhow::Result;

use crate::lab::{Lab, MIB};

pub(crate) fn keep(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
    let block = lab.alloc(pool, 512 * MIB, stream)?;
    lab.free(block, stream)?;
    lab.synchronise(stream)?;
    for keep in [1024, 512, 511, 100, 33, 32, 1, 0] {
        lab.trim(pool, (keep * MIB) as usize)?;
        lab.say(format!("{keep} MiB"), lab.reserved(pool)?);
    }
    lab.end_pool(pool)
}

pub(crate) fn live_and_unseen(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
    let live = lab.alloc(pool, 40 * MIB, stream)?;
    let dead = lab.alloc(pool, 100 * MIB, stream)?;
    lab.free(dead, stream)?;
    lab.let_it_finish();
    lab.trim(pool, 0)?;
    lab.say(
        "40 MiB live, 100 MiB freed and not seen",
        lab.reserved(pool)?,
    );
    lab.synchronise(stream)?;
    lab.trim(pool, 0)?;
    lab.say("seen", lab.reserved(pool)?);
    lab.free(live, stream)?;
    lab.synchronise(stream)?;
    lab.trim(pool, 0)?;
    lab.say("all freed", lab.reserved(pool)?);
    lab.end_pool(pool)
}

/// A freed block between two that live: memory in the middle of the range.
pub(crate) fn between_live(lab: &Lab) -> Result<()> {
    for middle in [31, 64, 96, 128] {
        let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
        let low = lab.alloc(pool, MIB, stream)?;
        let dead = lab.alloc(pool, middle * MIB, stream)?;
        let high = lab.alloc(pool, MIB, stream)?;
        let before = lab.reserved(pool)?;
        lab.free(dead, stream)?;
        lab.synchronise(stream)?;
        lab.trim(pool, 0)?;
        let after = lab.reserved(pool)?;
        lab.say(
            format!("1 MiB, freed {middle} MiB, 1 MiB"),
            format!("{before}, then {after}"),
        );
        lab.free(low, stream)?;
        lab.synchronise(stream)?;
        lab.trim(pool, 0)?;
        lab.say(
            format!("the same with {middle} MiB, low one freed"),
            lab.reserved(pool)?,
        );
        lab.free(high, stream)?;
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// Close to the largest number.
pub(crate) fn boundary(lab: &Lab) -> Result<()> {
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
        let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
        let block = lab.alloc(pool, 64 * MIB, stream)?;
        lab.free(block, stream)?;
        lab.synchronise(stream)?;
        lab.trim(pool, keep)?;
        lab.say(part, lab.reserved(pool)?);
        lab.end_pool(pool)?;
    }
    Ok(())
}

pub(crate) fn half_used(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
    let low = lab.alloc(pool, MIB, stream)?;
    let high = lab.alloc(pool, 100 * MIB, stream)?;
    lab.free(high, stream)?;
    lab.synchronise(stream)?;
    lab.trim(pool, 0)?;
    lab.say("1 MiB live in the first step", lab.reserved(pool)?);
    let high = lab.alloc(pool, 100 * MIB, stream)?;
    lab.free(low, stream)?;
    lab.synchronise(stream)?;
    lab.trim(pool, 0)?;
    lab.say("100 MiB live from 1 MiB on", lab.reserved(pool)?);
    lab.free(high, stream)?;
    lab.end_pool(pool)
}
