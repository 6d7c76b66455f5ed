//! Sharing pools: who frees first, and who dies first.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::ipc::{open, open_descriptors, read, shared_pool, write};
use crate::lab::{Lab, MIB, OK, THRESHOLD, cu, name, size, yes};
use crate::twin::{Other, Wire, pair};

/// A process with a pool and a block of 1 MiB that begins with sevens; it hands out both.
fn exporter(lab: &Lab, wire: &Wire) -> Result<(CUmemoryPool, CUdeviceptr, CUstream)> {
    let (pool, stream) = (shared_pool(lab)?, lab.stream()?);
    let block = lab.alloc(pool, MIB, stream)?;
    lab.fine("write", write(lab, block, 7))?;
    wire.send_pool(lab, pool)?;
    wire.send_pointer(lab, block)?;
    Ok((pool, block, stream))
}

fn importer(lab: &Lab, wire: &Wire) -> Result<(CUmemoryPool, CUdeviceptr, CUstream)> {
    let pool = wire.take_pool(lab)?;
    Ok((pool, wire.take_pointer(lab, pool)?, lab.stream()?))
}

/// The importer frees, then the exporter.
pub(crate) fn importer_first(lab: &Lab) -> Result<()> {
    for (part, ask) in [
        ("in order", 0),
        ("by the host", 1),
        ("not at all", 2),
        ("by the end of its pool", 3),
    ] {
        pair(
            lab,
            part,
            |other| {
                let (pool, block, stream) = exporter(lab, &other.wire)?;
                other.wire.wait()?;
                lab.say(format!("{part}, exporter reads"), read(lab, block));
                lab.say(format!("{part}, exporter uses"), size(lab.used(pool)?));
                let code = cu!(lab, cuMemFreeAsync(block, stream));
                lab.code(format!("{part}, exporter frees"), code);
                lab.say(format!("{part}, freed"), lab.reserved(pool)?);
                lab.synchronise(stream)?;
                lab.say(format!("{part}, seen"), lab.reserved(pool)?);
                lab.trim(pool, 0)?;
                lab.say(format!("{part}, trimmed"), lab.reserved(pool)?);
                lab.code(format!("{part}, destroy"), cu!(lab, cuMemPoolDestroy(pool)));
                other.wire.go()
            },
            |wire| {
                let (pool, block, stream) = importer(lab, wire)?;
                lab.fine("write", write(lab, block, 8))?;
                let code = match ask {
                    0 => cu!(lab, cuMemFreeAsync(block, stream)),
                    1 => cu!(lab, cuMemFree_v2(block)),
                    2 => OK,
                    _ => cu!(lab, cuMemPoolDestroy(pool)),
                };
                lab.code(format!("{part}, importer"), code);
                lab.synchronise(stream)?;
                if ask < 2 {
                    let code = cu!(lab, cuMemsetD8_v2(block, 1, 4));
                    lab.code(format!("{part}, importer fills after it"), code);
                    let code = cu!(lab, cuMemFreeAsync(block, stream));
                    lab.code(format!("{part}, importer again"), code);
                }
                wire.go()?;
                wire.wait()
            },
        );
    }
    Ok(())
}

/// The exporter ends something while the importer holds the pointer.
fn held(
    lab: &Lab,
    part: &str,
    end: impl FnOnce(CUmemoryPool, CUdeviceptr, CUstream) -> Result<()>,
) {
    pair(
        lab,
        part,
        |other| {
            let (pool, block, stream) = exporter(lab, &other.wire)?;
            other.wire.wait()?;
            end(pool, block, stream)?;
            other.wire.go()?;
            other.wire.wait()
        },
        |wire| {
            let (_, block, stream) = importer(lab, wire)?;
            wire.go()?;
            wire.wait()?;
            lab.say(format!("{part}, importer reads"), read(lab, block));
            lab.code(format!("{part}, importer writes"), write(lab, block, 9));
            let code = cu!(lab, cuMemFreeAsync(block, stream));
            lab.code(format!("{part}, importer frees"), code);
            let code = cu!(lab, cuStreamSynchronize(stream));
            lab.code(format!("{part}, importer synchronises"), code);
            wire.go()
        },
    );
}

pub(crate) fn exporter_first(lab: &Lab) -> Result<()> {
    held(lab, "freed", |_, block, stream| lab.free(block, stream));
    held(lab, "freed and seen", |pool, block, stream| {
        lab.free(block, stream)?;
        lab.synchronise(stream)?;
        lab.say("freed and seen, reserved", lab.reserved(pool)?);
        Ok(())
    });
    held(lab, "freed, seen and trimmed", |pool, block, stream| {
        lab.set(pool, THRESHOLD, u64::MAX)?;
        let start = lab.device_free()?;
        lab.free(block, stream)?;
        lab.synchronise(stream)?;
        lab.trim(pool, 0)?;
        lab.say("freed, seen and trimmed, reserved", lab.reserved(pool)?);
        let back = lab.device_free()? > start;
        lab.say("freed, seen and trimmed, the device has it back", yes(back));
        Ok(())
    });
    held(lab, "freed and handed out again", |pool, block, stream| {
        lab.free(block, stream)?;
        let again = lab.alloc(pool, MIB, stream)?;
        lab.say(
            "freed and handed out again, same block",
            yes(again == block),
        );
        lab.fine("write", write(lab, again, 11))
    });
    held(lab, "pool destroyed", |pool, _, _| {
        lab.fine("destroy", cu!(lab, cuMemPoolDestroy(pool)))
    });
    held(lab, "all ended", |pool, block, stream| {
        lab.free(block, stream)?;
        lab.end_pool(pool)
    });
    Ok(())
}

