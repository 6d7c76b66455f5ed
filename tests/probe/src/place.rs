//! Where in a pool a new block goes.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB};

/// Live blocks of these sizes in MiB, one after the other.
fn row(lab: &Lab, pool: CUmemoryPool, stream: CUstream, sizes: &[u64]) -> Result<Vec<CUdeviceptr>> {
    sizes
        .iter()
        .map(|bytes| lab.alloc(pool, bytes * MIB, stream))
        .collect()
}

/// Which of these blocks a new one begins at.
fn which(address: CUdeviceptr, blocks: &[(CUdeviceptr, &str)]) -> String {
    let found = blocks.iter().find(|(block, _)| *block == address);
    found.map_or("elsewhere", |(_, what)| what).to_owned()
}

pub(crate) fn fresh(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
    let first = lab.alloc(pool, MIB, stream)?;
    for (part, bytes) in [
        ("1 MiB", MIB),
        ("2 MiB", 2 * MIB),
        ("40 MiB", 40 * MIB),
        ("1 B", 1),
    ] {
        let next = lab.alloc(pool, bytes, stream)?;
        let distance = next.wrapping_sub(first).cast_signed();
        lab.say(
            format!("then {part}, from the first block"),
            format!("{distance} B"),
        );
    }
    Ok(())
}

/// Two gaps of different size, freed by the stream itself, by another, and seen by the host.
pub(crate) fn tightest(lab: &Lab) -> Result<()> {
    for (part, seen) in [("own, pending", false), ("seen by the host", true)] {
        let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
        let blocks = row(lab, pool, stream, &[6, 1, 4, 1, 5, 1])?;
        for at in [0, 2, 4] {
            lab.free(blocks[at], stream)?;
        }
        if seen {
            lab.synchronise(stream)?;
        }
        let new = lab.alloc(pool, 4 * MIB - 1, stream)?;
        let names = [
            (blocks[0], "lowest"),
            (blocks[2], "tightest"),
            (blocks[4], "last freed"),
        ];
        lab.say(part, which(new, &names));
    }
    Ok(())
}

pub(crate) fn equal(lab: &Lab) -> Result<()> {
    for (part, seen) in [("own, pending", false), ("seen by the host", true)] {
        let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
        let blocks = row(lab, pool, stream, &[4, 1, 4, 1, 4, 1])?;
        for at in [2, 4, 0] {
            lab.free(blocks[at], stream)?;
        }
        if seen {
            lab.synchronise(stream)?;
        }
        let names = [
            (blocks[0], "lowest"),
            (blocks[2], "first freed"),
            (blocks[4], "highest"),
        ];
        let new = lab.alloc(pool, 4 * MIB, stream)?;
        lab.say(part, which(new, &names));
    }
    Ok(())
}

/// One gap is the stream's own and pending, the other was seen freed.
pub(crate) fn order_of_frees(lab: &Lab) -> Result<()> {
    for (part, own_first) in [("own gap lower", true), ("own gap higher", false)] {
        let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
        let blocks = row(lab, pool, stream, &[4, 1, 4, 1])?;
        let (own, seen) = if own_first { (0, 2) } else { (2, 0) };
        lab.free(blocks[seen], stream)?;
        lab.synchronise(stream)?;
        lab.free(blocks[own], stream)?;
        let new = lab.alloc(pool, 4 * MIB, stream)?;
        lab.say(
            part,
            which(new, &[(blocks[own], "own"), (blocks[seen], "seen")]),
        );
    }
    Ok(())
}

/// The own gap is larger than the one that was seen freed.
pub(crate) fn own_or_tighter(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
    let blocks = row(lab, pool, stream, &[6, 1, 4, 1])?;
    lab.free(blocks[2], stream)?;
    lab.synchronise(stream)?;
    lab.free(blocks[0], stream)?;
    let new = lab.alloc(pool, 4 * MIB, stream)?;
    lab.say(
        "own of 6 MiB, seen of 4 MiB",
        which(new, &[(blocks[0], "own"), (blocks[2], "seen")]),
    );
    // The stream's own gap, against one that it may use because it waited for another stream.
    let (pool, other) = (lab.keeper(0)?, lab.stream()?);
    lab.only_reuse(pool, 1)?;
    let blocks = row(lab, pool, stream, &[4, 1, 6, 1])?;
    lab.free(blocks[0], other)?;
    lab.free(blocks[2], stream)?;
    lab.order(stream, other)?;
    let new = lab.alloc(pool, 4 * MIB, stream)?;
    let names = [(blocks[0], "followed"), (blocks[2], "own")];
    lab.say("own of 6 MiB, followed of 4 MiB", which(new, &names));
    // One that was seen freed, against a followed one.
    let pool = lab.keeper(0)?;
    lab.only_reuse(pool, 1)?;
    let blocks = row(lab, pool, stream, &[6, 1, 4, 1])?;
    lab.free(blocks[0], stream)?;
    lab.synchronise(stream)?;
    lab.free(blocks[2], other)?;
    lab.order(stream, other)?;
    let new = lab.alloc(pool, 4 * MIB, stream)?;
    let names = [(blocks[0], "seen"), (blocks[2], "followed")];
    lab.say("seen of 6 MiB, followed of 4 MiB", which(new, &names));
    Ok(())
}

/// A request larger than the gap at the end of what the pool has.
pub(crate) fn grows_from(lab: &Lab) -> Result<()> {
    for (part, seen) in [("own, pending", false), ("seen by the host", true)] {
        let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
        let block = lab.alloc(pool, 30 * MIB, stream)?;
        lab.free(block, stream)?;
        if seen {
            lab.synchronise(stream)?;
        }
        let new = lab.alloc(pool, 60 * MIB, stream)?;
        let distance = new.wrapping_sub(block).cast_signed();
        let answer = format!("{distance} B on, reserved {}", lab.reserved(pool)?);
        lab.say(format!("30 MiB {part}, then 60 MiB"), answer);
    }
    // Live memory ends in the middle of a step.
    let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
    let block = lab.alloc(pool, 30 * MIB, stream)?;
    let new = lab.alloc(pool, 60 * MIB, stream)?;
    let distance = new.wrapping_sub(block).cast_signed();
    let answer = format!("{distance} B on, reserved {}", lab.reserved(pool)?);
    lab.say("30 MiB live, then 60 MiB", answer);
    Ok(())
}

/// After a trim from the middle: is the hole filled before the range grows?
pub(crate) fn fills_hole(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
    let blocks = row(lab, pool, stream, &[1, 96, 1])?;
    lab.free(blocks[1], stream)?;
    lab.synchronise(stream)?;
    lab.trim(pool, 0)?;
    lab.say("reserved after the trim", lab.reserved(pool)?);
    let new = lab.alloc(pool, 96 * MIB, stream)?;
    lab.say("96 MiB again", which(new, &[(blocks[1], "in the hole")]));
    lab.say("reserved then", lab.reserved(pool)?);
    Ok(())
}
