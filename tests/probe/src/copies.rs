//! Copies: which wait, and which are refused.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, cu, name};
use crate::gate::while_held;

fn say(env: &Environment, part: &str, (code, waited): (CUresult, &str)) {
    env.say(part, format!("{}, {waited}", name(code)));
}

/// From and to memory that is not pinned, on a held stream.
pub(crate) fn pageable(env: &Environment) -> Result<()> {
    let (stream, plain) = (env.stream()?, env.plain(4 << 20)?);
    let (pool, other) = (env.pool(0)?, env.stream()?);
    let block = env.alloc(pool, 4 * MIB, stream)?;
    env.synchronise(stream)?;
    let mut host = vec![1_u8; 4 << 20];
    let bytes = host.as_mut_ptr().cast::<c_void>();
    let address = bytes.expose_provenance() as u64;
    let k = 1 << 10;
    for len in [1, 64 * k, 64 * k + 1, 1 << 20, 4 << 20] {
        let held = while_held(env, stream, || {
            cu!(env, cuMemcpyHtoDAsync_v2(plain, bytes, len, stream))
        })?;
        say(env, &format!("cuMemcpyHtoDAsync of {len} B"), held);
        let held = while_held(env, stream, || {
            cu!(env, cuMemcpyHtoDAsync_v2(block, bytes, len, stream))
        })?;
        say(
            env,
            &format!("cuMemcpyHtoDAsync to a pool of {len} B"),
            held,
        );
    }
    for len in [1, 64 * k, 1 << 20] {
        let held = while_held(env, stream, || {
            cu!(env, cuMemcpyDtoHAsync_v2(bytes, plain, len, stream))
        })?;
        say(env, &format!("cuMemcpyDtoHAsync of {len} B"), held);
    }
    let held = while_held(env, stream, || {
        cu!(env, cuMemcpyAsync(plain, address, 64, stream))
    })?;
    say(env, "cuMemcpyAsync to the device", held);
    let held = while_held(env, stream, || {
        cu!(env, cuMemcpyAsync(address, plain, 64, stream))
    })?;
    say(env, "cuMemcpyAsync from the device", held);
    let held = while_held(env, stream, || {
        cu!(env, cuMemcpyAsync(address, address + 64, 64, stream))
    })?;
    say(env, "cuMemcpyAsync in the host", held);
    // Another stream is held, which does not block with the null stream.
    let held = while_held(env, other, || cu!(env, cuMemcpyHtoD_v2(plain, bytes, 64)))?;
    say(env, "cuMemcpyHtoD, another stream held", held);
    let held = while_held(env, other, || cu!(env, cuMemcpyDtoH_v2(bytes, plain, 64)))?;
    say(env, "cuMemcpyDtoH, another stream held", held);
    let blocking = env.stream_with(0)?;
    let held = while_held(env, blocking, || {
        cu!(env, cuMemcpyDtoH_v2(bytes, plain, 64))
    })?;
    say(env, "cuMemcpyDtoH, a blocking stream held", held);
    let held = while_held(env, blocking, || {
        cu!(env, cuMemcpyDtoD_v2(plain, plain + 64, 64))
    })?;
    say(env, "cuMemcpyDtoD, a blocking stream held", held);
    let held = while_held(env, blocking, || cu!(env, cuMemsetD8_v2(plain, 1, 64)))?;
    say(env, "cuMemsetD8, a blocking stream held", held);
    let held = while_held(env, blocking, || {
        cu!(env, cuMemcpyHtoD_v2(plain, bytes, 64))
    })?;
    say(env, "cuMemcpyHtoD, a blocking stream held", held);
    env.synchronise(blocking)
}

/// From which size on a copy from pageable memory waits, on a stream that is held.
pub(crate) fn staging(env: &Environment) -> Result<()> {
    let plain = env.plain(8 << 20)?;
    let mut host = vec![1_u8; 8 << 20];
    let bytes = host.as_mut_ptr().cast::<c_void>();
    let k = 1 << 10;
    for len in [
        256 * k,
        512 * k,
        1 << 20,
        (1 << 20) + 1,
        1280 * k,
        1536 * k,
        1792 * k,
        2 << 20,
        (2 << 20) + 1,
        3 << 20,
    ] {
        let stream = env.stream()?;
        let held = while_held(env, stream, || {
            cu!(env, cuMemcpyHtoDAsync_v2(plain, bytes, len, stream))
        })?;
        say(env, &format!("one of {len} B"), held);
        env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
    }
    for (count, len) in [
        (2, 1 << 20),
        (8, 256 * k),
        (32, 64 * k),
        (64, 64 * k),
        (256, k),
    ] {
        let stream = env.stream()?;
        let held = while_held(env, stream, || {
            (0..count)
                .map(|_| cu!(env, cuMemcpyHtoDAsync_v2(plain, bytes, len, stream)))
                .fold(CUresult::CUDA_SUCCESS, |all, code| {
                    CUresult(all.0.max(code.0))
                })
        })?;
        say(env, &format!("{count} of {len} B"), held);
        env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
    }
    // What is read: the bytes at the call, or those when the stream gets there?
    for len in [64, 64 * k, 1 << 20] {
        let stream = env.stream()?;
        host.fill(1);
        let bytes = host.as_mut_ptr().cast::<c_void>();
        let gate = crate::gate::Gate::hold(env, stream)?;
        let code = cu!(env, cuMemcpyHtoDAsync_v2(plain, bytes, len, stream));
        host.fill(2);
        gate.open();
        env.synchronise(stream)?;
        let mut back = vec![0_u8; len];
        let to = back.as_mut_ptr().cast::<c_void>();
        env.fine("cuMemcpyDtoH", cu!(env, cuMemcpyDtoH_v2(to, plain, len)))?;
        let old = back.iter().all(|byte| *byte == 1);
        let what = if old {
            "as they were at the call"
        } else {
            "changed later"
        };
        env.say(
            format!("the bytes of {len} B"),
            format!("{}, {what}", name(code)),
        );
    }
    Ok(())
}

