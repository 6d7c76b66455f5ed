//! Default and current pools by location and type of allocation (CUDA 13.0).

use std::ffi::c_int;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, size, yes};
use crate::two::{access_of, pool_at, set_access, wish};

/// Type and number of location.
const PLACES: [(u32, c_int); 14] = [
    (0, 0),
    (0, 5),
    (1, 0),
    (1, -1),
    (1, 99),
    (2, 0),
    (2, 7),
    (2, -1),
    (3, 0),
    (3, 99),
    (3, -1),
    (4, 0),
    (5, 0),
    (99, 0),
];

/// The default pool of a place, or the current one.
fn ask(
    env: &Environment,
    default: bool,
    kind: u32,
    place: (u32, c_int),
) -> (CUresult, CUmemoryPool) {
    let mut pool = std::ptr::null_mut();
    let mut place = location(CUmemLocationType(place.0), place.1);
    let kind = CUmemAllocationType(kind);
    let code = if default {
        cu!(
            env,
            cuMemGetDefaultMemPool(&raw mut pool, &raw mut place, kind)
        )
    } else {
        cu!(env, cuMemGetMemPool(&raw mut pool, &raw mut place, kind))
    };
    (code, pool)
}

fn set(env: &Environment, kind: u32, place: (u32, c_int), pool: CUmemoryPool) -> CUresult {
    let mut place = location(CUmemLocationType(place.0), place.1);
    cu!(
        env,
        cuMemSetMemPool(&raw mut place, CUmemAllocationType(kind), pool)
    )
}

/// The pool of the device, default or current.
fn of_device(env: &Environment, default: bool) -> Result<CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    let code = if default {
        cu!(env, cuDeviceGetDefaultMemPool(&raw mut pool, 0))
    } else {
        cu!(env, cuDeviceGetMemPool(&raw mut pool, 0))
    };
    env.fine("the pool of the device", code)?;
    Ok(pool)
}

pub(crate) fn by_location(env: &Environment) -> Result<()> {
    let own = of_device(env, true)?;
    let mut known = vec![(own, "the device's".to_owned())];
    for kind in [0, 1, 2, 3, 99] {
        for place in PLACES {
            for (part, default) in [("default", true), ("current", false)] {
                let (code, pool) = ask(env, default, kind, place);
                let part = format!("{part}, type {kind}, location {} {}", place.0, place.1);
                if code != OK {
                    env.code(part, code);
                    continue;
                }
                let label = format!("that of type {kind}, location {} {}", place.0, place.1);
                let seen = known.iter().find(|(seen, _)| *seen == pool);
                let which = seen.map_or(label.clone(), |(_, label)| label.clone());
                if seen.is_none() {
                    known.push((pool, label));
                }
                env.say(part, format!("SUCCESS, {which}"));
            }
        }
    }
    env.say("different pools", known.len());
    Ok(())
}

pub(crate) fn nulls(env: &Environment) -> Result<()> {
    let pinned = CUmemAllocationType(1);
    let mut place = location(CUmemLocationType(1), 0);
    let mut pool = std::ptr::null_mut();
    let (no_pool, no_place) = (std::ptr::null_mut(), std::ptr::null_mut());
    let code = cu!(env, cuMemGetDefaultMemPool(no_pool, &raw mut place, pinned));
    env.code("the default into null", code);
    let code = cu!(env, cuMemGetDefaultMemPool(&raw mut pool, no_place, pinned));
    env.code("the default of null", code);
    let no_pool = std::ptr::null_mut();
    let code = cu!(env, cuMemGetMemPool(no_pool, &raw mut place, pinned));
    env.code("the current into null", code);
    let no_place = std::ptr::null_mut();
    let code = cu!(env, cuMemGetMemPool(&raw mut pool, no_place, pinned));
    env.code("the current of null", code);
    let own = env.pool(0)?;
    let no_place = std::ptr::null_mut();
    let code = cu!(env, cuMemSetMemPool(no_place, pinned, own));
    env.code("set at null", code);
    let code = set(env, 1, (1, 0), std::ptr::null_mut());
    env.code("set to null", code);
    let code = set(env, 1, (2, 0), std::ptr::null_mut());
    env.code("set to null at the host", code);
    Ok(())
}

