//! Launching kernels: where, with what, and into which stream.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::code::{fill, function, launch, load, other_context, spin, word};
use crate::lab::{Lab, OK, cu, name};

/// Shapes and arguments that cannot be.
pub(crate) fn shapes(lab: &Lab) -> Result<()> {
    let module = load(lab)?;
    let spins = function(lab, module, c"spin")?;
    let stream = lab.stream()?;
    let mut nanoseconds = 1_u64;
    let mut arguments = [(&raw mut nanoseconds).cast::<c_void>()];
    let arguments = arguments.as_mut_ptr();
    for (what, shape) in [
        ("one", [1, 1, 0]),
        ("no blocks", [0, 1, 0]),
        ("no threads", [1, 0, 0]),
        ("1024 threads", [1, 1024, 0]),
        ("1025 threads", [1, 1025, 0]),
        ("48 KiB shared", [1, 1, 48 << 10]),
        ("48 KiB and a byte", [1, 1, (48 << 10) + 1]),
        ("100 MiB shared", [1, 1, 100 << 20]),
        ("2 Gi blocks", [1 << 31, 1, 0]),
    ] {
        lab.code(what, launch(lab, spins, shape, stream, arguments));
    }
    let null = std::ptr::null_mut();
    lab.code("no arguments", launch(lab, spins, [1, 1, 0], stream, null));
    for (what, bytes) in [("8", 8_usize), ("4", 4), ("16", 16)] {
        let (mut bytes, mut block) = (bytes, [1_u64, 0]);
        let mut extra = [
            std::ptr::without_provenance_mut::<c_void>(1),
            block.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(2),
            (&raw mut bytes).cast(),
            std::ptr::null_mut(),
        ];
        let extra = extra.as_mut_ptr();
        let code = cu!(
            lab,
            cuLaunchKernel(spins, 1, 1, 1, 1, 1, 1, 0, stream, null, extra)
        );
        lab.code(format!("a block of {what} bytes for 8"), code);
        let code = cu!(
            lab,
            cuLaunchKernel(spins, 1, 1, 1, 1, 1, 1, 0, stream, arguments, extra)
        );
        lab.code(format!("both, {what} bytes"), code);
    }
    let mut count = [0_usize; 2];
    for index in [0, 1] {
        let [offset, bytes] = &mut count;
        let code = cu!(
            lab,
            cuFuncGetParamInfo(spins, index, &raw mut *offset, &raw mut *bytes)
        );
        lab.say(
            format!("parameter {index}"),
            format!("{} {offset} {bytes}", name(code)),
        );
    }
    lab.say("afterwards", name(cu!(lab, cuCtxSynchronize())));
    Ok(())
}

/// Which context must be current, and whose the stream may be.
pub(crate) fn contexts(lab: &Lab) -> Result<()> {
    let own = lab.context();
    let module = load(lab)?;
    let spins = function(lab, module, c"spin")?;
    let null = std::ptr::null_mut();
    let streams = [lab.stream()?, null, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD];
    let other = other_context(lab)?;
    lab.current(other)?;
    let theirs = lab.stream()?;
    let names = ["own stream", "null stream", "legacy", "per thread"];
    for (what, current) in [("own", own), ("none", null.cast()), ("another", other)] {
        lab.current(current)?;
        for (stream, of) in streams.into_iter().zip(names) {
            lab.code(format!("{of}, {what} current"), spin(lab, spins, stream, 1));
        }
        lab.code(
            format!("a stream of another, {what} current"),
            spin(lab, spins, theirs, 1),
        );
    }
    lab.current(own)?;
    lab.code("afterwards", cu!(lab, cuCtxSynchronize()));
    Ok(())
}

/// Memory of one context, used in another one of the same device.
pub(crate) fn memory(lab: &Lab) -> Result<()> {
    let own = lab.context();
    let stream = lab.stream()?;
    let pool = lab.keeper(0)?;
    let blocks = [
        ("plain", lab.plain(256)?),
        ("pool", lab.alloc(pool, 256, stream)?),
    ];
    lab.synchronise(stream)?;
    let other = other_context(lab)?;
    lab.current(other)?;
    let theirs = lab.stream()?;
    let fills = function(lab, load(lab)?, c"fill")?;
    for (what, block) in blocks {
        lab.current(other)?;
        lab.code(
            format!("kernel, {what}"),
            fill(lab, fills, theirs, (block, 3, 64)),
        );
        lab.say(format!("what it wrote, {what}"), word(lab, block));
        let code = cu!(lab, cuMemsetD32Async(block, 4, 64, theirs));
        lab.code(format!("fill, {what}"), code);
        lab.say(format!("it wrote, {what}"), word(lab, block));
        lab.code(
            format!("synchronous fill, {what}"),
            cu!(lab, cuMemsetD32_v2(block, 5, 64)),
        );
        // Their stream waits for no other one.
        lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))?;
        let here = lab.plain(256)?;
        let code = cu!(lab, cuMemcpyDtoDAsync_v2(here, block, 256, theirs));
        lab.code(format!("copy, {what}"), code);
        lab.say(format!("what came, {what}"), word(lab, here));
        lab.current(own)?;
        let code = cu!(lab, cuMemsetD32Async(block, 6, 64, theirs));
        lab.code(format!("fill on their stream, own current, {what}"), code);
        lab.code(
            format!("then, {what}"),
            cu!(lab, cuStreamSynchronize(theirs)),
        );
        lab.say(format!("seen from its own, {what}"), word(lab, block));
        lab.no_context()?;
        let code = cu!(lab, cuMemsetD32Async(block, 7, 64, theirs));
        lab.code(format!("fill on their stream, none current, {what}"), code);
        lab.current(other)?;
        let code = if what == "pool" {
            cu!(lab, cuMemFreeAsync(block, theirs))
        } else {
            cu!(lab, cuMemFree_v2(block))
        };
        lab.code(format!("free, {what}"), code);
    }
    let mut mine = 0;
    let code = cu!(
        lab,
        cuMemAllocFromPoolAsync(&raw mut mine, 256, pool, theirs)
    );
    lab.code("of the pool on their stream", code);
    if code == OK {
        lab.code("its kernel", fill(lab, fills, theirs, (mine, 9, 64)));
        lab.say("which wrote", word(lab, mine));
    }
    Ok(())
}
