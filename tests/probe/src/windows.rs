//! What others reach: attributes, dma-bufs of odd blocks, what the host can map, and flushes.

use std::ffi::c_void;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, yes};
use crate::two::attribute;
use crate::vmm::{STEP, allow, end, map, prop, release, reserve, try_create};

fn dma_buf(env: &Environment, at: u64, bytes: u64) -> (CUresult, Option<OwnedFd>) {
    let mut descriptor = -1_i32;
    let place = (&raw mut descriptor).cast::<c_void>();
    let kind = CUmemRangeHandleType_enum(1);
    let code = cu!(
        env,
        cuMemGetHandleForAddressRange(place, at, bytes as usize, kind, 0)
    );
    // SAFETY: the driver has made it just now, for this process.
    let descriptor = (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) });
    (code, descriptor)
}

/// Device attributes about others that reach memory.
pub(crate) fn attributes(env: &Environment) -> Result<()> {
    for id in [110, 116, 117, 118, 124, 146, 152] {
        let (code, value) = env.device_attribute(id);
        env.say(
            format!("attribute {id}"),
            format!("{}, {value}", name(code)),
        );
    }
    Ok(())
}

/// Whole pages around blocks that do not fill them.
pub(crate) fn blocks(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let pool = env.keeper(0)?;
    for bytes in [1_u64, 1000, 4096, 5000, 70_000, 1 << 20, (2 << 20) + 1] {
        let whole = bytes.next_multiple_of(4096);
        let plain = env.plain(bytes as usize)?;
        let first = plain - plain % 4096;
        let pooled = env.alloc(pool, bytes, stream)?;
        for (part, at) in [("plain", first), ("of a pool", pooled - pooled % 4096)] {
            for (pages, len) in [("its pages", whole), ("a page more", whole + 4096)] {
                let (code, descriptor) = dma_buf(env, at, len);
                let given = yes(descriptor.is_some());
                env.say(
                    format!("{part}, {bytes} B, {pages}"),
                    format!("{}, given {given}", name(code)),
                );
            }
        }
    }
    Ok(())
}

/// Which ranges of a pool's memory are given, by where they begin and end among its blocks.
pub(crate) fn pool_blocks(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let pool = env.keeper(0)?;
    let first = env.alloc(pool, 2 * MIB, stream)?;
    let second = env.alloc(pool, 2 * MIB, stream)?;
    let small = env.alloc(pool, 64 << 10, stream)?;
    let next = env.alloc(pool, 64 << 10, stream)?;
    env.say("the second follows", yes(second == first + 2 * MIB));
    env.say(
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
        let (code, descriptor) = dma_buf(env, at, bytes);
        let given = yes(descriptor.is_some());
        env.say(part, format!("{}, given {given}", name(code)));
    }
    Ok(())
}

/// Whether a context is needed.
pub(crate) fn contexts(env: &Environment) -> Result<()> {
    let plain = env.plain(2 << 20)?;
    env.no_context()?;
    let (code, descriptor) = dma_buf(env, plain, 2 << 20);
    let given = yes(descriptor.is_some());
    env.say("without one", format!("{}, given {given}", name(code)));
    let (code, descriptor) = dma_buf(env, plain, 100);
    let given = yes(descriptor.is_some());
    env.say(
        "without one, 100 B",
        format!("{}, given {given}", name(code)),
    );
    env.current(env.context())
}

/// Whether the host can map them.
pub(crate) fn maps(env: &Environment) -> Result<()> {
    let plain = env.plain(2 << 20)?;
    let (code, descriptor) = dma_buf(env, plain, 2 << 20);
    env.fine("cuMemGetHandleForAddressRange", code)?;
    let Some(descriptor) = descriptor else {
        return Ok(());
    };
    let file = descriptor.as_raw_fd();
    // SAFETY: no pointers.
    let end = unsafe { libc::lseek(file, 0, libc::SEEK_END) };
    env.say("its end", end);
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
        env.say(part, answer);
    }
    Ok(())
}

/// Whether the driver lets others reach memory (pointer attribute 15), by its kind.
pub(crate) fn pointers(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let pool = env.keeper(0)?;
    let say = |part: &str, at: u64| {
        let (code, value) = attribute(env, 15, at);
        let (of_host, place) = attribute(env, 4, at);
        let host = if of_host == OK && place == at {
            "the same".to_owned()
        } else {
            name(of_host)
        };
        env.say(
            part,
            format!("{}, {value}, host address {host}", name(code)),
        );
    };
    say("plain", env.plain(1 << 20)?);
    say("of a pool", env.alloc(pool, 2 * MIB, stream)?);
    say("pinned", env.pinned(1 << 20)?.expose_provenance() as u64);
    for (part, rdma) in [("mapped", 0), ("mapped, for GPUDirect", 1)] {
        let mut prop = prop(1, 0);
        prop.allocFlags.gpuDirectRDMACapable = rdma;
        let (code, handle) = try_create(env, STEP, &prop, 0);
        env.fine("cuMemCreate", code)?;
        let range = reserve(env, STEP)?;
        env.fine("cuMemMap", map(env, range, STEP, handle))?;
        env.fine("cuMemSetAccess", allow(env, (range, STEP), (1, 0), 3))?;
        say(part, range);
        for wanted in [1_u32, 0] {
            let place = (&raw const wanted).cast::<c_void>();
            let id = CUpointer_attribute(6);
            let code = cu!(env, cuPointerSetAttribute(place, id, range));
            let (_, now) = attribute(env, 6, range);
            env.say(
                format!("{part}, copies that wait {wanted}"),
                format!("{}, reads {now}", name(code)),
            );
        }
        end(env, range, STEP, STEP)?;
        env.fine("cuMemRelease", release(env, handle))?;
    }
    Ok(())
}

/// Flushing writes of others.
pub(crate) fn flushes(env: &Environment) -> Result<()> {
    let flush = |part: &str, target: u32, scope: u32| {
        let target = CUflushGPUDirectRDMAWritesTarget_enum(target);
        let scope = CUflushGPUDirectRDMAWritesScope_enum(scope);
        env.code(part, cu!(env, cuFlushGPUDirectRDMAWrites(target, scope)));
    };
    flush("to the owner", 0, 100);
    flush("to all", 0, 200);
    flush("scope 0", 0, 0);
    flush("scope 150", 0, 150);
    flush("target 1", 1, 100);
    env.no_context()?;
    flush("without a context", 0, 100);
    flush("without a context, scope 0", 0, 0);
    env.current(env.context())
}
