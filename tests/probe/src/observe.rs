//! Which calls let the host have seen a free, and which give memory above a threshold back.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, cu, name};

const BLOCK: u64 = 40 * MIB;

/// A block that was allocated and freed on `stream`, which has got that far.
fn freed(env: &Environment, pool: CUmemoryPool, stream: CUstream) -> Result<CUdeviceptr> {
    let block = env.alloc(pool, BLOCK, stream)?;
    env.free(block, stream)?;
    env.let_it_finish();
    Ok(block)
}

type Call = fn(&Environment, CUstream, CUevent) -> CUresult;

const CALLS: [(&str, Call); 15] = [
    ("nothing", |_, _, _| CUresult::CUDA_SUCCESS),
    ("cuStreamQuery", |env, stream, _| {
        cu!(env, cuStreamQuery(stream))
    }),
    ("cuEventQuery", |env, _, event| {
        cu!(env, cuEventQuery(event))
    }),
    ("cuStreamSynchronize", |env, stream, _| {
        cu!(env, cuStreamSynchronize(stream))
    }),
    ("cuEventSynchronize", |env, _, event| {
        cu!(env, cuEventSynchronize(event))
    }),
    ("cuCtxSynchronize", |env, _, _| cu!(env, cuCtxSynchronize())),
    ("cuStreamSynchronize of null", |env, _, _| {
        cu!(env, cuStreamSynchronize(std::ptr::null_mut()))
    }),
    ("cuStreamSynchronize of another", |env, _, _| {
        match env.stream() {
            Ok(other) => cu!(env, cuStreamSynchronize(other)),
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        }
    }),
    ("cuStreamDestroy", |env, stream, _| {
        cu!(env, cuStreamDestroy_v2(stream))
    }),
    ("cuMemcpyDtoH of other memory", |env, _, _| {
        let mut byte = 0_u8;
        match env.plain(64) {
            Ok(plain) => cu!(env, cuMemcpyDtoH_v2((&raw mut byte).cast(), plain, 1)),
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        }
    }),
    ("cuMemFree of other memory", |env, _, _| {
        match env.plain(64) {
            Ok(plain) => cu!(env, cuMemFree_v2(plain)),
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        }
    }),
    ("cuMemAlloc", |env, _, _| {
        env.plain(64).map_or(CUresult(999), |_| CUresult(0))
    }),
    ("cuMemGetInfo", |env, _, _| {
        env.device_free().map_or(CUresult(999), |_| CUresult(0))
    }),
    ("cuMemHostAlloc", |env, _, _| {
        env.pinned(64).map_or(CUresult(999), |_| CUresult(0))
    }),
    ("cuMemPoolCreate", |env, _, _| {
        env.pool_with(&Environment::props()).0
    }),
];

/// Threshold 0: what each call leaves reserved.
pub(crate) fn queries(env: &Environment) -> Result<()> {
    for (part, call) in CALLS {
        let (pool, stream, event) = (env.pool(0)?, env.stream()?, env.event()?);
        let block = env.alloc(pool, BLOCK, stream)?;
        env.free(block, stream)?;
        env.record(event, stream)?;
        env.let_it_finish();
        let code = call(env, stream, event);
        env.say(
            part,
            format!("{}, reserved {}", name(code), env.reserved(pool)?),
        );
        env.end_pool(pool)?;
    }
    Ok(())
}

/// No reuse flag: after which calls another stream gets the block.
pub(crate) fn query_and_other_stream(env: &Environment) -> Result<()> {
    for (part, call) in CALLS {
        let pool = env.keeper(64 * MIB)?;
        env.only_reuse(pool, 0)?;
        let (a, b, event) = (env.stream()?, env.stream()?, env.event()?);
        let block = env.alloc(pool, BLOCK, a)?;
        env.free(block, a)?;
        env.record(event, a)?;
        env.let_it_finish();
        let code = call(env, a, event);
        let answer = env.where_is(pool, BLOCK, b, block)?;
        env.say(part, format!("{}, {answer}", name(code)));
        env.end_pool(pool)?;
    }
    Ok(())
}

