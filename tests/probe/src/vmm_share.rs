//! Physical memory that is exported and imported, within one process; and ranges as dma-bufs.

use std::ffi::c_void;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, yes};
use crate::vmm::{STEP, allow, end, map, prop, release, reserve, try_create, unmap};

const DESCRIPTOR: CUmemAllocationHandleType = CUmemAllocationHandleType(1);

fn own(descriptor: i32) -> Option<OwnedFd> {
    // SAFETY: the driver has made it just now, for this process.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn export(
    env: &Environment,
    handle: u64,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> (CUresult, Option<OwnedFd>) {
    let mut descriptor = -1_i32;
    let place = (&raw mut descriptor).cast::<c_void>();
    let code = cu!(
        env,
        cuMemExportToShareableHandle(place, handle, kind, flags)
    );
    (code, own(descriptor))
}

fn import(env: &Environment, descriptor: i32) -> (CUresult, u64) {
    let mut handle = 0;
    let place = std::ptr::without_provenance_mut::<c_void>(descriptor as usize);
    let code = cu!(
        env,
        cuMemImportFromShareableHandle(&raw mut handle, place, DESCRIPTOR)
    );
    (code, handle)
}

fn shareable(env: &Environment, kind: u32, id: i32) -> (CUresult, u64) {
    let prop = CUmemAllocationProp {
        requestedHandleTypes: DESCRIPTOR,
        ..prop(kind, id)
    };
    try_create(env, STEP, &prop, 0)
}

pub(crate) fn exports(env: &Environment) -> Result<()> {
    let (code, plain) = try_create(env, STEP, &prop(1, 0), 0);
    env.fine("cuMemCreate", code)?;
    env.code("not asked for", export(env, plain, DESCRIPTOR, 0).0);
    let (code, handle) = shareable(env, 1, 0);
    env.fine("cuMemCreate", code)?;
    env.code("flags 1", export(env, handle, DESCRIPTOR, 1).0);
    env.code(
        "kind 0",
        export(env, handle, CUmemAllocationHandleType(0), 0).0,
    );
    env.code(
        "another kind",
        export(env, handle, CUmemAllocationHandleType(8), 0).0,
    );
    let (code, first) = export(env, handle, DESCRIPTOR, 0);
    env.code("exported", code);
    let (code, second) = export(env, handle, DESCRIPTOR, 0);
    env.code("once more", code);
    let (Some(first), Some(second)) = (first, second) else {
        return Ok(());
    };
    let differ = first.as_raw_fd() != second.as_raw_fd();
    env.say("each has its descriptor", yes(differ));
    let (code, imported) = import(env, first.as_raw_fd());
    env.code("imported", code);
    env.say("as another handle", yes(imported != handle));
    let (code, again) = import(env, first.as_raw_fd());
    env.code("imported again", code);
    env.say(
        "as a third handle",
        yes(again != imported && again != handle),
    );
    let mut found = CUmemAllocationProp::default();
    let code = cu!(
        env,
        cuMemGetAllocationPropertiesFromHandle(&raw mut found, imported)
    );
    let (kind, id) = location_parts(found.location);
    env.say(
        "its properties",
        format!(
            "{}, types {}, location {} {id}",
            name(code),
            found.requestedHandleTypes.0,
            kind.0
        ),
    );
    let (range, other) = (reserve(env, STEP)?, reserve(env, STEP)?);
    env.fine("cuMemMap", map(env, range, STEP, handle))?;
    env.code("the import is mapped", map(env, other, STEP, imported));
    env.fine("cuMemSetAccess", allow(env, (range, STEP), (1, 0), 3))?;
    env.code("access", allow(env, (other, STEP), (1, 0), 3));
    env.fine("fill", cu!(env, cuMemsetD8_v2(range, 6, STEP as usize)))?;
    let mut byte = 0_u8;
    let code = cu!(env, cuMemcpyDtoH_v2((&raw mut byte).cast(), other, 1));
    env.say("seen there", format!("{}, {byte}", name(code)));
    // The exporter's handle and mapping go.
    env.fine("cuMemRelease", release(env, handle))?;
    end(env, range, STEP, STEP)?;
    let code = cu!(env, cuMemcpyDtoH_v2((&raw mut byte).cast(), other, 1));
    env.say("seen still", format!("{}, {byte}", name(code)));
    env.code(
        "exported by an import",
        export(env, imported, DESCRIPTOR, 0).0,
    );
    for (part, handle) in [("an import", imported), ("the other", again)] {
        env.code(format!("{part} is released"), release(env, handle));
    }
    env.code("unmapped", unmap(env, other, STEP));
    let (code, late) = import(env, second.as_raw_fd());
    env.code("imported from the descriptor alone", code);
    if code == OK {
        env.code("mapped", map(env, other, STEP, late));
        env.code("access then", allow(env, (other, STEP), (1, 0), 3));
        let code = cu!(env, cuMemcpyDtoH_v2((&raw mut byte).cast(), other, 1));
        env.say("seen there then", format!("{}, {byte}", name(code)));
        env.code("unmapped then", unmap(env, other, STEP));
        env.code("released then", release(env, late));
    }
    Ok(())
}

/// Of the host.
pub(crate) fn hosts(env: &Environment) -> Result<()> {
    for (part, kind) in [("host", 2), ("node 0", 3)] {
        let (code, handle) = shareable(env, kind, 0);
        env.code(format!("{part}, created"), code);
        if code != OK {
            continue;
        }
        let (code, descriptor) = export(env, handle, DESCRIPTOR, 0);
        env.code(format!("{part}, exported"), code);
        if let Some(descriptor) = descriptor {
            let (code, imported) = import(env, descriptor.as_raw_fd());
            env.code(format!("{part}, imported"), code);
            if code == OK {
                env.fine("cuMemRelease", release(env, imported))?;
            }
        }
        env.fine("cuMemRelease", release(env, handle))?;
    }
    Ok(())
}

/// What is no exported memory.
pub(crate) fn wrong(env: &Environment) -> Result<()> {
    env.alone("closed", || Ok(name(import(env, 999).0)));
    env.alone("negative", || Ok(name(import(env, -1).0)));
    env.alone("standard error", || Ok(name(import(env, 2).0)));
    env.alone("a pool's", || {
        let props = CUmemPoolProps {
            handleTypes: DESCRIPTOR,
            ..Environment::props()
        };
        let (code, pool) = env.pool_with(&props);
        env.fine("cuMemPoolCreate", code)?;
        let mut descriptor = -1_i32;
        let place = (&raw mut descriptor).cast::<c_void>();
        let code = cu!(
            env,
            cuMemPoolExportToShareableHandle(place, pool, DESCRIPTOR, 0)
        );
        env.fine("cuMemPoolExportToShareableHandle", code)?;
        Ok(name(import(env, descriptor).0))
    });
    Ok(())
}

/// The handle of what is mapped.
pub(crate) fn retains(env: &Environment) -> Result<()> {
    let (code, handle) = try_create(env, STEP, &prop(1, 0), 0);
    env.fine("cuMemCreate", code)?;
    let range = reserve(env, STEP)?;
    env.fine("cuMemMap", map(env, range, STEP, handle))?;
    let retain = |at: u64| {
        let mut found = 0;
        let place = std::ptr::with_exposed_provenance_mut::<c_void>(at as usize);
        let code = cu!(env, cuMemRetainAllocationHandle(&raw mut found, place));
        (code, found)
    };
    for (part, at) in [("start", range), ("inside", range + 5)] {
        let (code, found) = retain(at);
        let same = yes(found == handle);
        env.say(part, format!("{}, the same handle {same}", name(code)));
    }
    for part in ["first", "second", "third", "fourth"] {
        env.code(format!("{part} release"), release(env, handle));
    }
    let (code, found) = retain(range);
    env.say(
        "of memory without handles",
        format!("{}, the same handle {}", name(code), yes(found == handle)),
    );
    end(env, range, STEP, STEP)
}

/// Ranges as dma-bufs, for other hardware.
pub(crate) fn dma_bufs(env: &Environment) -> Result<()> {
    let (_, supported) = env.device_attribute(124);
    env.say("attribute 124", supported);
    let attempt = |part: &str, at: u64, bytes: u64, flags: u64| {
        let mut descriptor = -1_i32;
        let place = (&raw mut descriptor).cast::<c_void>();
        let kind = CUmemRangeHandleType_enum(1);
        let bytes = bytes as usize;
        let code = cu!(
            env,
            cuMemGetHandleForAddressRange(place, at, bytes, kind, flags)
        );
        env.say(
            part,
            format!("{}, given {}", name(code), yes(own(descriptor).is_some())),
        );
    };
    let plain = env.plain(4 << 20)?;
    attempt("plain, all", plain, 4 << 20, 0);
    attempt("plain, a part", plain, 1 << 20, 0);
    attempt("plain, 64 KiB", plain, 64 << 10, 0);
    attempt("plain, 4 KiB", plain, 4096, 0);
    attempt("plain, 1000 B", plain, 1000, 0);
    attempt("plain, odd start", plain + 100, 4096, 0);
    attempt("plain, nothing", plain, 0, 0);
    attempt("plain, past its end", plain, 64 << 20, 0);
    attempt("plain, over PCIe", plain, 4 << 20, 1);
    attempt("plain, flags 2", plain, 4 << 20, 2);
    let stream = env.stream()?;
    let pool = env.keeper(0)?;
    attempt("of a pool", env.alloc(pool, 2 * MIB, stream)?, 2 * MIB, 0);
    for (part, rdma) in [("mapped", 0), ("mapped, for GPUDirect", 1)] {
        let mut prop = prop(1, 0);
        prop.allocFlags.gpuDirectRDMACapable = rdma;
        let (code, handle) = try_create(env, STEP, &prop, 0);
        if code != OK {
            env.code(part, code);
            continue;
        }
        let range = reserve(env, STEP)?;
        env.fine("cuMemMap", map(env, range, STEP, handle))?;
        env.fine("cuMemSetAccess", allow(env, (range, STEP), (1, 0), 3))?;
        attempt(part, range, STEP, 0);
        attempt(&format!("{part}, over PCIe"), range, STEP, 1);
        end(env, range, STEP, STEP)?;
        env.fine("cuMemRelease", release(env, handle))?;
    }
    let pinned = env.pinned(1 << 20)?.expose_provenance() as u64;
    attempt("pinned", pinned, 1 << 20, 0);
    Ok(())
}
