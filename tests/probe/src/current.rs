//! Default and current pools by location and type of allocation (CUDA 13.0).

use std::ffi::c_int;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, OK, cu, name, size, yes};
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
fn ask(lab: &Lab, default: bool, kind: u32, place: (u32, c_int)) -> (CUresult, CUmemoryPool) {
    let mut pool = std::ptr::null_mut();
    let mut place = location(CUmemLocationType(place.0), place.1);
    let kind = CUmemAllocationType(kind);
    let code = if default {
        cu!(
            lab,
            cuMemGetDefaultMemPool(&raw mut pool, &raw mut place, kind)
        )
    } else {
        cu!(lab, cuMemGetMemPool(&raw mut pool, &raw mut place, kind))
    };
    (code, pool)
}

fn set(lab: &Lab, kind: u32, place: (u32, c_int), pool: CUmemoryPool) -> CUresult {
    let mut place = location(CUmemLocationType(place.0), place.1);
    cu!(
        lab,
        cuMemSetMemPool(&raw mut place, CUmemAllocationType(kind), pool)
    )
}

/// The pool of the device, default or current.
fn of_device(lab: &Lab, default: bool) -> Result<CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    let code = if default {
        cu!(lab, cuDeviceGetDefaultMemPool(&raw mut pool, 0))
    } else {
        cu!(lab, cuDeviceGetMemPool(&raw mut pool, 0))
    };
    lab.fine("the pool of the device", code)?;
    Ok(pool)
}

pub(crate) fn by_location(lab: &Lab) -> Result<()> {
    let own = of_device(lab, true)?;
    let mut known = vec![(own, "the device's".to_owned())];
    for kind in [0, 1, 2, 3, 99] {
        for place in PLACES {
            for (part, default) in [("default", true), ("current", false)] {
                let (code, pool) = ask(lab, default, kind, place);
                let part = format!("{part}, type {kind}, location {} {}", place.0, place.1);
                if code != OK {
                    lab.code(part, code);
                    continue;
                }
                let label = format!("that of type {kind}, location {} {}", place.0, place.1);
                let seen = known.iter().find(|(seen, _)| *seen == pool);
                let which = seen.map_or(label.clone(), |(_, label)| label.clone());
                if seen.is_none() {
                    known.push((pool, label));
                }
                lab.say(part, format!("SUCCESS, {which}"));
            }
        }
    }
    lab.say("different pools", known.len());
    Ok(())
}

pub(crate) fn nulls(lab: &Lab) -> Result<()> {
    let pinned = CUmemAllocationType(1);
    let mut place = location(CUmemLocationType(1), 0);
    let mut pool = std::ptr::null_mut();
    let (no_pool, no_place) = (std::ptr::null_mut(), std::ptr::null_mut());
    let code = cu!(lab, cuMemGetDefaultMemPool(no_pool, &raw mut place, pinned));
    lab.code("the default into null", code);
    let code = cu!(lab, cuMemGetDefaultMemPool(&raw mut pool, no_place, pinned));
    lab.code("the default of null", code);
    let no_pool = std::ptr::null_mut();
    let code = cu!(lab, cuMemGetMemPool(no_pool, &raw mut place, pinned));
    lab.code("the current into null", code);
    let no_place = std::ptr::null_mut();
    let code = cu!(lab, cuMemGetMemPool(&raw mut pool, no_place, pinned));
    lab.code("the current of null", code);
    let own = lab.pool(0)?;
    let no_place = std::ptr::null_mut();
    let code = cu!(lab, cuMemSetMemPool(no_place, pinned, own));
    lab.code("set at null", code);
    let code = set(lab, 1, (1, 0), std::ptr::null_mut());
    lab.code("set to null", code);
    let code = set(lab, 1, (2, 0), std::ptr::null_mut());
    lab.code("set to null at the host", code);
    Ok(())
}

