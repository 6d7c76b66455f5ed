//! Attributes: of the device, of a pool, of an address; and the access of devices to a pool.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, THRESHOLD, cu, name, yes};

/// Numbers of the machine and not of the model: PCI places and NUMA nodes.
const OF_THE_MACHINE: [u32; 6] = [33, 34, 50, 85, 130, 134];

pub(crate) fn device(env: &Environment) -> Result<()> {
    for id in 0..=165 {
        let (code, value) = env.device_attribute(id);
        if code != OK {
            let touched = if value == -77 { "" } else { ", output touched" };
            env.say(id, format!("{}{touched}", name(code)));
        } else if OF_THE_MACHINE.contains(&id) {
            env.say(id, "SUCCESS");
        } else {
            env.say(id, value);
        }
    }
    let mut total = 0;
    let code = cu!(env, cuDeviceTotalMem_v2(&raw mut total, 0));
    env.say("cuDeviceTotalMem", format!("{}, {total} B", name(code)));
    Ok(())
}

/// The bytes that a query writes, in eight that were all ones.
fn ask(env: &Environment, call: impl FnOnce(*mut c_void) -> CUresult, part: String) {
    let mut bytes = [0xa5_u8; 16];
    let code = call(bytes.as_mut_ptr().cast());
    let width = 16 - bytes.iter().rev().take_while(|byte| **byte == 0xa5).count();
    let mut value = [0; 8];
    let kept = width.min(8);
    value[..kept].copy_from_slice(&bytes[..kept]);
    let value = u64::from_le_bytes(value);
    if code == OK {
        env.say(part, format!("{value}, {width} bytes written"));
    } else if width > 0 {
        env.say(part, format!("{}, output touched", name(code)));
    } else {
        env.code(part, code);
    }
}

pub(crate) fn pool_get(env: &Environment) -> Result<()> {
    let pool = env.pool(64 * MIB)?;
    for id in 0..=17 {
        let call = |place| {
            cu!(
                env,
                cuMemPoolGetAttribute(pool, CUmemPool_attribute(id), place)
            )
        };
        ask(env, call, id.to_string());
    }
    let id = CUmemPool_attribute(THRESHOLD);
    let null = std::ptr::null_mut();
    env.code("into null", cu!(env, cuMemPoolGetAttribute(pool, id, null)));
    env.end_pool(pool)
}

pub(crate) fn pool_set(env: &Environment) -> Result<()> {
    let pool = env.pool(0)?;
    for id in 1..=3 {
        for value in [0, 1, 5] {
            let code = env.try_set(pool, id, value);
            let now = env.get(pool, id)?;
            env.say(
                format!("{id} to {value}"),
                format!("{}, reads {now}", name(code)),
            );
        }
    }
    for value in [12_345, u64::MAX] {
        let code = env.try_set(pool, THRESHOLD, value);
        let now = env.get(pool, THRESHOLD)?;
        env.say(
            format!("4 to {value}"),
            format!("{}, reads {now}", name(code)),
        );
    }
    for id in [0, 5, 6, 7, 8, 9, 10, 13, 14, 15, 99] {
        for value in [0, 1] {
            env.code(format!("{id} to {value}"), env.try_set(pool, id, value));
        }
    }
    let stream = env.stream()?;
    let (big, small) = (
        env.alloc(pool, 40 * MIB, stream)?,
        env.alloc(pool, 1000, stream)?,
    );
    env.free(big, stream)?;
    for id in [6, 8] {
        let before = env.get(pool, id)?;
        env.set(pool, id, 0)?;
        let after = env.get(pool, id)?;
        env.say(format!("{id} with something live: before"), before);
        env.say(format!("{id} with something live: after"), after);
    }
    env.free(small, stream)?;
    env.end_pool(pool)
}

fn pointer(env: &Environment, id: u32, address: CUdeviceptr, part: String) {
    let id = CUpointer_attribute(id);
    ask(
        env,
        |place| cu!(env, cuPointerGetAttribute(place, id, address)),
        part,
    );
}

/// Those whose value is no address, handle or number of its own.
const PLAIN: [u32; 11] = [2, 6, 8, 9, 10, 12, 13, 14, 15, 16, 21];

pub(crate) fn pointer_widths(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    let block = env.alloc(pool, 1000, stream)?;
    let (plain, host) = (env.plain(1000)?, env.pinned(1000)?);
    let host = host.expose_provenance() as u64;
    for (kind, address) in [("pool", block), ("plain", plain), ("host", host)] {
        for id in PLAIN {
            pointer(env, id, address, format!("{kind} {id}"));
        }
        for id in (0..=23).filter(|id| !PLAIN.contains(id)) {
            let mut bytes = [0_u64; 9];
            let place = bytes.as_mut_ptr().cast::<c_void>();
            let id = CUpointer_attribute(id);
            let code = cu!(env, cuPointerGetAttribute(place, id, address));
            env.code(format!("{kind} {}", id.0), code);
        }
    }
    env.free(block, stream)?;
    env.end_pool(pool)
}

