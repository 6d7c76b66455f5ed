//! Two devices: who may touch which pool. Nothing is asked where there is one device.

use std::ffi::c_int;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, yes};
use crate::gate::Gate;
use crate::two::{access_of, and_synchronise, apart, attribute, pool_at, set_access, wish};

pub(crate) fn devices(env: &Environment) -> Result<()> {
    apart(env, "", |_| {
        for (device, peer) in [(0, 1), (1, 0), (0, 0), (0, 99), (99, 0), (0, -1), (-1, 0)] {
            let mut value = -77;
            let code = cu!(env, cuDeviceCanAccessPeer(&raw mut value, device, peer));
            env.say(
                format!("{device} can access {peer}"),
                format!("{}, {value}", name(code)),
            );
        }
        let null = std::ptr::null_mut();
        env.code("into null", cu!(env, cuDeviceCanAccessPeer(null, 0, 1)));
        for (from, to) in [(0, 1), (1, 0), (0, 0), (0, 99), (99, 0)] {
            for id in 0..=7 {
                let mut value = -77;
                let what = CUdevice_P2PAttribute(id);
                let code = cu!(env, cuDeviceGetP2PAttribute(&raw mut value, what, from, to));
                env.say(
                    format!("attribute {id} of {from} and {to}"),
                    format!("{}, {value}", name(code)),
                );
            }
        }
        let what = CUdevice_P2PAttribute(2);
        let null = std::ptr::null_mut();
        env.code(
            "attribute into null",
            cu!(env, cuDeviceGetP2PAttribute(null, what, 0, 1)),
        );
        Ok(())
    });
    Ok(())
}

/// One list after another on one pool; both devices' access after each.
pub(crate) fn lists(env: &Environment) -> Result<()> {
    for (kind, id, label) in [(1, 0, "device"), (1, 1, "second device"), (2, 0, "host")] {
        apart(env, label, |_| {
            let pool = pool_at(env, kind, id, 0)?;
            let both = || format!("{} {}", access_of(env, pool, 0), access_of(env, pool, 1));
            env.say(format!("{label}: at first"), both());
            for (part, list) in [
                ("READWRITE for the second", vec![wish(1, 1, 3)]),
                ("NONE for the second", vec![wish(1, 1, 0)]),
                ("READ for the second", vec![wish(1, 1, 1)]),
                ("WRITE for the second", vec![wish(1, 1, 2)]),
                ("both", vec![wish(1, 0, 3), wish(1, 1, 3)]),
                ("READ for the second, which has more", vec![wish(1, 1, 1)]),
                ("none for both", vec![wish(1, 0, 0), wish(1, 1, 0)]),
                ("none for both, turned", vec![wish(1, 1, 0), wish(1, 0, 0)]),
                ("NONE for both again", vec![wish(1, 1, 0)]),
                (
                    "the second, then an unknown device",
                    vec![wish(1, 1, 3), wish(1, 99, 3)],
                ),
                (
                    "the second, then unknown flags",
                    vec![wish(1, 1, 3), wish(1, 0, 7)],
                ),
                (
                    "the second, then READ for the first",
                    vec![wish(1, 1, 3), wish(1, 0, 1)],
                ),
                (
                    "the second, then NONE for the first",
                    vec![wish(1, 1, 3), wish(1, 0, 0)],
                ),
                ("NONE for it", vec![wish(1, 1, 0)]),
                (
                    "the second, then the host",
                    vec![wish(1, 1, 3), wish(2, 0, 3)],
                ),
                ("NONE for it again", vec![wish(1, 1, 0)]),
                (
                    "the second twice, first more",
                    vec![wish(1, 1, 3), wish(1, 1, 0)],
                ),
                (
                    "the second twice, first less",
                    vec![wish(1, 1, 0), wish(1, 1, 3)],
                ),
                (
                    "the second twice, alike",
                    vec![wish(1, 1, 3), wish(1, 1, 3)],
                ),
                ("one entry of another kind", vec![wish(3, 1, 3)]),
            ] {
                let code = set_access(env, pool, &list);
                env.say(
                    format!("{label}: {part}"),
                    format!("{}, now {}", name(code), both()),
                );
            }
            env.end_pool(pool)
        });
    }
    Ok(())
}

