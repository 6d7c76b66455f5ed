//! Sending managed memory to where it will be used: which memory, where to, and when it is refused.

use std::ffi::{c_int, c_uint};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, cu, name};
use crate::gate::while_held;
use crate::managed::managed;
use crate::recorder::{MODES, begin, ended, status};
use crate::two::and_synchronise;

const LEN: usize = 64 << 10;

/// A prefetch by the form that every driver has.
pub(crate) fn to_device(
    env: &Environment,
    at: CUdeviceptr,
    len: usize,
    stream: CUstream,
) -> CUresult {
    cu!(env, cuMemPrefetchAsync(at, len, 0, stream))
}

/// By the newer form.
fn to(
    env: &Environment,
    (at, len): (CUdeviceptr, usize),
    (kind, id): (u32, c_int),
    flags: c_uint,
    stream: CUstream,
) -> CUresult {
    let place = location(CUmemLocationType(kind), id);
    cu!(env, cuMemPrefetchAsync_v2(at, len, place, flags, stream))
}

pub(crate) fn places(env: &Environment) -> Result<()> {
    let (stream, block) = (env.stream()?, managed(env, LEN)?);
    for (part, device) in [
        ("0", 0),
        ("0, where it is already", 0),
        ("-1", -1),
        ("-1, where it is already", -1),
        ("-2", -2),
        ("99", 99),
    ] {
        let code = cu!(env, cuMemPrefetchAsync(block, LEN, device, stream));
        let answer = and_synchronise(env, code, stream);
        env.say(format!("old form, device {part}"), answer);
    }
    for place in [
        (1, 0),
        (1, -1),
        (1, -2),
        (1, 99),
        (2, 0),
        (2, 7),
        (2, -1),
        (3, 0),
        (3, -1),
        (3, 99),
        (4, 0),
        (4, 7),
        (0, 0),
        (5, 0),
        (99, 0),
    ] {
        let code = to(env, (block, LEN), place, 0, stream);
        env.say(
            format!("location {} {}", place.0, place.1),
            and_synchronise(env, code, stream),
        );
    }
    for flags in [1, 2, 0x8000_0000] {
        let code = to(env, (block, LEN), (1, 0), flags, stream);
        env.code(format!("flags {flags}"), code);
    }
    Ok(())
}

pub(crate) fn ranges(env: &Environment) -> Result<()> {
    let (stream, block) = (env.stream()?, managed(env, LEN)?);
    let len = LEN as u64;
    for (part, offset, count) in [
        ("all", 0, LEN),
        ("nothing", 0, 0),
        ("1 B", 0, 1),
        ("10 B in a page", 5, 10),
        ("the second page", 4096, 4096),
        ("the last byte", len - 1, 1),
        ("1 B too many", 0, LEN + 1),
        ("1 B past the end", len, 1),
        ("a page past the end", 0, LEN + 4096),
        ("2 MiB", 0, 2 << 20),
        ("64 MiB", 0, 64 << 20),
        ("the largest", 0, usize::MAX),
    ] {
        let code = to_device(env, block + offset, count, stream);
        let old = and_synchronise(env, code, stream);
        let code = to(env, (block + offset, count), (1, 0), 0, stream);
        let new = and_synchronise(env, code, stream);
        env.say(part, format!("{old}, by the newer form {new}"));
    }
    let code = to(env, (block, 0), (1, 99), 0, stream);
    env.code("nothing, to an unknown device", code);
    let code = to(env, (0, LEN), (1, 99), 0, stream);
    env.code("null, to an unknown device", code);
    let code = to(env, (block, 0), (1, 0), 1, stream);
    env.code("nothing, with flags", code);
    Ok(())
}

