//! Physical memory of the host, behind addresses that devices and the host share.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB, OK, cu, name, size, yes};
use crate::two::and_synchronise;
use crate::vmm::{
    STEP, access, allow, create, end, map, prop, release, reserve, steps, try_create, unmap,
};

/// The kinds of place, as the driver numbers them.
const HOST: u32 = 2;
const NODE: u32 = 3;
const CURRENT_NODE: u32 = 4;

const PLACES: [(&str, u32, i32); 5] = [
    ("host", HOST, 0),
    ("host 5", HOST, 5),
    ("node 0", NODE, 0),
    ("node 99", NODE, 99),
    ("current node", CURRENT_NODE, 0),
];

pub(crate) fn granularity(lab: &Lab) -> Result<()> {
    for (part, kind, id) in PLACES {
        steps(lab, part, &prop(kind, id), &[0, 1]);
    }
    Ok(())
}

pub(crate) fn memory(lab: &Lab) -> Result<()> {
    for (part, kind, id) in PLACES {
        for bytes in [4096, 64 << 10, STEP] {
            let (code, handle) = try_create(lab, bytes, &prop(kind, id), 0);
            lab.code(format!("{part}, {}", size(bytes)), code);
            if code == OK {
                lab.fine("cuMemRelease", release(lab, handle))?;
            }
        }
        for types in [1, 8] {
            let prop = CUmemAllocationProp {
                requestedHandleTypes: CUmemAllocationHandleType(types),
                ..prop(kind, id)
            };
            let (code, handle) = try_create(lab, STEP, &prop, 0);
            lab.code(format!("{part}, handle types {types}"), code);
            if code == OK {
                lab.fine("cuMemRelease", release(lab, handle))?;
            }
        }
    }
    let before = lab.device_free()?;
    let (code, handle) = try_create(lab, 256 * MIB, &prop(NODE, 0), 0);
    lab.fine("cuMemCreate", code)?;
    let taken = before.saturating_sub(lab.device_free()?);
    lab.say("taken of the device by 256 MiB of node 0", size(taken));
    lab.fine("cuMemRelease", release(lab, handle))
}

/// Who may be given access to memory of the host, and what works then.
pub(crate) fn accesses(lab: &Lab) -> Result<()> {
    for (part, kind) in [("host", HOST), ("node", NODE)] {
        let (code, handle) = try_create(lab, STEP, &prop(kind, 0), 0);
        if code != OK {
            lab.code(part, code);
            continue;
        }
        let range = reserve(lab, STEP)?;
        lab.code(format!("{part}, mapped"), map(lab, range, STEP, handle));
        for (who, kind, id) in [
            ("device 0", 1, 0),
            ("device 99", 1, 99),
            ("host", HOST, 0),
            ("node 0", NODE, 0),
            ("node 99", NODE, 99),
            ("current node", CURRENT_NODE, 0),
        ] {
            let code = allow(lab, (range, STEP), (kind, id), 3);
            lab.code(format!("{part}, access by {who}"), code);
            let has = access(lab, range, kind, id);
            lab.say(format!("{part}, has {who}"), has);
        }
        let code = allow(lab, (range, STEP), (1, 0), 1);
        lab.code(format!("{part}, device 0 reads only"), code);
        let code = allow(lab, (range, STEP), (1, 0), 3);
        lab.code(format!("{part}, device 0 again"), code);
        for attribute in [2, 3, 4, 8, 9, 10, 11, 12, 13, 14] {
            let mut value = 0_u64;
            let place = (&raw mut value).cast();
            let key = CUpointer_attribute(attribute);
            let code = cu!(lab, cuPointerGetAttribute(place, key, range));
            // Addresses differ from run to run.
            let value = match value {
                value if value == range => "the address".to_owned(),
                value => value.to_string(),
            };
            lab.say(
                format!("{part}, attribute {attribute}"),
                format!("{}, {value}", name(code)),
            );
        }
        lab.code(
            format!("{part}, fill"),
            cu!(lab, cuMemsetD8_v2(range, 7, STEP as usize)),
        );
        let mut byte = 0_u8;
        let code = cu!(
            lab,
            cuMemcpyDtoH_v2((&raw mut byte).cast(), range + STEP - 1, 1)
        );
        lab.say(format!("{part}, copied"), format!("{}, {byte}", name(code)));
        end(lab, range, STEP, STEP)?;
        lab.fine("cuMemRelease", release(lab, handle))?;
    }
    let range = reserve(lab, STEP)?;
    let handle = create(lab, STEP)?;
    lab.fine("cuMemMap", map(lab, range, STEP, handle))?;
    for (who, kind) in [("host", HOST), ("node 0", NODE)] {
        let code = allow(lab, (range, STEP), (kind, 0), 3);
        lab.code(format!("memory of the device, access by {who}"), code);
    }
    end(lab, range, STEP, STEP)?;
    lab.fine("cuMemRelease", release(lab, handle))
}