/// The exporter is killed while the importer holds pool and pointer.
pub(crate) fn exporter_dies(lab: &Lab) -> Result<()> {
    pair(
        lab,
        "",
        |other| {
            let (pool, block, stream) = importer(lab, &other.wire)?;
            let token = other.wire.take_token()?;
            let late = other.wire.take_descriptor()?;
            other.kill();
            lab.say("the importer reads", read(lab, block));
            lab.code("the importer writes", write(lab, block, 9));
            lab.say("and reads", read(lab, block));
            let (code, second) = open(lab, pool, &token);
            lab.code("another pointer", code);
            if code == OK {
                lab.say("another pointer reads", read(lab, second));
            }
            let code = cu!(lab, cuMemFreeAsync(block, stream));
            lab.code("the importer frees", code);
            lab.code("and synchronises", cu!(lab, cuStreamSynchronize(stream)));
            lab.code("and destroys", cu!(lab, cuMemPoolDestroy(pool)));
            use std::os::fd::AsRawFd;
            let (code, again) = crate::ipc::import(lab, late.as_raw_fd(), 1, 0);
            lab.code("a pool of the dead", code);
            if code == OK {
                let (code, third) = open(lab, again, &token);
                lab.code("a pointer of the dead", code);
                if code == OK {
                    lab.say("it reads", read(lab, third));
                }
            }
            lab.say("healthy", yes(lab.plain(64).is_ok()));
            Ok(())
        },
        |wire| {
            let (pool, _, stream) = exporter(lab, wire)?;
            let second = lab.alloc(pool, MIB, stream)?;
            lab.fine("write", write(lab, second, 70))?;
            wire.send_pointer(lab, second)?;
            wire.send_pool(lab, pool)?;
            wire.wait()
        },
    );
    Ok(())
}

/// The importer is killed while it holds pool and pointer.
pub(crate) fn importer_dies(lab: &Lab) -> Result<()> {
    let dies = |part: &str, while_working: bool| {
        let exporter = |other: &Other| -> Result<()> {
            let (pool, block, stream) = exporter(lab, &other.wire)?;
            other.wire.wait()?;
            let descriptors = open_descriptors();
            other.kill();
            lab.say(format!("{part}, the exporter reads"), read(lab, block));
            lab.code(
                format!("{part}, it frees"),
                cu!(lab, cuMemFreeAsync(block, stream)),
            );
            lab.synchronise(stream)?;
            lab.say(format!("{part}, reserved then"), lab.reserved(pool)?);
            let again = lab.try_alloc(pool, MIB, stream);
            lab.code(format!("{part}, it allocates"), again.0);
            lab.code(format!("{part}, and writes"), write(lab, again.1, 5));
            let more = open_descriptors() as i64 - descriptors as i64;
            lab.say(format!("{part}, descriptors more"), more);
            Ok(())
        };
        pair(lab, part, exporter, |wire| {
            let (_, block, stream) = importer(lab, wire)?;
            lab.fine("write", write(lab, block, 8))?;
            let gate = crate::gate::Gate::hold(lab, stream)?;
            if while_working {
                let code = cu!(lab, cuMemsetD8Async(block, 1, 1000, stream));
                lab.fine("fill", code)?;
            }
            wire.go()?;
            wire.wait()?;
            gate.open();
            Ok(())
        });
    };
    dies("idle", false);
    dies("with work", true);
    Ok(())
}

/// `cuIpcGetMemHandle` and pools.
pub(crate) fn legacy(lab: &Lab) -> Result<()> {
    pair(
        lab,
        "",
        |other| {
            let (pool, block, stream) = exporter(lab, &other.wire)?;
            let plain = lab.alloc(lab.pool(0)?, 1000, stream)?;
            let ask = |part: &str, address| -> CUipcMemHandle {
                let mut handle = CUipcMemHandle::default();
                let code = cu!(lab, cuIpcGetMemHandle(&raw mut handle, address));
                lab.code(part, code);
                handle
            };
            ask("of a plain pool", plain);
            ask("of a shared pool", block);
            ask("of null", 0);
            let handle = ask("of cuMemAlloc", lab.plain(1000)?);
            let mut out = 0;
            let code = cu!(lab, cuIpcOpenMemHandle_v2(&raw mut out, handle, 1));
            lab.code("open here", code);
            let zero = CUipcMemHandle::default();
            let code = cu!(lab, cuIpcOpenMemHandle_v2(&raw mut out, zero, 1));
            lab.code("open zeroes", code);
            other.wire.wait()?;
            let _ = pool;
            Ok(())
        },
        |wire| {
            let (_, block, _) = importer(lab, wire)?;
            let mut handle = CUipcMemHandle::default();
            let code = cu!(lab, cuIpcGetMemHandle(&raw mut handle, block));
            lab.say("of an imported pointer", name(code));
            wire.go()
        },
    );
    Ok(())
}
