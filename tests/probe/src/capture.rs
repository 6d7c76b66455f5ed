//! Recording a stream.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, size};
use crate::recorder::{MODES, begin, end, ended, exchange, footprint, status};

/// Beginning and ending.
pub(crate) fn ends(env: &Environment) -> Result<()> {
    let null = std::ptr::null_mut();
    let stream = env.stream()?;
    env.say("a new stream", status(env, stream));
    env.say("the null stream", status(env, null));
    env.say("end without begin", ended(env, stream));
    env.code("begin on the null stream", begin(env, null, 0));
    env.code(
        "begin on the legacy stream",
        begin(env, CU_STREAM_LEGACY, 0),
    );
    env.code(
        "begin on the per-thread stream",
        begin(env, CU_STREAM_PER_THREAD, 0),
    );
    env.say("its end", ended(env, CU_STREAM_PER_THREAD));
    env.code("begin in mode 3", begin(env, stream, 3));
    env.say("after it", status(env, stream));
    env.code("begin", begin(env, stream, 0));
    env.say("the null stream meanwhile", status(env, null));
    env.code(
        "cuStreamIsCapturing into null",
        cu!(env, cuStreamIsCapturing(stream, std::ptr::null_mut())),
    );
    env.code(
        "end into null",
        cu!(env, cuStreamEndCapture(stream, std::ptr::null_mut())),
    );
    env.say("then", status(env, stream));
    env.say("end", ended(env, stream));
    env.say("then again", status(env, stream));
    // Two at a time.
    let second = env.stream()?;
    for (mode, number) in MODES {
        env.code(format!("first of two, {mode}"), begin(env, stream, number));
        env.code(format!("second, {mode}"), begin(env, second, number));
        env.say(format!("first ends, {mode}"), ended(env, stream));
        env.say(format!("second ends, {mode}"), ended(env, second));
    }
    Ok(())
}

/// A blocking stream is captured, and the null stream used.
pub(crate) fn implicit(env: &Environment) -> Result<()> {
    let null = std::ptr::null_mut();
    let plain = env.plain(64)?;
    for (mode, number) in MODES {
        let stream = env.stream_with(0)?;
        env.code(format!("begin, {mode}"), begin(env, stream, number));
        env.say(format!("null stream, {mode}"), status(env, null));
        env.say(format!("then, {mode}"), status(env, stream));
        let code = cu!(env, cuMemsetD8Async(plain, 1, 64, null));
        env.code(format!("memset on the null stream, {mode}"), code);
        env.say(format!("then it is, {mode}"), status(env, stream));
        env.say(format!("end, {mode}"), ended(env, stream));
    }
    Ok(())
}

/// The per-thread default stream is captured, and the legacy one used, also by a thread in relaxed mode.
pub(crate) fn implicit_per_thread(env: &Environment) -> Result<()> {
    let own = CU_STREAM_PER_THREAD;
    let plain = env.plain(64)?;
    for (mode, number) in MODES {
        for relaxed in [false, true] {
            let part = |part: &str| format!("{mode}, relaxed thread {relaxed}, {part}");
            env.code(part("begin"), begin(env, own, number));
            if relaxed {
                env.fine("to relaxed", exchange(env, 2).0)?;
            }
            let code = cu!(env, cuMemsetD8Async(plain, 1, 64, CU_STREAM_LEGACY));
            env.code(part("memset on the legacy stream"), code);
            if relaxed {
                env.fine("to global", exchange(env, 0).0)?;
            }
            env.say(part("then"), status(env, own));
            env.say(part("end"), ended(env, own));
        }
    }
    Ok(())
}