/// The host's own loads and stores.
pub(crate) fn touches(lab: &Lab) -> Result<()> {
    for (part, kind, who) in [
        ("host, no access", HOST, None),
        ("host, access of the host", HOST, Some(HOST)),
        ("host, access of the device only", HOST, Some(1)),
        ("node, no access", NODE, None),
        ("node, access of the host", NODE, Some(HOST)),
        ("node, access of the node", NODE, Some(NODE)),
        ("node, access of the device only", NODE, Some(1)),
    ] {
        lab.alone(part, || {
            let (code, handle) = try_create(lab, STEP, &prop(kind, 0), 0);
            if code != OK {
                return Ok(name(code));
            }
            let range = reserve(lab, STEP)?;
            lab.fine("cuMemMap", map(lab, range, STEP, handle))?;
            if let Some(who) = who {
                let code = allow(lab, (range, STEP), (who, 0), 3);
                if code != OK {
                    return Ok(format!("access: {}", name(code)));
                }
            }
            let address: *mut u8 = std::ptr::with_exposed_provenance_mut(range as usize);
            // SAFETY: nothing of ours is there; if nothing is, this process ends.
            unsafe { address.write_volatile(5) };
            // SAFETY: as above.
            let byte = unsafe { address.read_volatile() };
            Ok(format!("read back {byte}"))
        });
    }
    Ok(())
}

/// Copies and fills from one mapping into the next, with a context current.
pub(crate) fn borders(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    for (kind, place) in [("host", HOST), ("node", NODE), ("device", 1)] {
        let range = reserve(lab, 2 * STEP)?;
        for at in [range, range + STEP] {
            let (code, handle) = try_create(lab, STEP, &prop(place, 0), 0);
            lab.fine("cuMemCreate", code)?;
            lab.fine("cuMemMap", map(lab, at, STEP, handle))?;
            lab.fine("cuMemSetAccess", allow(lab, (at, STEP), (1, 0), 3))?;
        }
        let mut bytes = vec![1_u8; 64];
        let (other, len) = (lab.plain(64)?, bytes.len());
        let memory = bytes.as_mut_ptr().cast();
        let border = range + STEP - 16;
        let say = |what: &str, code: CUresult| {
            lab.say(
                format!("{kind}, {what}"),
                and_synchronise(lab, code, stream),
            );
        };
        say(
            "memset 8",
            cu!(lab, cuMemsetD8Async(border, 1, len, stream)),
        );
        say(
            "memset 16",
            cu!(lab, cuMemsetD16Async(border, 1, len / 2, stream)),
        );
        say(
            "memset 32",
            cu!(lab, cuMemsetD32Async(border, 1, len / 4, stream)),
        );
        say(
            "memset of a MiB",
            cu!(
                lab,
                cuMemsetD8Async(range + MIB, 1, 2 * MIB as usize, stream)
            ),
        );
        say(
            "memset within one",
            cu!(lab, cuMemsetD8Async(range, 1, len, stream)),
        );
        say(
            "from there",
            cu!(lab, cuMemcpyDtoDAsync_v2(other, border, len, stream)),
        );
        say(
            "to there",
            cu!(lab, cuMemcpyDtoDAsync_v2(border, other, len, stream)),
        );
        say(
            "by address, to there",
            cu!(lab, cuMemcpyAsync(border, other, len, stream)),
        );
        say(
            "by address, from there",
            cu!(lab, cuMemcpyAsync(other, border, len, stream)),
        );
        say(
            "to the host",
            cu!(lab, cuMemcpyDtoHAsync_v2(memory, border, len, stream)),
        );
        say(
            "from the host",
            cu!(lab, cuMemcpyHtoDAsync_v2(border, memory, len, stream)),
        );
    }
    Ok(())
}