pub(crate) fn pointer_values(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    let block = env.alloc(pool, 1000, stream)?;
    let (plain, host) = (env.plain(1000)?, env.pinned(1000)?);
    let host = host.expose_provenance() as u64;
    let context = env.context().addr() as u64;
    for (kind, address) in [("pool", block), ("plain", plain), ("host", host)] {
        let is = |id: u32, at: u64, what: &str, expected: u64| {
            let mut value = 0xa5a5_u64;
            let place = (&raw mut value).cast::<c_void>();
            let code = cu!(
                env,
                cuPointerGetAttribute(place, CUpointer_attribute(id), at)
            );
            let answer = match code {
                OK if value == expected => "yes".into(),
                OK if value == 0 => "no, 0".into(),
                OK => "no".into(),
                code => name(code),
            };
            env.say(format!("{kind} {id} is {what}"), answer);
        };
        is(1, address, "the context", context);
        is(3, address + 5, "the address", address + 5);
        is(4, address + 5, "the address", address + 5);
        is(11, address + 999, "the start", address);
        is(12, address, "the size", 1000);
        is(17, address, "the pool", pool.addr() as u64);
        is(2, address + 1000, "2, behind the end", 2);
        is(2, address + 4096, "2, far behind the end", 2);
    }
    env.free(block, stream)?;
    for (when, done) in [("before", false), ("after", true)] {
        if done {
            env.synchronise(stream)?;
        }
        pointer(
            env,
            2,
            block,
            format!("freed pool memory, {when} a synchronise"),
        );
    }
    let local = 0_u8;
    let foreign = (&raw const local).expose_provenance() as u64;
    pointer(env, 2, foreign, "an address of the stack".into());
    pointer(env, 2, 0, "null".into());
    let null = std::ptr::null_mut();
    let code = cu!(
        env,
        cuPointerGetAttribute(null, CUpointer_attribute(2), plain)
    );
    env.code("into null", code);
    env.end_pool(pool)
}

/// The plural query answers also for what is not the driver's.
pub(crate) fn pointer_many(env: &Environment) -> Result<()> {
    let local = 0_u8;
    let foreign = (&raw const local).expose_provenance() as u64;
    let plain = env.plain(1000)?;
    for (kind, address) in [("foreign", foreign), ("plain", plain)] {
        for id in [1, 2, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 99] {
            if kind == "plain" && [1, 11].contains(&id) {
                continue;
            }
            let call = |place: *mut c_void| {
                let mut ids = [CUpointer_attribute(id)];
                let mut places = [place];
                let (ids, places) = (ids.as_mut_ptr(), places.as_mut_ptr());
                cu!(env, cuPointerGetAttributes(1, ids, places, address))
            };
            if id == 4 {
                let mut value = 0xa5_u64;
                let code = call((&raw mut value).cast());
                let same = yes(value == address);
                env.say(
                    format!("{kind} 4 is the address"),
                    format!("{}, {same}", name(code)),
                );
                continue;
            }
            ask(env, call, format!("{kind} {id}"));
        }
    }
    let (ids, places) = (std::ptr::null_mut(), std::ptr::null_mut());
    let code = cu!(env, cuPointerGetAttributes(0, ids, places, plain));
    env.code("none", code);
    Ok(())
}

pub(crate) fn access(env: &Environment) -> Result<()> {
    let pool = env.pool(0)?;
    let get = |kind: u32, id: i32| {
        let mut flags = CUmemAccess_flags(77);
        let mut place = location(CUmemLocationType(kind), id);
        let code = cu!(
            env,
            cuMemPoolGetAccess(&raw mut flags, pool, &raw mut place)
        );
        let value = if flags.0 == 77 {
            String::new()
        } else {
            format!(", flags {}", flags.0)
        };
        env.say(
            format!("get, location {kind} {id}"),
            format!("{}{value}", name(code)),
        );
    };
    for (kind, id) in [
        (1, 0),
        (1, 99),
        (1, -1),
        (0, 0),
        (2, 0),
        (3, 0),
        (4, 0),
        (99, 0),
    ] {
        get(kind, id);
    }
    for (kind, id, flags) in [
        (1, 0, 0),
        (1, 0, 1),
        (1, 0, 2),
        (1, 0, 3),
        (1, 0, 4),
        (1, 0, 7),
        (1, 99, 3),
        (1, 99, 0),
        (1, 99, 2),
        (1, -1, 3),
        (0, 0, 3),
        (2, 0, 0),
        (2, 0, 1),
        (2, 0, 3),
        (3, 0, 3),
        (4, 0, 3),
        (99, 0, 3),
    ] {
        let wish = wish(kind, id, flags);
        let code = cu!(env, cuMemPoolSetAccess(pool, &raw const wish, 1));
        env.code(format!("set, location {kind} {id}, flags {flags}"), code);
    }
    let mut place = location(CUmemLocationType(1), 0);
    let mut flags = CUmemAccess_flags(0);
    let null = std::ptr::null_mut::<std::ffi::c_void>();
    let code = cu!(env, cuMemPoolGetAccess(null.cast(), pool, &raw mut place));
    env.code("get into null", code);
    let code = cu!(env, cuMemPoolGetAccess(&raw mut flags, pool, null.cast()));
    env.code("get of null", code);
    env.end_pool(pool)
}

fn wish(kind: u32, id: i32, flags: u32) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location(CUmemLocationType(kind), id),
        flags: CUmemAccess_flags(flags),
    }
}

pub(crate) fn access_lists(env: &Environment) -> Result<()> {
    let pool = env.pool(0)?;
    let set = |part: &str, wishes: &[CUmemAccessDesc]| {
        let code = cu!(env, cuMemPoolSetAccess(pool, wishes.as_ptr(), wishes.len()));
        env.code(part, code);
    };
    set("nothing", &[]);
    set("the owner twice", &[wish(1, 0, 3), wish(1, 0, 3)]);
    set(
        "good, then an unknown device",
        &[wish(1, 0, 3), wish(1, 99, 3)],
    );
    set(
        "unknown flags, then an unknown device",
        &[wish(1, 0, 2), wish(1, 99, 3)],
    );
    set(
        "an unknown device, then unknown flags",
        &[wish(1, 99, 3), wish(1, 0, 2)],
    );
    let null = std::ptr::null();
    env.code("null of none", cu!(env, cuMemPoolSetAccess(pool, null, 0)));
    env.code("null of one", cu!(env, cuMemPoolSetAccess(pool, null, 1)));
    env.end_pool(pool)
}
