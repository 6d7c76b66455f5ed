//! Which calls let the host have seen a free, and which give memory above a threshold back.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB, cu, name};

const BLOCK: u64 = 40 * MIB;

/// A block that was allocated and freed on `stream`, which has got that far.
fn freed(lab: &Lab, pool: CUmemoryPool, stream: CUstream) -> Result<CUdeviceptr> {
    let block = lab.alloc(pool, BLOCK, stream)?;
    lab.free(block, stream)?;
    lab.let_it_finish();
    Ok(block)
}

type Call = fn(&Lab, CUstream, CUevent) -> CUresult;

const CALLS: [(&str, Call); 15] = [
    ("nothing", |_, _, _| CUresult::CUDA_SUCCESS),
    ("cuStreamQuery", |lab, stream, _| {
        cu!(lab, cuStreamQuery(stream))
    }),
    ("cuEventQuery", |lab, _, event| {
        cu!(lab, cuEventQuery(event))
    }),
    ("cuStreamSynchronize", |lab, stream, _| {
        cu!(lab, cuStreamSynchronize(stream))
    }),
    ("cuEventSynchronize", |lab, _, event| {
        cu!(lab, cuEventSynchronize(event))
    }),
    ("cuCtxSynchronize", |lab, _, _| cu!(lab, cuCtxSynchronize())),
    ("cuStreamSynchronize of null", |lab, _, _| {
        cu!(lab, cuStreamSynchronize(std::ptr::null_mut()))
    }),
    ("cuStreamSynchronize of another", |lab, _, _| {
        match lab.stream() {
            Ok(other) => cu!(lab, cuStreamSynchronize(other)),
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        }
    }),
    ("cuStreamDestroy", |lab, stream, _| {
        cu!(lab, cuStreamDestroy_v2(stream))
    }),
    ("cuMemcpyDtoH of other memory", |lab, _, _| {
        let mut byte = 0_u8;
        match lab.plain(64) {
            Ok(plain) => cu!(lab, cuMemcpyDtoH_v2((&raw mut byte).cast(), plain, 1)),
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        }
    }),
    ("cuMemFree of other memory", |lab, _, _| {
        match lab.plain(64) {
            Ok(plain) => cu!(lab, cuMemFree_v2(plain)),
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        }
    }),
    ("cuMemAlloc", |lab, _, _| {
        lab.plain(64).map_or(CUresult(999), |_| CUresult(0))
    }),
    ("cuMemGetInfo", |lab, _, _| {
        lab.device_free().map_or(CUresult(999), |_| CUresult(0))
    }),
    ("cuMemHostAlloc", |lab, _, _| {
        lab.pinned(64).map_or(CUresult(999), |_| CUresult(0))
    }),
    ("cuMemPoolCreate", |lab, _, _| {
        lab.pool_with(&Lab::props()).0
    }),
];

