//! Whether host and device see the same bytes in memory of a managed pool, when it serves a second time.
//!
//! Each block has three pages of 4 KiB. An answer names what the first byte of each page was: for the host, which
//! reads and writes in place, and in a copy.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, cu, name};
use crate::managed::host;

const PAGE: usize = 4096;
const LEN: usize = 3 * PAGE;

fn device() -> CUmemLocation {
    location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0)
}

fn of_the_host() -> CUmemLocation {
    location(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0)
}

fn places() -> [(&'static str, CUmemLocation); 3] {
    let anywhere = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_NONE, 0);
    [
        ("anywhere", anywhere),
        ("device", device()),
        ("host", of_the_host()),
    ]
}

/// What is done in the block's first life.
#[derive(Clone, Copy, PartialEq)]
enum First {
    Nothing,
    Device,
    Host,
    Both,
}

const FIRSTS: [(&str, First); 4] = [
    ("untouched", First::Nothing),
    ("of the device", First::Device),
    ("of the host", First::Host),
    ("of both", First::Both),
];

/// What is done with the new block before the device writes.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    Nothing,
    PrefetchToDevice,
    PrefetchToHost,
    HostWrites,
    DeviceWrites,
}

const BEFORES: [(&str, Before); 5] = [
    ("", Before::Nothing),
    (", prefetched to the device", Before::PrefetchToDevice),
    (", prefetched to the host", Before::PrefetchToHost),
    (", the host writes", Before::HostWrites),
    (", the device writes twice", Before::DeviceWrites),
];

fn pool(env: &Environment, place: CUmemLocation) -> Result<CUmemoryPool> {
    let props = CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED,
        location: place,
        ..Environment::props()
    };
    let (code, pool) = env.pool_with(&props);
    env.fine("cuMemPoolCreate", code)?;
    Ok(pool)
}

fn device_fills(env: &Environment, block: CUdeviceptr, byte: u8, stream: CUstream) -> Result<()> {
    let code = cu!(env, cuMemsetD8Async(block, byte, LEN, stream));
    env.fine("cuMemsetD8Async", code)?;
    env.synchronise(stream)
}

fn prefetch(
    env: &Environment,
    block: CUdeviceptr,
    to: CUmemLocation,
    stream: CUstream,
) -> Result<()> {
    let code = cu!(env, cuMemPrefetchAsync_v2(block, LEN, to, 0, stream));
    env.fine("cuMemPrefetchAsync", code)?;
    env.synchronise(stream)
}

fn host_fills(block: CUdeviceptr, pages: std::ops::Range<usize>, byte: u8) {
    for page in pages {
        // SAFETY: managed memory that is alive and that no stream has work on.
        unsafe { host(block + (page * PAGE) as u64).write_bytes(byte, PAGE) };
    }
}

fn pages(bytes: [u8; 3]) -> String {
    format!("{} {} {}", bytes[0], bytes[1], bytes[2])
}

/// What the host sees in place.
fn seen(block: CUdeviceptr) -> String {
    pages([0, 1, 2].map(|page| {
        // SAFETY: as in `host_fills`.
        unsafe { host(block + page * PAGE as u64).read_volatile() }
    }))
}

/// What a copy has.
fn copied(env: &Environment, block: CUdeviceptr) -> Result<String> {
    let mut bytes = vec![0xee_u8; LEN];
    let code = cu!(env, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), block, LEN));
    env.fine("cuMemcpyDtoH", code)?;
    Ok(pages([0, 1, 2].map(|page| bytes[page * PAGE])))
}

/// The device fills all, the host the last page, and both look. What was seen wrong, in order.
fn second_life(env: &Environment, block: CUdeviceptr, stream: CUstream) -> Result<String> {
    device_fills(env, block, 5, stream)?;
    let mut wrong = Vec::new();
    let mut look = |when: &str, seen: String, expected: &str| {
        if seen != expected {
            wrong.push(format!("{when} {seen}"));
        }
    };
    look("copied", copied(env, block)?, "5 5 5");
    look("for the host", seen(block), "5 5 5");
    host_fills(block, 2..3, 6);
    look("written, copied", copied(env, block)?, "5 5 6");
    look("written, for the host", seen(block), "5 5 6");
    prefetch(env, block, device(), stream)?;
    look("prefetched, copied", copied(env, block)?, "5 5 6");
    Ok(match wrong.is_empty() {
        true => "right".to_owned(),
        false => wrong.join("; "),
    })
}