pub(crate) fn pinned(env: &Environment) -> Result<()> {
    let (stream, plain, host) = (env.stream()?, env.plain(4 << 20)?, env.pinned(4 << 20)?);
    for len in [64, 4 << 20] {
        let held = while_held(env, stream, || {
            cu!(env, cuMemcpyHtoDAsync_v2(plain, host, len, stream))
        })?;
        say(env, &format!("cuMemcpyHtoDAsync of {len} B"), held);
        let held = while_held(env, stream, || {
            cu!(env, cuMemcpyDtoHAsync_v2(host, plain, len, stream))
        })?;
        say(env, &format!("cuMemcpyDtoHAsync of {len} B"), held);
    }
    let held = while_held(env, stream, || {
        cu!(env, cuMemcpyDtoDAsync_v2(plain + 64, plain, 64, stream))
    })?;
    say(env, "cuMemcpyDtoDAsync", held);
    let blocking = env.stream_with(0)?;
    let held = while_held(env, blocking, || cu!(env, cuMemcpyHtoD_v2(plain, host, 64)))?;
    say(env, "cuMemcpyHtoD, a blocking stream held", held);
    let held = while_held(env, blocking, || cu!(env, cuMemcpyDtoH_v2(host, plain, 64)))?;
    say(env, "cuMemcpyDtoH, a blocking stream held", held);
    env.synchronise(stream)
}

/// Nothing is copied: which arguments are still looked at?
pub(crate) fn zero_length(env: &Environment) -> Result<()> {
    let (stream, plain) = (env.stream()?, env.plain(64)?);
    let mut bytes = [0_u8; 4];
    let host = bytes.as_mut_ptr().cast::<c_void>();
    let null = std::ptr::null_mut();
    env.code("cuMemcpyHtoD", cu!(env, cuMemcpyHtoD_v2(plain, host, 0)));
    env.code(
        "cuMemcpyHtoD to null",
        cu!(env, cuMemcpyHtoD_v2(0, host, 0)),
    );
    env.code(
        "cuMemcpyHtoD from null",
        cu!(env, cuMemcpyHtoD_v2(plain, null, 0)),
    );
    env.code(
        "cuMemcpyHtoDAsync",
        cu!(env, cuMemcpyHtoDAsync_v2(plain, host, 0, stream)),
    );
    env.code(
        "cuMemcpyHtoDAsync to null",
        cu!(env, cuMemcpyHtoDAsync_v2(0, host, 0, stream)),
    );
    env.code(
        "cuMemcpyDtoDAsync of nulls",
        cu!(env, cuMemcpyDtoDAsync_v2(0, 0, 0, stream)),
    );
    env.code(
        "cuMemcpyAsync of nulls",
        cu!(env, cuMemcpyAsync(0, 0, 0, stream)),
    );
    env.code("cuMemsetD8", cu!(env, cuMemsetD8_v2(plain, 0, 0)));
    env.code("cuMemsetD8 of null", cu!(env, cuMemsetD8_v2(0, 0, 0)));
    env.code(
        "cuMemsetD8Async of null",
        cu!(env, cuMemsetD8Async(0, 0, 0, stream)),
    );
    env.code(
        "cuMemsetD32Async, odd address",
        cu!(env, cuMemsetD32Async(plain + 1, 0, 0, stream)),
    );
    let held = while_held(env, stream, || {
        cu!(env, cuMemcpyDtoHAsync_v2(host, plain, 0, stream))
    })?;
    say(env, "cuMemcpyDtoHAsync", held);
    Ok(())
}

/// Each where nothing bad can come of it: behind the end of a block, but inside its memory.
pub(crate) fn past_the_end(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    let block = env.alloc(pool, 1000, stream)?;
    let plain = env.plain(1000)?;
    env.synchronise(stream)?;
    let mut bytes = [0_u8; 4096];
    let host = bytes.as_mut_ptr().cast::<c_void>();
    for (kind, address) in [("pool", block), ("plain", plain)] {
        for len in [1000, 1001, 1024, 1025, 4096] {
            let code = cu!(env, cuMemcpyDtoHAsync_v2(host, address, len, stream));
            env.code(format!("{kind}: reading {len} of 1000 B"), code);
            let code = cu!(env, cuMemsetD8Async(address, 0, len, stream));
            env.code(format!("{kind}: setting {len} of 1000 B"), code);
        }
        env.code(
            format!("{kind}: synchronise"),
            cu!(env, cuStreamSynchronize(stream)),
        );
    }
    env.free(block, stream)?;
    env.end_pool(pool)
}

pub(crate) fn peer(env: &Environment) -> Result<()> {
    let (stream, plain, context) = (env.stream()?, env.plain(128)?, env.context());
    let null = std::ptr::null_mut();
    let ask = |part: &str, to: CUcontext, from: CUcontext| {
        let code = cu!(
            env,
            cuMemcpyPeerAsync(plain, to, plain + 64, from, 64, stream)
        );
        env.code(part, code);
    };
    ask("within one context", context, context);
    ask("to no context", null, context);
    ask("from no context", context, null);
    env.synchronise(stream)
}
