//! Copies: which wait, and which are refused.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::while_held;
use crate::lab::{Lab, MIB, cu, name};

fn say(lab: &Lab, part: &str, (code, waited): (CUresult, &str)) {
    lab.say(part, format!("{}, {waited}", name(code)));
}

/// From and to memory that is not pinned, on a held stream.
pub(crate) fn pageable(lab: &Lab) -> Result<()> {
    let (stream, plain) = (lab.stream()?, lab.plain(4 << 20)?);
    let (pool, other) = (lab.pool(0)?, lab.stream()?);
    let block = lab.alloc(pool, 4 * MIB, stream)?;
    lab.synchronise(stream)?;
    let mut host = vec![1_u8; 4 << 20];
    let bytes = host.as_mut_ptr().cast::<c_void>();
    let address = bytes.expose_provenance() as u64;
    let k = 1 << 10;
    for len in [1, 64 * k, 64 * k + 1, 1 << 20, 4 << 20] {
        let held = while_held(lab, stream, || {
            cu!(lab, cuMemcpyHtoDAsync_v2(plain, bytes, len, stream))
        })?;
        say(lab, &format!("cuMemcpyHtoDAsync of {len} B"), held);
        let held = while_held(lab, stream, || {
            cu!(lab, cuMemcpyHtoDAsync_v2(block, bytes, len, stream))
        })?;
        say(
            lab,
            &format!("cuMemcpyHtoDAsync to a pool of {len} B"),
            held,
        );
    }
    for len in [1, 64 * k, 1 << 20] {
        let held = while_held(lab, stream, || {
            cu!(lab, cuMemcpyDtoHAsync_v2(bytes, plain, len, stream))
        })?;
        say(lab, &format!("cuMemcpyDtoHAsync of {len} B"), held);
    }
    let held = while_held(lab, stream, || {
        cu!(lab, cuMemcpyAsync(plain, address, 64, stream))
    })?;
    say(lab, "cuMemcpyAsync to the device", held);
    let held = while_held(lab, stream, || {
        cu!(lab, cuMemcpyAsync(address, plain, 64, stream))
    })?;
    say(lab, "cuMemcpyAsync from the device", held);
    let held = while_held(lab, stream, || {
        cu!(lab, cuMemcpyAsync(address, address + 64, 64, stream))
    })?;
    say(lab, "cuMemcpyAsync in the host", held);
    // Another stream is held, which does not block with the null stream.
    let held = while_held(lab, other, || cu!(lab, cuMemcpyHtoD_v2(plain, bytes, 64)))?;
    say(lab, "cuMemcpyHtoD, another stream held", held);
    let held = while_held(lab, other, || cu!(lab, cuMemcpyDtoH_v2(bytes, plain, 64)))?;
    say(lab, "cuMemcpyDtoH, another stream held", held);
    let blocking = lab.stream_with(0)?;
    let held = while_held(lab, blocking, || {
        cu!(lab, cuMemcpyDtoH_v2(bytes, plain, 64))
    })?;
    say(lab, "cuMemcpyDtoH, a blocking stream held", held);
    let held = while_held(lab, blocking, || {
        cu!(lab, cuMemcpyDtoD_v2(plain, plain + 64, 64))
    })?;
    say(lab, "cuMemcpyDtoD, a blocking stream held", held);
    let held = while_held(lab, blocking, || cu!(lab, cuMemsetD8_v2(plain, 1, 64)))?;
    say(lab, "cuMemsetD8, a blocking stream held", held);
    let held = while_held(lab, blocking, || {
        cu!(lab, cuMemcpyHtoD_v2(plain, bytes, 64))
    })?;
    say(lab, "cuMemcpyHtoD, a blocking stream held", held);
    lab.synchronise(blocking)
}

/// From which size on a copy from pageable memory waits, on a stream that is held.
pub(crate) fn staging(lab: &Lab) -> Result<()> {
    let plain = lab.plain(8 << 20)?;
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
        let stream = lab.stream()?;
        let held = while_held(lab, stream, || {
            cu!(lab, cuMemcpyHtoDAsync_v2(plain, bytes, len, stream))
        })?;
        say(lab, &format!("one of {len} B"), held);
        lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))?;
    }
    for (count, len) in [
        (2, 1 << 20),
        (8, 256 * k),
        (32, 64 * k),
        (64, 64 * k),
        (256, k),
    ] {
        let stream = lab.stream()?;
        let held = while_held(lab, stream, || {
            (0..count)
                .map(|_| cu!(lab, cuMemcpyHtoDAsync_v2(plain, bytes, len, stream)))
                .fold(CUresult::CUDA_SUCCESS, |all, code| {
                    CUresult(all.0.max(code.0))
                })
        })?;
        say(lab, &format!("{count} of {len} B"), held);
        lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))?;
    }
    // What is read: the bytes at the call, or those when the stream gets there?
    for len in [64, 64 * k, 1 << 20] {
        let stream = lab.stream()?;
        host.fill(1);
        let bytes = host.as_mut_ptr().cast::<c_void>();
        let gate = crate::gate::Gate::hold(lab, stream)?;
        let code = cu!(lab, cuMemcpyHtoDAsync_v2(plain, bytes, len, stream));
        host.fill(2);
        gate.open();
        lab.synchronise(stream)?;
        let mut back = vec![0_u8; len];
        let to = back.as_mut_ptr().cast::<c_void>();
        lab.fine("cuMemcpyDtoH", cu!(lab, cuMemcpyDtoH_v2(to, plain, len)))?;
        let old = back.iter().all(|byte| *byte == 1);
        let what = if old {
            "as they were at the call"
        } else {
            "changed later"
        };
        lab.say(
            format!("the bytes of {len} B"),
            format!("{}, {what}", name(code)),
        );
    }
    Ok(())
}

