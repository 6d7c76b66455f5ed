//! Memory that the host and every device may touch: what can be had, and what it says of itself. What
//! is done with it is in `managed_use.rs` and `prefetch.rs`.
//!
//! Never more than 64 MiB of it is touched.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::prefetch::to_device;
use crate::two::attribute;

pub(crate) const GLOBAL: u32 = 1;

/// What is tried as a multiple that an address could be, largest first.
const MULTIPLES: [(u64, &str); 5] = [
    (2 << 20, "2 MiB"),
    (64 << 10, "64 KiB"),
    (4096, "4096 B"),
    (512, "512 B"),
    (256, "256 B"),
];

/// The largest of the looked-at numbers that an address is a multiple of.
pub(crate) fn multiple(address: u64) -> &'static str {
    let mut fitting = MULTIPLES.iter();
    let found = fitting.find(|(number, _)| address.is_multiple_of(*number));
    found.map_or("less", |(_, text)| text)
}

pub(crate) fn managed(env: &Environment, len: usize) -> Result<CUdeviceptr> {
    let mut address = 0;
    let code = cu!(env, cuMemAllocManaged(&raw mut address, len, GLOBAL));
    env.fine("cuMemAllocManaged", code)?;
    Ok(address)
}

/// The bytes, for a host that touches them itself.
pub(crate) fn host(address: CUdeviceptr) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

pub(crate) fn fill(address: CUdeviceptr, len: usize, byte: u8) {
    // SAFETY: managed memory that is alive and that no stream has work on.
    unsafe { host(address).write_bytes(byte, len) };
}

pub(crate) fn holds(address: CUdeviceptr, len: usize, byte: u8) -> bool {
    // SAFETY: as in `fill`.
    let bytes = unsafe { std::slice::from_raw_parts(host(address), len) };
    bytes.iter().all(|found| *found == byte)
}

pub(crate) fn attributes(env: &Environment) -> Result<()> {
    for (id, what) in [
        (35, "TCC"),
        (83, "managed memory"),
        (88, "pageable memory"),
        (89, "concurrent managed access"),
        (100, "page tables of the host"),
        (101, "direct access of the host"),
        (102, "virtual memory management"),
        (115, "pools"),
    ] {
        let (code, value) = env.device_attribute(id);
        env.say(what, format!("{}, {value}", name(code)));
    }
    Ok(())
}

pub(crate) fn sizes(env: &Environment) -> Result<()> {
    for len in [0, 1, 4096, 2 << 20, 1 << 50, usize::MAX] {
        // A GPU was asked once, for the record. It can hang if it is asked for more managed memory than it has.
        if len >= 1 << 50 && !env.is_simulated()? {
            continue;
        }
        for flags in [0, 1, 2, 3, 4, 8] {
            let mut out = 7;
            let code = cu!(env, cuMemAllocManaged(&raw mut out, len, flags));
            let then = match out {
                0 => ", null".into(),
                7 => ", output untouched".into(),
                _ if code == OK => {
                    let freed = cu!(env, cuMemFree_v2(out));
                    format!(", freed {}", name(freed))
                }
                _ => ", output touched".into(),
            };
            env.say(
                format!("{len} B, flags {flags}"),
                format!("{}{then}", name(code)),
            );
        }
    }
    let null = std::ptr::null_mut();
    env.code("into null", cu!(env, cuMemAllocManaged(null, 64, GLOBAL)));
    env.no_context()?;
    let mut out = 7;
    let code = cu!(env, cuMemAllocManaged(&raw mut out, 64, GLOBAL));
    env.code("without context", code);
    let code = cu!(env, cuMemAllocManaged(&raw mut out, 0, GLOBAL));
    env.code("nothing, without context", code);
    Ok(())
}

