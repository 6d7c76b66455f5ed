//! What is told of a range of managed memory after advice.

use std::ffi::c_int;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB, OK, cu, name};

const LEN: usize = 8 << 20;

const PLACES: [(&str, u32, c_int); 5] = [
    ("device 0", 1, 0),
    ("host", 2, 0),
    ("node 0", 3, 0),
    ("node 99", 3, 99),
    ("current node", 4, 0),
];

fn managed(lab: &Lab) -> Result<CUdeviceptr> {
    let mut address = 0;
    let code = cu!(lab, cuMemAllocManaged(&raw mut address, LEN, 1));
    lab.fine("cuMemAllocManaged", code)?;
    Ok(address)
}

fn advise(lab: &Lab, at: CUdeviceptr, bytes: usize, advice: u32, kind: u32, id: c_int) -> CUresult {
    let place = location(CUmemLocationType(kind), id);
    cu!(lab, cuMemAdvise_v2(at, bytes, CUmem_advise(advice), place))
}

/// One attribute of 32 bits.
fn one(lab: &Lab, at: CUdeviceptr, bytes: usize, attribute: u32) -> String {
    let mut value: c_int = -77;
    let key = CUmem_range_attribute(attribute);
    let code = cu!(
        lab,
        cuMemRangeGetAttribute((&raw mut value).cast(), 4, key, at, bytes)
    );
    match code {
        OK => value.to_string(),
        code => name(code),
    }
}

/// Read-mostly, preferred location, last prefetch, and the type and id of both places.
fn all(lab: &Lab, at: CUdeviceptr, bytes: usize) -> String {
    let values = [1, 2, 4, 5, 6, 7, 8].map(|attribute| one(lab, at, bytes, attribute));
    values.join(" ")
}

pub(crate) fn places(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    for (part, kind, id) in PLACES {
        let at = managed(lab)?;
        lab.say(format!("{part}, at first"), all(lab, at, LEN));
        for (what, advice) in [("preferred", 3), ("accessed by", 5), ("read mostly", 1)] {
            lab.code(
                format!("{part}, {what}"),
                advise(lab, at, LEN, advice, kind, id),
            );
            lab.say(format!("{part}, told after {what}"), all(lab, at, LEN));
        }
        let mut by: [c_int; 4] = [-77; 4];
        let key = CUmem_range_attribute(3);
        let code = cu!(
            lab,
            cuMemRangeGetAttribute(by.as_mut_ptr().cast(), 16, key, at, LEN)
        );
        lab.say(
            format!("{part}, all users"),
            format!("{} {by:?}", name(code)),
        );
        for (what, advice) in [("preferred", 4), ("accessed by", 6), ("read mostly", 2)] {
            lab.code(
                format!("{part}, no longer {what}"),
                advise(lab, at, LEN, advice, kind, id),
            );
        }
        lab.say(format!("{part}, told then"), all(lab, at, LEN));
        let place = location(CUmemLocationType(kind), id);
        let code = cu!(lab, cuMemPrefetchAsync_v2(at, LEN, place, 0, stream));
        lab.code(format!("{part}, prefetch"), code);
        lab.say(
            format!("{part}, told after the prefetch"),
            all(lab, at, LEN),
        );
        lab.synchronise(stream)?;
        lab.fine("cuMemFree", cu!(lab, cuMemFree_v2(at)))?;
    }
    Ok(())
}