/// The same where the second mapping is larger, comes later, and the host has access too.
pub(crate) fn later_borders(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    for (kind, place) in [("host", HOST), ("node", NODE)] {
        for (who, of_host) in [("device", false), ("device and host", true)] {
            for more in [STEP, 9 * STEP] {
                let range = reserve(lab, STEP + more)?;
                let say = |what: &str, code: CUresult| {
                    let part = format!("{kind}, {who}, {} behind, {what}", size(more));
                    lab.say(part, and_synchronise(lab, code, stream));
                };
                for (at, bytes) in [(range, STEP), (range + STEP, more)] {
                    let (code, handle) = try_create(lab, bytes, &prop(place, 0), 0);
                    lab.fine("cuMemCreate", code)?;
                    lab.fine("cuMemMap", map(lab, at, bytes, handle))?;
                    if of_host {
                        lab.fine("cuMemSetAccess", allow(lab, (at, bytes), (HOST, 0), 3))?;
                    }
                    lab.fine("cuMemSetAccess", allow(lab, (at, bytes), (1, 0), 3))?;
                    if at == range {
                        say("first", cu!(lab, cuMemsetD8Async(range, 1, 1000, stream)));
                    }
                }
                let all = (STEP + more) as usize;
                say(
                    "small",
                    cu!(lab, cuMemsetD8Async(range + STEP - 16, 1, 64, stream)),
                );
                say(
                    "a MiB",
                    cu!(
                        lab,
                        cuMemsetD8Async(range + MIB, 1, 2 * MIB as usize, stream)
                    ),
                );
                say(
                    "odd",
                    cu!(lab, cuMemsetD8Async(range + 1000, 1, all - 1000, stream)),
                );
                say("whole", cu!(lab, cuMemsetD8Async(range, 1, all, stream)));
            }
        }
    }
    Ok(())
}

/// The same in addresses for much more than there is.
pub(crate) fn far_borders(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    for (kind, place) in [("device", 1), ("host", HOST), ("node", NODE)] {
        for reserved in [20 * MIB, 1 << 30, 64 << 30, 140 << 30] {
            let range = reserve(lab, reserved)?;
            let say = |what: &str, code: CUresult| {
                let part = format!("{kind}, addresses for {}, {what}", size(reserved));
                lab.say(part, and_synchronise(lab, code, stream));
            };
            for (at, bytes) in [(range, STEP), (range + STEP, 9 * STEP)] {
                let (code, handle) = try_create(lab, bytes, &prop(place, 0), 0);
                lab.fine("cuMemCreate", code)?;
                lab.fine("cuMemMap", map(lab, at, bytes, handle))?;
                lab.fine("cuMemSetAccess", allow(lab, (at, bytes), (1, 0), 3))?;
            }
            let all = 10 * STEP as usize;
            say(
                "small",
                cu!(lab, cuMemsetD8Async(range + STEP - 16, 1, 64, stream)),
            );
            say(
                "odd",
                cu!(lab, cuMemsetD8Async(range + 1000, 1, all - 1000, stream)),
            );
            say("whole", cu!(lab, cuMemsetD8Async(range, 1, all, stream)));
            lab.no_context()?;
            let part = format!(
                "{kind}, addresses for {}, odd without a context",
                size(reserved)
            );
            let code = cu!(lab, cuMemsetD8Async(range + 1000, 1, all - 1000, stream));
            lab.code(part, code);
            lab.current(lab.context())?;
        }
    }
    Ok(())
}

