//! What others reach: attributes, dma-bufs of odd blocks, what the host can map, and flushes.

use std::ffi::c_void;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB, OK, cu, name, yes};
use crate::two::attribute;
use crate::vmm::{STEP, allow, end, map, prop, release, reserve, try_create};

fn dma_buf(lab: &Lab, at: u64, bytes: u64) -> (CUresult, Option<OwnedFd>) {
    let mut descriptor = -1_i32;
    let place = (&raw mut descriptor).cast::<c_void>();
    let kind = CUmemRangeHandleType_enum(1);
    let code = cu!(
        lab,
        cuMemGetHandleForAddressRange(place, at, bytes as usize, kind, 0)
    );
    // SAFETY: the driver has made it just now, for this process.
    let descriptor = (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) });
    (code, descriptor)
}

/// Device attributes about others that reach memory.
pub(crate) fn attributes(lab: &Lab) -> Result<()> {
    for id in [110, 116, 117, 118, 124, 146, 152] {
        let (code, value) = lab.device_attribute(id);
        lab.say(
            format!("attribute {id}"),
            format!("{}, {value}", name(code)),
        );
    }
    Ok(())
}

/// Whole pages around blocks that do not fill them.
pub(crate) fn blocks(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let pool = lab.keeper(0)?;
    for bytes in [1_u64, 1000, 4096, 5000, 70_000, 1 << 20, (2 << 20) + 1] {
        let whole = bytes.next_multiple_of(4096);
        let plain = lab.plain(bytes as usize)?;
        let first = plain - plain % 4096;
        let pooled = lab.alloc(pool, bytes, stream)?;
        for (part, at) in [("plain", first), ("of a pool", pooled - pooled % 4096)] {
            for (pages, len) in [("its pages", whole), ("a page more", whole + 4096)] {
                let (code, descriptor) = dma_buf(lab, at, len);
                let given = yes(descriptor.is_some());
                lab.say(
                    format!("{part}, {bytes} B, {pages}"),
                    format!("{}, given {given}", name(code)),
                );
            }
        }
    }
    Ok(())
}

/// Which ranges of a pool's memory are given, by where they begin and end among its blocks.
pub(crate) fn pool_blocks(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let pool = lab.keeper(0)?;
    let first = lab.alloc(pool, 2 * MIB, stream)?;
    let second = lab.alloc(pool, 2 * MIB, stream)?;
    let small = lab.alloc(pool, 64 << 10, stream)?;
    let next = lab.alloc(pool, 64 << 10, stream)?;
    lab.say("the second follows", yes(second == first + 2 * MIB));
    lab.say(
        "the small follow",
        yes(small == second + 2 * MIB && next == small + (64 << 10)),
    );
    for (part, at, bytes) in [
        ("the first", first, 2 * MIB),
        ("its first half", first, MIB),
        ("its second half", first + MIB, MIB),
        ("its second page", first + 4096, 4096),
        ("the second", second, 2 * MIB),
        ("half of the second", second, MIB),
        ("both", first, 4 * MIB),
        ("over the border", first + MIB, 2 * MIB),
        ("a small one", small, 64 << 10),
        ("the next small one", next, 64 << 10),
        ("both small ones", small, 128 << 10),
        ("what nobody has", next + (64 << 10), 64 << 10),
    ] {
        let (code, descriptor) = dma_buf(lab, at, bytes);
        let given = yes(descriptor.is_some());
        lab.say(part, format!("{}, given {given}", name(code)));
    }
    Ok(())
}

/// Whether a context is needed.
pub(crate) fn contexts(lab: &Lab) -> Result<()> {
    let plain = lab.plain(2 << 20)?;
    lab.no_context()?;
    let (code, descriptor) = dma_buf(lab, plain, 2 << 20);
    let given = yes(descriptor.is_some());
    lab.say("without one", format!("{}, given {given}", name(code)));
    let (code, descriptor) = dma_buf(lab, plain, 100);
    let given = yes(descriptor.is_some());
    lab.say(
        "without one, 100 B",
        format!("{}, given {given}", name(code)),
    );
    lab.current(lab.context())
}