fn life(
    env: &Environment,
    pool: CUmemoryPool,
    first: First,
    stream: CUstream,
) -> Result<CUdeviceptr> {
    let block = env.alloc(pool, LEN as u64, stream)?;
    if matches!(first, First::Device | First::Both) {
        device_fills(env, block, 1, stream)?;
    }
    if matches!(first, First::Host | First::Both) {
        host_fills(block, 0..3, 2);
    }
    env.free(block, stream)?;
    env.synchronise(stream)?;
    Ok(block)
}

fn one(
    env: &Environment,
    place: CUmemLocation,
    first: First,
    before: Before,
    is_new: bool,
) -> Result<String> {
    let stream = env.stream()?;
    let mut from = pool(env, place)?;
    let old = life(env, from, first, stream)?;
    if is_new {
        env.end_pool(from)?;
        from = pool(env, place)?;
    }
    let block = env.alloc(from, LEN as u64, stream)?;
    env.synchronise(stream)?;
    match before {
        Before::Nothing => {}
        Before::PrefetchToDevice => prefetch(env, block, device(), stream)?,
        Before::PrefetchToHost => prefetch(env, block, of_the_host(), stream)?,
        Before::HostWrites => host_fills(block, 0..3, 4),
        Before::DeviceWrites => device_fills(env, block, 4, stream)?,
    }
    let answer = second_life(env, block, stream)?;
    // Whether another pool comes to lie there is the driver's to choose.
    let place = if is_new || old == block {
        ""
    } else {
        "elsewhere, "
    };
    Ok(format!("{place}{answer}"))
}

/// A block whose place served before, in the same pool or in one that has ended.
pub(crate) fn again(env: &Environment) -> Result<()> {
    for (at, place) in places() {
        for (life, first) in FIRSTS {
            for (then, before) in BEFORES {
                env.alone(&format!("{at}, {life}{then}"), || {
                    one(env, place, first, before, false)
                });
            }
            env.alone(&format!("{at}, {life}, another pool"), || {
                one(env, place, first, Before::Nothing, true)
            });
        }
    }
    Ok(())
}

/// Memory in its second life, with what may matter changed one at a time.
pub(crate) fn causes(env: &Environment) -> Result<()> {
    const THRESHOLD: u32 = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD.0;
    let anywhere = places()[0].1;
    let keeping = || {
        let pool = pool(env, anywhere)?;
        env.set(pool, THRESHOLD, u64::MAX)?;
        anyhow::Ok(pool)
    };
    let again = |pool, stream| {
        let block = env.alloc(pool, LEN as u64, stream)?;
        env.synchronise(stream)?;
        second_life(env, block, stream)
    };
    env.alone("kept by the pool", || {
        let (pool, stream) = (keeping()?, env.stream()?);
        life(env, pool, First::Device, stream)?;
        again(pool, stream)
    });
    env.alone("kept by the pool, trimmed", || {
        let (pool, stream) = (keeping()?, env.stream()?);
        life(env, pool, First::Device, stream)?;
        env.trim(pool, 0)?;
        again(pool, stream)
    });
    env.alone("no wait between free and allocation", || {
        let (pool, stream) = (pool(env, anywhere)?, env.stream()?);
        let block = env.alloc(pool, LEN as u64, stream)?;
        device_fills(env, block, 1, stream)?;
        env.free(block, stream)?;
        again(pool, stream)
    });
    env.alone("another block stays", || {
        let (pool, stream) = (pool(env, anywhere)?, env.stream()?);
        env.alloc(pool, LEN as u64, stream)?;
        life(env, pool, First::Device, stream)?;
        again(pool, stream)
    });
    env.alone("prefetched in part, the rest of the page", || {
        let (pool, stream) = (pool(env, anywhere)?, env.stream()?);
        life(env, pool, First::Device, stream)?;
        let block = env.alloc(pool, LEN as u64, stream)?;
        let code = cu!(
            env,
            cuMemPrefetchAsync_v2(block, 2 * PAGE + 100, device(), 0, stream)
        );
        env.fine("cuMemPrefetchAsync", code)?;
        second_life(env, block, stream)
    });
    env.alone("filled by a copy", || {
        let (pool, stream) = (pool(env, anywhere)?, env.stream()?);
        life(env, pool, First::Device, stream)?;
        let block = env.alloc(pool, LEN as u64, stream)?;
        env.synchronise(stream)?;
        let bytes = vec![5_u8; LEN];
        let code = cu!(env, cuMemcpyHtoD_v2(block, bytes.as_ptr().cast(), LEN));
        env.fine("cuMemcpyHtoD", code)?;
        Ok(seen(block))
    });
    // Two blocks in a page: the first is freed, which must not change the second.
    for (what, is_again) in [("a neighbour", false), ("a neighbour of a new block", true)] {
        env.alone(what, || {
            let (pool, stream) = (pool(env, anywhere)?, env.stream()?);
            let (a, b) = (env.alloc(pool, 512, stream)?, env.alloc(pool, 512, stream)?);
            for block in [a, b] {
                let code = cu!(env, cuMemsetD8Async(block, 5, 512, stream));
                env.fine("cuMemsetD8Async", code)?;
            }
            env.synchronise(stream)?;
            env.free(a, stream)?;
            env.synchronise(stream)?;
            if is_again {
                let a = env.alloc(pool, 512, stream)?;
                let code = cu!(env, cuMemPrefetchAsync_v2(a, 512, device(), 0, stream));
                env.fine("cuMemPrefetchAsync", code)?;
                env.synchronise(stream)?;
            }
            // SAFETY: as in `seen`.
            let byte = unsafe { host(b).read_volatile() };
            Ok(format!("{} B apart, {byte}", a.abs_diff(b)))
        });
    }
    env.alone("large", || {
        const MUCH: usize = 40 << 20;
        let (pool, stream) = (pool(env, anywhere)?, env.stream()?);
        let mut counts = Vec::new();
        for byte in [1, 5] {
            let block = env.alloc(pool, MUCH as u64, stream)?;
            let code = cu!(env, cuMemsetD8Async(block, byte, MUCH, stream));
            env.fine("cuMemsetD8Async", code)?;
            env.synchronise(stream)?;
            if byte == 5 {
                let right = (0..MUCH / PAGE).filter(|page| {
                    // SAFETY: as in `seen`.
                    unsafe { host(block + (page * PAGE) as u64).read_volatile() == byte }
                });
                counts.push(right.count());
            }
            env.free(block, stream)?;
            env.synchronise(stream)?;
        }
        Ok(format!("{counts:?} pages of {} are right", MUCH / PAGE))
    });
    Ok(())
}

