//! Pools whose memory is the host's, and pinned memory beside them.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, size, yes};
use crate::two::{and_synchronise, attribute, pool_at, set_access, wish};

pub(crate) fn host(env: &Environment) -> Result<()> {
    each(env, 2)
}

pub(crate) fn host_numa(env: &Environment) -> Result<()> {
    each(env, 3)
}

fn each(env: &Environment, kind: u32) -> Result<()> {
    let wish = CUmemPoolProps {
        location: location(CUmemLocationType(kind), 0),
        ..Environment::props()
    };
    let (code, pool) = env.pool_with(&wish);
    env.fine("cuMemPoolCreate", code)?;
    let stream = env.stream()?;
    let start = env.device_free()?;
    let block = env.alloc(pool, 1, stream)?;
    env.say("reserved with 1 B", env.reserved(pool)?);
    let second = env.alloc(pool, 3 * MIB, stream)?;
    env.say("reserved with 3 MiB more", env.reserved(pool)?);
    let third = env.alloc(pool, 33 * MIB, stream)?;
    env.say("reserved with 33 MiB more", env.reserved(pool)?);
    env.say(
        "the device misses",
        size(start.saturating_sub(env.device_free()?)),
    );
    let ask = |id: u32| {
        let mut value = 0_u64;
        let place = (&raw mut value).cast::<c_void>();
        let code = cu!(
            env,
            cuPointerGetAttribute(place, CUpointer_attribute(id), block)
        );
        (code, value)
    };
    for id in [2, 6, 8, 9, 10, 12, 13, 14, 15, 16] {
        let (code, value) = ask(id);
        let answer = if code == OK {
            format!("{}", value.cast_signed())
        } else {
            name(code)
        };
        env.say(format!("attribute {id}"), answer);
    }
    for (id, what, expected) in [
        (1, "null", 0),
        (3, "the address", block),
        (4, "the address", block),
        (11, "the start", block),
        (17, "the pool", pool.addr() as u64),
    ] {
        let (code, value) = ask(id);
        let answer = if code == OK {
            yes(value == expected).into()
        } else {
            name(code)
        };
        env.say(format!("attribute {id} is {what}"), answer);
    }
    let access = |part: &str| {
        let mut flags = CUmemAccess_flags(77);
        let mut place = location(CUmemLocationType(1), 0);
        let code = cu!(
            env,
            cuMemPoolGetAccess(&raw mut flags, pool, &raw mut place)
        );
        env.say(
            format!("access of the device {part}"),
            format!("{}, {}", name(code), flags.0),
        );
    };
    access("at first");
    env.code(
        "memset at first",
        cu!(env, cuMemsetD8Async(second, 7, 1000, stream)),
    );
    env.synchronise(stream)?;
    for flags in [1, 3, 0] {
        let wish = CUmemAccessDesc {
            location: location(CUmemLocationType(1), 0),
            flags: CUmemAccess_flags(flags),
        };
        let code = cu!(env, cuMemPoolSetAccess(pool, &raw const wish, 1));
        env.code(format!("set access of the device to {flags}"), code);
        access(&format!("after {flags}"));
    }
    let code = cu!(env, cuDeviceSetMemPool(0, pool));
    env.code("set current", code);
    let wish = CUmemAccessDesc {
        location: location(CUmemLocationType(1), 0),
        flags: CUmemAccess_flags(3),
    };
    let code = cu!(env, cuMemPoolSetAccess(pool, &raw const wish, 1));
    env.fine("cuMemPoolSetAccess", code)?;
    env.code(
        "memset with access",
        cu!(env, cuMemsetD8Async(second, 7, 1000, stream)),
    );
    env.synchronise(stream)?;
    for (part, at) in [("first", block), ("second", second)] {
        for id in [3, 11] {
            let mut value = 0_u64;
            let place = (&raw mut value).cast::<c_void>();
            let code = cu!(
                env,
                cuPointerGetAttribute(place, CUpointer_attribute(id), at)
            );
            let answer = match code {
                OK if value == at => "the block".into(),
                OK if value == block => "the first block".into(),
                OK if value < at => "lower than the block".into(),
                OK => "higher than the block".into(),
                code => name(code),
            };
            env.say(
                format!("attribute {id} of the {part} block with access"),
                answer,
            );
        }
    }
    for block in [block, second, third] {
        env.free(block, stream)?;
    }
    env.say("reserved after the frees", env.reserved(pool)?);
    env.synchronise(stream)?;
    env.say("reserved after a synchronise", env.reserved(pool)?);
    env.trim(pool, 0)?;
    env.say("reserved after a trim", env.reserved(pool)?);
    env.end_pool(pool)
}

