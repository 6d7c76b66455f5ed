//! Events.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name};
use crate::gate::{Gate, while_held};

pub(crate) fn fresh(env: &Environment) -> Result<()> {
    let (stream, event, other) = (env.stream()?, env.event()?, env.event()?);
    env.code("query", cu!(env, cuEventQuery(event)));
    env.code("synchronise", cu!(env, cuEventSynchronize(event)));
    env.code("wait", cu!(env, cuStreamWaitEvent(stream, event, 0)));
    let mut time = 0.0;
    let code = cu!(env, cuEventElapsedTime(&raw mut time, event, other));
    env.code("time without timing", code);
    env.code("record", cu!(env, cuEventRecord(event, stream)));
    env.code(
        "record on the null stream",
        cu!(env, cuEventRecord(event, std::ptr::null_mut())),
    );
    let null = std::ptr::null_mut();
    env.code("record null", cu!(env, cuEventRecord(null, stream)));
    env.code("query null", cu!(env, cuEventQuery(null)));
    env.code("destroy null", cu!(env, cuEventDestroy_v2(null)));
    for flags in [0, 1, 2] {
        let code = cu!(env, cuEventRecordWithFlags(event, stream, flags));
        env.code(format!("record with flags {flags}"), code);
    }
    Ok(())
}

pub(crate) fn flags(env: &Environment) -> Result<()> {
    let mut event = std::ptr::null_mut();
    for flags in 0..=8 {
        let code = cu!(env, cuEventCreate(&raw mut event, flags));
        env.code(flags, code);
        if code == OK {
            env.fine("cuEventDestroy", cu!(env, cuEventDestroy_v2(event)))?;
        }
    }
    env.code(
        "into null",
        cu!(env, cuEventCreate(std::ptr::null_mut(), 0)),
    );
    Ok(())
}

pub(crate) fn pending(env: &Environment) -> Result<()> {
    let (a, b, event) = (env.stream()?, env.stream()?, env.event()?);
    let gate = Gate::hold(env, a)?;
    env.record(event, a)?;
    env.code("query", cu!(env, cuEventQuery(event)));
    env.fine(
        "cuStreamWaitEvent",
        cu!(env, cuStreamWaitEvent(b, event, 0)),
    )?;
    env.code("a stream that waits for it", cu!(env, cuStreamQuery(b)));
    // Recorded again elsewhere: the wait stays, the event is done.
    let c = env.stream()?;
    env.record(event, c)?;
    env.let_it_finish();
    env.code(
        "query after a record elsewhere",
        cu!(env, cuEventQuery(event)),
    );
    env.code("the stream that waited", cu!(env, cuStreamQuery(b)));
    gate.open();
    env.synchronise(a)?;
    env.synchronise(b)?;
    let waited = while_held(env, a, || {
        let code = cu!(env, cuEventRecord(event, a));
        if code == OK {
            cu!(env, cuEventSynchronize(event))
        } else {
            code
        }
    })?;
    env.say("synchronise", format!("{}, {}", name(waited.0), waited.1));
    Ok(())
}

pub(crate) fn times(env: &Environment) -> Result<()> {
    let timed = || -> Result<CUevent> {
        let mut event = std::ptr::null_mut();
        env.fine("cuEventCreate", cu!(env, cuEventCreate(&raw mut event, 0)))?;
        Ok(event)
    };
    let (stream, start, end) = (env.stream()?, timed()?, timed()?);
    let (plain, mut time) = (env.event()?, 0.0_f32);
    let mut ask = |part: &str, start: CUevent, end: CUevent| {
        env.code(
            part,
            cu!(env, cuEventElapsedTime(&raw mut time, start, end)),
        );
    };
    ask("none recorded", start, end);
    env.record(start, stream)?;
    ask("only the first recorded", start, end);
    let gate = Gate::hold(env, stream)?;
    env.record(end, stream)?;
    ask("the second pending", start, end);
    gate.open();
    env.synchronise(stream)?;
    ask("both done", start, end);
    ask("turned round", end, start);
    env.record(plain, stream)?;
    env.synchronise(stream)?;
    ask("the second without timing", start, plain);
    let code = cu!(env, cuEventElapsedTime(std::ptr::null_mut(), start, end));
    env.code("into null", code);
    Ok(())
}

pub(crate) fn other_context(env: &Environment) -> Result<()> {
    let (stream, event) = (env.stream()?, env.event()?);
    let mut made = std::ptr::null_mut();
    env.fine("cuCtxCreate", cu!(env, cuCtxCreate_v2(&raw mut made, 0, 0)))?;
    let (there, its) = (env.stream()?, env.event()?);
    env.code(
        "record in a stream of another context",
        cu!(env, cuEventRecord(event, there)),
    );
    env.code(
        "record of one of another context",
        cu!(env, cuEventRecord(its, stream)),
    );
    env.code(
        "record on the null stream",
        cu!(env, cuEventRecord(event, std::ptr::null_mut())),
    );
    env.record(its, there)?;
    env.code(
        "wait in a stream of another context",
        cu!(env, cuStreamWaitEvent(stream, its, 0)),
    );
    env.code("query from another context", cu!(env, cuEventQuery(event)));
    env.code(
        "synchronise from another context",
        cu!(env, cuEventSynchronize(event)),
    );
    env.code(
        "stream synchronise from another context",
        cu!(env, cuStreamSynchronize(stream)),
    );
    let pool = env.pool(0)?;
    let (code, block) = env.try_alloc(pool, 1000, stream);
    env.code("allocate on a stream of another context", code);
    env.code(
        "free on a stream of this context",
        cu!(env, cuMemFreeAsync(block, there)),
    );
    env.code(
        "destroy from another context",
        cu!(env, cuEventDestroy_v2(event)),
    );
    env.code(
        "stream destroy from another context",
        cu!(env, cuStreamDestroy_v2(stream)),
    );
    Ok(())
}

pub(crate) fn destroy_with_work(env: &Environment) -> Result<()> {
    let (a, b, event) = (env.stream()?, env.stream()?, env.event()?);
    let destroyed = while_held(env, a, || {
        let first = cu!(env, cuEventRecord(event, a));
        let second = cu!(env, cuStreamWaitEvent(b, event, 0));
        if first != OK || second != OK {
            return CUresult::CUDA_ERROR_UNKNOWN;
        }
        let code = cu!(env, cuEventDestroy_v2(event));
        env.code("the stream that waits for it", cu!(env, cuStreamQuery(b)));
        code
    })?;
    env.say("pending", format!("{}, {}", name(destroyed.0), destroyed.1));
    env.synchronise(a)?;
    env.code(
        "then the stream that waited",
        cu!(env, cuStreamSynchronize(b)),
    );
    Ok(())
}
