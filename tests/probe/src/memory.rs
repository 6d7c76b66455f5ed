//! Memory outside the pools.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, size, yes};
use crate::gate::while_held;

/// What `cuMemAlloc` takes from the device, in a process that has allocated nothing yet.
pub(crate) fn steps(env: &Environment) -> Result<()> {
    let start = env.device_free()?;
    let mut last = start;
    let sizes = [
        1,
        1,
        1 << 20,
        1 << 20,
        3 << 20,
        3 << 20,
        5 << 20,
        64 << 20,
        65 << 20,
    ];
    for (number, bytes) in sizes.into_iter().enumerate() {
        env.plain(bytes)?;
        let free = env.device_free()?;
        env.say(
            format!("block {}, {bytes} B", number + 1),
            format!(
                "{}, with {} before",
                size(last.saturating_sub(free)),
                size(start.saturating_sub(last))
            ),
        );
        last = free;
    }
    Ok(())
}

/// Small blocks share memory of the device: when does it go back?
pub(crate) fn slabs(env: &Environment) -> Result<()> {
    let start = env.device_free()?;
    let missing = |part: &str| -> Result<()> {
        let free = env.device_free()?;
        env.say(part, size(start.saturating_sub(free)));
        Ok(())
    };
    let free = |block: CUdeviceptr| env.fine("cuMemFree", cu!(env, cuMemFree_v2(block)));
    let blocks = [env.plain(1000)?, env.plain(1000)?, env.plain(1000)?];
    missing("three of 1000 B")?;
    free(blocks[0])?;
    let again = env.plain(1000)?;
    env.say(
        "the place of a freed one",
        if again == blocks[0] { "same" } else { "other" },
    );
    free(again)?;
    free(blocks[1])?;
    missing("two freed")?;
    free(blocks[2])?;
    missing("all freed")?;
    for bytes in [
        1 << 20,
        (1 << 20) + 1,
        (2 << 20) - 512,
        (2 << 20) - 1,
        2 << 20,
        (2 << 20) + 1,
    ] {
        let (first, second) = (env.plain(bytes)?, env.plain(bytes)?);
        missing(&format!("two of {bytes} B"))?;
        free(first)?;
        free(second)?;
        missing(&format!("two of {bytes} B, freed"))?;
    }
    Ok(())
}

pub(crate) fn sizes(env: &Environment) -> Result<()> {
    let mut out = 1;
    for bytes in [0, 1 << 50, usize::MAX] {
        let code = cu!(env, cuMemAlloc_v2(&raw mut out, bytes));
        env.say(
            bytes,
            format!(
                "{}, {}",
                name(code),
                if out == 0 { "null" } else { "not null" }
            ),
        );
        out = 1;
    }
    env.code(
        "into null",
        cu!(env, cuMemAlloc_v2(std::ptr::null_mut(), 1)),
    );
    let mut pinned = std::ptr::null_mut();
    let code = cu!(env, cuMemHostAlloc(&raw mut pinned, 0, 0));
    let null = yes(pinned.is_null());
    env.say("0 of the host", format!("{}, null {null}", name(code)));
    env.code(
        "host flags 8",
        cu!(env, cuMemHostAlloc(&raw mut pinned, 1, 8)),
    );
    env.code(
        "host flags 7",
        cu!(env, cuMemHostAlloc(&raw mut pinned, 1, 7)),
    );
    let first = env.plain(1)?;
    let second = env.plain(1)?;
    env.say(
        "addresses are multiples of 512",
        yes(first % 512 == 0 && second % 512 == 0),
    );
    env.say(
        "two blocks of 1 B lie apart",
        format!("{} B", first.abs_diff(second)),
    );
    Ok(())
}

pub(crate) fn total(env: &Environment) -> Result<()> {
    let (mut free, mut total, mut device) = (0, 0, 0);
    let code = cu!(env, cuMemGetInfo_v2(&raw mut free, &raw mut total));
    env.fine("cuMemGetInfo", code)?;
    env.fine(
        "cuDeviceTotalMem",
        cu!(env, cuDeviceTotalMem_v2(&raw mut device, 0)),
    )?;
    env.say(
        "cuMemGetInfo and cuDeviceTotalMem agree",
        yes(total == device),
    );
    let null = std::ptr::null_mut();
    env.code(
        "free into null",
        cu!(env, cuMemGetInfo_v2(null, &raw mut total)),
    );
    env.code(
        "total into null",
        cu!(env, cuMemGetInfo_v2(&raw mut free, null)),
    );
    Ok(())
}

