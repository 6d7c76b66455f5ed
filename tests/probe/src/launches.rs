//! Launching kernels: where, with what, and into which stream.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::code::{fill, function, launch, load, other_context, spin, word};
use crate::environment::{Environment, OK, cu, name};

/// Shapes and arguments that cannot be.
pub(crate) fn shapes(env: &Environment) -> Result<()> {
    let module = load(env)?;
    let spins = function(env, module, c"spin")?;
    let stream = env.stream()?;
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
        env.code(what, launch(env, spins, shape, stream, arguments));
    }
    let null = std::ptr::null_mut();
    env.code("no arguments", launch(env, spins, [1, 1, 0], stream, null));
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
            env,
            cuLaunchKernel(spins, 1, 1, 1, 1, 1, 1, 0, stream, null, extra)
        );
        env.code(format!("a block of {what} bytes for 8"), code);
        let code = cu!(
            env,
            cuLaunchKernel(spins, 1, 1, 1, 1, 1, 1, 0, stream, arguments, extra)
        );
        env.code(format!("both, {what} bytes"), code);
    }
    let mut count = [0_usize; 2];
    for index in [0, 1] {
        let [offset, bytes] = &mut count;
        let code = cu!(
            env,
            cuFuncGetParamInfo(spins, index, &raw mut *offset, &raw mut *bytes)
        );
        env.say(
            format!("parameter {index}"),
            format!("{} {offset} {bytes}", name(code)),
        );
    }
    env.say("afterwards", name(cu!(env, cuCtxSynchronize())));
    Ok(())
}

/// Which context must be current, and whose the stream may be.
pub(crate) fn contexts(env: &Environment) -> Result<()> {
    let own = env.context();
    let module = load(env)?;
    let spins = function(env, module, c"spin")?;
    let null = std::ptr::null_mut();
    let streams = [env.stream()?, null, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD];
    let other = other_context(env)?;
    env.current(other)?;
    let theirs = env.stream()?;
    let names = ["own stream", "null stream", "legacy", "per thread"];
    for (what, current) in [("own", own), ("none", null.cast()), ("another", other)] {
        env.current(current)?;
        for (stream, of) in streams.into_iter().zip(names) {
            env.code(format!("{of}, {what} current"), spin(env, spins, stream, 1));
        }
        env.code(
            format!("a stream of another, {what} current"),
            spin(env, spins, theirs, 1),
        );
    }
    env.current(own)?;
    env.code("afterwards", cu!(env, cuCtxSynchronize()));
    Ok(())
}

/// Memory of one context, used in another one of the same device.
pub(crate) fn memory(env: &Environment) -> Result<()> {
    let own = env.context();
    let stream = env.stream()?;
    let pool = env.keeper(0)?;
    let blocks = [
        ("plain", env.plain(256)?),
        ("pool", env.alloc(pool, 256, stream)?),
    ];
    env.synchronise(stream)?;
    let other = other_context(env)?;
    env.current(other)?;
    let theirs = env.stream()?;
    let fills = function(env, load(env)?, c"fill")?;
    for (what, block) in blocks {
        env.current(other)?;
        env.code(
            format!("kernel, {what}"),
            fill(env, fills, theirs, (block, 3, 64)),
        );
        env.say(format!("what it wrote, {what}"), word(env, block));
        let code = cu!(env, cuMemsetD32Async(block, 4, 64, theirs));
        env.code(format!("fill, {what}"), code);
        env.say(format!("it wrote, {what}"), word(env, block));
        env.code(
            format!("synchronous fill, {what}"),
            cu!(env, cuMemsetD32_v2(block, 5, 64)),
        );
        // Their stream waits for no other one.
        env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
        let here = env.plain(256)?;
        let code = cu!(env, cuMemcpyDtoDAsync_v2(here, block, 256, theirs));
        env.code(format!("copy, {what}"), code);
        env.say(format!("what came, {what}"), word(env, here));
        env.current(own)?;
        let code = cu!(env, cuMemsetD32Async(block, 6, 64, theirs));
        env.code(format!("fill on their stream, own current, {what}"), code);
        env.code(
            format!("then, {what}"),
            cu!(env, cuStreamSynchronize(theirs)),
        );
        env.say(format!("seen from its own, {what}"), word(env, block));
        env.no_context()?;
        let code = cu!(env, cuMemsetD32Async(block, 7, 64, theirs));
        env.code(format!("fill on their stream, none current, {what}"), code);
        env.current(other)?;
        let code = if what == "pool" {
            cu!(env, cuMemFreeAsync(block, theirs))
        } else {
            cu!(env, cuMemFree_v2(block))
        };
        env.code(format!("free, {what}"), code);
    }
    let mut mine = 0;
    let code = cu!(
        env,
        cuMemAllocFromPoolAsync(&raw mut mine, 256, pool, theirs)
    );
    env.code("of the pool on their stream", code);
    if code == OK {
        env.code("its kernel", fill(env, fills, theirs, (mine, 9, 64)));
        env.say("which wrote", word(env, mine));
    }
    Ok(())
}
