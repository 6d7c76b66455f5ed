//! Recording a stream.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, OK, cu, name, size};
use crate::recorder::{MODES, begin, end, ended, footprint, status};

/// Beginning and ending.
pub(crate) fn ends(lab: &Lab) -> Result<()> {
    let null = std::ptr::null_mut();
    let stream = lab.stream()?;
    lab.say("a new stream", status(lab, stream));
    lab.say("the null stream", status(lab, null));
    lab.say("end without begin", ended(lab, stream));
    lab.code("begin on the null stream", begin(lab, null, 0));
    lab.code(
        "begin on the legacy stream",
        begin(lab, CU_STREAM_LEGACY, 0),
    );
    lab.code(
        "begin on the per-thread stream",
        begin(lab, CU_STREAM_PER_THREAD, 0),
    );
    lab.say("its end", ended(lab, CU_STREAM_PER_THREAD));
    lab.code("begin in mode 3", begin(lab, stream, 3));
    lab.say("after it", status(lab, stream));
    lab.code("begin", begin(lab, stream, 0));
    lab.say("the null stream meanwhile", status(lab, null));
    lab.code(
        "cuStreamIsCapturing into null",
        cu!(lab, cuStreamIsCapturing(stream, std::ptr::null_mut())),
    );
    lab.code(
        "end into null",
        cu!(lab, cuStreamEndCapture(stream, std::ptr::null_mut())),
    );
    lab.say("then", status(lab, stream));
    lab.say("end", ended(lab, stream));
    lab.say("then again", status(lab, stream));
    // Two at a time.
    let second = lab.stream()?;
    for (mode, number) in MODES {
        lab.code(format!("first of two, {mode}"), begin(lab, stream, number));
        lab.code(format!("second, {mode}"), begin(lab, second, number));
        lab.say(format!("first ends, {mode}"), ended(lab, stream));
        lab.say(format!("second ends, {mode}"), ended(lab, second));
    }
    Ok(())
}

/// A blocking stream is captured, and the null stream used.
pub(crate) fn implicit(lab: &Lab) -> Result<()> {
    let null = std::ptr::null_mut();
    let plain = lab.plain(64)?;
    for (mode, number) in MODES {
        let stream = lab.stream_with(0)?;
        lab.code(format!("begin, {mode}"), begin(lab, stream, number));
        lab.say(format!("null stream, {mode}"), status(lab, null));
        lab.say(format!("then, {mode}"), status(lab, stream));
        let code = cu!(lab, cuMemsetD8Async(plain, 1, 64, null));
        lab.code(format!("memset on the null stream, {mode}"), code);
        lab.say(format!("then it is, {mode}"), status(lab, stream));
        lab.say(format!("end, {mode}"), ended(lab, stream));
    }
    Ok(())
}

/// Ending in another thread than began.
pub(crate) fn threads(lab: &Lab) -> Result<()> {
    for (mode, number) in MODES {
        let stream = lab.stream()?;
        lab.fine("begin", begin(lab, stream, number))?;
        let (table, handle) = (lab.table, stream.expose_provenance());
        let context = lab.context().expose_provenance();
        let answer = std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let lab = Lab::new(table, "thread");
                lab.current(std::ptr::with_exposed_provenance_mut(context))?;
                let stream = std::ptr::with_exposed_provenance_mut(handle);
                let seen = status(&lab, stream);
                anyhow::Ok(format!("{seen}, {}", ended(&lab, stream)))
            });
            thread.join().expect("the thread answers")
        })?;
        lab.say(format!("end by another thread, {mode}"), answer);
        lab.say(format!("then, {mode}"), status(lab, stream));
        lab.say(format!("end, {mode}"), ended(lab, stream));
    }
    Ok(())
}

