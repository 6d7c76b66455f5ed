//! Pools by the kind and place of their memory: what can be made, and what it is at first.
//!
//! No managed memory is taken here: its pools are made, asked and destroyed, and that is all. What is
//! taken from them is in `managed.rs`.

use std::ffi::{c_int, c_void};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, size, yes};
use crate::gate::while_held;
use crate::two::{access_of, and_synchronise, arrived, attribute, pool_at, set_access, wish};

/// Type of allocation, and type and number of location.
const PLACES: [(u32, u32, c_int); 18] = [
    (1, 1, 0),
    (1, 2, 0),
    (1, 3, 0),
    (1, 3, 1),
    (1, 3, -1),
    (1, 3, 99),
    (1, 4, 0),
    (2, 0, 0),
    (2, 1, 0),
    (2, 1, 99),
    (2, 1, -1),
    (2, 2, 0),
    (2, 2, 7),
    (2, 3, 0),
    (2, 3, 99),
    (2, 3, -1),
    (2, 4, 0),
    (2, 5, 0),
];

fn props(kind: u32, place: u32, id: c_int) -> CUmemPoolProps {
    CUmemPoolProps {
        allocType: CUmemAllocationType(kind),
        location: location(CUmemLocationType(place), id),
        ..CUmemPoolProps::default()
    }
}

pub(crate) fn made(env: &Environment) -> Result<()> {
    for (kind, place, id) in PLACES {
        let mut text = [0_u8; 64];
        let plain = props(kind, place, id);
        let types = |types| CUmemPoolProps {
            handleTypes: CUmemAllocationHandleType(types),
            ..plain
        };
        let mut reserved = plain;
        reserved.reserved[0] = 1;
        for (part, wish) in [
            ("plain", plain),
            ("descriptor", types(1)),
            ("fabric", types(8)),
            (
                "64 MiB at most",
                CUmemPoolProps {
                    maxSize: 64 << 20,
                    ..plain
                },
            ),
            ("decompression", CUmemPoolProps { usage: 2, ..plain }),
            (
                "all usage bits",
                CUmemPoolProps {
                    usage: u16::MAX,
                    ..plain
                },
            ),
            (
                "security attributes",
                CUmemPoolProps {
                    win32SecurityAttributes: text.as_mut_ptr().cast(),
                    ..plain
                },
            ),
            ("reserved byte", reserved),
        ] {
            let (code, pool) = env.pool_with(&wish);
            env.code(format!("type {kind}, location {place} {id}, {part}"), code);
            if code == OK {
                env.end_pool(pool)?;
            }
        }
    }
    Ok(())
}

/// Which fields behind the ones that the driver knows must be zero.
pub(crate) fn reserved_bytes(env: &Environment) -> Result<()> {
    for at in [0, 1, 2, 3, 7, 8, 31] {
        let mut wish = Environment::props();
        if let Some(byte) = wish.reserved.get_mut(at) {
            *byte = 1;
        }
        let (code, pool) = env.pool_with(&wish);
        env.code(format!("byte {at}"), code);
        if code == OK {
            env.end_pool(pool)?;
        }
    }
    Ok(())
}

