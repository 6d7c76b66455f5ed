//! Pools: how they grow and shrink, their limits, and their end.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB, OK, RESERVED, THRESHOLD, cu, name, size, yes};

/// Fresh pool, threshold 0, requests kept live one after another.
pub(crate) fn growth(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let mut blocks = Vec::new();
    let sizes = [
        1,
        511,
        512,
        513,
        4096,
        65_537,
        MIB,
        2 * MIB + 1,
        31 * MIB,
        33 * MIB,
        100 * MIB,
    ];
    for bytes in sizes {
        blocks.push(lab.alloc(pool, bytes, stream)?);
        let answer = format!(
            "used {} B, reserved {}",
            lab.used(pool)?,
            lab.reserved(pool)?
        );
        lab.say(format!("after {bytes} B"), answer);
    }
    let aligned = blocks.iter().all(|block| block.is_multiple_of(512));
    lab.say("addresses are multiples of 512", yes(aligned));
    for block in blocks {
        lab.free(block, stream)?;
    }
    let freed = format!(
        "used {} B, reserved {}",
        lab.used(pool)?,
        lab.reserved(pool)?
    );
    lab.say("after the frees", freed);
    lab.synchronise(stream)?;
    lab.say("after a synchronise", lab.reserved(pool)?);
    lab.say("highest reserved", size(lab.get(pool, 6)?));
    lab.say("highest used", format!("{} B", lab.get(pool, 8)?));
    lab.end_pool(pool)
}

pub(crate) fn spacing(lab: &Lab) -> Result<()> {
    for bytes in [1, 512, 513, 4096, 5000, MIB, 3 * MIB + 1, 33 * MIB] {
        let (pool, stream) = (lab.pool(0)?, lab.stream()?);
        let first = lab.alloc(pool, bytes, stream)?;
        let second = lab.alloc(pool, bytes, stream)?;
        let distance = second.wrapping_sub(first).cast_signed();
        lab.say(
            format!("of two blocks of {bytes} B"),
            format!("{distance} B"),
        );
        lab.free(first, stream)?;
        lab.free(second, stream)?;
        lab.end_pool(pool)?;
    }
    Ok(())
}