/// Own pools as the current one of places that match theirs, and of others.
pub(crate) fn set_own(lab: &Lab) -> Result<()> {
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
        let (code, pool) = lab.pool_with(&CUmemPoolProps {
            allocType: CUmemAllocationType(kind),
            location: location(CUmemLocationType(place.0), place.1),
            ..CUmemPoolProps::default()
        });
        lab.fine("cuMemPoolCreate", code)?;
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
                let code = set(lab, to_kind, to, pool);
                if code != OK {
                    lab.code(part, code);
                    continue;
                }
                let (code, now) = ask(lab, false, to_kind, to);
                let reads = format!("{}, {}", name(code), yes(now == pool));
                let (code, default) = ask(lab, true, to_kind, to);
                let back = if code == OK {
                    name(set(lab, to_kind, to, default))
                } else {
                    format!("no default, {}", name(code))
                };
                lab.say(part, format!("SUCCESS, reads {reads}, back {back}"));
            }
        }
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// Where plain allocations come from, and what a destroyed current pool leaves.
pub(crate) fn of_the_device(lab: &Lab) -> Result<()> {
    let (pool, host, stream) = (lab.pool(0)?, pool_at(lab, 2, 0, 0)?, lab.stream()?);
    let default = of_device(lab, true)?;
    lab.code("set", set(lab, 1, (1, 0), pool));
    lab.say(
        "then cuDeviceGetMemPool gives it",
        yes(of_device(lab, false)? == pool),
    );
    lab.code("a host pool at the host", set(lab, 1, (2, 0), host));
    let mut block = 0;
    let code = cu!(lab, cuMemAllocAsync(&raw mut block, 1000, stream));
    lab.fine("cuMemAllocAsync", code)?;
    lab.say("used of the pool", format!("{} B", lab.used(pool)?));
    lab.say("used of the host pool", format!("{} B", lab.used(host)?));
    lab.say("used of the default", format!("{} B", lab.used(default)?));
    lab.free(block, stream)?;
    lab.code("destroy it", cu!(lab, cuMemPoolDestroy(pool)));
    let (code, now) = ask(lab, false, 1, (1, 0));
    lab.say(
        "the default is current",
        format!("{}, {}", name(code), yes(now == default)),
    );
    let (_, before) = ask(lab, true, 1, (2, 0));
    lab.code("destroy the host pool", cu!(lab, cuMemPoolDestroy(host)));
    let (code, now) = ask(lab, false, 1, (2, 0));
    lab.say(
        "the default is current at the host",
        format!("{}, {}", name(code), yes(now == before)),
    );
    lab.code("set at the device by its own function", {
        let pool = lab.pool(0)?;
        let code = cu!(lab, cuDeviceSetMemPool(0, pool));
        let (_, now) = ask(lab, false, 1, (1, 0));
        lab.say("and read by location", yes(now == pool));
        code
    });
    lab.code("the default, set", set(lab, 1, (1, 0), default));
    Ok(())
}

/// The default pools that are not a device's.
pub(crate) fn elsewhere(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    for (kind, place) in [
        (1, (2, 0)),
        (1, (3, 0)),
        (2, (0, 0)),
        (2, (1, 0)),
        (2, (2, 0)),
    ] {
        let part = |text: &str| format!("type {kind}, location {} {}, {text}", place.0, place.1);
        let (code, pool) = ask(lab, true, kind, place);
        if code != OK {
            lab.code(part("default"), code);
            continue;
        }
        let numbers: Vec<String> = (1..=8)
            .map(|id| lab.get(pool, id).map(|value| value.to_string()))
            .collect::<Result<_>>()?;
        lab.say(part("attributes 1 to 8"), numbers.join(" "));
        lab.code(part("destroy"), cu!(lab, cuMemPoolDestroy(pool)));
        lab.code(part("at the device"), cu!(lab, cuDeviceSetMemPool(0, pool)));
        lab.say(part("access of the device"), access_of(lab, pool, 0));
        // No managed memory is taken, and no threshold of a managed default pool is touched.
        if kind == 2 {
            continue;
        }
        lab.code(part("threshold"), lab.try_set(pool, 4, 1 << 25));
        let code = set_access(lab, pool, &[wish(1, 0, 3)]);
        let now = access_of(lab, pool, 0);
        lab.say(part("access set"), format!("{}, is {now}", name(code)));
        let (code, block) = lab.try_alloc(pool, 1000, stream);
        lab.code(part("allocate"), code);
        if code == OK {
            lab.say(part("reserved"), size(lab.get(pool, 5)?));
            lab.code(
                part("memset"),
                cu!(lab, cuMemsetD8Async(block, 1, 1000, stream)),
            );
            lab.free(block, stream)?;
            lab.synchronise(stream)?;
            lab.say(part("reserved then"), size(lab.get(pool, 5)?));
        }
        let code = set_access(lab, pool, &[wish(1, 0, 0)]);
        let now = access_of(lab, pool, 0);
        lab.say(part("access taken"), format!("{}, is {now}", name(code)));
    }
    Ok(())
}