/// What else mends memory that its pool has released: for the whole block, and for less.
pub(crate) fn mends(env: &Environment) -> Result<()> {
    let released = || {
        let (pool, stream) = (pool(env, places()[0].1)?, env.stream()?);
        life(env, pool, First::Device, stream)?;
        let block = env.alloc(pool, LEN as u64, stream)?;
        env.synchronise(stream)?;
        anyhow::Ok((block, stream))
    };
    for (part, len) in [
        ("all", LEN),
        ("less than the last page", LEN - 1000),
        ("less than a page", 100),
    ] {
        env.alone(&format!("discarded, {part}"), || {
            let (block, stream) = released()?;
            let (mut at, mut len) = (block, len);
            let (at, len) = (&raw mut at, &raw mut len);
            let code = cu!(env, cuMemDiscardBatchAsync(at, len, 1, 0, stream));
            env.fine("cuMemDiscardBatchAsync", code)?;
            env.synchronise(stream)?;
            second_life(env, block, stream)
        });
    }
    for (what, place, give, take) in [
        ("preferred by the device", device(), 3, 4),
        ("preferred by the host", of_the_host(), 3, 4),
        ("accessed by the device", device(), 5, 6),
        ("accessed by the host", of_the_host(), 5, 6),
        ("read mostly", device(), 1, 2),
    ] {
        env.alone(what, || {
            let (block, stream) = released()?;
            let answers = [give, take].map(|advice| {
                let advice = CUmem_advise(advice);
                name(cu!(env, cuMemAdvise_v2(block, LEN, advice, place)))
            });
            let then = second_life(env, block, stream)?;
            Ok(format!("{}, {}, {then}", answers[0], answers[1]))
        });
    }
    Ok(())
}

/// The same without a free, and of memory that is in no pool.
pub(crate) fn at_first(env: &Environment) -> Result<()> {
    for (at, place) in places() {
        env.alone(&format!("{at}, new"), || {
            let stream = env.stream()?;
            let block = env.alloc(pool(env, place)?, LEN as u64, stream)?;
            second_life(env, block, stream)
        });
    }
    env.alone("no pool", || {
        let stream = env.stream()?;
        let block = crate::managed::managed(env, LEN)?;
        device_fills(env, block, 1, stream)?;
        host_fills(block, 0..3, 2);
        let code = cu!(env, cuMemFree_v2(block));
        env.fine("cuMemFree", code)?;
        let again = crate::managed::managed(env, LEN)?;
        let answer = second_life(env, again, stream)?;
        Ok(format!("{}, {answer}", name(code)))
    });
    Ok(())
}