pub(crate) fn threshold(lab: &Lab) -> Result<()> {
    for (threshold, bytes) in [
        (0, 160),
        (1, 160),
        (31, 160),
        (32, 160),
        (33, 160),
        (80, 160),
        (159, 160),
        (160, 160),
        (80, 64),
    ] {
        let (pool, stream) = (lab.pool(0)?, lab.stream()?);
        lab.set(pool, THRESHOLD, threshold * MIB)?;
        let block = lab.alloc(pool, bytes * MIB, stream)?;
        lab.free(block, stream)?;
        let before = lab.reserved(pool)?;
        lab.synchronise(stream)?;
        let part = format!("{threshold} MiB of {bytes} MiB");
        lab.say(part, format!("{before}, then {}", lab.reserved(pool)?));
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// A threshold that is set below what is kept.
pub(crate) fn threshold_is_lowered(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
    let block = lab.alloc(pool, 160 * MIB, stream)?;
    lab.free(block, stream)?;
    lab.synchronise(stream)?;
    lab.set(pool, THRESHOLD, 0)?;
    lab.say("at once", lab.reserved(pool)?);
    lab.synchronise(stream)?;
    lab.say("after a synchronise of an idle stream", lab.reserved(pool)?);
    let block = lab.alloc(pool, 1000, stream)?;
    lab.say("after an allocation", lab.reserved(pool)?);
    lab.free(block, stream)?;
    lab.synchronise(stream)?;
    lab.say("after its free and a synchronise", lab.reserved(pool)?);
    lab.end_pool(pool)
}

pub(crate) fn sizes(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    for bytes in [0, 1 << 50, u64::MAX, u64::MAX - 511, 1 << 63] {
        let (code, address) = lab.try_alloc(pool, bytes, stream);
        let place = match address {
            0 => "null",
            1 => "untouched",
            _ => "an address",
        };
        lab.say(
            format!("from a pool {bytes}"),
            format!("{}, {place}", name(code)),
        );
        let mut address = 1;
        let code = cu!(
            lab,
            cuMemAllocAsync(&raw mut address, bytes as usize, stream)
        );
        let place = match address {
            0 => "null",
            1 => "untouched",
            _ => "an address",
        };
        lab.say(format!("plain {bytes}"), format!("{}, {place}", name(code)));
    }
    lab.say("used after that", format!("{} B", lab.used(pool)?));
    lab.say("reserved after that", lab.reserved(pool)?);
    lab.code(
        "cuMemFreeAsync of null",
        cu!(lab, cuMemFreeAsync(0, stream)),
    );
    lab.code("cuMemFree of null", cu!(lab, cuMemFree_v2(0)));
    let null = std::ptr::null_mut();
    let code = cu!(lab, cuMemAllocFromPoolAsync(null, 1, pool, stream));
    lab.code("into null", code);
    let mut out = 1;
    let none = std::ptr::null_mut();
    let code = cu!(lab, cuMemAllocFromPoolAsync(&raw mut out, 1, none, stream));
    lab.code("from the null pool", code);
    let code = cu!(lab, cuMemAllocFromPoolAsync(&raw mut out, 0, none, stream));
    lab.code("nothing from the null pool", code);
    let code = cu!(lab, cuMemAllocAsync(std::ptr::null_mut(), 1, stream));
    lab.code("plain into null", code);
    lab.end_pool(pool)
}

pub(crate) fn limit(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(64 * MIB)?, lab.stream()?);
    for bytes in [32, 48, 20, 12, 1] {
        let (code, _) = lab.try_alloc(pool, bytes * MIB, stream);
        lab.say(
            format!("64 MiB, then {bytes}"),
            format!("{}, {}", name(code), lab.reserved(pool)?),
        );
    }
    Ok(())
}

/// Live blocks of 1 MiB until no more come.
pub(crate) fn largest_total(lab: &Lab) -> Result<()> {
    for max in [
        1,
        MIB,
        32 * MIB,
        33 * MIB,
        64 * MIB,
        64 * MIB + 1,
        65 * MIB,
        100 * MIB,
    ] {
        let (pool, stream) = (lab.pool(max)?, lab.stream()?);
        let mut blocks = Vec::new();
        let code = loop {
            let (code, block) = lab.try_alloc(pool, MIB, stream);
            if code != OK || blocks.len() >= 200 {
                break code;
            }
            blocks.push(block);
        };
        let answer = format!("{} MiB, then {}", blocks.len(), name(code));
        lab.say(format!("of a pool of {}", size(max)), answer);
        for block in blocks {
            lab.free(block, stream)?;
        }
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// The largest single block of a pool, in whole MiB.
pub(crate) fn largest_block(lab: &Lab) -> Result<()> {
    for max in [1, 33 * MIB, 64 * MIB, 65 * MIB] {
        let (pool, stream) = (lab.pool(max)?, lab.stream()?);
        let mut largest = 0;
        for bytes in 1..=130 {
            let (code, block) = lab.try_alloc(pool, bytes * MIB, stream);
            if code == OK {
                largest = bytes;
                lab.free(block, stream)?;
                lab.synchronise(stream)?;
            }
        }
        lab.say(
            format!("of a pool of {}", size(max)),
            format!("{largest} MiB"),
        );
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// What can be made. Managed memory is not asked about.
pub(crate) fn kinds(lab: &Lab) -> Result<()> {
    for (kind, place, id, types) in [
        (1, 1, 0, 0),
        (1, 1, 0, 1),
        (1, 1, 0, 2),
        (1, 1, 0, 4),
        (1, 1, 0, 8),
        (1, 1, 0, 9),
        (1, 1, 0, 16),
        (1, 0, 0, 0),
        (1, 2, 0, 0),
        (1, 2, 7, 0),
        (1, 2, 0, 1),
        (1, 3, 0, 0),
        (1, 3, 0, 1),
        (1, 3, -1, 0),
        (1, 3, 99, 0),
        (1, 4, 0, 0),
        (1, 5, 0, 0),
        (0, 1, 0, 0),
        (3, 1, 0, 0),
        (1, 1, -1, 0),
        (1, 1, 99, 0),
    ] {
        let wish = CUmemPoolProps {
            allocType: CUmemAllocationType(kind),
            handleTypes: CUmemAllocationHandleType(types),
            location: location(CUmemLocationType(place), id),
            ..CUmemPoolProps::default()
        };
        let (code, pool) = lab.pool_with(&wish);
        lab.code(
            format!("type {kind}, location {place} {id}, handles {types}"),
            code,
        );
        if code == OK {
            lab.end_pool(pool)?;
        }
    }
    let mut wish = Lab::props();
    wish.reserved[0] = 1;
    lab.code("reserved byte set", lab.pool_with(&wish).0);
    for usage in [1, 2, 4] {
        let wish = CUmemPoolProps {
            usage,
            ..Lab::props()
        };
        lab.code(format!("usage {usage}"), lab.pool_with(&wish).0);
    }
    for max in [1 << 45, usize::MAX] {
        let wish = CUmemPoolProps {
            maxSize: max,
            ..Lab::props()
        };
        lab.code(format!("maximum {max}"), lab.pool_with(&wish).0);
    }
    let (null, plain) = (std::ptr::null_mut(), Lab::props());
    lab.code(
        "into null",
        cu!(lab, cuMemPoolCreate(null, &raw const plain)),
    );
    let mut pool = std::ptr::null_mut();
    lab.code(
        "of null",
        cu!(lab, cuMemPoolCreate(&raw mut pool, std::ptr::null())),
    );
    Ok(())
}

pub(crate) fn default(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let ask = |which: bool| -> Result<CUmemoryPool> {
        let mut found = std::ptr::null_mut();
        let code = if which {
            cu!(lab, cuDeviceGetDefaultMemPool(&raw mut found, 0))
        } else {
            cu!(lab, cuDeviceGetMemPool(&raw mut found, 0))
        };
        lab.fine("the pool of the device", code)?;
        Ok(found)
    };
    let default = ask(true)?;
    lab.say("is current at first", yes(ask(false)? == default));
    lab.say("its threshold", lab.get(default, THRESHOLD)?);
    lab.say("its reserved", size(lab.get(default, RESERVED)?));
    lab.code("destroy it", cu!(lab, cuMemPoolDestroy(default)));
    lab.code("set current", cu!(lab, cuDeviceSetMemPool(0, pool)));
    lab.say("is current then", yes(ask(false)? == pool));
    let mut block = 0;
    let code = cu!(lab, cuMemAllocAsync(&raw mut block, 1000, stream));
    lab.fine("cuMemAllocAsync", code)?;
    lab.say(
        "a plain allocation counts in it",
        format!("{} B", lab.used(pool)?),
    );
    lab.free(block, stream)?;
    lab.code(
        "set current null",
        cu!(lab, cuDeviceSetMemPool(0, std::ptr::null_mut())),
    );
    lab.code("set current on 99", cu!(lab, cuDeviceSetMemPool(99, pool)));
    lab.code("destroy the current", cu!(lab, cuMemPoolDestroy(pool)));
    lab.say("then the default is current", yes(ask(false)? == default));
    lab.code(
        "destroy null",
        cu!(lab, cuMemPoolDestroy(std::ptr::null_mut())),
    );
    Ok(())
}

pub(crate) fn destroyed_with_a_block(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let before = lab.device_free()?;
    let block = lab.alloc(pool, 40 * MIB, stream)?;
    lab.synchronise(stream)?;
    lab.code("destroy", cu!(lab, cuMemPoolDestroy(pool)));
    let free = lab.device_free()?;
    lab.say("then the device misses", size(before.saturating_sub(free)));
    lab.code("write", cu!(lab, cuMemsetD8Async(block, 1, 1000, stream)));
    lab.synchronise(stream)?;
    lab.code("free", cu!(lab, cuMemFreeAsync(block, stream)));
    lab.synchronise(stream)?;
    let free = lab.device_free()?;
    lab.say(
        "then the device misses, freed",
        size(before.saturating_sub(free)),
    );
    Ok(())
}

/// What pools take from the device.
pub(crate) fn device_memory(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let start = lab.device_free()?;
    let pool = lab.pool(0)?;
    let missing = || -> Result<String> {
        let free = lab.device_free()?;
        Ok(size(start.saturating_sub(free)))
    };
    lab.say("an empty pool", missing()?);
    let block = lab.alloc(pool, 10 * MIB, stream)?;
    lab.say("with 10 MiB", missing()?);
    let other = lab.alloc(pool, 100 * MIB, stream)?;
    lab.say("with 100 MiB more", missing()?);
    lab.free(other, stream)?;
    lab.say("with these freed", missing()?);
    lab.synchronise(stream)?;
    lab.say("with the free seen", missing()?);
    lab.free(block, stream)?;
    lab.synchronise(stream)?;
    lab.say("with all freed", missing()?);
    lab.end_pool(pool)?;
    lab.say("after the end of the pool", missing()?);
    Ok(())
}
