//! Pools whose memory is the host's.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB, OK, cu, name, size, yes};

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
