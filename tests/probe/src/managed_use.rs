//! What is done with managed memory: touched by the host and the device, freed, recorded, and taken
//! from pools.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::{Gate, while_held};
use crate::lab::{Lab, MIB, OK, RESERVED, cu, name, yes};
use crate::managed::{GLOBAL, fill, holds, host, managed};
use crate::prefetch::to_device;
use crate::recorder::{MODES, begin, ended, status};
use crate::two::{and_synchronise, arrived, attribute};

/// Each use in a process of its own: one that the driver does not allow might end it.
pub(crate) fn bytes(lab: &Lab) -> Result<()> {
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
            lab.alone(&format!("{part}, {attached}"), || {
                let (stream, plain) = (lab.stream()?, lab.plain(LEN)?);
                let mut block = 0;
                let code = cu!(lab, cuMemAllocManaged(&raw mut block, LEN, flags));
                lab.fine("cuMemAllocManaged", code)?;
                let code = cu!(lab, cuMemsetD8Async(plain, 5, LEN, stream));
                lab.fine("cuMemsetD8Async", code)?;
                lab.synchronise(stream)?;
                fill(block, LEN, 7);
                let mut heap = vec![5_u8; LEN];
                let (here, there) = (heap.as_mut_ptr().cast(), host(block).cast());
                let call = || match number {
                    0 => cu!(lab, cuMemsetD8Async(block, 5, LEN, stream)),
                    1 => cu!(lab, cuMemcpyDtoHAsync_v2(here, block, LEN, stream)),
                    2 => cu!(lab, cuMemcpyDtoDAsync_v2(plain, block, LEN, stream)),
                    3 => cu!(lab, cuMemcpyDtoDAsync_v2(block, plain, LEN, stream)),
                    4 => cu!(lab, cuMemcpyHtoDAsync_v2(plain, there, LEN, stream)),
                    5 => cu!(lab, cuMemcpyDtoHAsync_v2(there, plain, LEN, stream)),
                    6 => cu!(lab, cuMemcpyAsync(plain, block, LEN, stream)),
                    7 => cu!(lab, cuMemcpyAsync(block, plain, LEN, stream)),
                    _ => cu!(lab, cuMemcpyHtoDAsync_v2(block, here, LEN, stream)),
                };
                let (code, waited) = while_held(lab, stream, call)?;
                let answer = and_synchronise(lab, code, stream);
                let there = match number {
                    1 => heap.iter().all(|byte| *byte == 7),
                    2 | 4 | 6 => {
                        let code = cu!(lab, cuMemcpyDtoH_v2(here, plain, LEN));
                        lab.fine("cuMemcpyDtoH", code)?;
                        heap.iter().all(|byte| *byte == 7)
                    }
                    _ => holds(block, LEN, 5),
                };
                Ok(format!("{}, {waited}", arrived(&answer, there)))
            });
        }
    }
    lab.alone("written by the host while a stream is held", || {
        let (stream, block) = (lab.stream()?, managed(lab, LEN)?);
        let gate = Gate::hold(lab, stream)?;
        fill(block, LEN, 7);
        gate.open();
        lab.synchronise(stream)?;
        Ok(yes(holds(block, LEN, 7)).into())
    });
    lab.alone("new memory is zero", || {
        Ok(yes(holds(managed(lab, LEN)?, LEN, 0)).into())
    });
    Ok(())
}

pub(crate) fn frees(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    for len in [1000, 64 << 20] {
        let block = managed(lab, len)?;
        let (code, waited) = while_held(lab, stream, || cu!(lab, cuMemFree_v2(block)))?;
        lab.say(
            format!("cuMemFree of {len} B"),
            format!("{}, {waited}", name(code)),
        );
    }
    let mut out = 0;
    let (code, waited) = while_held(lab, stream, || {
        cu!(lab, cuMemAllocManaged(&raw mut out, 64 << 20, GLOBAL))
    })?;
    lab.say("cuMemAllocManaged", format!("{}, {waited}", name(code)));
    lab.no_context()?;
    let code = cu!(lab, cuMemFree_v2(out));
    lab.code("cuMemFree without context", code);
    Ok(())
}

type Free = fn(&Lab, CUdeviceptr, CUstream) -> CUresult;

