//! Events.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::{Gate, while_held};
use crate::lab::{Lab, OK, cu, name};

pub(crate) fn fresh(lab: &Lab) -> Result<()> {
    let (stream, event, other) = (lab.stream()?, lab.event()?, lab.event()?);
    lab.code("query", cu!(lab, cuEventQuery(event)));
    lab.code("synchronise", cu!(lab, cuEventSynchronize(event)));
    lab.code("wait", cu!(lab, cuStreamWaitEvent(stream, event, 0)));
    let mut time = 0.0;
    let code = cu!(lab, cuEventElapsedTime(&raw mut time, event, other));
    lab.code("time without timing", code);
    lab.code("record", cu!(lab, cuEventRecord(event, stream)));
    lab.code(
        "record on the null stream",
        cu!(lab, cuEventRecord(event, std::ptr::null_mut())),
    );
    let null = std::ptr::null_mut();
    lab.code("record null", cu!(lab, cuEventRecord(null, stream)));
    lab.code("query null", cu!(lab, cuEventQuery(null)));
    lab.code("destroy null", cu!(lab, cuEventDestroy_v2(null)));
    for flags in [0, 1, 2] {
        let code = cu!(lab, cuEventRecordWithFlags(event, stream, flags));
        lab.code(format!("record with flags {flags}"), code);
    }
    Ok(())
}

pub(crate) fn flags(lab: &Lab) -> Result<()> {
    let mut event = std::ptr::null_mut();
    for flags in 0..=8 {
        let code = cu!(lab, cuEventCreate(&raw mut event, flags));
        lab.code(flags, code);
        if code == OK {
            lab.fine("cuEventDestroy", cu!(lab, cuEventDestroy_v2(event)))?;
        }
    }
    lab.code(
        "into null",
        cu!(lab, cuEventCreate(std::ptr::null_mut(), 0)),
    );
    Ok(())
}

pub(crate) fn pending(lab: &Lab) -> Result<()> {
    let (a, b, event) = (lab.stream()?, lab.stream()?, lab.event()?);
    let gate = Gate::hold(lab, a)?;
    lab.record(event, a)?;
    lab.code("query", cu!(lab, cuEventQuery(event)));
    lab.fine(
        "cuStreamWaitEvent",
        cu!(lab, cuStreamWaitEvent(b, event, 0)),
    )?;
    lab.code("a stream that waits for it", cu!(lab, cuStreamQuery(b)));
    // Recorded again elsewhere: the wait stays, the event is done.
    let c = lab.stream()?;
    lab.record(event, c)?;
    lab.let_it_finish();
    lab.code(
        "query after a record elsewhere",
        cu!(lab, cuEventQuery(event)),
    );
    lab.code("the stream that waited", cu!(lab, cuStreamQuery(b)));
    gate.open();
    lab.synchronise(a)?;
    lab.synchronise(b)?;
    let waited = while_held(lab, a, || {
        let code = cu!(lab, cuEventRecord(event, a));
        if code == OK {
            cu!(lab, cuEventSynchronize(event))
        } else {
            code
        }
    })?;
    lab.say("synchronise", format!("{}, {}", name(waited.0), waited.1));
    Ok(())
}

pub(crate) fn times(lab: &Lab) -> Result<()> {
    let timed = || -> Result<CUevent> {
        let mut event = std::ptr::null_mut();
        lab.fine("cuEventCreate", cu!(lab, cuEventCreate(&raw mut event, 0)))?;
        Ok(event)
    };
    let (stream, start, end) = (lab.stream()?, timed()?, timed()?);
    let (plain, mut time) = (lab.event()?, 0.0_f32);
    let mut ask = |part: &str, start: CUevent, end: CUevent| {
        lab.code(
            part,
            cu!(lab, cuEventElapsedTime(&raw mut time, start, end)),
        );
    };
    ask("none recorded", start, end);
    lab.record(start, stream)?;
    ask("only the first recorded", start, end);
    let gate = Gate::hold(lab, stream)?;
    lab.record(end, stream)?;
    ask("the second pending", start, end);
    gate.open();
    lab.synchronise(stream)?;
    ask("both done", start, end);
    ask("turned round", end, start);
    lab.record(plain, stream)?;
    lab.synchronise(stream)?;
    ask("the second without timing", start, plain);
    let code = cu!(lab, cuEventElapsedTime(std::ptr::null_mut(), start, end));
    lab.code("into null", code);
    Ok(())
}

pub(crate) fn other_context(lab: &Lab) -> Result<()> {
    let (stream, event) = (lab.stream()?, lab.event()?);
    let mut made = std::ptr::null_mut();
    lab.fine("cuCtxCreate", cu!(lab, cuCtxCreate_v2(&raw mut made, 0, 0)))?;
    let (there, its) = (lab.stream()?, lab.event()?);
    lab.code(
        "record in a stream of another context",
        cu!(lab, cuEventRecord(event, there)),
    );
    lab.code(
        "record of one of another context",
        cu!(lab, cuEventRecord(its, stream)),
    );
    lab.code(
        "record on the null stream",
        cu!(lab, cuEventRecord(event, std::ptr::null_mut())),
    );
    lab.record(its, there)?;
    lab.code(
        "wait in a stream of another context",
        cu!(lab, cuStreamWaitEvent(stream, its, 0)),
    );
    lab.code("query from another context", cu!(lab, cuEventQuery(event)));
    lab.code(
        "synchronise from another context",
        cu!(lab, cuEventSynchronize(event)),
    );
    lab.code(
        "stream synchronise from another context",
        cu!(lab, cuStreamSynchronize(stream)),
    );
    let pool = lab.pool(0)?;
    let (code, block) = lab.try_alloc(pool, 1000, stream);
    lab.code("allocate on a stream of another context", code);
    lab.code(
        "free on a stream of this context",
        cu!(lab, cuMemFreeAsync(block, there)),
    );
    lab.code(
        "destroy from another context",
        cu!(lab, cuEventDestroy_v2(event)),
    );
    lab.code(
        "stream destroy from another context",
        cu!(lab, cuStreamDestroy_v2(stream)),
    );
    Ok(())
}

pub(crate) fn destroy_with_work(lab: &Lab) -> Result<()> {
    let (a, b, event) = (lab.stream()?, lab.stream()?, lab.event()?);
    let destroyed = while_held(lab, a, || {
        let first = cu!(lab, cuEventRecord(event, a));
        let second = cu!(lab, cuStreamWaitEvent(b, event, 0));
        if first != OK || second != OK {
            return CUresult::CUDA_ERROR_UNKNOWN;
        }
        let code = cu!(lab, cuEventDestroy_v2(event));
        lab.code("the stream that waits for it", cu!(lab, cuStreamQuery(b)));
        code
    })?;
    lab.say("pending", format!("{}, {}", name(destroyed.0), destroyed.1));
    lab.synchronise(a)?;
    lab.code(
        "then the stream that waited",
        cu!(lab, cuStreamSynchronize(b)),
    );
    Ok(())
}
