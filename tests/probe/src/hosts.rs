//! Pools whose memory is the host's, and pinned memory beside them.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB, OK, cu, name, size, yes};
use crate::two::{and_synchronise, attribute, pool_at, set_access, wish};

pub(crate) fn host(lab: &Lab) -> Result<()> {
    each(lab, 2)
}

pub(crate) fn host_numa(lab: &Lab) -> Result<()> {
    each(lab, 3)
}

fn each(lab: &Lab, kind: u32) -> Result<()> {
    let wish = CUmemPoolProps {
        location: location(CUmemLocationType(kind), 0),
        ..Lab::props()
    };
    let (code, pool) = lab.pool_with(&wish);
    lab.fine("cuMemPoolCreate", code)?;
    let stream = lab.stream()?;
    let start = lab.device_free()?;
    let block = lab.alloc(pool, 1, stream)?;
    lab.say("reserved with 1 B", lab.reserved(pool)?);
    let second = lab.alloc(pool, 3 * MIB, stream)?;
    lab.say("reserved with 3 MiB more", lab.reserved(pool)?);
    let third = lab.alloc(pool, 33 * MIB, stream)?;
    lab.say("reserved with 33 MiB more", lab.reserved(pool)?);
    lab.say(
        "the device misses",
        size(start.saturating_sub(lab.device_free()?)),
    );
    let ask = |id: u32| {
        let mut value = 0_u64;
        let place = (&raw mut value).cast::<c_void>();
        let code = cu!(
            lab,
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
        lab.say(format!("attribute {id}"), answer);
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
        lab.say(format!("attribute {id} is {what}"), answer);
    }
    let access = |part: &str| {
        let mut flags = CUmemAccess_flags(77);
        let mut place = location(CUmemLocationType(1), 0);
        let code = cu!(
            lab,
            cuMemPoolGetAccess(&raw mut flags, pool, &raw mut place)
        );
        lab.say(
            format!("access of the device {part}"),
            format!("{}, {}", name(code), flags.0),
        );
    };
    access("at first");
    lab.code(
        "memset at first",
        cu!(lab, cuMemsetD8Async(second, 7, 1000, stream)),
    );
    lab.synchronise(stream)?;
    for flags in [1, 3, 0] {
        let wish = CUmemAccessDesc {
            location: location(CUmemLocationType(1), 0),
            flags: CUmemAccess_flags(flags),
        };
        let code = cu!(lab, cuMemPoolSetAccess(pool, &raw const wish, 1));
        lab.code(format!("set access of the device to {flags}"), code);
        access(&format!("after {flags}"));
    }
    let code = cu!(lab, cuDeviceSetMemPool(0, pool));
    lab.code("set current", code);
    let wish = CUmemAccessDesc {
        location: location(CUmemLocationType(1), 0),
        flags: CUmemAccess_flags(3),
    };
    let code = cu!(lab, cuMemPoolSetAccess(pool, &raw const wish, 1));
    lab.fine("cuMemPoolSetAccess", code)?;
    lab.code(
        "memset with access",
        cu!(lab, cuMemsetD8Async(second, 7, 1000, stream)),
    );
    lab.synchronise(stream)?;
    for (part, at) in [("first", block), ("second", second)] {
        for id in [3, 11] {
            let mut value = 0_u64;
            let place = (&raw mut value).cast::<c_void>();
            let code = cu!(
                lab,
                cuPointerGetAttribute(place, CUpointer_attribute(id), at)
            );
            let answer = match code {
                OK if value == at => "the block".into(),
                OK if value == block => "the first block".into(),
                OK if value < at => "lower than the block".into(),
                OK => "higher than the block".into(),
                code => name(code),
            };
            lab.say(
                format!("attribute {id} of the {part} block with access"),
                answer,
            );
        }
    }
    for block in [block, second, third] {
        lab.free(block, stream)?;
    }
    lab.say("reserved after the frees", lab.reserved(pool)?);
    lab.synchronise(stream)?;
    lab.say("reserved after a synchronise", lab.reserved(pool)?);
    lab.trim(pool, 0)?;
    lab.say("reserved after a trim", lab.reserved(pool)?);
    lab.end_pool(pool)
}

/// Pinned memory where the name of a function asks for a device's.
pub(crate) fn pinned(lab: &Lab) -> Result<()> {
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
        lab.alone(part, || {
            let (stream, plain, host) = (lab.stream()?, lab.plain(64)?, lab.pinned(64)?);
            let at = host.expose_provenance() as u64;
            let mut bytes = [7_u8; 64];
            let heap = bytes.as_mut_ptr().cast::<c_void>();
            let code = match number {
                0 => cu!(lab, cuMemsetD8Async(at, 5, 64, stream)),
                1 => cu!(lab, cuMemcpyDtoDAsync_v2(at, plain, 64, stream)),
                2 => cu!(lab, cuMemcpyDtoDAsync_v2(plain, at, 64, stream)),
                3 => cu!(lab, cuMemcpyHtoDAsync_v2(at, heap, 64, stream)),
                _ => cu!(lab, cuMemcpyDtoHAsync_v2(heap, at, 64, stream)),
            };
            Ok(and_synchronise(lab, code, stream))
        });
    }
    Ok(())
}