/// What a new pool of each kind says of itself.
pub(crate) fn at_first(env: &Environment) -> Result<()> {
    for (kind, place, id) in PLACES {
        let (code, pool) = env.pool_with(&props(kind, place, id));
        if code != OK {
            continue;
        }
        let part = |text: &str| format!("type {kind}, location {place} {id}, {text}");
        let numbers: Vec<String> = (1..=8)
            .map(|id| env.get(pool, id).map(|value| value.to_string()))
            .collect::<Result<_>>()?;
        env.say(part("attributes 1 to 8"), numbers.join(" "));
        env.say(part("access of the device"), access_of(env, pool, 0));
        for host in [2, 3] {
            let mut flags = CUmemAccess_flags(77);
            let mut place = location(CUmemLocationType(host), 0);
            let code = cu!(
                env,
                cuMemPoolGetAccess(&raw mut flags, pool, &raw mut place)
            );
            env.say(
                part(&format!("access of location {host}")),
                format!("{}, {}", name(code), flags.0),
            );
        }
        for flags in [0, 1, 3] {
            let code = set_access(env, pool, &[wish(1, 0, flags)]);
            let now = access_of(env, pool, 0);
            env.say(
                part(&format!("access set to {flags}")),
                format!("{}, is {now}", name(code)),
            );
        }
        let code = set_access(env, pool, &[wish(2, 0, 3)]);
        env.code(part("access of the host set to 3"), code);
        env.code(part("threshold"), env.try_set(pool, 4, 1 << 20));
        env.code(part("reuse"), env.try_set(pool, 1, 0));
        env.code(part("highest reserved"), env.try_set(pool, 6, 0));
        env.code(part("trim"), cu!(env, cuMemPoolTrimTo(pool, 0)));
        env.code(part("made current"), cu!(env, cuDeviceSetMemPool(0, pool)));
        if kind == 1 && place != 1 {
            for id in 9..=16 {
                let mut value = [0_u64; 4];
                let value = value.as_mut_ptr().cast::<c_void>();
                let id = CUmemPool_attribute(id);
                let code = cu!(env, cuMemPoolGetAttribute(pool, id, value));
                env.code(part(&format!("attribute {}", id.0)), code);
            }
        }
        env.code(part("destroy"), cu!(env, cuMemPoolDestroy(pool)));
    }
    Ok(())
}

pub(crate) fn device_attributes(env: &Environment) -> Result<()> {
    for (id, what) in [
        (89, "concurrent managed access"),
        (115, "pools"),
        (119, "handle types"),
        (135, "NUMA configuration"),
        (136, "decompression"),
        (137, "largest decompression"),
        (142, "NUMA pools"),
        (143, "multicast by NUMA"),
        (144, "host pools"),
    ] {
        let (code, value) = env.device_attribute(id);
        env.say(what, format!("{}, {value}", name(code)));
    }
    let (code, value) = env.device_attribute(134);
    let known = code == OK && value >= -1;
    env.say("a node of the host is named", yes(known));
    Ok(())
}

/// Copies and fills of host memory without and with access of the device. Each in a process of its
/// own: what a driver lets through without access could break the context.
pub(crate) fn without_access(env: &Environment) -> Result<()> {
    each_use(env, &[])
}

pub(crate) fn with_access(env: &Environment) -> Result<()> {
    each_use(env, &[3])
}

/// Access given, and taken away from memory that was handed out in between.
pub(crate) fn access_taken(env: &Environment) -> Result<()> {
    each_use(env, &[3, 0])
}

fn each_use(env: &Environment, steps: &[u32]) -> Result<()> {
    for kind in [2, 3] {
        for (number, part) in [
            "memset",
            "to the host by device address",
            "from the host by device address",
            "cuMemcpyAsync to the host",
            "cuMemcpyAsync from the host",
            "as host memory, to the device",
            "as host memory, from the device",
            "as device memory, from the host",
            "as device memory, to the host",
        ]
        .iter()
        .enumerate()
        {
            let part = format!("{part}, location {kind}");
            env.alone(&part, || one_use(env, steps, kind, number));
        }
    }
    Ok(())
}

