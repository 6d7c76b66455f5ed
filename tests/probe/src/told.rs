//! What is told of a range of managed memory after advice.

use std::ffi::c_int;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name};

const LEN: usize = 8 << 20;

const PLACES: [(&str, u32, c_int); 5] = [
    ("device 0", 1, 0),
    ("host", 2, 0),
    ("node 0", 3, 0),
    ("node 99", 3, 99),
    ("current node", 4, 0),
];

fn managed(env: &Environment) -> Result<CUdeviceptr> {
    let mut address = 0;
    let code = cu!(env, cuMemAllocManaged(&raw mut address, LEN, 1));
    env.fine("cuMemAllocManaged", code)?;
    Ok(address)
}

fn advise(
    env: &Environment,
    at: CUdeviceptr,
    bytes: usize,
    advice: u32,
    kind: u32,
    id: c_int,
) -> CUresult {
    let place = location(CUmemLocationType(kind), id);
    cu!(env, cuMemAdvise_v2(at, bytes, CUmem_advise(advice), place))
}

/// One attribute of 32 bits.
fn one(env: &Environment, at: CUdeviceptr, bytes: usize, attribute: u32) -> String {
    let mut value: c_int = -77;
    let key = CUmem_range_attribute(attribute);
    let code = cu!(
        env,
        cuMemRangeGetAttribute((&raw mut value).cast(), 4, key, at, bytes)
    );
    match code {
        OK => value.to_string(),
        code => name(code),
    }
}

/// Read-mostly, preferred location, last prefetch, and the type and id of both places.
fn all(env: &Environment, at: CUdeviceptr, bytes: usize) -> String {
    let values = [1, 2, 4, 5, 6, 7, 8].map(|attribute| one(env, at, bytes, attribute));
    values.join(" ")
}

pub(crate) fn places(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for (part, kind, id) in PLACES {
        let at = managed(env)?;
        env.say(format!("{part}, at first"), all(env, at, LEN));
        for (what, advice) in [("preferred", 3), ("accessed by", 5), ("read mostly", 1)] {
            env.code(
                format!("{part}, {what}"),
                advise(env, at, LEN, advice, kind, id),
            );
            env.say(format!("{part}, told after {what}"), all(env, at, LEN));
        }
        let mut by: [c_int; 4] = [-77; 4];
        let key = CUmem_range_attribute(3);
        let code = cu!(
            env,
            cuMemRangeGetAttribute(by.as_mut_ptr().cast(), 16, key, at, LEN)
        );
        env.say(
            format!("{part}, all users"),
            format!("{} {by:?}", name(code)),
        );
        for (what, advice) in [("preferred", 4), ("accessed by", 6), ("read mostly", 2)] {
            env.code(
                format!("{part}, no longer {what}"),
                advise(env, at, LEN, advice, kind, id),
            );
        }
        env.say(format!("{part}, told then"), all(env, at, LEN));
        let place = location(CUmemLocationType(kind), id);
        let code = cu!(env, cuMemPrefetchAsync_v2(at, LEN, place, 0, stream));
        env.code(format!("{part}, prefetch"), code);
        env.say(
            format!("{part}, told after the prefetch"),
            all(env, at, LEN),
        );
        env.synchronise(stream)?;
        env.fine("cuMemFree", cu!(env, cuMemFree_v2(at)))?;
    }
    Ok(())
}

