//! What is done with managed memory: touched by the host and the device, freed, recorded, and taken
//! from pools.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, RESERVED, cu, name, yes};
use crate::gate::{Gate, while_held};
use crate::managed::{GLOBAL, fill, holds, host, managed};
use crate::prefetch::to_device;
use crate::recorder::{MODES, begin, ended, status};
use crate::two::{and_synchronise, arrived, attribute};

/// Each use in a process of its own: one that the driver does not allow might end it.
pub(crate) fn bytes(env: &Environment) -> Result<()> {
    const LEN: usize = 4096;
    for (number, part) in [
        "memset by the device, read by the host",
        "written by the host, copied to the heap as device memory",
        "written by the host, copied to plain memory",
        "copied from plain memory, read by the host",
        "as host memory, to plain memory",
        "as host memory, from plain memory",
        "cuMemcpyAsync to plain memory",
        "cuMemcpyAsync from plain memory",
        "from the heap as device memory",
    ]
    .iter()
    .enumerate()
    {
        for (attached, flags) in [("global", 1), ("host", 2)] {
            env.alone(&format!("{part}, {attached}"), || {
                let (stream, plain) = (env.stream()?, env.plain(LEN)?);
                let mut block = 0;
                let code = cu!(env, cuMemAllocManaged(&raw mut block, LEN, flags));
                env.fine("cuMemAllocManaged", code)?;
                let code = cu!(env, cuMemsetD8Async(plain, 5, LEN, stream));
                env.fine("cuMemsetD8Async", code)?;
                env.synchronise(stream)?;
                fill(block, LEN, 7);
                let mut heap = vec![5_u8; LEN];
                let (here, there) = (heap.as_mut_ptr().cast(), host(block).cast());
                let call = || match number {
                    0 => cu!(env, cuMemsetD8Async(block, 5, LEN, stream)),
                    1 => cu!(env, cuMemcpyDtoHAsync_v2(here, block, LEN, stream)),
                    2 => cu!(env, cuMemcpyDtoDAsync_v2(plain, block, LEN, stream)),
                    3 => cu!(env, cuMemcpyDtoDAsync_v2(block, plain, LEN, stream)),
                    4 => cu!(env, cuMemcpyHtoDAsync_v2(plain, there, LEN, stream)),
                    5 => cu!(env, cuMemcpyDtoHAsync_v2(there, plain, LEN, stream)),
                    6 => cu!(env, cuMemcpyAsync(plain, block, LEN, stream)),
                    7 => cu!(env, cuMemcpyAsync(block, plain, LEN, stream)),
                    _ => cu!(env, cuMemcpyHtoDAsync_v2(block, here, LEN, stream)),
                };
                let (code, waited) = while_held(env, stream, call)?;
                let answer = and_synchronise(env, code, stream);
                let there = match number {
                    1 => heap.iter().all(|byte| *byte == 7),
                    2 | 4 | 6 => {
                        let code = cu!(env, cuMemcpyDtoH_v2(here, plain, LEN));
                        env.fine("cuMemcpyDtoH", code)?;
                        heap.iter().all(|byte| *byte == 7)
                    }
                    _ => holds(block, LEN, 5),
                };
                Ok(format!("{}, {waited}", arrived(&answer, there)))
            });
        }
    }
    env.alone("written by the host while a stream is held", || {
        let (stream, block) = (env.stream()?, managed(env, LEN)?);
        let gate = Gate::hold(env, stream)?;
        fill(block, LEN, 7);
        gate.open();
        env.synchronise(stream)?;
        Ok(yes(holds(block, LEN, 7)).into())
    });
    env.alone("new memory is zero", || {
        Ok(yes(holds(managed(env, LEN)?, LEN, 0)).into())
    });
    Ok(())
}

pub(crate) fn frees(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for len in [1000, 64 << 20] {
        let block = managed(env, len)?;
        let (code, waited) = while_held(env, stream, || cu!(env, cuMemFree_v2(block)))?;
        env.say(
            format!("cuMemFree of {len} B"),
            format!("{}, {waited}", name(code)),
        );
    }
    let mut out = 0;
    let (code, waited) = while_held(env, stream, || {
        cu!(env, cuMemAllocManaged(&raw mut out, 64 << 20, GLOBAL))
    })?;
    env.say("cuMemAllocManaged", format!("{}, {waited}", name(code)));
    env.no_context()?;
    let code = cu!(env, cuMemFree_v2(out));
    env.code("cuMemFree without context", code);
    Ok(())
}

type Free = fn(&Environment, CUdeviceptr, CUstream) -> CUresult;

