//! Physical memory that is exported and imported, within one process; and ranges as dma-bufs.

use std::ffi::c_void;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB, OK, cu, name, yes};
use crate::vmm::{STEP, allow, end, map, prop, release, reserve, try_create, unmap};

const DESCRIPTOR: CUmemAllocationHandleType = CUmemAllocationHandleType(1);

fn own(descriptor: i32) -> Option<OwnedFd> {
    // SAFETY: the driver has made it just now, for this process.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn export(
    lab: &Lab,
    handle: u64,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> (CUresult, Option<OwnedFd>) {
    let mut descriptor = -1_i32;
    let place = (&raw mut descriptor).cast::<c_void>();
    let code = cu!(
        lab,
        cuMemExportToShareableHandle(place, handle, kind, flags)
    );
    (code, own(descriptor))
}

fn import(lab: &Lab, descriptor: i32) -> (CUresult, u64) {
    let mut handle = 0;
    let place = std::ptr::without_provenance_mut::<c_void>(descriptor as usize);
    let code = cu!(
        lab,
        cuMemImportFromShareableHandle(&raw mut handle, place, DESCRIPTOR)
    );
    (code, handle)
}

fn shareable(lab: &Lab, kind: u32, id: i32) -> (CUresult, u64) {
    let prop = CUmemAllocationProp {
        requestedHandleTypes: DESCRIPTOR,
        ..prop(kind, id)
    };
    try_create(lab, STEP, &prop, 0)
}

pub(crate) fn exports(lab: &Lab) -> Result<()> {
    let (code, plain) = try_create(lab, STEP, &prop(1, 0), 0);
    lab.fine("cuMemCreate", code)?;
    lab.code("not asked for", export(lab, plain, DESCRIPTOR, 0).0);
    let (code, handle) = shareable(lab, 1, 0);
    lab.fine("cuMemCreate", code)?;
    lab.code("flags 1", export(lab, handle, DESCRIPTOR, 1).0);
    lab.code(
        "kind 0",
        export(lab, handle, CUmemAllocationHandleType(0), 0).0,
    );
    lab.code(
        "another kind",
        export(lab, handle, CUmemAllocationHandleType(8), 0).0,
    );
    let (code, first) = export(lab, handle, DESCRIPTOR, 0);
    lab.code("exported", code);
    let (code, second) = export(lab, handle, DESCRIPTOR, 0);
    lab.code("once more", code);
    let (Some(first), Some(second)) = (first, second) else {
        return Ok(());
    };
    let differ = first.as_raw_fd() != second.as_raw_fd();
    lab.say("each has its descriptor", yes(differ));
    let (code, imported) = import(lab, first.as_raw_fd());
    lab.code("imported", code);
    lab.say("as another handle", yes(imported != handle));
    let (code, again) = import(lab, first.as_raw_fd());
    lab.code("imported again", code);
    lab.say(
        "as a third handle",
        yes(again != imported && again != handle),
    );
    let mut found = CUmemAllocationProp::default();
    let code = cu!(
        lab,
        cuMemGetAllocationPropertiesFromHandle(&raw mut found, imported)
    );
    let (kind, id) = location_parts(found.location);
    lab.say(
        "its properties",
        format!(
            "{}, types {}, location {} {id}",
            name(code),
            found.requestedHandleTypes.0,
            kind.0
        ),
    );
    let (range, other) = (reserve(lab, STEP)?, reserve(lab, STEP)?);
    lab.fine("cuMemMap", map(lab, range, STEP, handle))?;
    lab.code("the import is mapped", map(lab, other, STEP, imported));
    lab.fine("cuMemSetAccess", allow(lab, (range, STEP), (1, 0), 3))?;
    lab.code("access", allow(lab, (other, STEP), (1, 0), 3));
    lab.fine("fill", cu!(lab, cuMemsetD8_v2(range, 6, STEP as usize)))?;
    let mut byte = 0_u8;
    let code = cu!(lab, cuMemcpyDtoH_v2((&raw mut byte).cast(), other, 1));
    lab.say("seen there", format!("{}, {byte}", name(code)));
    // The exporter's handle and mapping go.
    lab.fine("cuMemRelease", release(lab, handle))?;
    end(lab, range, STEP, STEP)?;
    let code = cu!(lab, cuMemcpyDtoH_v2((&raw mut byte).cast(), other, 1));
    lab.say("seen still", format!("{}, {byte}", name(code)));
    lab.code(
        "exported by an import",
        export(lab, imported, DESCRIPTOR, 0).0,
    );
    for (part, handle) in [("an import", imported), ("the other", again)] {
        lab.code(format!("{part} is released"), release(lab, handle));
    }
    lab.code("unmapped", unmap(lab, other, STEP));
    let (code, late) = import(lab, second.as_raw_fd());
    lab.code("imported from the descriptor alone", code);
    if code == OK {
        lab.code("mapped", map(lab, other, STEP, late));
        lab.code("access then", allow(lab, (other, STEP), (1, 0), 3));
        let code = cu!(lab, cuMemcpyDtoH_v2((&raw mut byte).cast(), other, 1));
        lab.say("seen there then", format!("{}, {byte}", name(code)));
        lab.code("unmapped then", unmap(lab, other, STEP));
        lab.code("released then", release(lab, late));
    }
    Ok(())
}

/// Of the host.
pub(crate) fn hosts(lab: &Lab) -> Result<()> {
    for (part, kind) in [("host", 2), ("node 0", 3)] {
        let (code, handle) = shareable(lab, kind, 0);
        lab.code(format!("{part}, created"), code);
        if code != OK {
            continue;
        }
        let (code, descriptor) = export(lab, handle, DESCRIPTOR, 0);
        lab.code(format!("{part}, exported"), code);
        if let Some(descriptor) = descriptor {
            let (code, imported) = import(lab, descriptor.as_raw_fd());
            lab.code(format!("{part}, imported"), code);
            if code == OK {
                lab.fine("cuMemRelease", release(lab, imported))?;
            }
        }
        lab.fine("cuMemRelease", release(lab, handle))?;
    }
    Ok(())
}

/// What is no exported memory.
pub(crate) fn wrong(lab: &Lab) -> Result<()> {
    lab.alone("closed", || Ok(name(import(lab, 999).0)));
    lab.alone("negative", || Ok(name(import(lab, -1).0)));
    lab.alone("standard error", || Ok(name(import(lab, 2).0)));
    lab.alone("a pool's", || {
        let props = CUmemPoolProps {
            handleTypes: DESCRIPTOR,
            ..Lab::props()
        };
        let (code, pool) = lab.pool_with(&props);
        lab.fine("cuMemPoolCreate", code)?;
        let mut descriptor = -1_i32;
        let place = (&raw mut descriptor).cast::<c_void>();
        let code = cu!(
            lab,
            cuMemPoolExportToShareableHandle(place, pool, DESCRIPTOR, 0)
        );
        lab.fine("cuMemPoolExportToShareableHandle", code)?;
        Ok(name(import(lab, descriptor).0))
    });
    Ok(())
}

/// The handle of what is mapped.
pub(crate) fn retains(lab: &Lab) -> Result<()> {
    let (code, handle) = try_create(lab, STEP, &prop(1, 0), 0);
    lab.fine("cuMemCreate", code)?;
    let range = reserve(lab, STEP)?;
    lab.fine("cuMemMap", map(lab, range, STEP, handle))?;
    let retain = |at: u64| {
        let mut found = 0;
        let place = std::ptr::with_exposed_provenance_mut::<c_void>(at as usize);
        let code = cu!(lab, cuMemRetainAllocationHandle(&raw mut found, place));
        (code, found)
    };
    for (part, at) in [("start", range), ("inside", range + 5)] {
        let (code, found) = retain(at);
        let same = yes(found == handle);
        lab.say(part, format!("{}, the same handle {same}", name(code)));
    }
    for part in ["first", "second", "third", "fourth"] {
        lab.code(format!("{part} release"), release(lab, handle));
    }
    let (code, found) = retain(range);
    lab.say(
        "of memory without handles",
        format!("{}, the same handle {}", name(code), yes(found == handle)),
    );
    end(lab, range, STEP, STEP)
}

/// Ranges as dma-bufs, for other hardware.
pub(crate) fn dma_bufs(lab: &Lab) -> Result<()> {
    let (_, supported) = lab.device_attribute(124);
    lab.say("attribute 124", supported);
    let attempt = |part: &str, at: u64, bytes: u64, flags: u64| {
        let mut descriptor = -1_i32;
        let place = (&raw mut descriptor).cast::<c_void>();
        let kind = CUmemRangeHandleType_enum(1);
        let bytes = bytes as usize;
        let code = cu!(
            lab,
            cuMemGetHandleForAddressRange(place, at, bytes, kind, flags)
        );
        lab.say(
            part,
            format!("{}, given {}", name(code), yes(own(descriptor).is_some())),
        );
    };
    let plain = lab.plain(4 << 20)?;
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
    let stream = lab.stream()?;
    let pool = lab.keeper(0)?;
    attempt("of a pool", lab.alloc(pool, 2 * MIB, stream)?, 2 * MIB, 0);
    for (part, rdma) in [("mapped", 0), ("mapped, for GPUDirect", 1)] {
        let mut prop = prop(1, 0);
        prop.allocFlags.gpuDirectRDMACapable = rdma;
        let (code, handle) = try_create(lab, STEP, &prop, 0);
        if code != OK {
            lab.code(part, code);
            continue;
        }
        let range = reserve(lab, STEP)?;
        lab.fine("cuMemMap", map(lab, range, STEP, handle))?;
        lab.fine("cuMemSetAccess", allow(lab, (range, STEP), (1, 0), 3))?;
        attempt(part, range, STEP, 0);
        attempt(&format!("{part}, over PCIe"), range, STEP, 1);
        end(lab, range, STEP, STEP)?;
        lab.fine("cuMemRelease", release(lab, handle))?;
    }
    let pinned = lab.pinned(1 << 20)?.expose_provenance() as u64;
    attempt("pinned", pinned, 1 << 20, 0);
    Ok(())
}
