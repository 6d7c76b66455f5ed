//! What the driver does before it answers that memory is out. The device is never filled.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, RESERVED, cu, name, size};
use crate::gate::Gate;

/// A pool that keeps 128 MiB, seen freed.
fn keeper(env: &Environment, stream: CUstream) -> Result<CUmemoryPool> {
    let pool = env.keeper(0)?;
    fill(env, pool, stream)?;
    Ok(pool)
}

fn fill(env: &Environment, pool: CUmemoryPool, stream: CUstream) -> Result<()> {
    let block = env.alloc(pool, 128 * MIB, stream)?;
    env.free(block, stream)?;
    env.synchronise(stream)
}

fn total(env: &Environment) -> Result<u64> {
    let mut total = 0;
    env.fine(
        "cuDeviceTotalMem",
        cu!(env, cuDeviceTotalMem_v2(&raw mut total, 0)),
    )?;
    Ok(total as u64)
}

pub(crate) fn other_pools(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let total = total(env)?;
    for (part, max, live, wanted) in [
        ("limit 64 MiB, empty, asked for 60", 64, 0, 60 * MIB),
        ("limit 64 MiB, empty, asked for 64", 64, 0, 64 * MIB),
        ("limit 64 MiB, empty, asked for 65", 64, 0, 65 * MIB),
        ("limit 64 MiB, empty, asked for 256", 64, 0, 256 * MIB),
        ("limit 64 MiB, 40 live, asked for 40", 64, 40, 40 * MIB),
        ("limit 64 MiB, 40 live, asked for 64", 64, 40, 64 * MIB),
        ("limit 64 MiB, 40 live, asked for 65", 64, 40, 65 * MIB),
        ("limit 64 MiB, 1 live, asked for 64", 64, 1, 64 * MIB),
        ("no limit, asked for all of the device", 0, 0, total),
        ("no limit, asked for all and 1 B", 0, 0, total + 1),
        ("no limit, asked for all and 1 GiB", 0, 0, total + (1 << 30)),
        ("no limit, asked for twice the device", 0, 0, total * 2),
        ("no limit, asked for 2^50", 0, 0, 1 << 50),
        ("no limit, asked for the largest", 0, 0, u64::MAX),
    ] {
        let keeper = keeper(env, stream)?;
        let pool = env.pool(max * MIB)?;
        if live > 0 {
            env.alloc(pool, live * MIB, stream)?;
        }
        let (code, _) = env.try_alloc(pool, wanted, stream);
        env.say(
            part,
            format!("{}, the keeper has {}", name(code), env.reserved(keeper)?),
        );
        env.end_pool(keeper)?;
        env.end_pool(pool)?;
    }
    Ok(())
}

pub(crate) fn plain_memory(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let total = total(env)?;
    let keeper = keeper(env, stream)?;
    let mut address = 0;
    let ask = |part: &str, wanted: u64, mut out: u64| -> Result<()> {
        fill(env, keeper, stream)?;
        let before = env.reserved(keeper)?;
        let code = cu!(env, cuMemAlloc_v2(&raw mut out, wanted as usize));
        let after = env.reserved(keeper)?;
        env.say(
            part,
            format!("{}, the keeper had {before}, has {after}", name(code)),
        );
        if code == CUresult::CUDA_SUCCESS {
            env.fine("cuMemFree", cu!(env, cuMemFree_v2(out)))?;
        }
        Ok(())
    };
    ask("1 MiB", MIB, address)?;
    ask("0 B", 0, address)?;
    ask("all of the device", total, address)?;
    ask("twice the device", total * 2, address)?;
    ask("2^50", 1 << 50, address)?;
    ask("the largest", u64::MAX, address)?;
    // Pinned memory of the host that cannot be had.
    fill(env, keeper, stream)?;
    let mut host = std::ptr::null_mut();
    let code = cu!(env, cuMemHostAlloc(&raw mut host, 1 << 50, 0));
    let after = env.reserved(keeper)?;
    env.say(
        "2^50 of the host",
        format!("{}, the keeper has {after}", name(code)),
    );
    // What only just does not fit, with and without what the keeper has.
    fill(env, keeper, stream)?;
    let free = env.device_free()?;
    let before = env.reserved(keeper)?;
    let code = cu!(
        env,
        cuMemAlloc_v2(&raw mut address, (free + 50 * MIB) as usize)
    );
    let after = env.reserved(keeper)?;
    if code == CUresult::CUDA_SUCCESS {
        env.fine("cuMemFree", cu!(env, cuMemFree_v2(address)))?;
    }
    env.say(
        "what is free and 50 MiB",
        format!("{}, the keeper had {before}, has {after}", name(code)),
    );
    fill(env, keeper, stream)?;
    let free = env.device_free()?;
    let code = cu!(
        env,
        cuMemAlloc_v2(&raw mut address, (free + 500 * MIB) as usize)
    );
    let after = env.reserved(keeper)?;
    env.say(
        "what is free and 500 MiB",
        format!("{}, the keeper has {after}", name(code)),
    );
    env.end_pool(keeper)
}