/// Access between contexts, which pools do not follow.
pub(crate) fn enabled(env: &Environment) -> Result<()> {
    apart(env, "", |two| {
        let [first, second] = two.contexts;
        two.enter(env, Some(0))?;
        let enable = |context, flags| cu!(env, cuCtxEnablePeerAccess(context, flags));
        let disable = |context| cu!(env, cuCtxDisablePeerAccess(context));
        env.code("disable before", disable(second));
        env.code("enable null", enable(std::ptr::null_mut(), 0));
        env.code("enable itself", enable(first, 0));
        env.code("enable with flags", enable(second, 1));
        env.code("enable", enable(second, 0));
        env.code("enable again", enable(second, 0));
        let pool = pool_at(env, 1, 1, 0)?;
        env.say("access to a pool", access_of(env, pool, 0));
        let block = two.block(env, pool, 1, 4096, 1)?;
        two.enter(env, Some(0))?;
        let code = cu!(env, cuMemsetD8Async(block, 2, 4096, two.streams[0]));
        env.say(
            "memset of pool memory",
            and_synchronise(env, code, two.streams[0]),
        );
        two.enter(env, Some(1))?;
        let plain = env.plain(4096)?;
        two.enter(env, Some(0))?;
        let code = cu!(env, cuMemsetD8Async(plain, 2, 4096, two.streams[0]));
        env.say(
            "memset of plain memory",
            and_synchronise(env, code, two.streams[0]),
        );
        let (code, _) = attribute(env, 3, plain);
        env.code("plain memory's device address", code);
        env.code("disable", disable(second));
        env.code("disable again", disable(second));
        let code = cu!(env, cuMemsetD8Async(plain, 2, 4096, two.streams[0]));
        env.say(
            "memset of plain memory, disabled",
            and_synchronise(env, code, two.streams[0]),
        );
        two.enter(env, None)?;
        env.code("enable without a context", enable(second, 0));
        Ok(())
    });
    Ok(())
}

/// Who is the default pools' owner, and whether they can be opened.
pub(crate) fn defaults(env: &Environment) -> Result<()> {
    apart(env, "", |two| {
        let default = |device: c_int| -> Result<CUmemoryPool> {
            let mut pool = std::ptr::null_mut();
            let code = cu!(env, cuDeviceGetDefaultMemPool(&raw mut pool, device));
            env.fine("cuDeviceGetDefaultMemPool", code)?;
            Ok(pool)
        };
        let pools = [default(0)?, default(1)?];
        env.say("different", yes(pools[0] != pools[1]));
        for pool in pools {
            let which = usize::from(pool == pools[1]);
            let both = || format!("{} {}", access_of(env, pool, 0), access_of(env, pool, 1));
            env.say(format!("access of {which}"), both());
            let other = c_int::from(pool == pools[0]);
            let code = set_access(env, pool, &[wish(1, other, 3)]);
            env.say(
                format!("opened {which}"),
                format!("{}, now {}", name(code), both()),
            );
            let code = set_access(env, pool, &[wish(1, other, 0)]);
            env.say(
                format!("closed {which}"),
                format!("{}, now {}", name(code), both()),
            );
        }
        for device in [0, 1] {
            let mut place = location(CUmemLocationType(1), device);
            let mut pool = std::ptr::null_mut();
            let kind = CUmemAllocationType(1);
            let code = cu!(
                env,
                cuMemGetDefaultMemPool(&raw mut pool, &raw mut place, kind)
            );
            let same = yes(pool == pools[device as usize]);
            env.say(
                format!("by location {device}"),
                format!("{}, {same}", name(code)),
            );
        }
        let own = [pool_at(env, 1, 0, 0)?, pool_at(env, 1, 1, 0)?];
        for (pool, device) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let part = format!("a pool of {pool} as the current one of {device}");
            let device = c_int::from(device == 1);
            env.code(part, cu!(env, cuDeviceSetMemPool(device, own[pool])));
            let mut place = location(CUmemLocationType(1), device);
            let kind = CUmemAllocationType(1);
            let code = cu!(env, cuMemSetMemPool(&raw mut place, kind, own[pool]));
            env.code(
                format!("a pool of {pool} at the location of {device}"),
                code,
            );
            let code = cu!(env, cuDeviceSetMemPool(device, pools[device as usize]));
            env.fine("cuDeviceSetMemPool", code)?;
        }
        // Whose current pool a plain allocation takes from.
        for (part, current, stream) in [
            ("stream of 1, context of 0", Some(0), two.streams[1]),
            ("stream of 1, context of 1", Some(1), two.streams[1]),
            ("stream of 1, no context", None, two.streams[1]),
            ("stream of 0, context of 1", Some(1), two.streams[0]),
            ("legacy, context of 1", Some(1), CU_STREAM_LEGACY),
            ("per-thread, context of 1", Some(1), CU_STREAM_PER_THREAD),
        ] {
            two.enter(env, current)?;
            let mut block = 0;
            let code = cu!(env, cuMemAllocAsync(&raw mut block, 1000, stream));
            let (asked, device) = attribute(env, 9, block);
            env.say(
                format!("plain allocation, {part}"),
                format!("{}, device {}, {device}", name(code), name(asked)),
            );
            env.free(block, stream)?;
        }
        two.synchronise(env)
    });
    Ok(())
}

