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