/// The keeper has live blocks.
pub(crate) fn live_block(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for (part, first, second, after) in [
        ("1 MiB live, 100 MiB freed", 1, 100, 0),
        ("40 MiB live, 100 MiB freed", 40, 100, 0),
        ("1 MiB live, 100 MiB freed, 1 MiB live", 1, 100, 1),
        ("1 MiB live, 10 MiB freed", 1, 10, 0),
    ] {
        let keeper = env.keeper(0)?;
        let live = env.alloc(keeper, first * MIB, stream)?;
        let dead = env.alloc(keeper, second * MIB, stream)?;
        let last = if after > 0 {
            env.alloc(keeper, after * MIB, stream)?
        } else {
            0
        };
        env.free(dead, stream)?;
        env.synchronise(stream)?;
        let before = env.reserved(keeper)?;
        let mut address = 0;
        let code = cu!(env, cuMemAlloc_v2(&raw mut address, 1 << 50));
        let reserved = env.reserved(keeper)?;
        env.say(part, format!("{}, {before}, then {reserved}", name(code)));
        env.free(live, stream)?;
        env.free(last, stream)?;
        env.end_pool(keeper)?;
    }
    Ok(())
}

/// The keeper's free has not run, or has run unseen.
pub(crate) fn unseen_free(env: &Environment) -> Result<()> {
    for (part, held) in [("not run", true), ("run, not seen", false)] {
        let (stream, other) = (env.stream()?, env.stream()?);
        let (keeper, small) = (env.keeper(0)?, env.pool(64 * MIB)?);
        env.alloc(small, 40 * MIB, other)?;
        let gate = Gate::hold(env, stream)?;
        let block = env.alloc(keeper, 128 * MIB, stream)?;
        env.free(block, stream)?;
        if !held {
            gate.open();
            env.let_it_finish();
        }
        let (code, _) = env.try_alloc(small, 40 * MIB, other);
        env.say(
            part,
            format!("{}, the keeper has {}", name(code), env.reserved(keeper)?),
        );
        gate.open();
        env.end_pool(keeper)?;
    }
    Ok(())
}

/// The pool's own unused memory stands in its way.
pub(crate) fn own_memory(env: &Environment) -> Result<()> {
    // 20 live, 20 free, 20 live: no room for 30 without giving anything back.
    let (pool, stream) = (env.keeper(64 * MIB)?, env.stream()?);
    env.alloc(pool, 20 * MIB, stream)?;
    let middle = env.alloc(pool, 20 * MIB, stream)?;
    env.alloc(pool, 20 * MIB, stream)?;
    env.free(middle, stream)?;
    env.synchronise(stream)?;
    let (code, _) = env.try_alloc(pool, 30 * MIB, stream);
    env.say("20 live, 20 free, 20 live of 64, asked for 30", name(code));
    // 1 live, 62 free, 1 live: one whole step in the middle can go, and then the range can grow.
    let (pool, stream) = (env.keeper(96 * MIB)?, env.stream()?);
    env.alloc(pool, MIB, stream)?;
    let middle = env.alloc(pool, 64 * MIB, stream)?;
    env.alloc(pool, MIB, stream)?;
    env.free(middle, stream)?;
    env.synchronise(stream)?;
    let (code, _) = env.try_alloc(pool, 65 * MIB, stream);
    let reserved = env.reserved(pool)?;
    env.say(
        "1 live, 64 free, 1 live of 96, asked for 65",
        format!("{}, {reserved}", name(code)),
    );
    let (code, _) = env.try_alloc(pool, 64 * MIB, stream);
    let reserved = env.reserved(pool)?;
    env.say("then 64", format!("{}, {reserved}", name(code)));
    Ok(())
}