/// Frees that may be refused, or worse: each in a process of its own.
const FREES: [(&str, Free); 5] = [
    ("cuMemFreeAsync", |lab, block, stream| {
        cu!(lab, cuMemFreeAsync(block, stream))
    }),
    ("cuMemFreeAsync of the middle", |lab, block, stream| {
        cu!(lab, cuMemFreeAsync(block + 16, stream))
    }),
    ("cuMemFree of the middle", |lab, block, _| {
        cu!(lab, cuMemFree_v2(block + 16))
    }),
    ("cuMemFreeHost", |lab, block, _| {
        cu!(lab, cuMemFreeHost(host(block).cast()))
    }),
    ("cuMemFree twice", |lab, block, _| {
        let _ = cu!(lab, cuMemFree_v2(block));
        cu!(lab, cuMemFree_v2(block))
    }),
];

pub(crate) fn odd_frees(lab: &Lab) -> Result<()> {
    for (part, ask) in FREES {
        lab.alone(part, || {
            let (stream, block) = (lab.stream()?, managed(lab, 4096)?);
            fill(block, 4096, 7);
            let (code, waited) = while_held(lab, stream, || ask(lab, block, stream))?;
            let known = attribute(lab, 2, block).0;
            let answer = and_synchronise(lab, code, stream);
            let after = attribute(lab, 2, block).0;
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
pub(crate) fn pools(lab: &Lab) -> Result<()> {
    const LEN: usize = 4096;
    for (place, id) in [(0, 0), (1, 0), (2, 0)] {
        for (number, part) in ["host", "memset", "copy", "prefetch", "facts"]
            .iter()
            .enumerate()
        {
            lab.alone(&format!("location {place}, {part}"), || {
                let stream = lab.stream()?;
                let (code, pool) = lab.pool_with(&CUmemPoolProps {
                    allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED,
                    location: location(CUmemLocationType(place), id),
                    ..CUmemPoolProps::default()
                });
                lab.fine("cuMemPoolCreate", code)?;
                let (code, block) = lab.try_alloc(pool, LEN as u64, stream);
                if code != OK {
                    return Ok(format!("allocating answers {}", name(code)));
                }
                lab.synchronise(stream)?;
                Ok(match number {
                    0 => {
                        fill(block, LEN, 7);
                        let mut heap = vec![0_u8; LEN];
                        let to = heap.as_mut_ptr().cast::<c_void>();
                        let code = cu!(lab, cuMemcpyDtoH_v2(to, block, LEN));
                        arrived(&name(code), heap.iter().all(|byte| *byte == 7))
                    }
                    1 => {
                        let code = cu!(lab, cuMemsetD8Async(block, 5, LEN, stream));
                        let answer = and_synchronise(lab, code, stream);
                        let there = code == OK && holds(block, LEN, 5);
                        arrived(&answer, there)
                    }
                    2 => {
                        let plain = lab.plain(LEN)?;
                        let code = cu!(lab, cuMemcpyDtoDAsync_v2(block, plain, LEN, stream));
                        and_synchronise(lab, code, stream)
                    }
                    3 => {
                        let code = to_device(lab, block, LEN, stream);
                        and_synchronise(lab, code, stream)
                    }
                    _ => {
                        let values = [2, 8, 9, 12].map(|id| attribute(lab, id, block).1);
                        let own = attribute(lab, 17, block).1 == pool.addr() as u64;
                        let reserved = lab.get(pool, RESERVED)?.is_multiple_of(MIB);
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
pub(crate) fn recorded(lab: &Lab) -> Result<()> {
    for (mode, number) in MODES {
        for part in ["cuMemAllocManaged", "cuMemFree", "cuMemFreeAsync in it"] {
            lab.alone(&format!("{part}, {mode}"), || {
                let (stream, block) = (lab.stream()?, managed(lab, 4096)?);
                lab.fine("begin", begin(lab, stream, number))?;
                let mut out = 0;
                let code = match part {
                    "cuMemAllocManaged" => cu!(lab, cuMemAllocManaged(&raw mut out, 64, GLOBAL)),
                    "cuMemFree" => cu!(lab, cuMemFree_v2(block)),
                    _ => cu!(lab, cuMemFreeAsync(block, stream)),
                };
                let after = status(lab, stream);
                Ok(format!(
                    "{}, {after}; end {}",
                    name(code),
                    ended(lab, stream)
                ))
            });
        }
    }
    Ok(())
}
