//! Virtual memory management: addresses, physical memory, mappings and access.

use std::ffi::{c_int, c_void};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, size, yes};
use crate::two::attribute;

/// What every device measured so far wants sizes to be multiples of.
pub(crate) const STEP: u64 = 2 * MIB;

pub(crate) fn prop(kind: u32, id: c_int) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location(CUmemLocationType(kind), id),
        ..CUmemAllocationProp::default()
    }
}

pub(crate) fn try_create(
    env: &Environment,
    bytes: u64,
    prop: &CUmemAllocationProp,
    flags: u64,
) -> (CUresult, u64) {
    let (mut handle, prop) = (0, std::ptr::from_ref(prop));
    let code = cu!(
        env,
        cuMemCreate(&raw mut handle, bytes as usize, prop, flags)
    );
    (code, handle)
}

pub(crate) fn create(env: &Environment, bytes: u64) -> Result<u64> {
    let (code, handle) = try_create(env, bytes, &prop(1, 0), 0);
    env.fine("cuMemCreate", code)?;
    Ok(handle)
}

pub(crate) fn release(env: &Environment, handle: u64) -> CUresult {
    cu!(env, cuMemRelease(handle))
}

fn try_reserve(
    env: &Environment,
    (bytes, align, hint): (u64, u64, u64),
    flags: u64,
) -> (CUresult, CUdeviceptr) {
    let mut address = 0;
    let (bytes, align) = (bytes as usize, align as usize);
    let code = cu!(
        env,
        cuMemAddressReserve(&raw mut address, bytes, align, hint, flags)
    );
    (code, address)
}

pub(crate) fn reserve(env: &Environment, bytes: u64) -> Result<CUdeviceptr> {
    let (code, address) = try_reserve(env, (bytes, 0, 0), 0);
    env.fine("cuMemAddressReserve", code)?;
    Ok(address)
}

pub(crate) fn address_free(env: &Environment, address: CUdeviceptr, bytes: u64) -> CUresult {
    cu!(env, cuMemAddressFree(address, bytes as usize))
}

pub(crate) fn map(env: &Environment, address: CUdeviceptr, bytes: u64, handle: u64) -> CUresult {
    cu!(env, cuMemMap(address, bytes as usize, 0, handle, 0))
}

pub(crate) fn unmap(env: &Environment, address: CUdeviceptr, bytes: u64) -> CUresult {
    cu!(env, cuMemUnmap(address, bytes as usize))
}

/// For a location of this kind and number.
pub(crate) fn allow(
    env: &Environment,
    (address, bytes): (CUdeviceptr, u64),
    (kind, id): (u32, c_int),
    flags: u32,
) -> CUresult {
    let wish = crate::two::wish(kind, id, flags);
    let bytes = bytes as usize;
    cu!(env, cuMemSetAccess(address, bytes, &raw const wish, 1))
}

pub(crate) fn access(env: &Environment, address: CUdeviceptr, kind: u32, id: c_int) -> String {
    let (mut flags, place) = (77, location(CUmemLocationType(kind), id));
    let code = cu!(
        env,
        cuMemGetAccess(&raw mut flags, &raw const place, address)
    );
    match code {
        OK => format!("flags {flags}"),
        code => name(code),
    }
}

/// Memory of the first device at an address, without a handle and with access.
pub(crate) fn back(env: &Environment, address: CUdeviceptr, bytes: u64) -> Result<()> {
    let handle = create(env, bytes)?;
    env.fine("cuMemMap", map(env, address, bytes, handle))?;
    env.fine("cuMemRelease", release(env, handle))?;
    let code = allow(env, (address, bytes), (1, 0), 3);
    env.fine("cuMemSetAccess", code)
}

/// Unmaps and frees what a question has used, once everything is done.
pub(crate) fn end(env: &Environment, range: CUdeviceptr, mapped: u64, reserved: u64) -> Result<()> {
    env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
    env.fine("cuMemUnmap", unmap(env, range, mapped))?;
    env.fine("cuMemAddressFree", address_free(env, range, reserved))
}