/// Up to which size a request that cannot be had still takes what the keeper has.
pub(crate) fn boundary(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let total = total(env)?;
    let keeper = keeper(env, stream)?;
    let ask = |part: String, max: u64, wanted: u64| -> Result<()> {
        fill(env, keeper, stream)?;
        let pool = env.pool(max)?;
        let (code, _) = env.try_alloc(pool, wanted, stream);
        env.say(
            part,
            format!("{}, the keeper has {}", name(code), env.reserved(keeper)?),
        );
        env.end_pool(pool)
    };
    for wanted in [64, 96, 97, 127, 128, 129, 160, 192, 193, 224, 255] {
        ask(
            format!("limit 64 MiB, asked for {wanted}"),
            64 * MIB,
            wanted * MIB,
        )?;
    }
    for wanted in [
        201, 256, 257, 400, 401, 448, 449, 512, 513, 1024, 1025, 2048, 2049,
    ] {
        ask(
            format!("limit 200 MiB, asked for {wanted}"),
            200 * MIB,
            wanted * MIB,
        )?;
    }
    for wanted in [2049, 4096, 4097, 6144, 8192] {
        ask(
            format!("limit 2048 MiB, asked for {wanted}"),
            2048 * MIB,
            wanted * MIB,
        )?;
    }
    ask(
        "no limit, asked for twice the device and 1 GiB".into(),
        0,
        total * 2 + (1 << 30),
    )?;
    for times in [3, 4, 5, 8] {
        ask(
            format!("no limit, asked for {times} times the device"),
            0,
            total * times,
        )?;
    }
    ask("no limit, asked for 2^42".into(), 0, 1 << 42)?;
    ask("no limit, asked for 2^45".into(), 0, 1 << 45)?;
    env.end_pool(keeper)
}

/// What the pool that asks keeps itself.
pub(crate) fn asker(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let total = total(env)?;
    let keeper = keeper(env, stream)?;
    let ask = |part: &str| -> Result<()> {
        let (code, _) = env.try_alloc(keeper, total, stream);
        // How much that is depends on what the context took.
        let has = match env.get(keeper, RESERVED)? {
            bytes if bytes > total / 10 * 9 => "nearly all of the device".into(),
            bytes => size(bytes),
        };
        env.say(part, format!("{}, reserved {has}", name(code)));
        Ok(())
    };
    ask("asked for all of the device")?;
    fill(env, keeper, stream)?;
    let live = env.alloc(keeper, 40 * MIB, stream)?;
    ask("40 MiB live")?;
    let used = format!("{} B", env.used(keeper)?);
    env.say("40 MiB live, used", used);
    env.synchronise(stream)?;
    env.free(live, stream)?;
    env.end_pool(keeper)?;
    // Its own unused step would have to go before the range may grow.
    let pool = env.keeper(96 * MIB)?;
    env.alloc(pool, 33 * MIB, stream)?;
    let dead = env.alloc(pool, 31 * MIB, stream)?;
    let last = env.alloc(pool, 20 * MIB, stream)?;
    env.free(dead, stream)?;
    env.free(last, stream)?;
    env.synchronise(stream)?;
    env.say("33 live, 51 freed of 96", env.reserved(pool)?);
    let (code, _) = env.try_alloc(pool, 64 * MIB, stream);
    env.say(
        "asked for 64",
        format!("{}, {}", name(code), env.reserved(pool)?),
    );
    let (code, _) = env.try_alloc(pool, 63 * MIB, stream);
    env.say(
        "asked for 63",
        format!("{}, {}", name(code), env.reserved(pool)?),
    );
    Ok(())
}

/// A wait would do, or memory that another pool keeps.
pub(crate) fn wait_or_take(env: &Environment) -> Result<()> {
    let (a, b) = (env.stream()?, env.stream()?);
    let keeper = keeper(env, b)?;
    let small = env.keeper(64 * MIB)?;
    env.only_reuse(small, 3)?;
    let gate = Gate::hold(env, a)?;
    let block = env.alloc(small, 40 * MIB, a)?;
    env.free(block, a)?;
    let answer = env.where_is(small, 40 * MIB, b, block)?;
    env.say(
        "at the limit",
        format!("{answer}, the keeper has {}", env.reserved(keeper)?),
    );
    gate.open();
    env.end_pool(small)?;
    env.end_pool(keeper)
}