/// Whether access counts for blocks from before and from after, and what is left of it.
pub(crate) fn follows(env: &Environment) -> Result<()> {
    for (part, current) in [
        ("own context", Some(1)),
        ("other context", Some(0)),
        ("no context", None),
    ] {
        apart(env, part, |two| {
            let pool = pool_at(env, 1, 0, 0)?;
            let say = |what: &str, answer: String| env.say(format!("{part}: {what}"), answer);
            let before = two.block(env, pool, 0, 4096, 1)?;
            two.enter(env, current)?;
            let write = |block: CUdeviceptr, byte: u8| {
                let stream = two.streams[1];
                let code = cu!(env, cuMemsetD8Async(block, byte, 4096, stream));
                and_synchronise(env, code, stream)
            };
            say("given", name(set_access(env, pool, &[wish(1, 1, 3)])));
            say("block from before", write(before, 2));
            let after = env.alloc(pool, 4096, two.streams[0])?;
            env.synchronise(two.streams[0])?;
            say("block from after", write(after, 3));
            say(
                "the first's bytes are there",
                yes(two.holds(env, before, 0, 4096, 2)?).into(),
            );
            say(
                "the second's bytes are there",
                yes(two.holds(env, after, 0, 4096, 3)?).into(),
            );
            two.enter(env, current)?;
            say("taken", name(set_access(env, pool, &[wish(1, 1, 0)])));
            say("block without access", write(after, 4));
            Ok(())
        });
    }
    for (part, kind, access) in [
        ("never given", 1, 77),
        ("host pool, never given", 2, 77),
        ("host pool, given to the first", 2, 0),
        ("host pool, given to the second", 2, 1),
    ] {
        apart(env, part, |two| {
            let pool = pool_at(env, kind, 0, 0)?;
            if access != 77 {
                let code = set_access(env, pool, &[wish(1, access, 3)]);
                env.fine("cuMemPoolSetAccess", code)?;
            }
            let block = env.alloc(pool, 4096, two.streams[0])?;
            env.synchronise(two.streams[0])?;
            two.enter(env, Some(1))?;
            let code = cu!(env, cuMemsetD8Async(block, 1, 4096, two.streams[1]));
            env.say(part, and_synchronise(env, code, two.streams[1]));
            Ok(())
        });
    }
    Ok(())
}

