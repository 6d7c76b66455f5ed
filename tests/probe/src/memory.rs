//! Memory outside the pools.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::while_held;
use crate::lab::{Lab, MIB, OK, cu, name, size, yes};

/// What `cuMemAlloc` takes from the device, in a process that has allocated nothing yet.
pub(crate) fn steps(lab: &Lab) -> Result<()> {
    let start = lab.device_free()?;
    let mut last = start;
    let sizes = [
        1,
        1,
        1 << 20,
        1 << 20,
        3 << 20,
        3 << 20,
        5 << 20,
        64 << 20,
        65 << 20,
    ];
    for (number, bytes) in sizes.into_iter().enumerate() {
        lab.plain(bytes)?;
        let free = lab.device_free()?;
        lab.say(
            format!("block {}, {bytes} B", number + 1),
            format!(
                "{}, with {} before",
                size(last.saturating_sub(free)),
                size(start.saturating_sub(last))
            ),
        );
        last = free;
    }
    Ok(())
}

/// Small blocks share memory of the device: when does it go back?
pub(crate) fn slabs(lab: &Lab) -> Result<()> {
    let start = lab.device_free()?;
    let missing = |part: &str| -> Result<()> {
        let free = lab.device_free()?;
        lab.say(part, size(start.saturating_sub(free)));
        Ok(())
    };
    let free = |block: CUdeviceptr| lab.fine("cuMemFree", cu!(lab, cuMemFree_v2(block)));
    let blocks = [lab.plain(1000)?, lab.plain(1000)?, lab.plain(1000)?];
    missing("three of 1000 B")?;
    free(blocks[0])?;
    let again = lab.plain(1000)?;
    lab.say(
        "the place of a freed one",
        if again == blocks[0] { "same" } else { "other" },
    );
    free(again)?;
    free(blocks[1])?;
    missing("two freed")?;
    free(blocks[2])?;
    missing("all freed")?;
    for bytes in [
        1 << 20,
        (1 << 20) + 1,
        (2 << 20) - 512,
        (2 << 20) - 1,
        2 << 20,
        (2 << 20) + 1,
    ] {
        let (first, second) = (lab.plain(bytes)?, lab.plain(bytes)?);
        missing(&format!("two of {bytes} B"))?;
        free(first)?;
        free(second)?;
        missing(&format!("two of {bytes} B, freed"))?;
    }
    Ok(())
}

pub(crate) fn sizes(lab: &Lab) -> Result<()> {
    let mut out = 1;
    for bytes in [0, 1 << 50, usize::MAX] {
        let code = cu!(lab, cuMemAlloc_v2(&raw mut out, bytes));
        lab.say(
            bytes,
            format!(
                "{}, {}",
                name(code),
                if out == 0 { "null" } else { "not null" }
            ),
        );
        out = 1;
    }
    lab.code(
        "into null",
        cu!(lab, cuMemAlloc_v2(std::ptr::null_mut(), 1)),
    );
    let mut pinned = std::ptr::null_mut();
    let code = cu!(lab, cuMemHostAlloc(&raw mut pinned, 0, 0));
    let null = yes(pinned.is_null());
    lab.say("0 of the host", format!("{}, null {null}", name(code)));
    lab.code(
        "host flags 8",
        cu!(lab, cuMemHostAlloc(&raw mut pinned, 1, 8)),
    );
    lab.code(
        "host flags 7",
        cu!(lab, cuMemHostAlloc(&raw mut pinned, 1, 7)),
    );
    let first = lab.plain(1)?;
    let second = lab.plain(1)?;
    lab.say(
        "addresses are multiples of 512",
        yes(first % 512 == 0 && second % 512 == 0),
    );
    lab.say(
        "two blocks of 1 B lie apart",
        format!("{} B", first.abs_diff(second)),
    );
    Ok(())
}

pub(crate) fn total(lab: &Lab) -> Result<()> {
    let (mut free, mut total, mut device) = (0, 0, 0);
    let code = cu!(lab, cuMemGetInfo_v2(&raw mut free, &raw mut total));
    lab.fine("cuMemGetInfo", code)?;
    lab.fine(
        "cuDeviceTotalMem",
        cu!(lab, cuDeviceTotalMem_v2(&raw mut device, 0)),
    )?;
    lab.say(
        "cuMemGetInfo and cuDeviceTotalMem agree",
        yes(total == device),
    );
    let null = std::ptr::null_mut();
    lab.code(
        "free into null",
        cu!(lab, cuMemGetInfo_v2(null, &raw mut total)),
    );
    lab.code(
        "total into null",
        cu!(lab, cuMemGetInfo_v2(&raw mut free, null)),
    );
    Ok(())
}