/// How much of the memory a piece of advice is about.
/// Advice that is taken back of a part of a page, and of blocks that share one.
pub(crate) fn parts(lab: &Lab) -> Result<()> {
    let at = managed(lab)?;
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
            lab.code(label("set"), advise(lab, at, 3 * 4096, set, 1, 0));
            lab.code(label("unset"), advise(lab, at + from, bytes, unset, 1, 0));
            lab.say(label("the byte"), one(lab, at + from, 1, attribute));
            lab.say(label("the page"), one(lab, at + 4096, 4096, attribute));
            lab.say(label("the page before"), one(lab, at, 4096, attribute));
            lab.say(label("all three"), one(lab, at, 3 * 4096, attribute));
            lab.code(label("all unset"), advise(lab, at, 3 * 4096, unset, 1, 0));
        }
    }
    let mut blocks = Vec::new();
    for _ in 0..9 {
        let mut block = 0;
        lab.fine(
            "cuMemAllocManaged",
            cu!(lab, cuMemAllocManaged(&raw mut block, 600, 1)),
        )?;
        blocks.push(block);
    }
    let step = blocks.windows(2).all(|pair| pair[1] == pair[0] + 1024);
    lab.say("blocks of 600 B are 1 KiB apart", step);
    for (number, block) in blocks.iter().enumerate() {
        let label = |when: &str| format!("block {number}, {when}");
        lab.say(label("its place in a page"), block % 4096);
        lab.code(label("set"), advise(lab, *block, 600, 1, 1, 0));
        lab.say(label("told"), one(lab, *block, 600, 1));
        lab.code(
            label("its last byte unset"),
            advise(lab, block + 599, 1, 2, 1, 0),
        );
        lab.say(label("told then"), one(lab, *block, 600, 1));
        lab.say(label("the last byte then"), one(lab, block + 599, 1, 1));
        lab.code(label("unset"), advise(lab, *block, 600, 2, 1, 0));
        lab.say(label("told at last"), one(lab, *block, 600, 1));
    }
    Ok(())
}

/// How lengths that are no whole pages are taken.
pub(crate) fn lengths(lab: &Lab) -> Result<()> {
    let at = managed(lab)?;
    for bytes in [1, 4095, 4096, 4097, 6000, 8191, 8192, 8193, 12287] {
        lab.code(
            format!("advice, {bytes} B"),
            advise(lab, at, bytes, 1, 1, 0),
        );
        let pages = (0..4).map(|page| one(lab, at + page * 4096, 4096, 1));
        lab.say(
            format!("pages of {bytes} B"),
            pages.collect::<Vec<_>>().join(" "),
        );
        lab.fine("cuMemAdvise", advise(lab, at, 16 * 4096, 2, 1, 0))?;
    }
    for told in [1_u64, 2, 3] {
        lab.fine(
            "cuMemAdvise",
            advise(lab, at, told as usize * 4096, 1, 1, 0),
        )?;
        for bytes in [1, 4096, 4097, 6000, 8191, 8192, 8193, 12287, 12288, 12289] {
            lab.say(
                format!("of {told} pages, {bytes} B"),
                one(lab, at, bytes, 1),
            );
        }
        lab.fine("cuMemAdvise", advise(lab, at, 16 * 4096, 2, 1, 0))?;
    }
    Ok(())
}

pub(crate) fn pages(lab: &Lab) -> Result<()> {
    let at = managed(lab)?;
    let middle = at + 4 * MIB;
    lab.code("one byte", advise(lab, middle + 5, 1, 1, 1, 0));
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
        lab.say(part, one(lab, from, bytes, 1));
    }
    lab.code(
        "two bytes over a border, no longer",
        advise(lab, middle - 1, 2, 2, 1, 0),
    );
    lab.say("its 4 KiB then", one(lab, middle, 4096, 1));
    for (part, from, bytes) in [
        ("nothing", at, 0),
        ("past the end", at, LEN + 1),
        ("wrapping", at, usize::MAX),
        ("elsewhere", 4096, 4096),
    ] {
        lab.code(format!("advice, {part}"), advise(lab, from, bytes, 1, 1, 0));
        lab.say(format!("told, {part}"), one(lab, from, bytes, 1));
    }
    lab.code("unknown advice", advise(lab, at, LEN, 99, 1, 0));
    lab.say("unknown attribute", one(lab, at, LEN, 99));
    lab.no_context()?;
    lab.code("advice without a context", advise(lab, at, LEN, 1, 1, 0));
    lab.say("told without a context", one(lab, at, LEN, 1));
    Ok(())
}