/// Threshold 0: what each call leaves reserved.
pub(crate) fn queries(lab: &Lab) -> Result<()> {
    for (part, call) in CALLS {
        let (pool, stream, event) = (lab.pool(0)?, lab.stream()?, lab.event()?);
        let block = lab.alloc(pool, BLOCK, stream)?;
        lab.free(block, stream)?;
        lab.record(event, stream)?;
        lab.let_it_finish();
        let code = call(lab, stream, event);
        lab.say(
            part,
            format!("{}, reserved {}", name(code), lab.reserved(pool)?),
        );
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// No reuse flag: after which calls another stream gets the block.
pub(crate) fn query_and_other_stream(lab: &Lab) -> Result<()> {
    for (part, call) in CALLS {
        let pool = lab.keeper(64 * MIB)?;
        lab.only_reuse(pool, 0)?;
        let (a, b, event) = (lab.stream()?, lab.stream()?, lab.event()?);
        let block = lab.alloc(pool, BLOCK, a)?;
        lab.free(block, a)?;
        lab.record(event, a)?;
        lab.let_it_finish();
        let code = call(lab, a, event);
        let answer = lab.where_is(pool, BLOCK, b, block)?;
        lab.say(part, format!("{}, {answer}", name(code)));
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// Two pools above their threshold, each used by a stream of its own.
pub(crate) fn two_pools(lab: &Lab) -> Result<()> {
    let (first, second) = (lab.pool(0)?, lab.pool(0)?);
    let (a, b) = (lab.stream()?, lab.stream()?);
    let show = |part: &str| -> Result<()> {
        lab.say(
            part,
            format!("{} and {}", lab.reserved(first)?, lab.reserved(second)?),
        );
        Ok(())
    };
    let fill = || -> Result<()> {
        freed(lab, first, a)?;
        freed(lab, second, b)?;
        Ok(())
    };
    fill()?;
    show("at first")?;
    lab.synchronise(a)?;
    show("after a synchronise of the first stream")?;
    lab.synchronise(b)?;
    show("then of the second")?;
    fill()?;
    let event = lab.event()?;
    lab.record(event, a)?;
    lab.fine("cuEventSynchronize", cu!(lab, cuEventSynchronize(event)))?;
    show("after a synchronise of an event of the first stream")?;
    lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))?;
    show("after a synchronise of the context")?;
    // One stream used both.
    freed(lab, first, a)?;
    freed(lab, second, a)?;
    lab.synchronise(a)?;
    show("both used by the synchronised stream")?;
    lab.end_pool(first)?;
    lab.end_pool(second)
}

/// A free that was seen long ago, in a pool whose threshold is lowered: who gives it back?
pub(crate) fn kinds(lab: &Lab) -> Result<()> {
    for (part, call) in CALLS {
        let (pool, stream, event) = (lab.keeper(0)?, lab.stream()?, lab.event()?);
        freed(lab, pool, stream)?;
        lab.record(event, stream)?;
        lab.synchronise(stream)?;
        lab.set(pool, 4, 0)?;
        let code = call(lab, stream, event);
        lab.say(
            part,
            format!("{}, reserved {}", name(code), lab.reserved(pool)?),
        );
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// The pool's own calls on memory whose free was seen, threshold lowered to 0.
pub(crate) fn other_calls(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.keeper(0)?, lab.stream()?);
    freed(lab, pool, stream)?;
    lab.synchronise(stream)?;
    lab.set(pool, 4, 0)?;
    let block = lab.alloc(pool, 1000, stream)?;
    lab.say("after an allocation", lab.reserved(pool)?);
    lab.free(block, stream)?;
    lab.say("after a free", lab.reserved(pool)?);
    lab.end_pool(pool)
}

/// B waited for A; B is synchronised.
pub(crate) fn through_a_wait(lab: &Lab) -> Result<()> {
    let pool = lab.keeper(64 * MIB)?;
    lab.only_reuse(pool, 0)?;
    let (a, b, c) = (lab.stream()?, lab.stream()?, lab.stream()?);
    let block = freed(lab, pool, a)?;
    lab.order(b, a)?;
    lab.let_it_finish();
    lab.say("B waits for A", lab.where_is(pool, BLOCK, c, block)?);
    lab.synchronise(b)?;
    lab.say("B is synchronised", lab.where_is(pool, BLOCK, c, block)?);
    lab.trim(pool, 0)?;
    lab.say("reserved after a trim", lab.reserved(pool)?);
    lab.end_pool(pool)?;

    let pool = lab.pool(0)?;
    freed(lab, pool, a)?;
    lab.order(b, a)?;
    lab.synchronise(b)?;
    lab.say("threshold 0, reserved", lab.reserved(pool)?);
    lab.end_pool(pool)?;

    // An event that was recorded in A after the free, and is seen done.
    let pool = lab.keeper(64 * MIB)?;
    lab.only_reuse(pool, 0)?;
    let block = lab.alloc(pool, BLOCK, a)?;
    let (before, after) = (lab.event()?, lab.event()?);
    lab.record(before, a)?;
    lab.free(block, a)?;
    lab.record(after, a)?;
    lab.let_it_finish();
    lab.fine("cuEventSynchronize", cu!(lab, cuEventSynchronize(before)))?;
    lab.say(
        "event before the free",
        lab.where_is(pool, BLOCK, c, block)?,
    );
    lab.fine("cuEventSynchronize", cu!(lab, cuEventSynchronize(after)))?;
    lab.say("event after the free", lab.where_is(pool, BLOCK, c, block)?);
    lab.end_pool(pool)
}

/// The same calls for what was freed on the null stream.
pub(crate) fn null_stream(lab: &Lab) -> Result<()> {
    let null = std::ptr::null_mut();
    let plain = lab.plain(64)?;
    for (part, step) in [
        ("nothing", 0),
        ("cuMemcpyDtoH", 1),
        ("cuStreamSynchronize of null", 2),
        ("cuStreamSynchronize of a blocking stream", 3),
        ("cuStreamSynchronize of the per-thread stream", 4),
    ] {
        let pool = lab.keeper(64 * MIB)?;
        lab.only_reuse(pool, 0)?;
        let (b, blocking) = (lab.stream()?, lab.stream_with(0)?);
        let block = freed(lab, pool, null)?;
        let mut byte = 0_u8;
        let code = match step {
            0 => CUresult::CUDA_SUCCESS,
            1 => cu!(lab, cuMemcpyDtoH_v2((&raw mut byte).cast(), plain, 1)),
            2 => cu!(lab, cuStreamSynchronize(null)),
            3 => cu!(lab, cuStreamSynchronize(blocking)),
            _ => cu!(lab, cuStreamSynchronize(CU_STREAM_PER_THREAD)),
        };
        let answer = lab.where_is(pool, BLOCK, b, block)?;
        lab.say(part, format!("{}, {answer}", name(code)));
        lab.end_pool(pool)?;
    }
    // The null stream waits for blocking streams.
    let pool = lab.keeper(64 * MIB)?;
    lab.only_reuse(pool, 0)?;
    let (b, blocking) = (lab.stream()?, lab.stream_with(0)?);
    let block = freed(lab, pool, blocking)?;
    lab.synchronise(null)?;
    lab.say(
        "freed in a blocking stream, null synchronised",
        lab.where_is(pool, BLOCK, b, block)?,
    );
    lab.end_pool(pool)
}

/// Which stream's synchronise gives back what was seen freed long ago: threshold lowered to 0.
pub(crate) fn users(lab: &Lab) -> Result<()> {
    type Step = fn(&Lab, CUmemoryPool, CUstream, CUstream) -> Result<()>;
    let steps: [(&str, Step); 5] = [
        ("the other did nothing", |_, _, _, _| Ok(())),
        ("the other waited for the first", |lab, _, a, b| {
            lab.order(b, a)
        }),
        ("the other allocated and freed", |lab, pool, _, b| {
            let block = lab.alloc(pool, 1000, b)?;
            lab.free(block, b)
        }),
        (
            "the other frees what the first allocated",
            |lab, pool, a, b| {
                let block = lab.alloc(pool, 1000, a)?;
                lab.free(block, b)
            },
        ),
        ("the other allocated", |lab, pool, _, b| {
            lab.alloc(pool, 1000, b).map(|_| ())
        }),
    ];
    for (part, step) in steps {
        let (pool, a, b) = (lab.keeper(0)?, lab.stream()?, lab.stream()?);
        freed(lab, pool, a)?;
        lab.synchronise(a)?;
        step(lab, pool, a, b)?;
        lab.set(pool, 4, 0)?;
        lab.synchronise(b)?;
        let other = lab.reserved(pool)?;
        lab.synchronise(a)?;
        lab.say(
            part,
            format!("{other}, then the first {}", lab.reserved(pool)?),
        );
        lab.fine("cuMemPoolDestroy", cu!(lab, cuMemPoolDestroy(pool)))?;
    }
    Ok(())
}

/// A copy to pageable memory returns when it is done: does the host know what came before it?
pub(crate) fn pageable_copy(lab: &Lab) -> Result<()> {
    let pool = lab.keeper(64 * MIB)?;
    lab.only_reuse(pool, 0)?;
    let (a, b, plain) = (lab.stream()?, lab.stream()?, lab.plain(64)?);
    let mut bytes = [0_u8; 64];
    let block = lab.alloc(pool, BLOCK, a)?;
    lab.free(block, a)?;
    let to = bytes.as_mut_ptr().cast();
    lab.fine(
        "cuMemcpyDtoHAsync",
        cu!(lab, cuMemcpyDtoHAsync_v2(to, plain, 64, a)),
    )?;
    lab.say("another stream", lab.where_is(pool, BLOCK, b, block)?);
    lab.end_pool(pool)?;
    let pool = lab.pool(0)?;
    let block = lab.alloc(pool, BLOCK, a)?;
    lab.free(block, a)?;
    lab.fine(
        "cuMemcpyDtoHAsync",
        cu!(lab, cuMemcpyDtoHAsync_v2(to, plain, 64, a)),
    )?;
    lab.say("threshold 0, reserved", lab.reserved(pool)?);
    lab.end_pool(pool)
}