/// Borders by the order in which device and host were given access.
pub(crate) fn given_borders(lab: &Lab) -> Result<()> {
    const DEVICE: u32 = 1;
    let stream = lab.stream()?;
    let other = lab.plain(64)?;
    let orders: [(&str, &[&[u32]]); 6] = [
        ("the device", &[&[DEVICE]]),
        ("host, device", &[&[HOST], &[DEVICE]]),
        ("device, host", &[&[DEVICE], &[HOST]]),
        ("device and host", &[&[DEVICE, HOST]]),
        ("host and device", &[&[HOST, DEVICE]]),
        ("device, host, device", &[&[DEVICE], &[HOST], &[DEVICE]]),
    ];
    for (kind, place) in [("host", HOST), ("node", NODE)] {
        for (order, calls) in orders {
            let range = reserve(lab, 10 * STEP)?;
            let say = |what: &str, code: CUresult| {
                let part = format!("{kind}, {order}, {what}");
                lab.say(part, and_synchronise(lab, code, stream));
            };
            for (at, bytes) in [(range, STEP), (range + STEP, 9 * STEP)] {
                let (code, handle) = try_create(lab, bytes, &prop(place, 0), 0);
                lab.fine("cuMemCreate", code)?;
                lab.fine("cuMemMap", map(lab, at, bytes, handle))?;
                for call in calls {
                    let who: Vec<CUmemAccessDesc> = call
                        .iter()
                        .map(|kind| CUmemAccessDesc {
                            location: location(CUmemLocationType_enum(*kind), 0),
                            flags: CUmemAccess_flags_enum(3),
                        })
                        .collect();
                    let (bytes, count) = (bytes as usize, who.len());
                    let code = cu!(lab, cuMemSetAccess(at, bytes, who.as_ptr(), count));
                    lab.fine("cuMemSetAccess", code)?;
                }
            }
            let (border, all) = (range + STEP - 16, 10 * STEP as usize);
            say("fill", cu!(lab, cuMemsetD8Async(border, 1, 64, stream)));
            say(
                "fill of all",
                cu!(lab, cuMemsetD8Async(range, 1, all, stream)),
            );
            say(
                "fill of one",
                cu!(lab, cuMemsetD8Async(range, 1, 64, stream)),
            );
            say(
                "from there",
                cu!(lab, cuMemcpyDtoDAsync_v2(other, border, 64, stream)),
            );
            say(
                "to there",
                cu!(lab, cuMemcpyDtoDAsync_v2(border, other, 64, stream)),
            );
            say(
                "by address",
                cu!(lab, cuMemcpyAsync(border, other, 64, stream)),
            );
        }
    }
    Ok(())
}

/// What is told of the host's access, before it is given and after it is taken.
pub(crate) fn host_access(lab: &Lab) -> Result<()> {
    for (part, kind) in [("host", HOST), ("node", NODE)] {
        let (code, handle) = try_create(lab, STEP, &prop(kind, 0), 0);
        lab.fine("cuMemCreate", code)?;
        let range = reserve(lab, STEP)?;
        lab.fine("cuMemMap", map(lab, range, STEP, handle))?;
        let told = |when: &str| {
            for (who, kind) in [("host", HOST), ("node 0", NODE), ("device", 1)] {
                let mut flags = 99;
                let mut place = CUmemLocation::default();
                place.type_ = CUmemLocationType_enum(kind);
                let code = cu!(lab, cuMemGetAccess(&raw mut flags, &raw const place, range));
                lab.say(
                    format!("{part}, {who} {when}"),
                    format!("{}, {flags}", name(code)),
                );
            }
        };
        told("at first");
        lab.code(
            format!("{part}, for the device"),
            allow(lab, (range, STEP), (1, 0), 3),
        );
        told("then");
        lab.code(
            format!("{part}, none for the host"),
            allow(lab, (range, STEP), (HOST, 0), 0),
        );
        told("without");
        lab.code(
            format!("{part}, for the host"),
            allow(lab, (range, STEP), (HOST, 0), 3),
        );
        told("with");
        lab.code(
            format!("{part}, taken from the host"),
            allow(lab, (range, STEP), (HOST, 0), 0),
        );
        told("after that");
    }
    Ok(())
}

/// A touch of the host's after its access was taken.
pub(crate) fn taken(lab: &Lab) -> Result<()> {
    for (part, kind) in [("host", HOST), ("node", NODE)] {
        lab.alone(&format!("{part}, touched after it was taken"), || {
            let (code, handle) = try_create(lab, STEP, &prop(kind, 0), 0);
            lab.fine("cuMemCreate", code)?;
            let range = reserve(lab, STEP)?;
            lab.fine("cuMemMap", map(lab, range, STEP, handle))?;
            lab.fine("cuMemSetAccess", allow(lab, (range, STEP), (HOST, 0), 3))?;
            let taken = allow(lab, (range, STEP), (HOST, 0), 0);
            let address: *mut u8 = std::ptr::with_exposed_provenance_mut(range as usize);
            // SAFETY: nothing of ours is there; if nothing is, this process ends.
            unsafe { address.write_volatile(5) };
            Ok(format!("taken {}, and written", name(taken)))
        });
    }
    Ok(())
}

