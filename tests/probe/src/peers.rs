//! Two devices: who may touch which pool. Nothing is asked where there is one device.

use std::ffi::c_int;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::Gate;
use crate::lab::{Lab, MIB, OK, cu, name, yes};
use crate::two::{access_of, and_synchronise, apart, attribute, pool_at, set_access, wish};

pub(crate) fn devices(lab: &Lab) -> Result<()> {
    apart(lab, "", |_| {
        for (device, peer) in [(0, 1), (1, 0), (0, 0), (0, 99), (99, 0), (0, -1), (-1, 0)] {
            let mut value = -77;
            let code = cu!(lab, cuDeviceCanAccessPeer(&raw mut value, device, peer));
            lab.say(
                format!("{device} can access {peer}"),
                format!("{}, {value}", name(code)),
            );
        }
        let null = std::ptr::null_mut();
        lab.code("into null", cu!(lab, cuDeviceCanAccessPeer(null, 0, 1)));
        for (from, to) in [(0, 1), (1, 0), (0, 0), (0, 99), (99, 0)] {
            for id in 0..=7 {
                let mut value = -77;
                let what = CUdevice_P2PAttribute(id);
                let code = cu!(lab, cuDeviceGetP2PAttribute(&raw mut value, what, from, to));
                lab.say(
                    format!("attribute {id} of {from} and {to}"),
                    format!("{}, {value}", name(code)),
                );
            }
        }
        let what = CUdevice_P2PAttribute(2);
        let null = std::ptr::null_mut();
        lab.code(
            "attribute into null",
            cu!(lab, cuDeviceGetP2PAttribute(null, what, 0, 1)),
        );
        Ok(())
    });
    Ok(())
}

/// One list after another on one pool; both devices' access after each.
pub(crate) fn lists(lab: &Lab) -> Result<()> {
    for (kind, id, label) in [(1, 0, "device"), (1, 1, "second device"), (2, 0, "host")] {
        apart(lab, label, |_| {
            let pool = pool_at(lab, kind, id, 0)?;
            let both = || format!("{} {}", access_of(lab, pool, 0), access_of(lab, pool, 1));
            lab.say(format!("{label}: at first"), both());
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
                let code = set_access(lab, pool, &list);
                lab.say(
                    format!("{label}: {part}"),
                    format!("{}, now {}", name(code), both()),
                );
            }
            lab.end_pool(pool)
        });
    }
    Ok(())
}

/// Access between contexts, which pools do not follow.
pub(crate) fn enabled(lab: &Lab) -> Result<()> {
    apart(lab, "", |two| {
        let [first, second] = two.contexts;
        two.enter(lab, Some(0))?;
        let enable = |context, flags| cu!(lab, cuCtxEnablePeerAccess(context, flags));
        let disable = |context| cu!(lab, cuCtxDisablePeerAccess(context));
        lab.code("disable before", disable(second));
        lab.code("enable null", enable(std::ptr::null_mut(), 0));
        lab.code("enable itself", enable(first, 0));
        lab.code("enable with flags", enable(second, 1));
        lab.code("enable", enable(second, 0));
        lab.code("enable again", enable(second, 0));
        let pool = pool_at(lab, 1, 1, 0)?;
        lab.say("access to a pool", access_of(lab, pool, 0));
        let block = two.block(lab, pool, 1, 4096, 1)?;
        two.enter(lab, Some(0))?;
        let code = cu!(lab, cuMemsetD8Async(block, 2, 4096, two.streams[0]));
        lab.say(
            "memset of pool memory",
            and_synchronise(lab, code, two.streams[0]),
        );
        two.enter(lab, Some(1))?;
        let plain = lab.plain(4096)?;
        two.enter(lab, Some(0))?;
        let code = cu!(lab, cuMemsetD8Async(plain, 2, 4096, two.streams[0]));
        lab.say(
            "memset of plain memory",
            and_synchronise(lab, code, two.streams[0]),
        );
        let (code, _) = attribute(lab, 3, plain);
        lab.code("plain memory's device address", code);
        lab.code("disable", disable(second));
        lab.code("disable again", disable(second));
        let code = cu!(lab, cuMemsetD8Async(plain, 2, 4096, two.streams[0]));
        lab.say(
            "memset of plain memory, disabled",
            and_synchronise(lab, code, two.streams[0]),
        );
        two.enter(lab, None)?;
        lab.code("enable without a context", enable(second, 0));
        Ok(())
    });
    Ok(())
}