/// Ending in another thread than began.
pub(crate) fn threads(env: &Environment) -> Result<()> {
    for (mode, number) in MODES {
        let stream = env.stream()?;
        env.fine("begin", begin(env, stream, number))?;
        let (table, handle) = (env.table, stream.expose_provenance());
        let context = env.context().expose_provenance();
        let answer = std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let env = Environment::new(table, "thread");
                env.current(std::ptr::with_exposed_provenance_mut(context))?;
                let stream = std::ptr::with_exposed_provenance_mut(handle);
                let seen = status(&env, stream);
                anyhow::Ok(format!("{seen}, {}", ended(&env, stream)))
            });
            thread.join().expect("the thread answers")
        })?;
        env.say(format!("end by another thread, {mode}"), answer);
        env.say(format!("then, {mode}"), status(env, stream));
        env.say(format!("end, {mode}"), ended(env, stream));
    }
    Ok(())
}

/// Two streams in one capture: which of them may end it.
pub(crate) fn joined(env: &Environment) -> Result<()> {
    let scene = || -> Result<(CUstream, CUstream, CUevent)> {
        let (a, b, event) = (env.stream()?, env.stream()?, env.event()?);
        env.fine("begin", begin(env, a, 0))?;
        env.record(event, a)?;
        env.fine("wait", cu!(env, cuStreamWaitEvent(b, event, 0)))?;
        Ok((a, b, event))
    };
    let (a, b, _) = scene()?;
    env.say("the joined one", status(env, b));
    env.say("its end", ended(env, b));
    env.say("then the first", status(env, a));
    env.say("end of the first", ended(env, a));
    // Joined and given nothing: is that open work?
    let (a, _, _) = scene()?;
    env.say("joined, no work", ended(env, a));
    // Memory over two streams.
    let (a, b, event) = scene()?;
    let mut block = 0;
    env.code(
        "alloc on the second",
        cu!(env, cuMemAllocAsync(&raw mut block, 1000, b)),
    );
    env.code(
        "memset on the first without order",
        cu!(env, cuMemsetD8Async(block, 1, 1000, a)),
    );
    env.code(
        "free on the first without order",
        cu!(env, cuMemFreeAsync(block, a)),
    );
    env.record(event, b)?;
    env.code("wait", cu!(env, cuStreamWaitEvent(a, event, 0)));
    env.code(
        "free on the first with order",
        cu!(env, cuMemFreeAsync(block, a)),
    );
    env.say("end", ended(env, a));
    Ok(())
}

/// The stream is destroyed while it is captured.
pub(crate) fn destroyed(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    env.fine("begin", begin(env, stream, 2))?;
    let mut block = 0;
    env.code(
        "alloc",
        cu!(env, cuMemAllocAsync(&raw mut block, 1000, stream)),
    );
    env.code("cuStreamDestroy", cu!(env, cuStreamDestroy_v2(stream)));
    let other = env.stream()?;
    env.code("begin on another", begin(env, other, 0));
    env.say("its end", ended(env, other));
    env.say("memory", footprint(env)?);
    Ok(())
}

/// Statistics while graph memory is recorded and when it is used.
pub(crate) fn statistics(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let pool = env.keeper(0)?;
    let show = |part: &str| -> Result<()> {
        env.say(
            part,
            format!(
                "pool used {}, reserved {}; graphs {}",
                size(env.used(pool)?),
                env.reserved(pool)?,
                footprint(env)?
            ),
        );
        Ok(())
    };
    show("before")?;
    env.fine("begin", begin(env, stream, 2))?;
    let block = env.alloc(pool, 3 << 20, stream)?;
    show("allocated")?;
    env.fine("memset", cu!(env, cuMemsetD8Async(block, 1, 1000, stream)))?;
    env.free(block, stream)?;
    show("freed")?;
    let (code, graph) = end(env, stream);
    env.fine("end", code)?;
    show("ended")?;
    let exec = crate::recorder::instantiate(env, graph, 0)?;
    show("instantiated")?;
    crate::recorder::launch(env, exec, stream)?;
    env.synchronise(stream)?;
    show("launched")?;
    crate::recorder::destroy_exec(env, exec)?;
    crate::recorder::destroy(env, graph)?;
    show("destroyed")?;
    env.trim(pool, 0)?;
    show("pool trimmed")?;
    crate::recorder::trim_graphs(env)?;
    show("graphs trimmed")
}

