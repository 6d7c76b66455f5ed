//! Pinned memory of the host: flags, addresses, sizes, and frees.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::gate::while_held;
use crate::managed::multiple;
use crate::two::{and_synchronise, arrived, attribute};

/// By their names in the header: portable 1, mapped 2, write-combined 4.
fn pinned(env: &Environment, len: usize, flags: u32) -> (CUresult, *mut c_void) {
    let mut out = std::ptr::without_provenance_mut(7);
    let code = cu!(env, cuMemHostAlloc(&raw mut out, len, flags));
    (code, out)
}

pub(crate) fn flags(env: &Environment) -> Result<()> {
    const LEN: usize = 4096;
    for flags in [0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 1 << 31] {
        env.alone(&flags.to_string(), || {
            let stream = env.stream()?;
            let (code, at) = pinned(env, LEN, flags);
            if code != OK {
                let untouched = yes(at.addr() == 7);
                return Ok(format!("{}, output untouched {untouched}", name(code)));
            }
            let address = at.expose_provenance() as u64;
            let mut device = 0;
            let mapped = cu!(env, cuMemHostGetDevicePointer_v2(&raw mut device, at, 0));
            let code = cu!(env, cuMemsetD8Async(address, 5, LEN, stream));
            let answer = and_synchronise(env, code, stream);
            // SAFETY: pinned memory of this length; the stream is done.
            let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), LEN) };
            let there = bytes.iter().all(|byte| *byte == 5);
            let facts = [2, 8, 10].map(|id| attribute(env, id, address).1);
            Ok(format!(
                "device pointer {}, the same {}; memset {}; attributes 2, 8, 10 {facts:?}; freed {}",
                name(mapped),
                yes(device == address),
                arrived(&answer, there),
                name(cu!(env, cuMemFreeHost(at)))
            ))
        });
    }
    Ok(())
}

pub(crate) fn sizes(env: &Environment) -> Result<()> {
    for len in [0, 1 << 50, usize::MAX] {
        for flags in [0, 2, 4, 7, 8] {
            let (code, at) = pinned(env, len, flags);
            let output = match at.addr() {
                0 => "null",
                7 => "output untouched",
                _ => "not null",
            };
            env.say(
                format!("{len} B, flags {flags}"),
                format!("{}, {output}", name(code)),
            );
        }
    }
    let null = std::ptr::null_mut();
    env.code("into null", cu!(env, cuMemHostAlloc(null, 64, 0)));
    Ok(())
}

pub(crate) fn addresses(env: &Environment) -> Result<()> {
    let mut last = 0;
    for (number, len) in [1, 1, 4096, 2 << 20, 1, (2 << 20) + 1, 64 << 20]
        .into_iter()
        .enumerate()
    {
        let (code, at) = pinned(env, len, 0);
        env.fine("cuMemHostAlloc", code)?;
        let block = at.addr() as u64;
        let part = format!("block {}, {len} B", number + 1);
        env.say(format!("{part}, a multiple of"), multiple(block));
        if number == 1 {
            env.say("two of 1 B lie apart by a multiple of", {
                multiple(block.abs_diff(last))
            });
        }
        last = block;
    }
    Ok(())
}

/// Whether a free waits: for a stream that uses the memory, and for one that does not.
pub(crate) fn frees(env: &Environment) -> Result<()> {
    for len in [1000, 64 << 20] {
        for flags in [0, 1, 4] {
            let (stream, (code, at)) = (env.stream()?, pinned(env, len, flags));
            env.fine("cuMemHostAlloc", code)?;
            let free = || cu!(env, cuMemFreeHost(at));
            let (code, waited) = while_held(env, stream, free)?;
            env.say(
                format!("{len} B, flags {flags}, a stream held"),
                format!("{}, {waited}", name(code)),
            );
        }
    }
    let stream = env.stream()?;
    let (code, at) = pinned(env, 4096, 0);
    env.fine("cuMemHostAlloc", code)?;
    let (codes, waited) = while_held(env, stream, || {
        let address = at.expose_provenance() as u64;
        let set = cu!(env, cuMemsetD8Async(address, 5, 4096, stream));
        (set, cu!(env, cuMemFreeHost(at)))
    })?;
    let (set, freed) = (name(codes.0), name(codes.1));
    env.say(
        "a memset of it waiting in the stream",
        format!("{set}, {freed}, {waited}"),
    );
    Ok(())
}

/// Each in a process of its own, for it may crash.
pub(crate) fn odd_frees(env: &Environment) -> Result<()> {
    env.alone("twice", || {
        let (_, at) = pinned(env, 4096, 0);
        let first = cu!(env, cuMemFreeHost(at));
        let second = cu!(env, cuMemFreeHost(at));
        Ok(format!("{}, {}", name(first), name(second)))
    });
    env.alone("the middle", || {
        let (_, at) = pinned(env, 4096, 0);
        let middle = at.wrapping_byte_add(16);
        Ok(name(cu!(env, cuMemFreeHost(middle))))
    });
    env.alone("without context", || {
        let (_, at) = pinned(env, 4096, 0);
        env.no_context()?;
        Ok(name(cu!(env, cuMemFreeHost(at))))
    });
    Ok(())
}