/// Memory of all kinds, each in a process of its own.
pub(crate) fn kinds(env: &Environment) -> Result<()> {
    for (number, part) in [
        "pool memory",
        "plain memory",
        "pinned memory",
        "the heap",
        "null",
        "freed",
        "freed in the stream",
        "attached to the host",
    ]
    .iter()
    .enumerate()
    {
        for (place, device) in [("device", 0), ("host", -1)] {
            env.alone(&format!("{part}, to the {place}"), || {
                let stream = env.stream()?;
                let mut heap = vec![0_u8; LEN];
                let block = match number {
                    0 => env.alloc(env.pool(0)?, LEN as u64, stream)?,
                    1 => env.plain(LEN)?,
                    2 => env.pinned(LEN)?.expose_provenance() as u64,
                    3 => heap.as_mut_ptr().expose_provenance() as u64,
                    4 => 0,
                    7 => {
                        let mut out = 0;
                        let code = cu!(env, cuMemAllocManaged(&raw mut out, LEN, 2));
                        env.fine("cuMemAllocManaged", code)?;
                        out
                    }
                    _ => managed(env, LEN)?,
                };
                match number {
                    5 => env.fine("cuMemFree", cu!(env, cuMemFree_v2(block)))?,
                    6 => {
                        // Where this is refused, the memory is simply alive.
                        let code = cu!(env, cuMemFreeAsync(block, stream));
                        let then = and_synchronise(env, code, stream);
                        if then != "SUCCESS" {
                            return Ok(format!("the free answers {then}"));
                        }
                    }
                    _ => {}
                }
                let code = cu!(env, cuMemPrefetchAsync(block, LEN, device, stream));
                let old = and_synchronise(env, code, stream);
                let place = if device == 0 { (1, 0) } else { (2, 0) };
                let code = to(env, (block, LEN), place, 0, stream);
                let new = and_synchronise(env, code, stream);
                Ok(format!("{old}, by the newer form {new}"))
            });
        }
    }
    Ok(())
}

pub(crate) fn streams(env: &Environment) -> Result<()> {
    let (stream, block) = (env.stream()?, managed(env, LEN)?);
    for (part, device) in [("device", 0), ("host", -1)] {
        let call = || cu!(env, cuMemPrefetchAsync(block, LEN, device, stream));
        let (code, waited) = while_held(env, stream, call)?;
        env.say(
            format!("on a held stream, to the {part}"),
            format!("{}, {waited}", name(code)),
        );
        env.synchronise(stream)?;
    }
    let (legacy, own, null) = (CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, std::ptr::null_mut());
    let ask = |when: &str| {
        for (part, default) in [("null", null), ("legacy", legacy), ("per thread", own)] {
            let code = to_device(env, block, LEN, default);
            env.code(format!("{part} stream, {when}"), code);
        }
        let code = cu!(env, cuMemPrefetchAsync_ptsz(block, LEN, 0, null));
        env.code(format!("null stream of the twin, {when}"), code);
        let place = location(CUmemLocationType(1), 0);
        let code = cu!(env, cuMemPrefetchAsync_v2_ptsz(block, LEN, place, 0, null));
        env.code(format!("null stream of the newer twin, {when}"), code);
        env.code(format!("a stream, {when}"), {
            to_device(env, block, LEN, stream)
        });
    };
    ask("with a context");
    env.no_context()?;
    ask("without");
    Ok(())
}

/// While a stream is recorded: in it, and in another.
pub(crate) fn recorded(env: &Environment) -> Result<()> {
    for (mode, number) in MODES {
        for elsewhere in [false, true] {
            let part = if elsewhere { "elsewhere" } else { "in it" };
            env.alone(&format!("{part}, {mode}"), || {
                let (stream, other) = (env.stream()?, env.stream()?);
                let block = managed(env, LEN)?;
                env.fine("begin", begin(env, stream, number))?;
                let on = if elsewhere { other } else { stream };
                let code = to_device(env, block, LEN, on);
                let after = status(env, stream);
                Ok(format!(
                    "{}, {after}; end {}",
                    name(code),
                    ended(env, stream)
                ))
            });
        }
    }
    Ok(())
}