/// Who is the default pools' owner, and whether they can be opened.
pub(crate) fn defaults(lab: &Lab) -> Result<()> {
    apart(lab, "", |two| {
        let default = |device: c_int| -> Result<CUmemoryPool> {
            let mut pool = std::ptr::null_mut();
            let code = cu!(lab, cuDeviceGetDefaultMemPool(&raw mut pool, device));
            lab.fine("cuDeviceGetDefaultMemPool", code)?;
            Ok(pool)
        };
        let pools = [default(0)?, default(1)?];
        lab.say("different", yes(pools[0] != pools[1]));
        for pool in pools {
            let which = usize::from(pool == pools[1]);
            let both = || format!("{} {}", access_of(lab, pool, 0), access_of(lab, pool, 1));
            lab.say(format!("access of {which}"), both());
            let other = c_int::from(pool == pools[0]);
            let code = set_access(lab, pool, &[wish(1, other, 3)]);
            lab.say(
                format!("opened {which}"),
                format!("{}, now {}", name(code), both()),
            );
            let code = set_access(lab, pool, &[wish(1, other, 0)]);
            lab.say(
                format!("closed {which}"),
                format!("{}, now {}", name(code), both()),
            );
        }
        for device in [0, 1] {
            let mut place = location(CUmemLocationType(1), device);
            let mut pool = std::ptr::null_mut();
            let kind = CUmemAllocationType(1);
            let code = cu!(
                lab,
                cuMemGetDefaultMemPool(&raw mut pool, &raw mut place, kind)
            );
            let same = yes(pool == pools[device as usize]);
            lab.say(
                format!("by location {device}"),
                format!("{}, {same}", name(code)),
            );
        }
        let own = [pool_at(lab, 1, 0, 0)?, pool_at(lab, 1, 1, 0)?];
        for (pool, device) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let part = format!("a pool of {pool} as the current one of {device}");
            let device = c_int::from(device == 1);
            lab.code(part, cu!(lab, cuDeviceSetMemPool(device, own[pool])));
            let mut place = location(CUmemLocationType(1), device);
            let kind = CUmemAllocationType(1);
            let code = cu!(lab, cuMemSetMemPool(&raw mut place, kind, own[pool]));
            lab.code(
                format!("a pool of {pool} at the location of {device}"),
                code,
            );
            let code = cu!(lab, cuDeviceSetMemPool(device, pools[device as usize]));
            lab.fine("cuDeviceSetMemPool", code)?;
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
            two.enter(lab, current)?;
            let mut block = 0;
            let code = cu!(lab, cuMemAllocAsync(&raw mut block, 1000, stream));
            let (asked, device) = attribute(lab, 9, block);
            lab.say(
                format!("plain allocation, {part}"),
                format!("{}, device {}, {device}", name(code), name(asked)),
            );
            lab.free(block, stream)?;
        }
        two.synchronise(lab)
    });
    Ok(())
}