/// The pool of a captured allocation ends before the graph is launched.
pub(crate) fn pool_is_gone(env: &Environment) -> Result<()> {
    let (stream, pool) = (env.stream()?, env.pool(0)?);
    env.fine("begin", begin(env, stream, 0))?;
    let block = env.alloc(pool, 1000, stream)?;
    env.fine("memset", cu!(env, cuMemsetD8Async(block, 1, 1000, stream)))?;
    env.free(block, stream)?;
    let (code, graph) = end(env, stream);
    env.fine("end", code)?;
    env.code("cuMemPoolDestroy", cu!(env, cuMemPoolDestroy(pool)));
    let exec = crate::recorder::instantiate(env, graph, 0)?;
    env.code("launch", crate::recorder::try_launch(env, exec, stream));
    env.code("synchronise", cu!(env, cuStreamSynchronize(stream)));
    Ok(())
}

/// A thread that has said that it knows what it does.
pub(crate) fn exchanged(env: &Environment) -> Result<()> {
    let (code, before) = exchange(env, 2);
    env.say("to relaxed", format!("{}, was {before}", name(code)));
    let (code, before) = exchange(env, 7);
    env.say("to 7", format!("{}, was {before}", name(code)));
    let (_, before) = exchange(env, 0);
    env.say("was", before);
    for (mode, number) in MODES {
        let (stream, other, pool) = (env.stream()?, env.stream()?, env.pool(0)?);
        let say = |part: &str, code: CUresult| {
            let answer = format!("{}, {}", name(code), status(env, stream));
            env.say(format!("{mode}, {part}"), answer);
        };
        let block = env.alloc(pool, 1000, stream)?;
        let second = env.alloc(pool, 1000, other)?;
        env.fine("sync", cu!(env, cuCtxSynchronize()))?;
        env.fine("begin", begin(env, stream, number))?;
        let _ = exchange(env, 2);
        say("free", cu!(env, cuMemFreeAsync(block, stream)));
        say("free elsewhere", cu!(env, cuMemFreeAsync(block, other)));
        say("alloc elsewhere", env.try_alloc(pool, 1000, other).0);
        say("query elsewhere", cu!(env, cuStreamQuery(other)));
        say(
            "synchronise elsewhere",
            cu!(env, cuStreamSynchronize(other)),
        );
        say("attribute", env.used(pool).map_or(CUresult(999), |_| OK));
        say("trim", cu!(env, cuMemPoolTrimTo(pool, 0)));
        say(
            "second free elsewhere",
            cu!(env, cuMemFreeAsync(second, other)),
        );
        let _ = exchange(env, 0);
        env.say(format!("{mode}, end"), ended(env, stream));
        env.say(format!("{mode}, used"), size(env.used(pool)?));
        env.say(format!("{mode}, status after"), status(env, other));
    }
    Ok(())
}

/// A capture that nothing can save: does ending it let the stream work again?
pub(crate) fn afterwards(env: &Environment) -> Result<()> {
    let (stream, other, pool) = (env.stream()?, env.stream()?, env.pool(0)?);
    let block = env.alloc(pool, 1000, stream)?;
    env.synchronise(stream)?;
    env.fine("begin", begin(env, stream, 0))?;
    env.code("free elsewhere", cu!(env, cuMemFreeAsync(block, other)));
    env.code(
        "free elsewhere again",
        cu!(env, cuMemFreeAsync(block, other)),
    );
    env.code("free there", cu!(env, cuMemFreeAsync(block, stream)));
    env.code("alloc there", env.try_alloc(pool, 1000, stream).0);
    env.code(
        "memset there",
        cu!(env, cuMemsetD8Async(block, 1, 64, stream)),
    );
    env.say("end", ended(env, stream));
    env.code(
        "memset after",
        cu!(env, cuMemsetD8Async(block, 1, 64, stream)),
    );
    env.code("free after", cu!(env, cuMemFreeAsync(block, stream)));
    env.code("synchronise", cu!(env, cuStreamSynchronize(stream)));
    env.say("used", size(env.used(pool)?));
    Ok(())
}