/// Whether a free waits for a stream that never touched the memory.
pub(crate) fn free_waits(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let say = |part: &str, (code, waited): (CUresult, &str)| {
        lab.say(part, format!("{}, {waited}", name(code)));
    };
    let plain = lab.plain(1000)?;
    say(
        "cuMemFree",
        while_held(lab, stream, || cu!(lab, cuMemFree_v2(plain)))?,
    );
    let plain = lab.plain(64 << 20)?;
    say(
        "cuMemFree of 64 MiB",
        while_held(lab, stream, || cu!(lab, cuMemFree_v2(plain)))?,
    );
    let pinned = lab.pinned(1000)?;
    say(
        "cuMemFreeHost",
        while_held(lab, stream, || cu!(lab, cuMemFreeHost(pinned)))?,
    );
    let (pool, other) = (lab.pool(0)?, lab.stream()?);
    let block = lab.alloc(pool, 1000, other)?;
    say(
        "cuMemFree of pool memory",
        while_held(lab, stream, || cu!(lab, cuMemFree_v2(block)))?,
    );
    let block = lab.alloc(pool, 1000, stream)?;
    let on_its_stream = while_held(lab, stream, || cu!(lab, cuMemFree_v2(block)))?;
    say("cuMemFree of pool memory of the held stream", on_its_stream);
    let plain = lab.plain(1000)?;
    let async_free = while_held(lab, stream, || cu!(lab, cuMemFreeAsync(plain, stream)))?;
    say("cuMemFreeAsync of plain memory", async_free);
    let mut out = 0;
    say(
        "cuMemAlloc",
        while_held(lab, stream, || {
            cu!(lab, cuMemAlloc_v2(&raw mut out, 64 << 20))
        })?,
    );
    let mut host = std::ptr::null_mut();
    let code = while_held(lab, stream, || {
        cu!(lab, cuMemHostAlloc(&raw mut host, 1000, 0))
    })?;
    say("cuMemHostAlloc", code);
    let big = while_held(lab, stream, || lab.try_alloc(pool, 512 * MIB, other).0)?;
    say("growing a pool", big);
    let small = lab.pool(0)?;
    let destroy = while_held(lab, stream, || cu!(lab, cuMemPoolDestroy(small)))?;
    say("cuMemPoolDestroy", destroy);
    let trim = while_held(lab, stream, || cu!(lab, cuMemPoolTrimTo(pool, 0)))?;
    say("cuMemPoolTrimTo", trim);
    Ok(())
}

pub(crate) fn free_async(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let start = lab.device_free()?;
    let plain = lab.plain(64 << 20)?;
    lab.code("of plain memory", cu!(lab, cuMemFreeAsync(plain, stream)));
    let missing = start.saturating_sub(lab.device_free()?);
    lab.say("then the device misses", size(missing));
    lab.synchronise(stream)?;
    let missing = start.saturating_sub(lab.device_free()?);
    lab.say("after a synchronise it misses", size(missing));
    lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))?;
    let mut value = 0_u64;
    let place = (&raw mut value).cast();
    let code = cu!(
        lab,
        cuPointerGetAttribute(place, CUpointer_attribute(2), plain)
    );
    lab.code("cuPointerGetAttribute then", code);
    Ok(())
}

pub(crate) fn address_range(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let block = lab.alloc(pool, 1000, stream)?;
    let plain = lab.plain(1000)?;
    let pinned = lab.pinned(1000)?.expose_provenance() as u64;
    let local = 0_u8;
    let foreign = (&raw const local).expose_provenance() as u64;
    for (part, address, start) in [
        ("pool memory", block + 5, block),
        ("plain memory", plain + 5, plain),
        ("pinned memory", pinned + 5, pinned),
        ("behind plain memory", plain + 1000, plain),
        ("foreign memory", foreign, foreign),
        ("null", 0, 0),
    ] {
        let (mut base, mut len) = (1, 1);
        let code = cu!(
            lab,
            cuMemGetAddressRange_v2(&raw mut base, &raw mut len, address)
        );
        let answer = if code == OK {
            format!("from the start {}, {len} B", yes(base == start))
        } else {
            name(code)
        };
        lab.say(part, answer);
    }
    let code = cu!(
        lab,
        cuMemGetAddressRange_v2(std::ptr::null_mut(), std::ptr::null_mut(), plain)
    );
    lab.code("into null", code);
    lab.free(block, stream)?;
    lab.end_pool(pool)
}

pub(crate) fn host_memory(lab: &Lab) -> Result<()> {
    let start = lab.device_free()?;
    let pinned = lab.pinned(64 << 20)?;
    lab.say(
        "64 MiB take from the device",
        size(start.saturating_sub(lab.device_free()?)),
    );
    let mut device = 0;
    let code = cu!(
        lab,
        cuMemHostGetDevicePointer_v2(&raw mut device, pinned, 0)
    );
    let same = device == pinned.addr() as u64;
    lab.say(
        "its device address is the same",
        format!("{}, {}", name(code), yes(same)),
    );
    let address = pinned.expose_provenance() as u64;
    lab.code("cuMemFree of it", cu!(lab, cuMemFree_v2(address)));
    lab.code("cuMemFreeHost", cu!(lab, cuMemFreeHost(pinned)));
    lab.code(
        "cuMemFreeHost of null",
        cu!(lab, cuMemFreeHost(std::ptr::null_mut())),
    );
    Ok(())
}