/// Two pools above their threshold, each used by a stream of its own.
pub(crate) fn two_pools(env: &Environment) -> Result<()> {
    let (first, second) = (env.pool(0)?, env.pool(0)?);
    let (a, b) = (env.stream()?, env.stream()?);
    let show = |part: &str| -> Result<()> {
        env.say(
            part,
            format!("{} and {}", env.reserved(first)?, env.reserved(second)?),
        );
        Ok(())
    };
    let fill = || -> Result<()> {
        freed(env, first, a)?;
        freed(env, second, b)?;
        Ok(())
    };
    fill()?;
    show("at first")?;
    env.synchronise(a)?;
    show("after a synchronise of the first stream")?;
    env.synchronise(b)?;
    show("then of the second")?;
    fill()?;
    let event = env.event()?;
    env.record(event, a)?;
    env.fine("cuEventSynchronize", cu!(env, cuEventSynchronize(event)))?;
    show("after a synchronise of an event of the first stream")?;
    env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
    show("after a synchronise of the context")?;
    // One stream used both.
    freed(env, first, a)?;
    freed(env, second, a)?;
    env.synchronise(a)?;
    show("both used by the synchronised stream")?;
    env.end_pool(first)?;
    env.end_pool(second)
}

/// A free that was seen long ago, in a pool whose threshold is lowered: who gives it back?
pub(crate) fn kinds(env: &Environment) -> Result<()> {
    for (part, call) in CALLS {
        let (pool, stream, event) = (env.keeper(0)?, env.stream()?, env.event()?);
        freed(env, pool, stream)?;
        env.record(event, stream)?;
        env.synchronise(stream)?;
        env.set(pool, 4, 0)?;
        let code = call(env, stream, event);
        env.say(
            part,
            format!("{}, reserved {}", name(code), env.reserved(pool)?),
        );
        env.end_pool(pool)?;
    }
    Ok(())
}

/// The pool's own calls on memory whose free was seen, threshold lowered to 0.
pub(crate) fn other_calls(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.keeper(0)?, env.stream()?);
    freed(env, pool, stream)?;
    env.synchronise(stream)?;
    env.set(pool, 4, 0)?;
    let block = env.alloc(pool, 1000, stream)?;
    env.say("after an allocation", env.reserved(pool)?);
    env.free(block, stream)?;
    env.say("after a free", env.reserved(pool)?);
    env.end_pool(pool)
}

/// B waited for A; B is synchronised.
pub(crate) fn through_a_wait(env: &Environment) -> Result<()> {
    let pool = env.keeper(64 * MIB)?;
    env.only_reuse(pool, 0)?;
    let (a, b, c) = (env.stream()?, env.stream()?, env.stream()?);
    let block = freed(env, pool, a)?;
    env.order(b, a)?;
    env.let_it_finish();
    env.say("B waits for A", env.where_is(pool, BLOCK, c, block)?);
    env.synchronise(b)?;
    env.say("B is synchronised", env.where_is(pool, BLOCK, c, block)?);
    env.trim(pool, 0)?;
    env.say("reserved after a trim", env.reserved(pool)?);
    env.end_pool(pool)?;

    let pool = env.pool(0)?;
    freed(env, pool, a)?;
    env.order(b, a)?;
    env.synchronise(b)?;
    env.say("threshold 0, reserved", env.reserved(pool)?);
    env.end_pool(pool)?;

    // An event that was recorded in A after the free, and is seen done.
    let pool = env.keeper(64 * MIB)?;
    env.only_reuse(pool, 0)?;
    let block = env.alloc(pool, BLOCK, a)?;
    let (before, after) = (env.event()?, env.event()?);
    env.record(before, a)?;
    env.free(block, a)?;
    env.record(after, a)?;
    env.let_it_finish();
    env.fine("cuEventSynchronize", cu!(env, cuEventSynchronize(before)))?;
    env.say(
        "event before the free",
        env.where_is(pool, BLOCK, c, block)?,
    );
    env.fine("cuEventSynchronize", cu!(env, cuEventSynchronize(after)))?;
    env.say("event after the free", env.where_is(pool, BLOCK, c, block)?);
    env.end_pool(pool)
}

