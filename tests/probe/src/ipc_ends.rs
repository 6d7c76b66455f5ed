//! Sharing pools: who frees first, and who dies first.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, THRESHOLD, cu, name, size, yes};
use crate::ipc::{open, open_descriptors, read, shared_pool, write};
use crate::twin::{Other, Wire, pair};

/// A process with a pool and a block of 1 MiB that begins with sevens; it hands out both.
fn exporter(env: &Environment, wire: &Wire) -> Result<(CUmemoryPool, CUdeviceptr, CUstream)> {
    let (pool, stream) = (shared_pool(env)?, env.stream()?);
    let block = env.alloc(pool, MIB, stream)?;
    env.fine("write", write(env, block, 7))?;
    wire.send_pool(env, pool)?;
    wire.send_pointer(env, block)?;
    Ok((pool, block, stream))
}

fn importer(env: &Environment, wire: &Wire) -> Result<(CUmemoryPool, CUdeviceptr, CUstream)> {
    let pool = wire.take_pool(env)?;
    Ok((pool, wire.take_pointer(env, pool)?, env.stream()?))
}

/// The importer frees, then the exporter.
pub(crate) fn importer_first(env: &Environment) -> Result<()> {
    for (part, ask) in [
        ("in order", 0),
        ("by the host", 1),
        ("not at all", 2),
        ("by the end of its pool", 3),
    ] {
        pair(
            env,
            part,
            |other| {
                let (pool, block, stream) = exporter(env, &other.wire)?;
                other.wire.wait()?;
                env.say(format!("{part}, exporter reads"), read(env, block));
                env.say(format!("{part}, exporter uses"), size(env.used(pool)?));
                let code = cu!(env, cuMemFreeAsync(block, stream));
                env.code(format!("{part}, exporter frees"), code);
                env.say(format!("{part}, freed"), env.reserved(pool)?);
                env.synchronise(stream)?;
                env.say(format!("{part}, seen"), env.reserved(pool)?);
                env.trim(pool, 0)?;
                env.say(format!("{part}, trimmed"), env.reserved(pool)?);
                env.code(format!("{part}, destroy"), cu!(env, cuMemPoolDestroy(pool)));
                other.wire.go()
            },
            |wire| {
                let (pool, block, stream) = importer(env, wire)?;
                env.fine("write", write(env, block, 8))?;
                let code = match ask {
                    0 => cu!(env, cuMemFreeAsync(block, stream)),
                    1 => cu!(env, cuMemFree_v2(block)),
                    2 => OK,
                    _ => cu!(env, cuMemPoolDestroy(pool)),
                };
                env.code(format!("{part}, importer"), code);
                env.synchronise(stream)?;
                if ask < 2 {
                    let code = cu!(env, cuMemsetD8_v2(block, 1, 4));
                    env.code(format!("{part}, importer fills after it"), code);
                    let code = cu!(env, cuMemFreeAsync(block, stream));
                    env.code(format!("{part}, importer again"), code);
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
    env: &Environment,
    part: &str,
    end: impl FnOnce(CUmemoryPool, CUdeviceptr, CUstream) -> Result<()>,
) {
    pair(
        env,
        part,
        |other| {
            let (pool, block, stream) = exporter(env, &other.wire)?;
            other.wire.wait()?;
            end(pool, block, stream)?;
            other.wire.go()?;
            other.wire.wait()
        },
        |wire| {
            let (_, block, stream) = importer(env, wire)?;
            wire.go()?;
            wire.wait()?;
            env.say(format!("{part}, importer reads"), read(env, block));
            env.code(format!("{part}, importer writes"), write(env, block, 9));
            let code = cu!(env, cuMemFreeAsync(block, stream));
            env.code(format!("{part}, importer frees"), code);
            let code = cu!(env, cuStreamSynchronize(stream));
            env.code(format!("{part}, importer synchronises"), code);
            wire.go()
        },
    );
}

pub(crate) fn exporter_first(env: &Environment) -> Result<()> {
    held(env, "freed", |_, block, stream| env.free(block, stream));
    held(env, "freed and seen", |pool, block, stream| {
        env.free(block, stream)?;
        env.synchronise(stream)?;
        env.say("freed and seen, reserved", env.reserved(pool)?);
        Ok(())
    });
    held(env, "freed, seen and trimmed", |pool, block, stream| {
        env.set(pool, THRESHOLD, u64::MAX)?;
        let start = env.device_free()?;
        env.free(block, stream)?;
        env.synchronise(stream)?;
        env.trim(pool, 0)?;
        env.say("freed, seen and trimmed, reserved", env.reserved(pool)?);
        let back = env.device_free()? > start;
        env.say("freed, seen and trimmed, the device has it back", yes(back));
        Ok(())
    });
    held(env, "freed and handed out again", |pool, block, stream| {
        env.free(block, stream)?;
        let again = env.alloc(pool, MIB, stream)?;
        env.say(
            "freed and handed out again, same block",
            yes(again == block),
        );
        env.fine("write", write(env, again, 11))
    });
    held(env, "pool destroyed", |pool, _, _| {
        env.fine("destroy", cu!(env, cuMemPoolDestroy(pool)))
    });
    held(env, "all ended", |pool, block, stream| {
        env.free(block, stream)?;
        env.end_pool(pool)
    });
    Ok(())
}

/// The exporter is killed while the importer holds pool and pointer.
pub(crate) fn exporter_dies(env: &Environment) -> Result<()> {
    pair(
        env,
        "",
        |other| {
            let (pool, block, stream) = importer(env, &other.wire)?;
            let token = other.wire.take_token()?;
            let late = other.wire.take_descriptor()?;
            other.kill();
            env.say("the importer reads", read(env, block));
            env.code("the importer writes", write(env, block, 9));
            env.say("and reads", read(env, block));
            let (code, second) = open(env, pool, &token);
            env.code("another pointer", code);
            if code == OK {
                env.say("another pointer reads", read(env, second));
            }
            let code = cu!(env, cuMemFreeAsync(block, stream));
            env.code("the importer frees", code);
            env.code("and synchronises", cu!(env, cuStreamSynchronize(stream)));
            env.code("and destroys", cu!(env, cuMemPoolDestroy(pool)));
            use std::os::fd::AsRawFd;
            let (code, again) = crate::ipc::import(env, late.as_raw_fd(), 1, 0);
            env.code("a pool of the dead", code);
            if code == OK {
                let (code, third) = open(env, again, &token);
                env.code("a pointer of the dead", code);
                if code == OK {
                    env.say("it reads", read(env, third));
                }
            }
            env.say("healthy", yes(env.plain(64).is_ok()));
            Ok(())
        },
        |wire| {
            let (pool, _, stream) = exporter(env, wire)?;
            let second = env.alloc(pool, MIB, stream)?;
            env.fine("write", write(env, second, 70))?;
            wire.send_pointer(env, second)?;
            wire.send_pool(env, pool)?;
            wire.wait()
        },
    );
    Ok(())
}

/// The importer is killed while it holds pool and pointer.
pub(crate) fn importer_dies(env: &Environment) -> Result<()> {
    let dies = |part: &str, while_working: bool| {
        let exporter = |other: &Other| -> Result<()> {
            let (pool, block, stream) = exporter(env, &other.wire)?;
            other.wire.wait()?;
            let descriptors = open_descriptors();
            other.kill();
            env.say(format!("{part}, the exporter reads"), read(env, block));
            env.code(
                format!("{part}, it frees"),
                cu!(env, cuMemFreeAsync(block, stream)),
            );
            env.synchronise(stream)?;
            env.say(format!("{part}, reserved then"), env.reserved(pool)?);
            let again = env.try_alloc(pool, MIB, stream);
            env.code(format!("{part}, it allocates"), again.0);
            env.code(format!("{part}, and writes"), write(env, again.1, 5));
            let more = open_descriptors() as i64 - descriptors as i64;
            env.say(format!("{part}, descriptors more"), more);
            Ok(())
        };
        pair(env, part, exporter, |wire| {
            let (_, block, stream) = importer(env, wire)?;
            env.fine("write", write(env, block, 8))?;
            let gate = crate::gate::Gate::hold(env, stream)?;
            if while_working {
                let code = cu!(env, cuMemsetD8Async(block, 1, 1000, stream));
                env.fine("fill", code)?;
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
pub(crate) fn legacy(env: &Environment) -> Result<()> {
    pair(
        env,
        "",
        |other| {
            let (pool, block, stream) = exporter(env, &other.wire)?;
            let plain = env.alloc(env.pool(0)?, 1000, stream)?;
            let ask = |part: &str, address| -> CUipcMemHandle {
                let mut handle = CUipcMemHandle::default();
                let code = cu!(env, cuIpcGetMemHandle(&raw mut handle, address));
                env.code(part, code);
                handle
            };
            ask("of a plain pool", plain);
            ask("of a shared pool", block);
            ask("of null", 0);
            let handle = ask("of cuMemAlloc", env.plain(1000)?);
            let mut out = 0;
            let code = cu!(env, cuIpcOpenMemHandle_v2(&raw mut out, handle, 1));
            env.code("open here", code);
            let zero = CUipcMemHandle::default();
            let code = cu!(env, cuIpcOpenMemHandle_v2(&raw mut out, zero, 1));
            env.code("open zeroes", code);
            other.wire.wait()?;
            let _ = pool;
            Ok(())
        },
        |wire| {
            let (_, block, _) = importer(env, wire)?;
            let mut handle = CUipcMemHandle::default();
            let code = cu!(env, cuIpcGetMemHandle(&raw mut handle, block));
            env.say("of an imported pointer", name(code));
            wire.go()
        },
    );
    Ok(())
}