fn one_use(env: &Environment, steps: &[u32], kind: u32, number: usize) -> Result<String> {
    const LEN: usize = 4096;
    let (pool, stream) = (pool_at(env, kind, 0, 0)?, env.stream()?);
    let first = steps
        .first()
        .map_or(OK, |flags| set_access(env, pool, &[wish(1, 0, *flags)]));
    env.fine("cuMemPoolSetAccess", first)?;
    let plain = env.plain(LEN)?;
    let block = env.alloc(pool, LEN as u64, stream)?;
    let code = cu!(env, cuMemsetD8Async(plain, 5, LEN, stream));
    env.fine("cuMemsetD8Async", code)?;
    env.synchronise(stream)?;
    if let Some(flags) = steps.get(1) {
        let code = set_access(env, pool, &[wish(1, 0, *flags)]);
        env.fine("cuMemPoolSetAccess", code)?;
    }
    let host = std::ptr::with_exposed_provenance_mut::<u8>(block as usize);
    // SAFETY: memory of the host, allocated and synchronised with above.
    unsafe { host.write_bytes(7, LEN) };
    let mut bytes = vec![5_u8; LEN];
    let heap = bytes.as_mut_ptr();
    let call = || match number {
        0 => cu!(env, cuMemsetD8Async(block, 5, LEN, stream)),
        1 => cu!(env, cuMemcpyDtoDAsync_v2(block, plain, LEN, stream)),
        2 => cu!(env, cuMemcpyDtoDAsync_v2(plain, block, LEN, stream)),
        3 => cu!(env, cuMemcpyAsync(block, plain, LEN, stream)),
        4 => cu!(env, cuMemcpyAsync(plain, block, LEN, stream)),
        5 => cu!(env, cuMemcpyHtoDAsync_v2(plain, host.cast(), LEN, stream)),
        6 => cu!(env, cuMemcpyDtoHAsync_v2(host.cast(), plain, LEN, stream)),
        7 => cu!(env, cuMemcpyHtoDAsync_v2(block, heap.cast(), LEN, stream)),
        _ => cu!(env, cuMemcpyDtoHAsync_v2(heap.cast(), block, LEN, stream)),
    };
    let (code, waited) = while_held(env, stream, call)?;
    let answer = and_synchronise(env, code, stream);
    if answer != "SUCCESS" {
        return Ok(format!("{answer}, {waited}"));
    }
    let there = match number {
        2 | 4 | 5 => {
            let mut back = vec![0_u8; LEN];
            let to = back.as_mut_ptr().cast::<c_void>();
            env.fine("cuMemcpyDtoH", cu!(env, cuMemcpyDtoH_v2(to, plain, LEN)))?;
            back.iter().all(|byte| *byte == 7)
        }
        8 => bytes.iter().all(|byte| *byte == 7),
        // SAFETY: as above, and the stream is done.
        _ => unsafe { std::slice::from_raw_parts(host, LEN) }
            .iter()
            .all(|byte| *byte == 5),
    };
    Ok(format!("{}, {waited}", arrived(&answer, there)))
}

/// Memory of the host's pools: numbers, and what frees and synchronises do.
pub(crate) fn host_numbers(env: &Environment) -> Result<()> {
    for kind in [2, 3] {
        let (pool, stream) = (pool_at(env, kind, 0, 0)?, env.stream()?);
        let part = |text: &str| format!("location {kind}, {text}");
        env.set(pool, 4, 64 * MIB)?;
        let block = env.alloc(pool, 100 * MIB, stream)?;
        env.say(part("reserved"), env.reserved(pool)?);
        env.say(part("used"), size(env.used(pool)?));
        let (code, device) = attribute(env, 9, block);
        env.say(part("its device"), format!("{}, {device}", name(code)));
        env.free(block, stream)?;
        env.say(part("freed, used"), size(env.used(pool)?));
        env.synchronise(stream)?;
        env.say(part("synchronised, reserved"), env.reserved(pool)?);
        env.trim(pool, 33 << 20)?;
        env.say(part("trimmed to 33 MiB"), env.reserved(pool)?);
        env.trim(pool, 0)?;
        env.say(part("trimmed"), env.reserved(pool)?);
        env.end_pool(pool)?;
        let pool = pool_at(env, kind, 0, 64 << 20)?;
        let (code, _) = env.try_alloc(pool, 65 * MIB, stream);
        env.code(part("65 of 64 MiB"), code);
        let (code, block) = env.try_alloc(pool, 64 * MIB, stream);
        env.code(part("64 of 64 MiB"), code);
        if code == OK {
            let now = cu!(env, cuMemFree_v2(block));
            env.code(part("freed by cuMemFree"), now);
        }
        for bytes in [0, 1 << 50, u64::MAX] {
            let (code, _) = env.try_alloc(pool, bytes, stream);
            env.code(part(&format!("{bytes} B")), code);
        }
        // A block that outlives its pool.
        let (code, block) = env.try_alloc(pool, MIB, stream);
        env.code(part("1 MiB more"), code);
        env.synchronise(stream)?;
        env.code(part("destroyed"), cu!(env, cuMemPoolDestroy(pool)));
        let host = std::ptr::with_exposed_provenance_mut::<u8>(block as usize);
        // SAFETY: memory of the host that is not freed yet; the stream is done.
        unsafe { host.write_bytes(7, MIB as usize) };
        env.code(part("freed then"), cu!(env, cuMemFreeAsync(block, stream)));
        env.synchronise(stream)?;
    }
    Ok(())
}