/// The same calls for what was freed on the null stream.
pub(crate) fn null_stream(env: &Environment) -> Result<()> {
    let null = std::ptr::null_mut();
    let plain = env.plain(64)?;
    for (part, step) in [
        ("nothing", 0),
        ("cuMemcpyDtoH", 1),
        ("cuStreamSynchronize of null", 2),
        ("cuStreamSynchronize of a blocking stream", 3),
        ("cuStreamSynchronize of the per-thread stream", 4),
    ] {
        let pool = env.keeper(64 * MIB)?;
        env.only_reuse(pool, 0)?;
        let (b, blocking) = (env.stream()?, env.stream_with(0)?);
        let block = freed(env, pool, null)?;
        let mut byte = 0_u8;
        let code = match step {
            0 => CUresult::CUDA_SUCCESS,
            1 => cu!(env, cuMemcpyDtoH_v2((&raw mut byte).cast(), plain, 1)),
            2 => cu!(env, cuStreamSynchronize(null)),
            3 => cu!(env, cuStreamSynchronize(blocking)),
            _ => cu!(env, cuStreamSynchronize(CU_STREAM_PER_THREAD)),
        };
        let answer = env.where_is(pool, BLOCK, b, block)?;
        env.say(part, format!("{}, {answer}", name(code)));
        env.end_pool(pool)?;
    }
    // The null stream waits for blocking streams.
    let pool = env.keeper(64 * MIB)?;
    env.only_reuse(pool, 0)?;
    let (b, blocking) = (env.stream()?, env.stream_with(0)?);
    let block = freed(env, pool, blocking)?;
    env.synchronise(null)?;
    env.say(
        "freed in a blocking stream, null synchronised",
        env.where_is(pool, BLOCK, b, block)?,
    );
    env.end_pool(pool)
}

/// Which stream's synchronise gives back what was seen freed long ago: threshold lowered to 0.
pub(crate) fn users(env: &Environment) -> Result<()> {
    type Step = fn(&Environment, CUmemoryPool, CUstream, CUstream) -> Result<()>;
    let steps: [(&str, Step); 5] = [
        ("the other did nothing", |_, _, _, _| Ok(())),
        ("the other waited for the first", |env, _, a, b| {
            env.order(b, a)
        }),
        ("the other allocated and freed", |env, pool, _, b| {
            let block = env.alloc(pool, 1000, b)?;
            env.free(block, b)
        }),
        (
            "the other frees what the first allocated",
            |env, pool, a, b| {
                let block = env.alloc(pool, 1000, a)?;
                env.free(block, b)
            },
        ),
        ("the other allocated", |env, pool, _, b| {
            env.alloc(pool, 1000, b).map(|_| ())
        }),
    ];
    for (part, step) in steps {
        let (pool, a, b) = (env.keeper(0)?, env.stream()?, env.stream()?);
        freed(env, pool, a)?;
        env.synchronise(a)?;
        step(env, pool, a, b)?;
        env.set(pool, 4, 0)?;
        env.synchronise(b)?;
        let other = env.reserved(pool)?;
        env.synchronise(a)?;
        env.say(
            part,
            format!("{other}, then the first {}", env.reserved(pool)?),
        );
        env.fine("cuMemPoolDestroy", cu!(env, cuMemPoolDestroy(pool)))?;
    }
    Ok(())
}

/// A copy to pageable memory returns when it is done: does the host know what came before it?
pub(crate) fn pageable_copy(env: &Environment) -> Result<()> {
    let pool = env.keeper(64 * MIB)?;
    env.only_reuse(pool, 0)?;
    let (a, b, plain) = (env.stream()?, env.stream()?, env.plain(64)?);
    let mut bytes = [0_u8; 64];
    let block = env.alloc(pool, BLOCK, a)?;
    env.free(block, a)?;
    let to = bytes.as_mut_ptr().cast();
    env.fine(
        "cuMemcpyDtoHAsync",
        cu!(env, cuMemcpyDtoHAsync_v2(to, plain, 64, a)),
    )?;
    env.say("another stream", env.where_is(pool, BLOCK, b, block)?);
    env.end_pool(pool)?;
    let pool = env.pool(0)?;
    let block = env.alloc(pool, BLOCK, a)?;
    env.free(block, a)?;
    env.fine(
        "cuMemcpyDtoHAsync",
        cu!(env, cuMemcpyDtoHAsync_v2(to, plain, 64, a)),
    )?;
    env.say("threshold 0, reserved", env.reserved(pool)?);
    env.end_pool(pool)
}