/// Whether the host can map them.
pub(crate) fn maps(lab: &Lab) -> Result<()> {
    let plain = lab.plain(2 << 20)?;
    let (code, descriptor) = dma_buf(lab, plain, 2 << 20);
    lab.fine("cuMemGetHandleForAddressRange", code)?;
    let Some(descriptor) = descriptor else {
        return Ok(());
    };
    let file = descriptor.as_raw_fd();
    // SAFETY: no pointers.
    let end = unsafe { libc::lseek(file, 0, libc::SEEK_END) };
    lab.say("its end", end);
    for (part, access) in [
        ("to read and write", libc::PROT_READ | libc::PROT_WRITE),
        ("to read", libc::PROT_READ),
    ] {
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping, where the system chooses.
        let at = unsafe { libc::mmap(null, 2 << 20, access, libc::MAP_SHARED, file, 0) };
        let answer = if at == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            format!("refused, errno {}", error.raw_os_error().unwrap_or(-1))
        } else {
            // SAFETY: mapped just now, and not used.
            unsafe { libc::munmap(at, 2 << 20) };
            "mapped".to_owned()
        };
        lab.say(part, answer);
    }
    Ok(())
}

/// Whether the driver lets others reach memory (pointer attribute 15), by its kind.
pub(crate) fn pointers(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let pool = lab.keeper(0)?;
    let say = |part: &str, at: u64| {
        let (code, value) = attribute(lab, 15, at);
        let (of_host, place) = attribute(lab, 4, at);
        let host = if of_host == OK && place == at {
            "the same".to_owned()
        } else {
            name(of_host)
        };
        lab.say(
            part,
            format!("{}, {value}, host address {host}", name(code)),
        );
    };
    say("plain", lab.plain(1 << 20)?);
    say("of a pool", lab.alloc(pool, 2 * MIB, stream)?);
    say("pinned", lab.pinned(1 << 20)?.expose_provenance() as u64);
    for (part, rdma) in [("mapped", 0), ("mapped, for GPUDirect", 1)] {
        let mut prop = prop(1, 0);
        prop.allocFlags.gpuDirectRDMACapable = rdma;
        let (code, handle) = try_create(lab, STEP, &prop, 0);
        lab.fine("cuMemCreate", code)?;
        let range = reserve(lab, STEP)?;
        lab.fine("cuMemMap", map(lab, range, STEP, handle))?;
        lab.fine("cuMemSetAccess", allow(lab, (range, STEP), (1, 0), 3))?;
        say(part, range);
        for wanted in [1_u32, 0] {
            let place = (&raw const wanted).cast::<c_void>();
            let id = CUpointer_attribute(6);
            let code = cu!(lab, cuPointerSetAttribute(place, id, range));
            let (_, now) = attribute(lab, 6, range);
            lab.say(
                format!("{part}, copies that wait {wanted}"),
                format!("{}, reads {now}", name(code)),
            );
        }
        end(lab, range, STEP, STEP)?;
        lab.fine("cuMemRelease", release(lab, handle))?;
    }
    Ok(())
}

/// Flushing writes of others.
pub(crate) fn flushes(lab: &Lab) -> Result<()> {
    let flush = |part: &str, target: u32, scope: u32| {
        let target = CUflushGPUDirectRDMAWritesTarget_enum(target);
        let scope = CUflushGPUDirectRDMAWritesScope_enum(scope);
        lab.code(part, cu!(lab, cuFlushGPUDirectRDMAWrites(target, scope)));
    };
    flush("to the owner", 0, 100);
    flush("to all", 0, 200);
    flush("scope 0", 0, 0);
    flush("scope 150", 0, 150);
    flush("target 1", 1, 100);
    lab.no_context()?;
    flush("without a context", 0, 100);
    flush("without a context, scope 0", 0, 0);
    lab.current(lab.context())
}