/// Pinned memory where the name of a function asks for a device's.
pub(crate) fn pinned(env: &Environment) -> Result<()> {
    for (number, part) in [
        "memset",
        "to it",
        "from it",
        "from the host to it",
        "from it to the host",
    ]
    .iter()
    .enumerate()
    {
        env.alone(part, || {
            let (stream, plain, host) = (env.stream()?, env.plain(64)?, env.pinned(64)?);
            let at = host.expose_provenance() as u64;
            let mut bytes = [7_u8; 64];
            let heap = bytes.as_mut_ptr().cast::<c_void>();
            let code = match number {
                0 => cu!(env, cuMemsetD8Async(at, 5, 64, stream)),
                1 => cu!(env, cuMemcpyDtoDAsync_v2(at, plain, 64, stream)),
                2 => cu!(env, cuMemcpyDtoDAsync_v2(plain, at, 64, stream)),
                3 => cu!(env, cuMemcpyHtoDAsync_v2(at, heap, 64, stream)),
                _ => cu!(env, cuMemcpyDtoHAsync_v2(heap, at, 64, stream)),
            };
            Ok(and_synchronise(env, code, stream))
        });
    }
    Ok(())
}

/// Making copies of an address wait (R66), on each kind of memory.
pub(crate) fn sync_memops(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let (device, host) = (env.pool(0)?, pool_at(env, 2, 0, 0)?);
    let local = 0_u8;
    for (part, address) in [
        ("plain", env.plain(64)?),
        ("pool", env.alloc(device, 64, stream)?),
        ("host pool", env.alloc(host, 64, stream)?),
        ("pinned", env.pinned(64)?.expose_provenance() as u64),
        ("foreign", (&raw const local).expose_provenance() as u64),
    ] {
        for wanted in [1_u32, 0] {
            let place = (&raw const wanted).cast::<c_void>();
            let id = CUpointer_attribute(6);
            let code = cu!(env, cuPointerSetAttribute(place, id, address));
            let (_, now) = attribute(env, 6, address);
            env.say(
                format!("{part} to {wanted}"),
                format!("{}, reads {now}", name(code)),
            );
        }
    }
    let block = env.alloc(device, 64, stream)?;
    let wanted = 0_u64;
    let place = (&raw const wanted).cast::<c_void>();
    for id in [0, 2, 9, 16, 17, 99] {
        let id = CUpointer_attribute(id);
        let code = cu!(env, cuPointerSetAttribute(place, id, block));
        env.code(format!("attribute {} of a pool's", id.0), code);
    }
    let id = CUpointer_attribute(6);
    let null = std::ptr::null();
    env.code(
        "from null",
        cu!(env, cuPointerSetAttribute(null, id, block)),
    );
    Ok(())
}

/// Entries for the host in lists of accesses, which pools of the host take.
pub(crate) fn host_entries(env: &Environment) -> Result<()> {
    for (kind, place) in [(1, 2), (1, 3), (2, 1)] {
        let (code, pool) = env.pool_with(&CUmemPoolProps {
            allocType: CUmemAllocationType(kind),
            location: location(CUmemLocationType(place), 0),
            ..CUmemPoolProps::default()
        });
        env.fine("cuMemPoolCreate", code)?;
        for (location_kind, id) in [(2, 0), (2, 7), (3, 0), (3, 99), (4, 0), (0, 0)] {
            for flags in [0, 1, 2, 3] {
                let code = set_access(env, pool, &[wish(location_kind, id, flags)]);
                let mut now = CUmemAccess_flags(77);
                let mut host = location(CUmemLocationType(2), 0);
                let asked = cu!(env, cuMemPoolGetAccess(&raw mut now, pool, &raw mut host));
                env.say(
                    format!(
                        "type {kind}, location {place}, access of {location_kind} {id} to {flags}"
                    ),
                    format!("{}, the host's is {}, {}", name(code), name(asked), now.0),
                );
            }
        }
        env.end_pool(pool)?;
    }
    Ok(())
}

/// The extent of a host pool's block, without and with access of the device.
pub(crate) fn host_ranges(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for kind in [2, 3] {
        let pool = pool_at(env, kind, 0, 0)?;
        let block = env.alloc(pool, 1000, stream)?;
        for flags in [0, 3] {
            let code = set_access(env, pool, &[wish(1, 0, flags)]);
            env.fine("cuMemPoolSetAccess", code)?;
            let (mut base, mut len) = (0, 0);
            let code = cu!(
                env,
                cuMemGetAddressRange_v2(&raw mut base, &raw mut len, block)
            );
            env.say(
                format!("location {kind}, access {flags}"),
                format!("{}, {len} B", name(code)),
            );
        }
        env.free(block, stream)?;
        env.end_pool(pool)?;
    }
    Ok(())
}