pub(crate) fn pinned(lab: &Lab) -> Result<()> {
    let (stream, plain, host) = (lab.stream()?, lab.plain(4 << 20)?, lab.pinned(4 << 20)?);
    for len in [64, 4 << 20] {
        let held = while_held(lab, stream, || {
            cu!(lab, cuMemcpyHtoDAsync_v2(plain, host, len, stream))
        })?;
        say(lab, &format!("cuMemcpyHtoDAsync of {len} B"), held);
        let held = while_held(lab, stream, || {
            cu!(lab, cuMemcpyDtoHAsync_v2(host, plain, len, stream))
        })?;
        say(lab, &format!("cuMemcpyDtoHAsync of {len} B"), held);
    }
    let held = while_held(lab, stream, || {
        cu!(lab, cuMemcpyDtoDAsync_v2(plain + 64, plain, 64, stream))
    })?;
    say(lab, "cuMemcpyDtoDAsync", held);
    let blocking = lab.stream_with(0)?;
    let held = while_held(lab, blocking, || cu!(lab, cuMemcpyHtoD_v2(plain, host, 64)))?;
    say(lab, "cuMemcpyHtoD, a blocking stream held", held);
    let held = while_held(lab, blocking, || cu!(lab, cuMemcpyDtoH_v2(host, plain, 64)))?;
    say(lab, "cuMemcpyDtoH, a blocking stream held", held);
    lab.synchronise(stream)
}

/// Nothing is copied: which arguments are still looked at?
pub(crate) fn zero_length(lab: &Lab) -> Result<()> {
    let (stream, plain) = (lab.stream()?, lab.plain(64)?);
    let mut bytes = [0_u8; 4];
    let host = bytes.as_mut_ptr().cast::<c_void>();
    let null = std::ptr::null_mut();
    lab.code("cuMemcpyHtoD", cu!(lab, cuMemcpyHtoD_v2(plain, host, 0)));
    lab.code(
        "cuMemcpyHtoD to null",
        cu!(lab, cuMemcpyHtoD_v2(0, host, 0)),
    );
    lab.code(
        "cuMemcpyHtoD from null",
        cu!(lab, cuMemcpyHtoD_v2(plain, null, 0)),
    );
    lab.code(
        "cuMemcpyHtoDAsync",
        cu!(lab, cuMemcpyHtoDAsync_v2(plain, host, 0, stream)),
    );
    lab.code(
        "cuMemcpyHtoDAsync to null",
        cu!(lab, cuMemcpyHtoDAsync_v2(0, host, 0, stream)),
    );
    lab.code(
        "cuMemcpyDtoDAsync of nulls",
        cu!(lab, cuMemcpyDtoDAsync_v2(0, 0, 0, stream)),
    );
    lab.code(
        "cuMemcpyAsync of nulls",
        cu!(lab, cuMemcpyAsync(0, 0, 0, stream)),
    );
    lab.code("cuMemsetD8", cu!(lab, cuMemsetD8_v2(plain, 0, 0)));
    lab.code("cuMemsetD8 of null", cu!(lab, cuMemsetD8_v2(0, 0, 0)));
    lab.code(
        "cuMemsetD8Async of null",
        cu!(lab, cuMemsetD8Async(0, 0, 0, stream)),
    );
    lab.code(
        "cuMemsetD32Async, odd address",
        cu!(lab, cuMemsetD32Async(plain + 1, 0, 0, stream)),
    );
    let held = while_held(lab, stream, || {
        cu!(lab, cuMemcpyDtoHAsync_v2(host, plain, 0, stream))
    })?;
    say(lab, "cuMemcpyDtoHAsync", held);
    Ok(())
}

/// Each where nothing bad can come of it: behind the end of a block, but inside its memory.
pub(crate) fn past_the_end(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let block = lab.alloc(pool, 1000, stream)?;
    let plain = lab.plain(1000)?;
    lab.synchronise(stream)?;
    let mut bytes = [0_u8; 4096];
    let host = bytes.as_mut_ptr().cast::<c_void>();
    for (kind, address) in [("pool", block), ("plain", plain)] {
        for len in [1000, 1001, 1024, 1025, 4096] {
            let code = cu!(lab, cuMemcpyDtoHAsync_v2(host, address, len, stream));
            lab.code(format!("{kind}: reading {len} of 1000 B"), code);
            let code = cu!(lab, cuMemsetD8Async(address, 0, len, stream));
            lab.code(format!("{kind}: setting {len} of 1000 B"), code);
        }
        lab.code(
            format!("{kind}: synchronise"),
            cu!(lab, cuStreamSynchronize(stream)),
        );
    }
    lab.free(block, stream)?;
    lab.end_pool(pool)
}

pub(crate) fn peer(lab: &Lab) -> Result<()> {
    let (stream, plain, context) = (lab.stream()?, lab.plain(128)?, lab.context());
    let null = std::ptr::null_mut();
    let ask = |part: &str, to: CUcontext, from: CUcontext| {
        let code = cu!(
            lab,
            cuMemcpyPeerAsync(plain, to, plain + 64, from, 64, stream)
        );
        lab.code(part, code);
    };
    ask("within one context", context, context);
    ask("to no context", null, context);
    ask("from no context", context, null);
    lab.synchronise(stream)
}
