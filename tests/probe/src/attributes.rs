//! Attributes: of the device, of a pool, of an address; and the access of devices to a pool.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB, OK, THRESHOLD, cu, name, yes};

/// Numbers of the machine and not of the model: PCI places and NUMA nodes.
const OF_THE_MACHINE: [u32; 6] = [33, 34, 50, 85, 130, 134];

pub(crate) fn device(lab: &Lab) -> Result<()> {
    for id in 0..=165 {
        let (code, value) = lab.device_attribute(id);
        if code != OK {
            let touched = if value == -77 { "" } else { ", output touched" };
            lab.say(id, format!("{}{touched}", name(code)));
        } else if OF_THE_MACHINE.contains(&id) {
            lab.say(id, "SUCCESS");
        } else {
            lab.say(id, value);
        }
    }
    let mut total = 0;
    let code = cu!(lab, cuDeviceTotalMem_v2(&raw mut total, 0));
    lab.say("cuDeviceTotalMem", format!("{}, {total} B", name(code)));
    Ok(())
}

/// The bytes that a query writes, in eight that were all ones.
fn ask(lab: &Lab, call: impl FnOnce(*mut c_void) -> CUresult, part: String) {
    let mut bytes = [0xa5_u8; 16];
    let code = call(bytes.as_mut_ptr().cast());
    let width = 16 - bytes.iter().rev().take_while(|byte| **byte == 0xa5).count();
    let mut value = [0; 8];
    let kept = width.min(8);
    value[..kept].copy_from_slice(&bytes[..kept]);
    let value = u64::from_le_bytes(value);
    if code == OK {
        lab.say(part, format!("{value}, {width} bytes written"));
    } else if width > 0 {
        lab.say(part, format!("{}, output touched", name(code)));
    } else {
        lab.code(part, code);
    }
}

pub(crate) fn pool_get(lab: &Lab) -> Result<()> {
    let pool = lab.pool(64 * MIB)?;
    for id in 0..=17 {
        let call = |place| {
            cu!(
                lab,
                cuMemPoolGetAttribute(pool, CUmemPool_attribute(id), place)
            )
        };
        ask(lab, call, id.to_string());
    }
    let id = CUmemPool_attribute(THRESHOLD);
    let null = std::ptr::null_mut();
    lab.code("into null", cu!(lab, cuMemPoolGetAttribute(pool, id, null)));
    lab.end_pool(pool)
}

pub(crate) fn pool_set(lab: &Lab) -> Result<()> {
    let pool = lab.pool(0)?;
    for id in 1..=3 {
        for value in [0, 1, 5] {
            let code = lab.try_set(pool, id, value);
            let now = lab.get(pool, id)?;
            lab.say(
                format!("{id} to {value}"),
                format!("{}, reads {now}", name(code)),
            );
        }
    }
    for value in [12_345, u64::MAX] {
        let code = lab.try_set(pool, THRESHOLD, value);
        let now = lab.get(pool, THRESHOLD)?;
        lab.say(
            format!("4 to {value}"),
            format!("{}, reads {now}", name(code)),
        );
    }
    for id in [0, 5, 6, 7, 8, 9, 10, 13, 14, 15, 99] {
        for value in [0, 1] {
            lab.code(format!("{id} to {value}"), lab.try_set(pool, id, value));
        }
    }
    let stream = lab.stream()?;
    let (big, small) = (
        lab.alloc(pool, 40 * MIB, stream)?,
        lab.alloc(pool, 1000, stream)?,
    );
    lab.free(big, stream)?;
    for id in [6, 8] {
        let before = lab.get(pool, id)?;
        lab.set(pool, id, 0)?;
        let after = lab.get(pool, id)?;
        lab.say(format!("{id} with something live: before"), before);
        lab.say(format!("{id} with something live: after"), after);
    }
    lab.free(small, stream)?;
    lab.end_pool(pool)
}

fn pointer(lab: &Lab, id: u32, address: CUdeviceptr, part: String) {
    let id = CUpointer_attribute(id);
    ask(
        lab,
        |place| cu!(lab, cuPointerGetAttribute(place, id, address)),
        part,
    );
}

/// Those whose value is no address, handle or number of its own.
const PLAIN: [u32; 11] = [2, 6, 8, 9, 10, 12, 13, 14, 15, 16, 21];

pub(crate) fn pointer_widths(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let block = lab.alloc(pool, 1000, stream)?;
    let (plain, host) = (lab.plain(1000)?, lab.pinned(1000)?);
    let host = host.expose_provenance() as u64;
    for (kind, address) in [("pool", block), ("plain", plain), ("host", host)] {
        for id in PLAIN {
            pointer(lab, id, address, format!("{kind} {id}"));
        }
        for id in (0..=23).filter(|id| !PLAIN.contains(id)) {
            let mut bytes = [0_u64; 9];
            let place = bytes.as_mut_ptr().cast::<c_void>();
            let id = CUpointer_attribute(id);
            let code = cu!(lab, cuPointerGetAttribute(place, id, address));
            lab.code(format!("{kind} {}", id.0), code);
        }
    }
    lab.free(block, stream)?;
    lab.end_pool(pool)
}