/// Before any pool was named and with no context.
pub(crate) fn without_context(lab: &Lab) -> Result<()> {
    let (pool, host) = (lab.pool(0)?, pool_at(lab, 2, 0, 0)?);
    lab.no_context()?;
    for place in [(1, 0), (2, 0), (3, 0)] {
        let part = format!("location {}", place.0);
        lab.code(format!("default, {part}"), ask(lab, true, 1, place).0);
        lab.code(format!("current, {part}"), ask(lab, false, 1, place).0);
    }
    lab.code("set", set(lab, 1, (1, 0), pool));
    lab.code("set at the host", set(lab, 1, (2, 0), host));
    Ok(())
}

/// What is current at a place whose current pool was destroyed.
pub(crate) fn destroyed(lab: &Lab) -> Result<()> {
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
            lab.alone(&part, || {
                if early {
                    lab.fine("the default", ask(lab, true, kind, place).0)?;
                }
                let (code, pool) = lab.pool_with(&CUmemPoolProps {
                    allocType: CUmemAllocationType(kind),
                    location: location(CUmemLocationType(place.0), place.1),
                    ..CUmemPoolProps::default()
                });
                lab.fine("cuMemPoolCreate", code)?;
                lab.fine("cuMemSetMemPool", set(lab, kind, place, pool))?;
                lab.fine("cuMemPoolDestroy", cu!(lab, cuMemPoolDestroy(pool)))?;
                let (code, now) = ask(lab, false, kind, place);
                let (_, default) = ask(lab, true, kind, place);
                let which = match now {
                    now if now == default => "the default",
                    now if now == pool => "the destroyed one",
                    now if now.is_null() => "null",
                    _ => "another",
                };
                let back = name(set(lab, kind, place, default));
                let (_, then) = ask(lab, false, kind, place);
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
pub(crate) fn named_late(lab: &Lab) -> Result<()> {
    for (kind, place) in [
        (1, (1, 0)),
        (1, (2, 0)),
        (1, (3, 0)),
        (2, (0, 0)),
        (2, (1, 0)),
    ] {
        let part = format!("type {kind}, location {} {}", place.0, place.1);
        lab.alone(&part, || {
            let (code, pool) = lab.pool_with(&CUmemPoolProps {
                allocType: CUmemAllocationType(kind),
                location: location(CUmemLocationType(place.0), place.1),
                ..CUmemPoolProps::default()
            });
            lab.fine("cuMemPoolCreate", code)?;
            lab.fine("cuMemSetMemPool", set(lab, kind, place, pool))?;
            let (_, first) = ask(lab, true, kind, place);
            let own = yes(first == pool);
            let (_, again) = ask(lab, true, kind, place);
            let same = yes(first == again);
            let end = name(cu!(lab, cuMemPoolDestroy(pool)));
            let (_, then) = ask(lab, true, kind, place);
            let kept = yes(first == then);
            let (code, now) = ask(lab, false, kind, place);
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
pub(crate) fn managed_of_device(lab: &Lab) -> Result<()> {
    let default = of_device(lab, true)?;
    let (code, pool) = lab.pool_with(&CUmemPoolProps {
        allocType: CUmemAllocationType(2),
        location: location(CUmemLocationType(1), 0),
        ..CUmemPoolProps::default()
    });
    lab.fine("cuMemPoolCreate", code)?;
    lab.code("set", cu!(lab, cuDeviceSetMemPool(0, pool)));
    let which = |found: CUmemoryPool| match found {
        found if found == pool => "that one",
        found if found == default => "the device's default",
        _ => "another",
    };
    lab.say("of the device", which(of_device(lab, false)?));
    for kind in [1, 2] {
        let (code, found) = ask(lab, false, kind, (1, 0));
        let found = which(found);
        lab.say(format!("type {kind}"), format!("{}, {found}", name(code)));
    }
    lab.code("destroy", cu!(lab, cuMemPoolDestroy(pool)));
    lab.say("of the device then", which(of_device(lab, false)?));
    Ok(())
}