/// Frees that may be refused, or worse: each in a process of its own.
const FREES: [(&str, Free); 5] = [
    ("cuMemFreeAsync", |env, block, stream| {
        cu!(env, cuMemFreeAsync(block, stream))
    }),
    ("cuMemFreeAsync of the middle", |env, block, stream| {
        cu!(env, cuMemFreeAsync(block + 16, stream))
    }),
    ("cuMemFree of the middle", |env, block, _| {
        cu!(env, cuMemFree_v2(block + 16))
    }),
    ("cuMemFreeHost", |env, block, _| {
        cu!(env, cuMemFreeHost(host(block).cast()))
    }),
    ("cuMemFree twice", |env, block, _| {
        let _ = cu!(env, cuMemFree_v2(block));
        cu!(env, cuMemFree_v2(block))
    }),
];

pub(crate) fn odd_frees(env: &Environment) -> Result<()> {
    for (part, ask) in FREES {
        env.alone(part, || {
            let (stream, block) = (env.stream()?, managed(env, 4096)?);
            fill(block, 4096, 7);
            let (code, waited) = while_held(env, stream, || ask(env, block, stream))?;
            let known = attribute(env, 2, block).0;
            let answer = and_synchronise(env, code, stream);
            let after = attribute(env, 2, block).0;
            Ok(format!(
                "{answer}, {waited}; known then {}, after a synchronise {}",
                name(known),
                name(after)
            ))
        });
    }
    Ok(())
}

/// Memory of a pool of managed memory, with each location that such a pool may have.
pub(crate) fn pools(env: &Environment) -> Result<()> {
    const LEN: usize = 4096;
    for (place, id) in [(0, 0), (1, 0), (2, 0)] {
        for (number, part) in ["host", "memset", "copy", "prefetch", "facts"]
            .iter()
            .enumerate()
        {
            env.alone(&format!("location {place}, {part}"), || {
                let stream = env.stream()?;
                let (code, pool) = env.pool_with(&CUmemPoolProps {
                    allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED,
                    location: location(CUmemLocationType(place), id),
                    ..CUmemPoolProps::default()
                });
                env.fine("cuMemPoolCreate", code)?;
                let (code, block) = env.try_alloc(pool, LEN as u64, stream);
                if code != OK {
                    return Ok(format!("allocating answers {}", name(code)));
                }
                env.synchronise(stream)?;
                Ok(match number {
                    0 => {
                        fill(block, LEN, 7);
                        let mut heap = vec![0_u8; LEN];
                        let to = heap.as_mut_ptr().cast::<c_void>();
                        let code = cu!(env, cuMemcpyDtoH_v2(to, block, LEN));
                        arrived(&name(code), heap.iter().all(|byte| *byte == 7))
                    }
                    1 => {
                        let code = cu!(env, cuMemsetD8Async(block, 5, LEN, stream));
                        let answer = and_synchronise(env, code, stream);
                        let there = code == OK && holds(block, LEN, 5);
                        arrived(&answer, there)
                    }
                    2 => {
                        let plain = env.plain(LEN)?;
                        let code = cu!(env, cuMemcpyDtoDAsync_v2(block, plain, LEN, stream));
                        and_synchronise(env, code, stream)
                    }
                    3 => {
                        let code = to_device(env, block, LEN, stream);
                        and_synchronise(env, code, stream)
                    }
                    _ => {
                        let values = [2, 8, 9, 12].map(|id| attribute(env, id, block).1);
                        let own = attribute(env, 17, block).1 == pool.addr() as u64;
                        let reserved = env.get(pool, RESERVED)?.is_multiple_of(MIB);
                        let (own, whole) = (yes(own), yes(reserved));
                        format!("{values:?}, its pool {own}, reserves whole MiB {whole}")
                    }
                })
            });
        }
    }
    Ok(())
}

/// Allocating and freeing while a stream is recorded.
pub(crate) fn recorded(env: &Environment) -> Result<()> {
    for (mode, number) in MODES {
        for part in ["cuMemAllocManaged", "cuMemFree", "cuMemFreeAsync in it"] {
            env.alone(&format!("{part}, {mode}"), || {
                let (stream, block) = (env.stream()?, managed(env, 4096)?);
                env.fine("begin", begin(env, stream, number))?;
                let mut out = 0;
                let code = match part {
                    "cuMemAllocManaged" => cu!(env, cuMemAllocManaged(&raw mut out, 64, GLOBAL)),
                    "cuMemFree" => cu!(env, cuMemFree_v2(block)),
                    _ => cu!(env, cuMemFreeAsync(block, stream)),
                };
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