/// How much of the memory a piece of advice is about.
/// Advice that is taken back of a part of a page, and of blocks that share one.
pub(crate) fn parts(env: &Environment) -> Result<()> {
    let at = managed(env)?;
    for (part, from, bytes) in [
        ("a byte in it", 4096 + 5, 1),
        ("its first byte", 4096, 1),
        ("its last byte", 8191, 1),
        ("its second half", 6144, 2048),
        ("all of it", 4096, 4096),
    ] {
        for advice in [
            (1, 2, "read mostly", 1),
            (3, 4, "preferred", 2),
            (5, 6, "accessed by", 3),
        ] {
            let (set, unset, what, attribute) = advice;
            let label = |when: &str| format!("{what}, {part}, {when}");
            env.code(label("set"), advise(env, at, 3 * 4096, set, 1, 0));
            env.code(label("unset"), advise(env, at + from, bytes, unset, 1, 0));
            env.say(label("the byte"), one(env, at + from, 1, attribute));
            env.say(label("the page"), one(env, at + 4096, 4096, attribute));
            env.say(label("the page before"), one(env, at, 4096, attribute));
            env.say(label("all three"), one(env, at, 3 * 4096, attribute));
            env.code(label("all unset"), advise(env, at, 3 * 4096, unset, 1, 0));
        }
    }
    let mut blocks = Vec::new();
    for _ in 0..9 {
        let mut block = 0;
        env.fine(
            "cuMemAllocManaged",
            cu!(env, cuMemAllocManaged(&raw mut block, 600, 1)),
        )?;
        blocks.push(block);
    }
    let step = blocks.windows(2).all(|pair| pair[1] == pair[0] + 1024);
    env.say("blocks of 600 B are 1 KiB apart", step);
    for (number, block) in blocks.iter().enumerate() {
        let label = |when: &str| format!("block {number}, {when}");
        env.say(label("its place in a page"), block % 4096);
        env.code(label("set"), advise(env, *block, 600, 1, 1, 0));
        env.say(label("told"), one(env, *block, 600, 1));
        env.code(
            label("its last byte unset"),
            advise(env, block + 599, 1, 2, 1, 0),
        );
        env.say(label("told then"), one(env, *block, 600, 1));
        env.say(label("the last byte then"), one(env, block + 599, 1, 1));
        env.code(label("unset"), advise(env, *block, 600, 2, 1, 0));
        env.say(label("told at last"), one(env, *block, 600, 1));
    }
    Ok(())
}

/// How lengths that are no whole pages are taken.
pub(crate) fn lengths(env: &Environment) -> Result<()> {
    let at = managed(env)?;
    for bytes in [1, 4095, 4096, 4097, 6000, 8191, 8192, 8193, 12287] {
        env.code(
            format!("advice, {bytes} B"),
            advise(env, at, bytes, 1, 1, 0),
        );
        let pages = (0..4).map(|page| one(env, at + page * 4096, 4096, 1));
        env.say(
            format!("pages of {bytes} B"),
            pages.collect::<Vec<_>>().join(" "),
        );
        env.fine("cuMemAdvise", advise(env, at, 16 * 4096, 2, 1, 0))?;
    }
    for told in [1_u64, 2, 3] {
        env.fine(
            "cuMemAdvise",
            advise(env, at, told as usize * 4096, 1, 1, 0),
        )?;
        for bytes in [1, 4096, 4097, 6000, 8191, 8192, 8193, 12287, 12288, 12289] {
            env.say(
                format!("of {told} pages, {bytes} B"),
                one(env, at, bytes, 1),
            );
        }
        env.fine("cuMemAdvise", advise(env, at, 16 * 4096, 2, 1, 0))?;
    }
    Ok(())
}

pub(crate) fn pages(env: &Environment) -> Result<()> {
    let at = managed(env)?;
    let middle = at + 4 * MIB;
    env.code("one byte", advise(env, middle + 5, 1, 1, 1, 0));
    for (part, from, bytes) in [
        ("the byte", middle + 5, 1),
        ("its 4 KiB", middle, 4096),
        ("the next 4 KiB", middle + 4096, 4096),
        ("its 64 KiB", middle, 64 << 10),
        ("the next 64 KiB", middle + (64 << 10), 64 << 10),
        ("its 2 MiB", middle, 2 << 20),
        ("the 4 KiB before", middle - 4096, 4096),
        ("from the byte before", middle - 1, 4097),
        ("all", at, LEN),
    ] {
        env.say(part, one(env, from, bytes, 1));
    }
    env.code(
        "two bytes over a border, no longer",
        advise(env, middle - 1, 2, 2, 1, 0),
    );
    env.say("its 4 KiB then", one(env, middle, 4096, 1));
    for (part, from, bytes) in [
        ("nothing", at, 0),
        ("past the end", at, LEN + 1),
        ("wrapping", at, usize::MAX),
        ("elsewhere", 4096, 4096),
    ] {
        env.code(format!("advice, {part}"), advise(env, from, bytes, 1, 1, 0));
        env.say(format!("told, {part}"), one(env, from, bytes, 1));
    }
    env.code("unknown advice", advise(env, at, LEN, 99, 1, 0));
    env.say("unknown attribute", one(env, at, LEN, 99));
    env.no_context()?;
    env.code("advice without a context", advise(env, at, LEN, 1, 1, 0));
    env.say("told without a context", one(env, at, LEN, 1));
    Ok(())
}