/// Two streams in one capture: which of them may end it.
pub(crate) fn joined(lab: &Lab) -> Result<()> {
    let scene = || -> Result<(CUstream, CUstream, CUevent)> {
        let (a, b, event) = (lab.stream()?, lab.stream()?, lab.event()?);
        lab.fine("begin", begin(lab, a, 0))?;
        lab.record(event, a)?;
        lab.fine("wait", cu!(lab, cuStreamWaitEvent(b, event, 0)))?;
        Ok((a, b, event))
    };
    let (a, b, _) = scene()?;
    lab.say("the joined one", status(lab, b));
    lab.say("its end", ended(lab, b));
    lab.say("then the first", status(lab, a));
    lab.say("end of the first", ended(lab, a));
    // Joined and given nothing: is that open work?
    let (a, _, _) = scene()?;
    lab.say("joined, no work", ended(lab, a));
    // Memory over two streams.
    let (a, b, event) = scene()?;
    let mut block = 0;
    lab.code(
        "alloc on the second",
        cu!(lab, cuMemAllocAsync(&raw mut block, 1000, b)),
    );
    lab.code(
        "memset on the first without order",
        cu!(lab, cuMemsetD8Async(block, 1, 1000, a)),
    );
    lab.code(
        "free on the first without order",
        cu!(lab, cuMemFreeAsync(block, a)),
    );
    lab.record(event, b)?;
    lab.code("wait", cu!(lab, cuStreamWaitEvent(a, event, 0)));
    lab.code(
        "free on the first with order",
        cu!(lab, cuMemFreeAsync(block, a)),
    );
    lab.say("end", ended(lab, a));
    Ok(())
}

/// The stream is destroyed while it is captured.
pub(crate) fn destroyed(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    lab.fine("begin", begin(lab, stream, 2))?;
    let mut block = 0;
    lab.code(
        "alloc",
        cu!(lab, cuMemAllocAsync(&raw mut block, 1000, stream)),
    );
    lab.code("cuStreamDestroy", cu!(lab, cuStreamDestroy_v2(stream)));
    let other = lab.stream()?;
    lab.code("begin on another", begin(lab, other, 0));
    lab.say("its end", ended(lab, other));
    lab.say("memory", footprint(lab)?);
    Ok(())
}

/// Statistics while graph memory is recorded and when it is used.
pub(crate) fn statistics(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let pool = lab.keeper(0)?;
    let show = |part: &str| -> Result<()> {
        lab.say(
            part,
            format!(
                "pool used {}, reserved {}; graphs {}",
                size(lab.used(pool)?),
                lab.reserved(pool)?,
                footprint(lab)?
            ),
        );
        Ok(())
    };
    show("before")?;
    lab.fine("begin", begin(lab, stream, 2))?;
    let block = lab.alloc(pool, 3 << 20, stream)?;
    show("allocated")?;
    lab.fine("memset", cu!(lab, cuMemsetD8Async(block, 1, 1000, stream)))?;
    lab.free(block, stream)?;
    show("freed")?;
    let (code, graph) = end(lab, stream);
    lab.fine("end", code)?;
    show("ended")?;
    let exec = crate::recorder::instantiate(lab, graph, 0)?;
    show("instantiated")?;
    crate::recorder::launch(lab, exec, stream)?;
    lab.synchronise(stream)?;
    show("launched")?;
    crate::recorder::destroy_exec(lab, exec)?;
    crate::recorder::destroy(lab, graph)?;
    show("destroyed")?;
    lab.trim(pool, 0)?;
    show("pool trimmed")?;
    crate::recorder::trim_graphs(lab)?;
    show("graphs trimmed")
}

/// The pool of a captured allocation ends before the graph is launched.
pub(crate) fn pool_is_gone(lab: &Lab) -> Result<()> {
    let (stream, pool) = (lab.stream()?, lab.pool(0)?);
    lab.fine("begin", begin(lab, stream, 0))?;
    let block = lab.alloc(pool, 1000, stream)?;
    lab.fine("memset", cu!(lab, cuMemsetD8Async(block, 1, 1000, stream)))?;
    lab.free(block, stream)?;
    let (code, graph) = end(lab, stream);
    lab.fine("end", code)?;
    lab.code("cuMemPoolDestroy", cu!(lab, cuMemPoolDestroy(pool)));
    let exec = crate::recorder::instantiate(lab, graph, 0)?;
    lab.code("launch", crate::recorder::try_launch(lab, exec, stream));
    lab.code("synchronise", cu!(lab, cuStreamSynchronize(stream)));
    Ok(())
}

