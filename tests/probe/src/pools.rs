//! Pools: how they grow and shrink, their limits, and their end.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, RESERVED, THRESHOLD, cu, name, size, yes};

/// Fresh pool, threshold 0, requests kept live one after another.
pub(crate) fn growth(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(0)?, env.stream()?);
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
        blocks.push(env.alloc(pool, bytes, stream)?);
        let answer = format!(
            "used {} B, reserved {}",
            env.used(pool)?,
            env.reserved(pool)?
        );
        env.say(format!("after {bytes} B"), answer);
    }
    let aligned = blocks.iter().all(|block| block.is_multiple_of(512));
    env.say("addresses are multiples of 512", yes(aligned));
    for block in blocks {
        env.free(block, stream)?;
    }
    let freed = format!(
        "used {} B, reserved {}",
        env.used(pool)?,
        env.reserved(pool)?
    );
    env.say("after the frees", freed);
    env.synchronise(stream)?;
    env.say("after a synchronise", env.reserved(pool)?);
    env.say("highest reserved", size(env.get(pool, 6)?));
    env.say("highest used", format!("{} B", env.get(pool, 8)?));
    env.end_pool(pool)
}

pub(crate) fn spacing(env: &Environment) -> Result<()> {
    for bytes in [1, 512, 513, 4096, 5000, MIB, 3 * MIB + 1, 33 * MIB] {
        let (pool, stream) = (env.pool(0)?, env.stream()?);
        let first = env.alloc(pool, bytes, stream)?;
        let second = env.alloc(pool, bytes, stream)?;
        let distance = second.wrapping_sub(first).cast_signed();
        env.say(
            format!("of two blocks of {bytes} B"),
            format!("{distance} B"),
        );
        env.free(first, stream)?;
        env.free(second, stream)?;
        env.end_pool(pool)?;
    }
    Ok(())
}

pub(crate) fn threshold(env: &Environment) -> Result<()> {
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
        let (pool, stream) = (env.pool(0)?, env.stream()?);
        env.set(pool, THRESHOLD, threshold * MIB)?;
        let block = env.alloc(pool, bytes * MIB, stream)?;
        env.free(block, stream)?;
        let before = env.reserved(pool)?;
        env.synchronise(stream)?;
        let part = format!("{threshold} MiB of {bytes} MiB");
        env.say(part, format!("{before}, then {}", env.reserved(pool)?));
        env.end_pool(pool)?;
    }
    Ok(())
}

/// A threshold that is set below what is kept.
pub(crate) fn threshold_is_lowered(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.keeper(0)?, env.stream()?);
    let block = env.alloc(pool, 160 * MIB, stream)?;
    env.free(block, stream)?;
    env.synchronise(stream)?;
    env.set(pool, THRESHOLD, 0)?;
    env.say("at once", env.reserved(pool)?);
    env.synchronise(stream)?;
    env.say("after a synchronise of an idle stream", env.reserved(pool)?);
    let block = env.alloc(pool, 1000, stream)?;
    env.say("after an allocation", env.reserved(pool)?);
    env.free(block, stream)?;
    env.synchronise(stream)?;
    env.say("after its free and a synchronise", env.reserved(pool)?);
    env.end_pool(pool)
}

pub(crate) fn sizes(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    for bytes in [0, 1 << 50, u64::MAX, u64::MAX - 511, 1 << 63] {
        let (code, address) = env.try_alloc(pool, bytes, stream);
        let place = match address {
            0 => "null",
            1 => "untouched",
            _ => "an address",
        };
        env.say(
            format!("from a pool {bytes}"),
            format!("{}, {place}", name(code)),
        );
        let mut address = 1;
        let code = cu!(
            env,
            cuMemAllocAsync(&raw mut address, bytes as usize, stream)
        );
        let place = match address {
            0 => "null",
            1 => "untouched",
            _ => "an address",
        };
        env.say(format!("plain {bytes}"), format!("{}, {place}", name(code)));
    }
    env.say("used after that", format!("{} B", env.used(pool)?));
    env.say("reserved after that", env.reserved(pool)?);
    env.code(
        "cuMemFreeAsync of null",
        cu!(env, cuMemFreeAsync(0, stream)),
    );
    env.code("cuMemFree of null", cu!(env, cuMemFree_v2(0)));
    let null = std::ptr::null_mut();
    let code = cu!(env, cuMemAllocFromPoolAsync(null, 1, pool, stream));
    env.code("into null", code);
    let mut out = 1;
    let none = std::ptr::null_mut();
    let code = cu!(env, cuMemAllocFromPoolAsync(&raw mut out, 1, none, stream));
    env.code("from the null pool", code);
    let code = cu!(env, cuMemAllocFromPoolAsync(&raw mut out, 0, none, stream));
    env.code("nothing from the null pool", code);
    let code = cu!(env, cuMemAllocAsync(std::ptr::null_mut(), 1, stream));
    env.code("plain into null", code);
    env.end_pool(pool)
}

pub(crate) fn limit(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(64 * MIB)?, env.stream()?);
    for bytes in [32, 48, 20, 12, 1] {
        let (code, _) = env.try_alloc(pool, bytes * MIB, stream);
        env.say(
            format!("64 MiB, then {bytes}"),
            format!("{}, {}", name(code), env.reserved(pool)?),
        );
    }
    Ok(())
}

/// Live blocks of 1 MiB until no more come.
pub(crate) fn largest_total(env: &Environment) -> Result<()> {
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
        let (pool, stream) = (env.pool(max)?, env.stream()?);
        let mut blocks = Vec::new();
        let code = loop {
            let (code, block) = env.try_alloc(pool, MIB, stream);
            if code != OK || blocks.len() >= 200 {
                break code;
            }
            blocks.push(block);
        };
        let answer = format!("{} MiB, then {}", blocks.len(), name(code));
        env.say(format!("of a pool of {}", size(max)), answer);
        for block in blocks {
            env.free(block, stream)?;
        }
        env.end_pool(pool)?;
    }
    Ok(())
}