/// Making copies of an address wait (R66), on each kind of memory.
pub(crate) fn sync_memops(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let (device, host) = (lab.pool(0)?, pool_at(lab, 2, 0, 0)?);
    let local = 0_u8;
    for (part, address) in [
        ("plain", lab.plain(64)?),
        ("pool", lab.alloc(device, 64, stream)?),
        ("host pool", lab.alloc(host, 64, stream)?),
        ("pinned", lab.pinned(64)?.expose_provenance() as u64),
        ("foreign", (&raw const local).expose_provenance() as u64),
    ] {
        for wanted in [1_u32, 0] {
            let place = (&raw const wanted).cast::<c_void>();
            let id = CUpointer_attribute(6);
            let code = cu!(lab, cuPointerSetAttribute(place, id, address));
            let (_, now) = attribute(lab, 6, address);
            lab.say(
                format!("{part} to {wanted}"),
                format!("{}, reads {now}", name(code)),
            );
        }
    }
    let block = lab.alloc(device, 64, stream)?;
    let wanted = 0_u64;
    let place = (&raw const wanted).cast::<c_void>();
    for id in [0, 2, 9, 16, 17, 99] {
        let id = CUpointer_attribute(id);
        let code = cu!(lab, cuPointerSetAttribute(place, id, block));
        lab.code(format!("attribute {} of a pool's", id.0), code);
    }
    let id = CUpointer_attribute(6);
    let null = std::ptr::null();
    lab.code(
        "from null",
        cu!(lab, cuPointerSetAttribute(null, id, block)),
    );
    Ok(())
}

/// Entries for the host in lists of accesses, which pools of the host take.
pub(crate) fn host_entries(lab: &Lab) -> Result<()> {
    for (kind, place) in [(1, 2), (1, 3), (2, 1)] {
        let (code, pool) = lab.pool_with(&CUmemPoolProps {
            allocType: CUmemAllocationType(kind),
            location: location(CUmemLocationType(place), 0),
            ..CUmemPoolProps::default()
        });
        lab.fine("cuMemPoolCreate", code)?;
        for (location_kind, id) in [(2, 0), (2, 7), (3, 0), (3, 99), (4, 0), (0, 0)] {
            for flags in [0, 1, 2, 3] {
                let code = set_access(lab, pool, &[wish(location_kind, id, flags)]);
                let mut now = CUmemAccess_flags(77);
                let mut host = location(CUmemLocationType(2), 0);
                let asked = cu!(lab, cuMemPoolGetAccess(&raw mut now, pool, &raw mut host));
                lab.say(
                    format!(
                        "type {kind}, location {place}, access of {location_kind} {id} to {flags}"
                    ),
                    format!("{}, the host's is {}, {}", name(code), name(asked), now.0),
                );
            }
        }
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// The extent of a host pool's block, without and with access of the device.
pub(crate) fn host_ranges(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    for kind in [2, 3] {
        let pool = pool_at(lab, kind, 0, 0)?;
        let block = lab.alloc(pool, 1000, stream)?;
        for flags in [0, 3] {
            let code = set_access(lab, pool, &[wish(1, 0, flags)]);
            lab.fine("cuMemPoolSetAccess", code)?;
            let (mut base, mut len) = (0, 0);
            let code = cu!(
                lab,
                cuMemGetAddressRange_v2(&raw mut base, &raw mut len, block)
            );
            lab.say(
                format!("location {kind}, access {flags}"),
                format!("{}, {len} B", name(code)),
            );
        }
        lab.free(block, stream)?;
        lab.end_pool(pool)?;
    }
    Ok(())
}