fn exchange(lab: &Lab, mode: u32) -> (CUresult, u32) {
    let mut mode = CUstreamCaptureMode_enum(mode);
    let code = cu!(lab, cuThreadExchangeStreamCaptureMode(&raw mut mode));
    (code, mode.0)
}

/// A thread that has said that it knows what it does.
pub(crate) fn exchanged(lab: &Lab) -> Result<()> {
    let (code, before) = exchange(lab, 2);
    lab.say("to relaxed", format!("{}, was {before}", name(code)));
    let (code, before) = exchange(lab, 7);
    lab.say("to 7", format!("{}, was {before}", name(code)));
    let (_, before) = exchange(lab, 0);
    lab.say("was", before);
    for (mode, number) in MODES {
        let (stream, other, pool) = (lab.stream()?, lab.stream()?, lab.pool(0)?);
        let say = |part: &str, code: CUresult| {
            let answer = format!("{}, {}", name(code), status(lab, stream));
            lab.say(format!("{mode}, {part}"), answer);
        };
        let block = lab.alloc(pool, 1000, stream)?;
        let second = lab.alloc(pool, 1000, other)?;
        lab.fine("sync", cu!(lab, cuCtxSynchronize()))?;
        lab.fine("begin", begin(lab, stream, number))?;
        let _ = exchange(lab, 2);
        say("free", cu!(lab, cuMemFreeAsync(block, stream)));
        say("free elsewhere", cu!(lab, cuMemFreeAsync(block, other)));
        say("alloc elsewhere", lab.try_alloc(pool, 1000, other).0);
        say("query elsewhere", cu!(lab, cuStreamQuery(other)));
        say(
            "synchronise elsewhere",
            cu!(lab, cuStreamSynchronize(other)),
        );
        say("attribute", lab.used(pool).map_or(CUresult(999), |_| OK));
        say("trim", cu!(lab, cuMemPoolTrimTo(pool, 0)));
        say(
            "second free elsewhere",
            cu!(lab, cuMemFreeAsync(second, other)),
        );
        let _ = exchange(lab, 0);
        lab.say(format!("{mode}, end"), ended(lab, stream));
        lab.say(format!("{mode}, used"), size(lab.used(pool)?));
        lab.say(format!("{mode}, status after"), status(lab, other));
    }
    Ok(())
}

/// A capture that nothing can save: does ending it let the stream work again?
pub(crate) fn afterwards(lab: &Lab) -> Result<()> {
    let (stream, other, pool) = (lab.stream()?, lab.stream()?, lab.pool(0)?);
    let block = lab.alloc(pool, 1000, stream)?;
    lab.synchronise(stream)?;
    lab.fine("begin", begin(lab, stream, 0))?;
    lab.code("free elsewhere", cu!(lab, cuMemFreeAsync(block, other)));
    lab.code(
        "free elsewhere again",
        cu!(lab, cuMemFreeAsync(block, other)),
    );
    lab.code("free there", cu!(lab, cuMemFreeAsync(block, stream)));
    lab.code("alloc there", lab.try_alloc(pool, 1000, stream).0);
    lab.code(
        "memset there",
        cu!(lab, cuMemsetD8Async(block, 1, 64, stream)),
    );
    lab.say("end", ended(lab, stream));
    lab.code(
        "memset after",
        cu!(lab, cuMemsetD8Async(block, 1, 64, stream)),
    );
    lab.code("free after", cu!(lab, cuMemFreeAsync(block, stream)));
    lab.code("synchronise", cu!(lab, cuStreamSynchronize(stream)));
    lab.say("used", size(lab.used(pool)?));
    Ok(())
}