pub(crate) fn addresses(env: &Environment) -> Result<()> {
    let mut last = 0;
    for (number, len) in [1, 1, 4096, 2 << 20, 1, (2 << 20) + 1, 64 << 20]
        .into_iter()
        .enumerate()
    {
        let block = managed(env, len)?;
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

/// What the driver says about the memory, by number of the attribute.
fn facts(env: &Environment, when: &str, block: CUdeviceptr, ids: &[u32]) {
    for id in ids {
        let (code, value) = attribute(env, *id, block + 5);
        let answer = if code == OK {
            value.cast_signed().to_string()
        } else {
            name(code)
        };
        env.say(format!("{when}, attribute {id}"), answer);
    }
}

pub(crate) fn pointer(env: &Environment) -> Result<()> {
    let (stream, block) = (env.stream()?, managed(env, 1000)?);
    facts(
        env,
        "at first",
        block,
        &[2, 6, 8, 9, 10, 12, 13, 14, 15, 16, 21],
    );
    let context = env.context().addr() as u64;
    for (id, what, expected) in [
        (1, "the context", context),
        (3, "the address", block + 5),
        (4, "the address", block + 5),
        (11, "the start", block),
        (17, "null", 0),
        (19, "the start", block),
    ] {
        let (code, value) = attribute(env, id, block + 5);
        let answer = match code {
            OK if value == expected => "yes".into(),
            OK if value == 0 => "no, 0".into(),
            OK => "no".into(),
            code => name(code),
        };
        env.say(format!("attribute {id} is {what}"), answer);
    }
    env.code("attribute 5", attribute(env, 5, block).0);
    env.code("attribute 2 behind the end", {
        attribute(env, 2, block + 1000).0
    });
    let (mut base, mut len) = (0, 0);
    let code = cu!(
        env,
        cuMemGetAddressRange_v2(&raw mut base, &raw mut len, block + 5)
    );
    let from = yes(base == block);
    env.say(
        "range",
        format!("{}, from the start {from}, {len} B", name(code)),
    );
    let mut handle = CUipcMemHandle::default();
    let code = cu!(env, cuIpcGetMemHandle(&raw mut handle, block));
    env.code("cuIpcGetMemHandle", code);
    let mut token = CUmemPoolPtrExportData::default();
    let code = cu!(env, cuMemPoolExportPointer(&raw mut token, block));
    env.code("cuMemPoolExportPointer", code);
    let (mut device, at) = (0, host(block).cast::<c_void>());
    let code = cu!(env, cuMemHostGetDevicePointer_v2(&raw mut device, at, 0));
    let same = yes(device == block);
    env.say(
        "cuMemHostGetDevicePointer is the address",
        format!("{}, {same}", name(code)),
    );
    let code = to_device(env, block, 1000, stream);
    env.fine("cuMemPrefetchAsync", code)?;
    env.synchronise(stream)?;
    facts(env, "at the device", block, &[2, 9, 13]);
    let mut attached = 0;
    let code = cu!(env, cuMemAllocManaged(&raw mut attached, 1000, 2));
    env.fine("cuMemAllocManaged", code)?;
    facts(env, "attached to the host", attached, &[2, 8, 9, 16]);
    env.no_context()?;
    facts(env, "without context", block, &[2, 3, 8, 9]);
    Ok(())
}

/// When the device has less memory: told as yes and no, for how much is the driver's affair.
pub(crate) fn device_memory(env: &Environment) -> Result<()> {
    const LEN: usize = 64 << 20;
    let stream = env.stream()?;
    let start = env.device_free()?;
    let say = |when: &str| -> Result<()> {
        let misses = start.saturating_sub(env.device_free()?);
        env.say(when, yes(misses >= LEN as u64 / 2));
        Ok(())
    };
    let block = managed(env, LEN)?;
    say("less once allocated")?;
    fill(block, LEN, 1);
    say("less once the host has written it")?;
    let code = to_device(env, block, LEN, stream);
    env.code("prefetched to the device", code);
    env.synchronise(stream)?;
    say("less once prefetched")?;
    let code = cu!(env, cuMemPrefetchAsync(block, LEN, -1, stream));
    env.code("prefetched to the host", code);
    env.synchronise(stream)?;
    say("less once prefetched back")?;
    let code = cu!(env, cuMemsetD8Async(block, 2, LEN, stream));
    env.fine("cuMemsetD8Async", code)?;
    env.synchronise(stream)?;
    say("less once the device has written it")?;
    env.say("what the device wrote is there", yes(holds(block, LEN, 2)));
    env.code("freed", cu!(env, cuMemFree_v2(block)));
    say("less once freed")
}