pub(crate) fn granularity(env: &Environment) -> Result<()> {
    for (part, prop) in [
        ("device 0", prop(1, 0)),
        ("device 99", prop(1, 99)),
        ("no location", prop(0, 0)),
    ] {
        steps(env, part, &prop, &[0, 1, 2]);
    }
    Ok(())
}

/// What sizes of such memory are multiples of, by each of these options.
pub(crate) fn steps(env: &Environment, part: &str, prop: &CUmemAllocationProp, options: &[u32]) {
    for &option in options {
        let mut bytes = 0;
        let kind = CUmemAllocationGranularity_flags(option);
        let code = cu!(
            env,
            cuMemGetAllocationGranularity(&raw mut bytes, prop, kind)
        );
        let bytes = size(bytes as u64);
        env.say(
            format!("{part}, option {option}"),
            format!("{}, {bytes}", name(code)),
        );
    }
}

pub(crate) fn reservations(env: &Environment) -> Result<()> {
    for (part, bytes, align) in [
        ("nothing", 0, 0),
        ("1 B", 1, 0),
        ("4 KiB", 4096, 0),
        ("64 KiB", 64 << 10, 0),
        ("2 MiB", STEP, 0),
        ("2 MiB and 4 KiB", STEP + 4096, 0),
        ("2 MiB, alignment 3", STEP, 3),
        ("2 MiB, alignment 1", STEP, 1),
        ("2 MiB, alignment 4 KiB", STEP, 4096),
        ("2 MiB, alignment 1 GiB", STEP, 1 << 30),
        ("1 TiB", 1 << 40, 0),
        ("16 TiB", 16 << 40, 0),
        ("64 TiB", 64 << 40, 0),
        ("128 TiB", 128 << 40, 0),
        ("1 PiB", 1 << 50, 0),
        ("8 EiB", 1 << 63, 0),
    ] {
        let (code, address) = try_reserve(env, (bytes, align, 0), 0);
        if code != OK {
            env.code(part, code);
            continue;
        }
        let aligned = yes(address.is_multiple_of(align.max(STEP)));
        let freed = name(address_free(env, address, bytes));
        env.say(part, format!("SUCCESS, aligned {aligned}, freed {freed}"));
    }
    env.code("flags 1", try_reserve(env, (STEP, 0, 0), 1).0);
    let range = reserve(env, 4 * STEP)?;
    env.code("freed by half", address_free(env, range, 2 * STEP));
    env.code("freed from inside", address_free(env, range + STEP, STEP));
    let (code, other) = try_reserve(env, (4 * STEP, 0, range), 0);
    let there = yes(other == range);
    env.say(
        "at a taken address",
        format!("{}, there {there}", name(code)),
    );
    env.fine("cuMemAddressFree", address_free(env, range, 4 * STEP))?;
    for (part, hint) in [
        ("at a free address", range),
        ("at an odd address", range + 1),
    ] {
        let (code, again) = try_reserve(env, (STEP, 0, hint), 0);
        let there = yes(again == hint);
        env.say(part, format!("{}, there {there}", name(code)));
    }
    let range = reserve(env, STEP)?;
    env.fine("cuMemAddressFree", address_free(env, range, STEP))?;
    env.code("freed twice", address_free(env, range, STEP));
    Ok(())
}