/// What a new pool inherits of a destroyed one that the other device could reach.
pub(crate) fn handles(env: &Environment) -> Result<()> {
    for (part, with_block) in [("empty", false), ("with a block freed before", true)] {
        apart(env, part, |two| {
            let mut old = Vec::new();
            for _ in 0..4 {
                let pool = pool_at(env, 1, 0, 0)?;
                let code = set_access(env, pool, &[wish(1, 1, 3)]);
                env.fine("cuMemPoolSetAccess", code)?;
                if with_block {
                    let block = two.block(env, pool, 0, 4096, 1)?;
                    env.free(block, two.streams[0])?;
                    two.synchronise(env)?;
                }
                old.push(pool);
            }
            for pool in &old {
                env.fine("cuMemPoolDestroy", cu!(env, cuMemPoolDestroy(*pool)))?;
            }
            let mut recycled = 0;
            let mut inherited = 0;
            for _ in 0..8 {
                let pool = pool_at(env, 1, 0, 0)?;
                recycled += usize::from(old.contains(&pool));
                inherited += usize::from(access_of(env, pool, 1) != "0");
            }
            env.say(format!("{part}: a handle comes again"), yes(recycled > 0));
            env.say(format!("{part}: access is inherited"), yes(inherited > 0));
            Ok(())
        });
    }
    // A destroyed pool whose block lives on.
    apart(env, "live block", |two| {
        let pool = pool_at(env, 1, 0, 0)?;
        let code = set_access(env, pool, &[wish(1, 1, 3)]);
        env.fine("cuMemPoolSetAccess", code)?;
        let block = two.block(env, pool, 0, 4096, 1)?;
        env.code("live block: destroy", cu!(env, cuMemPoolDestroy(pool)));
        two.enter(env, Some(1))?;
        let code = cu!(env, cuMemsetD8Async(block, 9, 4096, two.streams[1]));
        env.say(
            "live block: the other device writes",
            and_synchronise(env, code, two.streams[1]),
        );
        env.say(
            "live block: and it is there",
            yes(two.holds(env, block, 0, 4096, 9)?),
        );
        let next = pool_at(env, 1, 0, 0)?;
        env.say(
            "live block: access of the next pool",
            access_of(env, next, 1),
        );
        env.code(
            "live block: freed by the other device",
            cu!(env, cuMemFreeAsync(block, two.streams[1])),
        );
        two.synchronise(env)
    });
    Ok(())
}

/// Reuse of what another device's stream freed.
pub(crate) fn reuse(env: &Environment) -> Result<()> {
    for (flag, part, ordered) in [
        (0, "none", false),
        (0, "none, ordered", true),
        (1, "events, no order", false),
        (1, "events, ordered", true),
        (3, "internal dependencies", false),
    ] {
        apart(env, part, |two| {
            let pool = pool_at(env, 1, 0, 64 << 20)?;
            env.set(pool, 4, u64::MAX)?;
            env.only_reuse(pool, flag)?;
            let block = env.alloc(pool, 40 * MIB, two.streams[0])?;
            let gate = Gate::hold(env, two.streams[0])?;
            env.free(block, two.streams[0])?;
            if ordered {
                env.order(two.streams[1], two.streams[0])?;
            }
            let (code, address) = env.try_alloc(pool, 40 * MIB, two.streams[1]);
            let place = match code {
                OK if address == block => "same block".into(),
                OK => "other block".into(),
                code => name(code),
            };
            env.say(format!("{part}: held"), place);
            let waits = cu!(env, cuStreamQuery(two.streams[1]));
            env.code(format!("{part}: the other stream"), waits);
            gate.open();
            if code == OK {
                env.free(address, two.streams[1])?;
            }
            env.synchronise(two.streams[0])?;
            let place = env.where_is(pool, 40 * MIB, two.streams[1], block)?;
            env.say(format!("{part}: seen"), place);
            two.synchronise(env)
        });
    }
    Ok(())
}
