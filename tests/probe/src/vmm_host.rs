//! Physical memory of the host, behind addresses that devices and the host share.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, size, yes};
use crate::vmm::{
    STEP, access, allow, create, end, map, prop, release, reserve, steps, try_create, unmap,
};

/// The kinds of place, as the driver numbers them.
pub(crate) const HOST: u32 = 2;
pub(crate) const NODE: u32 = 3;
const CURRENT_NODE: u32 = 4;

const PLACES: [(&str, u32, i32); 5] = [
    ("host", HOST, 0),
    ("host 5", HOST, 5),
    ("node 0", NODE, 0),
    ("node 99", NODE, 99),
    ("current node", CURRENT_NODE, 0),
];

pub(crate) fn granularity(env: &Environment) -> Result<()> {
    for (part, kind, id) in PLACES {
        steps(env, part, &prop(kind, id), &[0, 1]);
    }
    Ok(())
}

pub(crate) fn memory(env: &Environment) -> Result<()> {
    for (part, kind, id) in PLACES {
        for bytes in [4096, 64 << 10, STEP] {
            let (code, handle) = try_create(env, bytes, &prop(kind, id), 0);
            env.code(format!("{part}, {}", size(bytes)), code);
            if code == OK {
                env.fine("cuMemRelease", release(env, handle))?;
            }
        }
        for types in [1, 8] {
            let prop = CUmemAllocationProp {
                requestedHandleTypes: CUmemAllocationHandleType(types),
                ..prop(kind, id)
            };
            let (code, handle) = try_create(env, STEP, &prop, 0);
            env.code(format!("{part}, handle types {types}"), code);
            if code == OK {
                env.fine("cuMemRelease", release(env, handle))?;
            }
        }
    }
    let before = env.device_free()?;
    let (code, handle) = try_create(env, 256 * MIB, &prop(NODE, 0), 0);
    env.fine("cuMemCreate", code)?;
    let taken = before.saturating_sub(env.device_free()?);
    env.say("taken of the device by 256 MiB of node 0", size(taken));
    env.fine("cuMemRelease", release(env, handle))
}

/// Who may be given access to memory of the host, and what works then.
pub(crate) fn accesses(env: &Environment) -> Result<()> {
    for (part, kind) in [("host", HOST), ("node", NODE)] {
        let (code, handle) = try_create(env, STEP, &prop(kind, 0), 0);
        if code != OK {
            env.code(part, code);
            continue;
        }
        let range = reserve(env, STEP)?;
        env.code(format!("{part}, mapped"), map(env, range, STEP, handle));
        for (who, kind, id) in [
            ("device 0", 1, 0),
            ("device 99", 1, 99),
            ("host", HOST, 0),
            ("node 0", NODE, 0),
            ("node 99", NODE, 99),
            ("current node", CURRENT_NODE, 0),
        ] {
            let code = allow(env, (range, STEP), (kind, id), 3);
            env.code(format!("{part}, access by {who}"), code);
            let has = access(env, range, kind, id);
            env.say(format!("{part}, has {who}"), has);
        }
        let code = allow(env, (range, STEP), (1, 0), 1);
        env.code(format!("{part}, device 0 reads only"), code);
        let code = allow(env, (range, STEP), (1, 0), 3);
        env.code(format!("{part}, device 0 again"), code);
        for attribute in [2, 3, 4, 8, 9, 10, 11, 12, 13, 14] {
            let mut value = 0_u64;
            let place = (&raw mut value).cast();
            let key = CUpointer_attribute(attribute);
            let code = cu!(env, cuPointerGetAttribute(place, key, range));
            // Addresses differ from run to run.
            let value = match value {
                value if value == range => "the address".to_owned(),
                value => value.to_string(),
            };
            env.say(
                format!("{part}, attribute {attribute}"),
                format!("{}, {value}", name(code)),
            );
        }
        env.code(
            format!("{part}, fill"),
            cu!(env, cuMemsetD8_v2(range, 7, STEP as usize)),
        );
        let mut byte = 0_u8;
        let code = cu!(
            env,
            cuMemcpyDtoH_v2((&raw mut byte).cast(), range + STEP - 1, 1)
        );
        env.say(format!("{part}, copied"), format!("{}, {byte}", name(code)));
        end(env, range, STEP, STEP)?;
        env.fine("cuMemRelease", release(env, handle))?;
    }
    let range = reserve(env, STEP)?;
    let handle = create(env, STEP)?;
    env.fine("cuMemMap", map(env, range, STEP, handle))?;
    for (who, kind) in [("host", HOST), ("node 0", NODE)] {
        let code = allow(env, (range, STEP), (kind, 0), 3);
        env.code(format!("memory of the device, access by {who}"), code);
    }
    end(env, range, STEP, STEP)?;
    env.fine("cuMemRelease", release(env, handle))
}