/// Own pools as the current one of places that match theirs, and of others.
pub(crate) fn set_own(env: &Environment) -> Result<()> {
    for (kind, place) in [
        (1, (1, 0)),
        (1, (2, 0)),
        (1, (2, 7)),
        (1, (3, 0)),
        (2, (0, 0)),
        (2, (1, 0)),
        (2, (2, 0)),
        (2, (3, 0)),
        (2, (4, 0)),
    ] {
        let (code, pool) = env.pool_with(&CUmemPoolProps {
            allocType: CUmemAllocationType(kind),
            location: location(CUmemLocationType(place.0), place.1),
            ..CUmemPoolProps::default()
        });
        env.fine("cuMemPoolCreate", code)?;
        for to_kind in [1, 2] {
            for to in [
                (0, 0),
                (1, 0),
                (1, 99),
                (2, 0),
                (2, 7),
                (3, 0),
                (3, 99),
                (4, 0),
            ] {
                let part = format!(
                    "pool of type {kind}, location {} {}, at type {to_kind}, location {} {}",
                    place.0, place.1, to.0, to.1
                );
                let code = set(env, to_kind, to, pool);
                if code != OK {
                    env.code(part, code);
                    continue;
                }
                let (code, now) = ask(env, false, to_kind, to);
                let reads = format!("{}, {}", name(code), yes(now == pool));
                let (code, default) = ask(env, true, to_kind, to);
                let back = if code == OK {
                    name(set(env, to_kind, to, default))
                } else {
                    format!("no default, {}", name(code))
                };
                env.say(part, format!("SUCCESS, reads {reads}, back {back}"));
            }
        }
        env.end_pool(pool)?;
    }
    Ok(())
}

/// Where plain allocations come from, and what a destroyed current pool leaves.
pub(crate) fn of_the_device(env: &Environment) -> Result<()> {
    let (pool, host, stream) = (env.pool(0)?, pool_at(env, 2, 0, 0)?, env.stream()?);
    let default = of_device(env, true)?;
    env.code("set", set(env, 1, (1, 0), pool));
    env.say(
        "then cuDeviceGetMemPool gives it",
        yes(of_device(env, false)? == pool),
    );
    env.code("a host pool at the host", set(env, 1, (2, 0), host));
    let mut block = 0;
    let code = cu!(env, cuMemAllocAsync(&raw mut block, 1000, stream));
    env.fine("cuMemAllocAsync", code)?;
    env.say("used of the pool", format!("{} B", env.used(pool)?));
    env.say("used of the host pool", format!("{} B", env.used(host)?));
    env.say("used of the default", format!("{} B", env.used(default)?));
    env.free(block, stream)?;
    env.code("destroy it", cu!(env, cuMemPoolDestroy(pool)));
    let (code, now) = ask(env, false, 1, (1, 0));
    env.say(
        "the default is current",
        format!("{}, {}", name(code), yes(now == default)),
    );
    let (_, before) = ask(env, true, 1, (2, 0));
    env.code("destroy the host pool", cu!(env, cuMemPoolDestroy(host)));
    let (code, now) = ask(env, false, 1, (2, 0));
    env.say(
        "the default is current at the host",
        format!("{}, {}", name(code), yes(now == before)),
    );
    env.code("set at the device by its own function", {
        let pool = env.pool(0)?;
        let code = cu!(env, cuDeviceSetMemPool(0, pool));
        let (_, now) = ask(env, false, 1, (1, 0));
        env.say("and read by location", yes(now == pool));
        code
    });
    env.code("the default, set", set(env, 1, (1, 0), default));
    Ok(())
}

/// The default pools that are not a device's.
pub(crate) fn elsewhere(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for (kind, place) in [
        (1, (2, 0)),
        (1, (3, 0)),
        (2, (0, 0)),
        (2, (1, 0)),
        (2, (2, 0)),
    ] {
        let part = |text: &str| format!("type {kind}, location {} {}, {text}", place.0, place.1);
        let (code, pool) = ask(env, true, kind, place);
        if code != OK {
            env.code(part("default"), code);
            continue;
        }
        let numbers: Vec<String> = (1..=8)
            .map(|id| env.get(pool, id).map(|value| value.to_string()))
            .collect::<Result<_>>()?;
        env.say(part("attributes 1 to 8"), numbers.join(" "));
        env.code(part("destroy"), cu!(env, cuMemPoolDestroy(pool)));
        env.code(part("at the device"), cu!(env, cuDeviceSetMemPool(0, pool)));
        env.say(part("access of the device"), access_of(env, pool, 0));
        // No managed memory is taken, and no threshold of a managed default pool is touched.
        if kind == 2 {
            continue;
        }
        env.code(part("threshold"), env.try_set(pool, 4, 1 << 25));
        let code = set_access(env, pool, &[wish(1, 0, 3)]);
        let now = access_of(env, pool, 0);
        env.say(part("access set"), format!("{}, is {now}", name(code)));
        let (code, block) = env.try_alloc(pool, 1000, stream);
        env.code(part("allocate"), code);
        if code == OK {
            env.say(part("reserved"), size(env.get(pool, 5)?));
            env.code(
                part("memset"),
                cu!(env, cuMemsetD8Async(block, 1, 1000, stream)),
            );
            env.free(block, stream)?;
            env.synchronise(stream)?;
            env.say(part("reserved then"), size(env.get(pool, 5)?));
        }
        let code = set_access(env, pool, &[wish(1, 0, 0)]);
        let now = access_of(env, pool, 0);
        env.say(part("access taken"), format!("{}, is {now}", name(code)));
    }
    Ok(())
}