/// Bytes over unmapping and mapping again, and copies between the kinds.
pub(crate) fn moves(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let (device, range) = (reserve(lab, STEP)?, reserve(lab, STEP)?);
    let own = create(lab, STEP)?;
    lab.fine("cuMemMap", map(lab, device, STEP, own))?;
    lab.fine("cuMemSetAccess", allow(lab, (device, STEP), (1, 0), 3))?;
    let (code, node) = try_create(lab, STEP, &prop(NODE, 0), 0);
    lab.fine("cuMemCreate", code)?;
    lab.fine("cuMemMap", map(lab, range, STEP, node))?;
    lab.fine("cuMemSetAccess", allow(lab, (range, STEP), (1, 0), 3))?;
    lab.fine("fill", cu!(lab, cuMemsetD8_v2(device, 3, STEP as usize)))?;
    // The stream waits for no other one.
    lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))?;
    let bytes = STEP as usize;
    for (part, to, from) in [("to the node", range, device), ("back", device, range)] {
        let code = cu!(lab, cuMemcpyDtoDAsync_v2(to, from, bytes, stream));
        lab.code(part, code);
        lab.synchronise(stream)?;
        let code = cu!(lab, cuMemsetD8Async(from, 9, bytes, stream));
        lab.code(format!("fill behind it, {part}"), code);
        lab.synchronise(stream)?;
        lab.code(format!("unmapped, {part}"), unmap(lab, to, STEP));
        let handle = if to == range { node } else { own };
        lab.code(format!("mapped again, {part}"), map(lab, to, STEP, handle));
        lab.fine("cuMemSetAccess", allow(lab, (to, STEP), (1, 0), 3))?;
        let mut byte = 0_u8;
        let code = cu!(lab, cuMemcpyDtoH_v2((&raw mut byte).cast(), to + 5, 1));
        lab.say(format!("it is, {part}"), format!("{}, {byte}", name(code)));
    }
    // Another memory at the address of the first.
    lab.code("device unmapped", unmap(lab, device, STEP));
    lab.code("node mapped there, too", map(lab, device, STEP, node));
    lab.code("access", allow(lab, (device, STEP), (1, 0), 3));
    lab.code("filled there", cu!(lab, cuMemsetD8_v2(device, 4, bytes)));
    lab.synchronise(stream)?;
    let mut byte = 0_u8;
    let code = cu!(lab, cuMemcpyDtoH_v2((&raw mut byte).cast(), range, 1));
    lab.say("seen at its first", format!("{}, {byte}", name(code)));
    for handle in [own, node] {
        lab.fine("cuMemRelease", release(lab, handle))?;
    }
    end(lab, device, STEP, STEP)?;
    end(lab, range, STEP, STEP)
}

/// What an allocation may be asked to be besides.
pub(crate) fn flags(lab: &Lab) -> Result<()> {
    for (part, compression, rdma, usage) in [
        ("none", 0, 0, 0),
        ("compressible", 1, 0, 0),
        ("for GPUDirect", 0, 1, 0),
        ("for tile pools", 0, 0, 1),
        ("unknown usage", 0, 0, 0x80),
    ] {
        let mut prop = prop(1, 0);
        prop.allocFlags.compressionType = compression;
        prop.allocFlags.gpuDirectRDMACapable = rdma;
        prop.allocFlags.usage = usage;
        let (code, handle) = try_create(lab, STEP, &prop, 0);
        lab.code(part, code);
        if code != OK {
            continue;
        }
        let mut found = CUmemAllocationProp::default();
        let code = cu!(
            lab,
            cuMemGetAllocationPropertiesFromHandle(&raw mut found, handle)
        );
        let flags = found.allocFlags;
        lab.say(
            format!("{part}, told"),
            format!(
                "{}, {} {} {}",
                name(code),
                flags.compressionType,
                yes(flags.gpuDirectRDMACapable != 0),
                flags.usage
            ),
        );
        lab.fine("cuMemRelease", release(lab, handle))?;
    }
    Ok(())
}