/// The host's own loads and stores.
pub(crate) fn touches(env: &Environment) -> Result<()> {
    for (part, kind, who) in [
        ("host, no access", HOST, None),
        ("host, access of the host", HOST, Some(HOST)),
        ("host, access of the device only", HOST, Some(1)),
        ("node, no access", NODE, None),
        ("node, access of the host", NODE, Some(HOST)),
        ("node, access of the node", NODE, Some(NODE)),
        ("node, access of the device only", NODE, Some(1)),
    ] {
        env.alone(part, || {
            let (code, handle) = try_create(env, STEP, &prop(kind, 0), 0);
            if code != OK {
                return Ok(name(code));
            }
            let range = reserve(env, STEP)?;
            env.fine("cuMemMap", map(env, range, STEP, handle))?;
            if let Some(who) = who {
                let code = allow(env, (range, STEP), (who, 0), 3);
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

/// What is told of the host's access, before it is given and after it is taken.
pub(crate) fn host_access(env: &Environment) -> Result<()> {
    for (part, kind) in [("host", HOST), ("node", NODE)] {
        let (code, handle) = try_create(env, STEP, &prop(kind, 0), 0);
        env.fine("cuMemCreate", code)?;
        let range = reserve(env, STEP)?;
        env.fine("cuMemMap", map(env, range, STEP, handle))?;
        let told = |when: &str| {
            for (who, kind) in [("host", HOST), ("node 0", NODE), ("device", 1)] {
                let mut flags = 99;
                let place = location(CUmemLocationType_enum(kind), 0);
                let code = cu!(env, cuMemGetAccess(&raw mut flags, &raw const place, range));
                env.say(
                    format!("{part}, {who} {when}"),
                    format!("{}, {flags}", name(code)),
                );
            }
        };
        told("at first");
        env.code(
            format!("{part}, for the device"),
            allow(env, (range, STEP), (1, 0), 3),
        );
        told("then");
        env.code(
            format!("{part}, none for the host"),
            allow(env, (range, STEP), (HOST, 0), 0),
        );
        told("without");
        env.code(
            format!("{part}, for the host"),
            allow(env, (range, STEP), (HOST, 0), 3),
        );
        told("with");
        env.code(
            format!("{part}, taken from the host"),
            allow(env, (range, STEP), (HOST, 0), 0),
        );
        told("after that");
    }
    Ok(())
}

/// A touch of the host's after its access was taken.
pub(crate) fn taken(env: &Environment) -> Result<()> {
    for (part, kind) in [("host", HOST), ("node", NODE)] {
        env.alone(&format!("{part}, touched after it was taken"), || {
            let (code, handle) = try_create(env, STEP, &prop(kind, 0), 0);
            env.fine("cuMemCreate", code)?;
            let range = reserve(env, STEP)?;
            env.fine("cuMemMap", map(env, range, STEP, handle))?;
            env.fine("cuMemSetAccess", allow(env, (range, STEP), (HOST, 0), 3))?;
            let taken = allow(env, (range, STEP), (HOST, 0), 0);
            let address: *mut u8 = std::ptr::with_exposed_provenance_mut(range as usize);
            // SAFETY: nothing of ours is there; if nothing is, this process ends.
            unsafe { address.write_volatile(5) };
            Ok(format!("taken {}, and written", name(taken)))
        });
    }
    Ok(())
}

/// Bytes over unmapping and mapping again, and copies between the kinds.
pub(crate) fn moves(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let (device, range) = (reserve(env, STEP)?, reserve(env, STEP)?);
    let own = create(env, STEP)?;
    env.fine("cuMemMap", map(env, device, STEP, own))?;
    env.fine("cuMemSetAccess", allow(env, (device, STEP), (1, 0), 3))?;
    let (code, node) = try_create(env, STEP, &prop(NODE, 0), 0);
    env.fine("cuMemCreate", code)?;
    env.fine("cuMemMap", map(env, range, STEP, node))?;
    env.fine("cuMemSetAccess", allow(env, (range, STEP), (1, 0), 3))?;
    env.fine("fill", cu!(env, cuMemsetD8_v2(device, 3, STEP as usize)))?;
    // The stream waits for no other one.
    env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
    let bytes = STEP as usize;
    for (part, to, from) in [("to the node", range, device), ("back", device, range)] {
        let code = cu!(env, cuMemcpyDtoDAsync_v2(to, from, bytes, stream));
        env.code(part, code);
        env.synchronise(stream)?;
        let code = cu!(env, cuMemsetD8Async(from, 9, bytes, stream));
        env.code(format!("fill behind it, {part}"), code);
        env.synchronise(stream)?;
        env.code(format!("unmapped, {part}"), unmap(env, to, STEP));
        let handle = if to == range { node } else { own };
        env.code(format!("mapped again, {part}"), map(env, to, STEP, handle));
        env.fine("cuMemSetAccess", allow(env, (to, STEP), (1, 0), 3))?;
        let mut byte = 0_u8;
        let code = cu!(env, cuMemcpyDtoH_v2((&raw mut byte).cast(), to + 5, 1));
        env.say(format!("it is, {part}"), format!("{}, {byte}", name(code)));
    }
    // Another memory at the address of the first.
    env.code("device unmapped", unmap(env, device, STEP));
    env.code("node mapped there, too", map(env, device, STEP, node));
    env.code("access", allow(env, (device, STEP), (1, 0), 3));
    env.code("filled there", cu!(env, cuMemsetD8_v2(device, 4, bytes)));
    env.synchronise(stream)?;
    let mut byte = 0_u8;
    let code = cu!(env, cuMemcpyDtoH_v2((&raw mut byte).cast(), range, 1));
    env.say("seen at its first", format!("{}, {byte}", name(code)));
    for handle in [own, node] {
        env.fine("cuMemRelease", release(env, handle))?;
    }
    end(env, device, STEP, STEP)?;
    end(env, range, STEP, STEP)
}

/// What an allocation may be asked to be besides.
pub(crate) fn flags(env: &Environment) -> Result<()> {
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
        let (code, handle) = try_create(env, STEP, &prop, 0);
        env.code(part, code);
        if code != OK {
            continue;
        }
        let mut found = CUmemAllocationProp::default();
        let code = cu!(
            env,
            cuMemGetAllocationPropertiesFromHandle(&raw mut found, handle)
        );
        let flags = found.allocFlags;
        env.say(
            format!("{part}, told"),
            format!(
                "{}, {} {} {}",
                name(code),
                flags.compressionType,
                yes(flags.gpuDirectRDMACapable != 0),
                flags.usage
            ),
        );
        env.fine("cuMemRelease", release(env, handle))?;
    }
    Ok(())
}