/// Sizes, kinds and handles; the code alone.
pub(crate) fn memory(env: &Environment) -> Result<()> {
    for (part, bytes, prop, flags) in [
        ("nothing", 0, prop(1, 0), 0),
        ("4 KiB", 4096, prop(1, 0), 0),
        ("2 MiB and 64 KiB", STEP + (64 << 10), prop(1, 0), 0),
        ("flags 1", STEP, prop(1, 0), 1),
        ("device 99", STEP, prop(1, 99), 0),
        ("no location", STEP, prop(0, 0), 0),
        ("the host's current node", STEP, prop(4, 0), 0),
        ("no type", STEP, CUmemAllocationProp::default(), 0),
        ("1 PiB", 1 << 50, prop(1, 0), 0),
    ] {
        env.code(part, try_create(env, bytes, &prop, flags).0);
    }
    for types in [1, 2, 4, 8, 9, 16] {
        let prop = CUmemAllocationProp {
            requestedHandleTypes: CUmemAllocationHandleType(types),
            ..prop(1, 0)
        };
        env.code(
            format!("handle types {types}"),
            try_create(env, STEP, &prop, 0).0,
        );
    }
    let handle = create(env, STEP)?;
    let mut found = CUmemAllocationProp::default();
    let code = cu!(
        env,
        cuMemGetAllocationPropertiesFromHandle(&raw mut found, handle)
    );
    let (kind, id) = location_parts(found.location);
    env.say(
        "properties",
        format!(
            "{}, type {}, location {} {id}",
            name(code),
            found.type_.0,
            kind.0
        ),
    );
    env.fine("cuMemRelease", release(env, handle))?;
    env.no_context()?;
    let (code, handle) = try_create(env, STEP, &prop(1, 0), 0);
    env.code("without context", code);
    env.code("released without context", release(env, handle));
    Ok(())
}

/// What the device has left, before and after.
pub(crate) fn device_memory(env: &Environment) -> Result<()> {
    const LEN: u64 = 256 * MIB;
    let start = env.device_free()?;
    let more = (start / STEP + 1) * STEP;
    env.code("more than is free", try_create(env, more, &prop(1, 0), 0).0);
    let taken = || -> Result<String> { Ok(size(start.saturating_sub(env.device_free()?))) };
    env.say("taken after that", taken()?);
    let handle = create(env, LEN)?;
    env.say("taken once created", taken()?);
    let range = reserve(env, 2 * LEN)?;
    env.say("taken once reserved", taken()?);
    env.fine("cuMemMap", map(env, range, LEN, handle))?;
    env.fine("cuMemSetAccess", allow(env, (range, LEN), (1, 0), 3))?;
    env.say("taken once mapped", taken()?);
    env.code("released while mapped", release(env, handle));
    env.say("taken then", taken()?);
    env.code("unmapped", unmap(env, range, LEN));
    env.say("taken once unmapped", taken()?);
    let handle = create(env, LEN)?;
    env.fine("cuMemRelease", release(env, handle))?;
    env.say("taken once created and released", taken()?);
    env.fine("cuMemAddressFree", address_free(env, range, 2 * LEN))
}

pub(crate) fn pointers(env: &Environment) -> Result<()> {
    let range = reserve(env, 8 * STEP)?;
    back(env, range + STEP, STEP)?;
    back(env, range + 2 * STEP, 2 * STEP)?;
    for (part, at) in [
        ("reserved", range),
        ("mapped", range + STEP + 9),
        ("mapped behind it", range + 3 * STEP),
    ] {
        for id in [2, 3, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19] {
            let (code, value) = attribute(env, id, at);
            let value = match id {
                3 | 11 | 19 if code == OK => {
                    format!("{} MiB into it", value.wrapping_sub(range) / MIB)
                }
                _ => value.to_string(),
            };
            env.say(
                format!("{part}, attribute {id}"),
                format!("{}, {value}", name(code)),
            );
        }
        let (mut base, mut len) = (range, 0);
        let code = cu!(
            env,
            cuMemGetAddressRange_v2(&raw mut base, &raw mut len, at)
        );
        let from = if base == 0 {
            "nothing".to_owned()
        } else {
            size(base.wrapping_sub(range))
        };
        env.say(
            format!("{part}, cuMemGetAddressRange"),
            format!("{}, from {from}, {}", name(code), size(len as u64)),
        );
        let mut handle = 0;
        let place = std::ptr::with_exposed_provenance_mut::<c_void>(at as usize);
        let code = cu!(env, cuMemRetainAllocationHandle(&raw mut handle, place));
        env.code(format!("{part}, cuMemRetainAllocationHandle"), code);
        if code == OK {
            env.code(format!("{part}, released"), release(env, handle));
        }
    }
    env.fine("cuMemUnmap", unmap(env, range + STEP, STEP))?;
    env.fine("cuMemUnmap", unmap(env, range + 2 * STEP, 2 * STEP))?;
    env.fine("cuMemAddressFree", address_free(env, range, 8 * STEP))
}