/// Whether access counts for blocks from before and from after, and what is left of it.
pub(crate) fn follows(lab: &Lab) -> Result<()> {
    for (part, current) in [
        ("own context", Some(1)),
        ("other context", Some(0)),
        ("no context", None),
    ] {
        apart(lab, part, |two| {
            let pool = pool_at(lab, 1, 0, 0)?;
            let say = |what: &str, answer: String| lab.say(format!("{part}: {what}"), answer);
            let before = two.block(lab, pool, 0, 4096, 1)?;
            two.enter(lab, current)?;
            let write = |block: CUdeviceptr, byte: u8| {
                let stream = two.streams[1];
                let code = cu!(lab, cuMemsetD8Async(block, byte, 4096, stream));
                and_synchronise(lab, code, stream)
            };
            say("given", name(set_access(lab, pool, &[wish(1, 1, 3)])));
            say("block from before", write(before, 2));
            let after = lab.alloc(pool, 4096, two.streams[0])?;
            lab.synchronise(two.streams[0])?;
            say("block from after", write(after, 3));
            say(
                "the first's bytes are there",
                yes(two.holds(lab, before, 0, 4096, 2)?).into(),
            );
            say(
                "the second's bytes are there",
                yes(two.holds(lab, after, 0, 4096, 3)?).into(),
            );
            two.enter(lab, current)?;
            say("taken", name(set_access(lab, pool, &[wish(1, 1, 0)])));
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
        apart(lab, part, |two| {
            let pool = pool_at(lab, kind, 0, 0)?;
            if access != 77 {
                let code = set_access(lab, pool, &[wish(1, access, 3)]);
                lab.fine("cuMemPoolSetAccess", code)?;
            }
            let block = lab.alloc(pool, 4096, two.streams[0])?;
            lab.synchronise(two.streams[0])?;
            two.enter(lab, Some(1))?;
            let code = cu!(lab, cuMemsetD8Async(block, 1, 4096, two.streams[1]));
            lab.say(part, and_synchronise(lab, code, two.streams[1]));
            Ok(())
        });
    }
    Ok(())
}

/// What a new pool inherits of a destroyed one that the other device could reach.
pub(crate) fn handles(lab: &Lab) -> Result<()> {
    for (part, with_block) in [("empty", false), ("with a block freed before", true)] {
        apart(lab, part, |two| {
            let mut old = Vec::new();
            for _ in 0..4 {
                let pool = pool_at(lab, 1, 0, 0)?;
                let code = set_access(lab, pool, &[wish(1, 1, 3)]);
                lab.fine("cuMemPoolSetAccess", code)?;
                if with_block {
                    let block = two.block(lab, pool, 0, 4096, 1)?;
                    lab.free(block, two.streams[0])?;
                    two.synchronise(lab)?;
                }
                old.push(pool);
            }
            for pool in &old {
                lab.fine("cuMemPoolDestroy", cu!(lab, cuMemPoolDestroy(*pool)))?;
            }
            let mut recycled = 0;
            let mut inherited = 0;
            for _ in 0..8 {
                let pool = pool_at(lab, 1, 0, 0)?;
                recycled += usize::from(old.contains(&pool));
                inherited += usize::from(access_of(lab, pool, 1) != "0");
            }
            lab.say(format!("{part}: a handle comes again"), yes(recycled > 0));
            lab.say(format!("{part}: access is inherited"), yes(inherited > 0));
            Ok(())
        });
    }
    // A destroyed pool whose block lives on.
    apart(lab, "live block", |two| {
        let pool = pool_at(lab, 1, 0, 0)?;
        let code = set_access(lab, pool, &[wish(1, 1, 3)]);
        lab.fine("cuMemPoolSetAccess", code)?;
        let block = two.block(lab, pool, 0, 4096, 1)?;
        lab.code("live block: destroy", cu!(lab, cuMemPoolDestroy(pool)));
        two.enter(lab, Some(1))?;
        let code = cu!(lab, cuMemsetD8Async(block, 9, 4096, two.streams[1]));
        lab.say(
            "live block: the other device writes",
            and_synchronise(lab, code, two.streams[1]),
        );
        lab.say(
            "live block: and it is there",
            yes(two.holds(lab, block, 0, 4096, 9)?),
        );
        let next = pool_at(lab, 1, 0, 0)?;
        lab.say(
            "live block: access of the next pool",
            access_of(lab, next, 1),
        );
        lab.code(
            "live block: freed by the other device",
            cu!(lab, cuMemFreeAsync(block, two.streams[1])),
        );
        two.synchronise(lab)
    });
    Ok(())
}

/// Reuse of what another device's stream freed.
pub(crate) fn reuse(lab: &Lab) -> Result<()> {
    for (flag, part, ordered) in [
        (0, "none", false),
        (0, "none, ordered", true),
        (1, "events, no order", false),
        (1, "events, ordered", true),
        (3, "internal dependencies", false),
    ] {
        apart(lab, part, |two| {
            let pool = pool_at(lab, 1, 0, 64 << 20)?;
            lab.set(pool, 4, u64::MAX)?;
            lab.only_reuse(pool, flag)?;
            let block = lab.alloc(pool, 40 * MIB, two.streams[0])?;
            let gate = Gate::hold(lab, two.streams[0])?;
            lab.free(block, two.streams[0])?;
            if ordered {
                lab.order(two.streams[1], two.streams[0])?;
            }
            let (code, address) = lab.try_alloc(pool, 40 * MIB, two.streams[1]);
            let place = match code {
                OK if address == block => "same block".into(),
                OK => "other block".into(),
                code => name(code),
            };
            lab.say(format!("{part}: held"), place);
            let waits = cu!(lab, cuStreamQuery(two.streams[1]));
            lab.code(format!("{part}: the other stream"), waits);
            gate.open();
            if code == OK {
                lab.free(address, two.streams[1])?;
            }
            lab.synchronise(two.streams[0])?;
            let place = lab.where_is(pool, 40 * MIB, two.streams[1], block)?;
            lab.say(format!("{part}: seen"), place);
            two.synchronise(lab)
        });
    }
    Ok(())
}