/// Before any pool was named and with no context.
pub(crate) fn without_context(env: &Environment) -> Result<()> {
    let (pool, host) = (env.pool(0)?, pool_at(env, 2, 0, 0)?);
    env.no_context()?;
    for place in [(1, 0), (2, 0), (3, 0)] {
        let part = format!("location {}", place.0);
        env.code(format!("default, {part}"), ask(env, true, 1, place).0);
        env.code(format!("current, {part}"), ask(env, false, 1, place).0);
    }
    env.code("set", set(env, 1, (1, 0), pool));
    env.code("set at the host", set(env, 1, (2, 0), host));
    Ok(())
}

/// What is current at a place whose current pool was destroyed.
pub(crate) fn destroyed(env: &Environment) -> Result<()> {
    for (kind, place) in [
        (1, (1, 0)),
        (1, (2, 0)),
        (1, (3, 0)),
        (2, (0, 0)),
        (2, (1, 0)),
        (2, (2, 0)),
        (2, (3, 0)),
    ] {
        for (early, when) in [(true, "default named before"), (false, "default not named")] {
            let part = format!("type {kind}, location {} {}, {when}", place.0, place.1);
            env.alone(&part, || {
                if early {
                    env.fine("the default", ask(env, true, kind, place).0)?;
                }
                let (code, pool) = env.pool_with(&CUmemPoolProps {
                    allocType: CUmemAllocationType(kind),
                    location: location(CUmemLocationType(place.0), place.1),
                    ..CUmemPoolProps::default()
                });
                env.fine("cuMemPoolCreate", code)?;
                env.fine("cuMemSetMemPool", set(env, kind, place, pool))?;
                env.fine("cuMemPoolDestroy", cu!(env, cuMemPoolDestroy(pool)))?;
                let (code, now) = ask(env, false, kind, place);
                let (_, default) = ask(env, true, kind, place);
                let which = match now {
                    now if now == default => "the default",
                    now if now == pool => "the destroyed one",
                    now if now.is_null() => "null",
                    _ => "another",
                };
                let back = name(set(env, kind, place, default));
                let (_, then) = ask(env, false, kind, place);
                let is = yes(then == default);
                Ok(format!(
                    "{}, {which}, default set {back}, is {is}",
                    name(code)
                ))
            });
        }
    }
    Ok(())
}

/// A default pool that is named for the first time while a pool of the program's is current.
pub(crate) fn named_late(env: &Environment) -> Result<()> {
    for (kind, place) in [
        (1, (1, 0)),
        (1, (2, 0)),
        (1, (3, 0)),
        (2, (0, 0)),
        (2, (1, 0)),
    ] {
        let part = format!("type {kind}, location {} {}", place.0, place.1);
        env.alone(&part, || {
            let (code, pool) = env.pool_with(&CUmemPoolProps {
                allocType: CUmemAllocationType(kind),
                location: location(CUmemLocationType(place.0), place.1),
                ..CUmemPoolProps::default()
            });
            env.fine("cuMemPoolCreate", code)?;
            env.fine("cuMemSetMemPool", set(env, kind, place, pool))?;
            let (_, first) = ask(env, true, kind, place);
            let own = yes(first == pool);
            let (_, again) = ask(env, true, kind, place);
            let same = yes(first == again);
            let end = name(cu!(env, cuMemPoolDestroy(pool)));
            let (_, then) = ask(env, true, kind, place);
            let kept = yes(first == then);
            let (code, now) = ask(env, false, kind, place);
            let current = yes(now == then);
            Ok(format!(
                "the program's {own}, the same again {same}, destroy {end}, the same then {kept}, \
                 current {}, the default {current}",
                name(code)
            ))
        });
    }
    Ok(())
}

/// A managed pool that is made current by the function of the device.
pub(crate) fn managed_of_device(env: &Environment) -> Result<()> {
    let default = of_device(env, true)?;
    let (code, pool) = env.pool_with(&CUmemPoolProps {
        allocType: CUmemAllocationType(2),
        location: location(CUmemLocationType(1), 0),
        ..CUmemPoolProps::default()
    });
    env.fine("cuMemPoolCreate", code)?;
    env.code("set", cu!(env, cuDeviceSetMemPool(0, pool)));
    let which = |found: CUmemoryPool| match found {
        found if found == pool => "that one",
        found if found == default => "the device's default",
        _ => "another",
    };
    env.say("of the device", which(of_device(env, false)?));
    for kind in [1, 2] {
        let (code, found) = ask(env, false, kind, (1, 0));
        let found = which(found);
        env.say(format!("type {kind}"), format!("{}, {found}", name(code)));
    }
    env.code("destroy", cu!(env, cuMemPoolDestroy(pool)));
    env.say("of the device then", which(of_device(env, false)?));
    Ok(())
}