pub(crate) fn pointer_values(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let block = lab.alloc(pool, 1000, stream)?;
    let (plain, host) = (lab.plain(1000)?, lab.pinned(1000)?);
    let host = host.expose_provenance() as u64;
    let context = lab.context().addr() as u64;
    for (kind, address) in [("pool", block), ("plain", plain), ("host", host)] {
        let is = |id: u32, at: u64, what: &str, expected: u64| {
            let mut value = 0xa5a5_u64;
            let place = (&raw mut value).cast::<c_void>();
            let code = cu!(
                lab,
                cuPointerGetAttribute(place, CUpointer_attribute(id), at)
            );
            let answer = match code {
                OK if value == expected => "yes".into(),
                OK if value == 0 => "no, 0".into(),
                OK => "no".into(),
                code => name(code),
            };
            lab.say(format!("{kind} {id} is {what}"), answer);
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
    lab.free(block, stream)?;
    for (when, done) in [("before", false), ("after", true)] {
        if done {
            lab.synchronise(stream)?;
        }
        pointer(
            lab,
            2,
            block,
            format!("freed pool memory, {when} a synchronise"),
        );
    }
    let local = 0_u8;
    let foreign = (&raw const local).expose_provenance() as u64;
    pointer(lab, 2, foreign, "an address of the stack".into());
    pointer(lab, 2, 0, "null".into());
    let null = std::ptr::null_mut();
    let code = cu!(
        lab,
        cuPointerGetAttribute(null, CUpointer_attribute(2), plain)
    );
    lab.code("into null", code);
    lab.end_pool(pool)
}

/// The plural query answers also for what is not the driver's.
pub(crate) fn pointer_many(lab: &Lab) -> Result<()> {
    let local = 0_u8;
    let foreign = (&raw const local).expose_provenance() as u64;
    let plain = lab.plain(1000)?;
    for (kind, address) in [("foreign", foreign), ("plain", plain)] {
        for id in [1, 2, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 99] {
            if kind == "plain" && [1, 11].contains(&id) {
                continue;
            }
            let call = |place: *mut c_void| {
                let mut ids = [CUpointer_attribute(id)];
                let mut places = [place];
                let (ids, places) = (ids.as_mut_ptr(), places.as_mut_ptr());
                cu!(lab, cuPointerGetAttributes(1, ids, places, address))
            };
            if id == 4 {
                let mut value = 0xa5_u64;
                let code = call((&raw mut value).cast());
                let same = yes(value == address);
                lab.say(
                    format!("{kind} 4 is the address"),
                    format!("{}, {same}", name(code)),
                );
                continue;
            }
            ask(lab, call, format!("{kind} {id}"));
        }
    }
    let (ids, places) = (std::ptr::null_mut(), std::ptr::null_mut());
    let code = cu!(lab, cuPointerGetAttributes(0, ids, places, plain));
    lab.code("none", code);
    Ok(())
}

pub(crate) fn access(lab: &Lab) -> Result<()> {
    let pool = lab.pool(0)?;
    let get = |kind: u32, id: i32| {
        let mut flags = CUmemAccess_flags(77);
        let mut place = location(CUmemLocationType(kind), id);
        let code = cu!(
            lab,
            cuMemPoolGetAccess(&raw mut flags, pool, &raw mut place)
        );
        let value = if flags.0 == 77 {
            String::new()
        } else {
            format!(", flags {}", flags.0)
        };
        lab.say(
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
        let code = cu!(lab, cuMemPoolSetAccess(pool, &raw const wish, 1));
        lab.code(format!("set, location {kind} {id}, flags {flags}"), code);
    }
    let mut place = location(CUmemLocationType(1), 0);
    let mut flags = CUmemAccess_flags(0);
    let null = std::ptr::null_mut::<std::ffi::c_void>();
    let code = cu!(lab, cuMemPoolGetAccess(null.cast(), pool, &raw mut place));
    lab.code("get into null", code);
    let code = cu!(lab, cuMemPoolGetAccess(&raw mut flags, pool, null.cast()));
    lab.code("get of null", code);
    lab.end_pool(pool)
}

fn wish(kind: u32, id: i32, flags: u32) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location(CUmemLocationType(kind), id),
        flags: CUmemAccess_flags(flags),
    }
}

pub(crate) fn access_lists(lab: &Lab) -> Result<()> {
    let pool = lab.pool(0)?;
    let set = |part: &str, wishes: &[CUmemAccessDesc]| {
        let code = cu!(lab, cuMemPoolSetAccess(pool, wishes.as_ptr(), wishes.len()));
        lab.code(part, code);
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
    lab.code("null of none", cu!(lab, cuMemPoolSetAccess(pool, null, 0)));
    lab.code("null of one", cu!(lab, cuMemPoolSetAccess(pool, null, 1)));
    lab.end_pool(pool)
}