/// The largest single block of a pool, in whole MiB.
pub(crate) fn largest_block(env: &Environment) -> Result<()> {
    for max in [1, 33 * MIB, 64 * MIB, 65 * MIB] {
        let (pool, stream) = (env.pool(max)?, env.stream()?);
        let mut largest = 0;
        for bytes in 1..=130 {
            let (code, block) = env.try_alloc(pool, bytes * MIB, stream);
            if code == OK {
                largest = bytes;
                env.free(block, stream)?;
                env.synchronise(stream)?;
            }
        }
        env.say(
            format!("of a pool of {}", size(max)),
            format!("{largest} MiB"),
        );
        env.end_pool(pool)?;
    }
    Ok(())
}

/// What can be made. Managed memory is not asked about.
pub(crate) fn kinds(env: &Environment) -> Result<()> {
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
        let (code, pool) = env.pool_with(&wish);
        env.code(
            format!("type {kind}, location {place} {id}, handles {types}"),
            code,
        );
        if code == OK {
            env.end_pool(pool)?;
        }
    }
    let mut wish = Environment::props();
    wish.reserved[0] = 1;
    env.code("reserved byte set", env.pool_with(&wish).0);
    for usage in [1, 2, 4] {
        let wish = CUmemPoolProps {
            usage,
            ..Environment::props()
        };
        env.code(format!("usage {usage}"), env.pool_with(&wish).0);
    }
    for max in [1 << 45, usize::MAX] {
        let wish = CUmemPoolProps {
            maxSize: max,
            ..Environment::props()
        };
        env.code(format!("maximum {max}"), env.pool_with(&wish).0);
    }
    let (null, plain) = (std::ptr::null_mut(), Environment::props());
    env.code(
        "into null",
        cu!(env, cuMemPoolCreate(null, &raw const plain)),
    );
    let mut pool = std::ptr::null_mut();
    env.code(
        "of null",
        cu!(env, cuMemPoolCreate(&raw mut pool, std::ptr::null())),
    );
    Ok(())
}

pub(crate) fn default(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    let ask = |which: bool| -> Result<CUmemoryPool> {
        let mut found = std::ptr::null_mut();
        let code = if which {
            cu!(env, cuDeviceGetDefaultMemPool(&raw mut found, 0))
        } else {
            cu!(env, cuDeviceGetMemPool(&raw mut found, 0))
        };
        env.fine("the pool of the device", code)?;
        Ok(found)
    };
    let default = ask(true)?;
    env.say("is current at first", yes(ask(false)? == default));
    env.say("its threshold", env.get(default, THRESHOLD)?);
    env.say("its reserved", size(env.get(default, RESERVED)?));
    env.code("destroy it", cu!(env, cuMemPoolDestroy(default)));
    env.code("set current", cu!(env, cuDeviceSetMemPool(0, pool)));
    env.say("is current then", yes(ask(false)? == pool));
    let mut block = 0;
    let code = cu!(env, cuMemAllocAsync(&raw mut block, 1000, stream));
    env.fine("cuMemAllocAsync", code)?;
    env.say(
        "a plain allocation counts in it",
        format!("{} B", env.used(pool)?),
    );
    env.free(block, stream)?;
    env.code(
        "set current null",
        cu!(env, cuDeviceSetMemPool(0, std::ptr::null_mut())),
    );
    env.code("set current on 99", cu!(env, cuDeviceSetMemPool(99, pool)));
    env.code("destroy the current", cu!(env, cuMemPoolDestroy(pool)));
    env.say("then the default is current", yes(ask(false)? == default));
    env.code(
        "destroy null",
        cu!(env, cuMemPoolDestroy(std::ptr::null_mut())),
    );
    Ok(())
}

pub(crate) fn destroyed_with_a_block(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    let before = env.device_free()?;
    let block = env.alloc(pool, 40 * MIB, stream)?;
    env.synchronise(stream)?;
    env.code("destroy", cu!(env, cuMemPoolDestroy(pool)));
    let free = env.device_free()?;
    env.say("then the device misses", size(before.saturating_sub(free)));
    env.code("write", cu!(env, cuMemsetD8Async(block, 1, 1000, stream)));
    env.synchronise(stream)?;
    env.code("free", cu!(env, cuMemFreeAsync(block, stream)));
    env.synchronise(stream)?;
    let free = env.device_free()?;
    env.say(
        "then the device misses, freed",
        size(before.saturating_sub(free)),
    );
    Ok(())
}

/// What pools take from the device.
pub(crate) fn device_memory(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let start = env.device_free()?;
    let pool = env.pool(0)?;
    let missing = || -> Result<String> {
        let free = env.device_free()?;
        Ok(size(start.saturating_sub(free)))
    };
    env.say("an empty pool", missing()?);
    let block = env.alloc(pool, 10 * MIB, stream)?;
    env.say("with 10 MiB", missing()?);
    let other = env.alloc(pool, 100 * MIB, stream)?;
    env.say("with 100 MiB more", missing()?);
    env.free(other, stream)?;
    env.say("with these freed", missing()?);
    env.synchronise(stream)?;
    env.say("with the free seen", missing()?);
    env.free(block, stream)?;
    env.synchronise(stream)?;
    env.say("with all freed", missing()?);
    env.end_pool(pool)?;
    env.say("after the end of the pool", missing()?);
    Ok(())
}