/// Whether a free waits for a stream that never touched the memory.
pub(crate) fn free_waits(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let say = |part: &str, (code, waited): (CUresult, &str)| {
        env.say(part, format!("{}, {waited}", name(code)));
    };
    let plain = env.plain(1000)?;
    say(
        "cuMemFree",
        while_held(env, stream, || cu!(env, cuMemFree_v2(plain)))?,
    );
    let plain = env.plain(64 << 20)?;
    say(
        "cuMemFree of 64 MiB",
        while_held(env, stream, || cu!(env, cuMemFree_v2(plain)))?,
    );
    let pinned = env.pinned(1000)?;
    say(
        "cuMemFreeHost",
        while_held(env, stream, || cu!(env, cuMemFreeHost(pinned)))?,
    );
    let (pool, other) = (env.pool(0)?, env.stream()?);
    let block = env.alloc(pool, 1000, other)?;
    say(
        "cuMemFree of pool memory",
        while_held(env, stream, || cu!(env, cuMemFree_v2(block)))?,
    );
    let block = env.alloc(pool, 1000, stream)?;
    let on_its_stream = while_held(env, stream, || cu!(env, cuMemFree_v2(block)))?;
    say("cuMemFree of pool memory of the held stream", on_its_stream);
    let plain = env.plain(1000)?;
    let async_free = while_held(env, stream, || cu!(env, cuMemFreeAsync(plain, stream)))?;
    say("cuMemFreeAsync of plain memory", async_free);
    let mut out = 0;
    say(
        "cuMemAlloc",
        while_held(env, stream, || {
            cu!(env, cuMemAlloc_v2(&raw mut out, 64 << 20))
        })?,
    );
    let mut host = std::ptr::null_mut();
    let code = while_held(env, stream, || {
        cu!(env, cuMemHostAlloc(&raw mut host, 1000, 0))
    })?;
    say("cuMemHostAlloc", code);
    let big = while_held(env, stream, || env.try_alloc(pool, 512 * MIB, other).0)?;
    say("growing a pool", big);
    let small = env.pool(0)?;
    let destroy = while_held(env, stream, || cu!(env, cuMemPoolDestroy(small)))?;
    say("cuMemPoolDestroy", destroy);
    let trim = while_held(env, stream, || cu!(env, cuMemPoolTrimTo(pool, 0)))?;
    say("cuMemPoolTrimTo", trim);
    Ok(())
}

pub(crate) fn free_async(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let start = env.device_free()?;
    let plain = env.plain(64 << 20)?;
    env.code("of plain memory", cu!(env, cuMemFreeAsync(plain, stream)));
    let missing = start.saturating_sub(env.device_free()?);
    env.say("then the device misses", size(missing));
    env.synchronise(stream)?;
    let missing = start.saturating_sub(env.device_free()?);
    env.say("after a synchronise it misses", size(missing));
    env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
    let mut value = 0_u64;
    let place = (&raw mut value).cast();
    let code = cu!(
        env,
        cuPointerGetAttribute(place, CUpointer_attribute(2), plain)
    );
    env.code("cuPointerGetAttribute then", code);
    Ok(())
}

pub(crate) fn address_range(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    let block = env.alloc(pool, 1000, stream)?;
    let plain = env.plain(1000)?;
    let pinned = env.pinned(1000)?.expose_provenance() as u64;
    let local = 0_u8;
    let foreign = (&raw const local).expose_provenance() as u64;
    for (part, address, start) in [
        ("pool memory", block + 5, block),
        ("plain memory", plain + 5, plain),
        ("pinned memory", pinned + 5, pinned),
        ("behind plain memory", plain + 1000, plain),
        ("foreign memory", foreign, foreign),
        ("null", 0, 0),
    ] {
        let (mut base, mut len) = (1, 1);
        let code = cu!(
            env,
            cuMemGetAddressRange_v2(&raw mut base, &raw mut len, address)
        );
        let answer = if code == OK {
            format!("from the start {}, {len} B", yes(base == start))
        } else {
            name(code)
        };
        env.say(part, answer);
    }
    let code = cu!(
        env,
        cuMemGetAddressRange_v2(std::ptr::null_mut(), std::ptr::null_mut(), plain)
    );
    env.code("into null", code);
    env.free(block, stream)?;
    env.end_pool(pool)
}

pub(crate) fn host_memory(env: &Environment) -> Result<()> {
    let start = env.device_free()?;
    let pinned = env.pinned(64 << 20)?;
    env.say(
        "64 MiB take from the device",
        size(start.saturating_sub(env.device_free()?)),
    );
    let mut device = 0;
    let code = cu!(
        env,
        cuMemHostGetDevicePointer_v2(&raw mut device, pinned, 0)
    );
    let same = device == pinned.addr() as u64;
    env.say(
        "its device address is the same",
        format!("{}, {}", name(code), yes(same)),
    );
    let address = pinned.expose_provenance() as u64;
    env.code("cuMemFree of it", cu!(env, cuMemFree_v2(address)));
    env.code("cuMemFreeHost", cu!(env, cuMemFreeHost(pinned)));
    env.code(
        "cuMemFreeHost of null",
        cu!(env, cuMemFreeHost(std::ptr::null_mut())),
    );
    Ok(())
}
