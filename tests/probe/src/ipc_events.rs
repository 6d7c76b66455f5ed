//! Events between processes.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::gate::{Gate, while_held};
use crate::twin::pair;

/// Flags of an event that may be shared.
const SHARED: u32 = 6;

fn event(env: &Environment, flags: u32) -> Result<CUevent> {
    let mut event = std::ptr::null_mut();
    let code = cu!(env, cuEventCreate(&raw mut event, flags));
    env.fine("cuEventCreate", code)?;
    Ok(event)
}

pub(crate) fn shared_event(env: &Environment) -> Result<CUevent> {
    event(env, SHARED)
}

pub(crate) fn handle(env: &Environment, event: CUevent) -> (CUresult, CUipcEventHandle) {
    let mut handle = CUipcEventHandle::default();
    let code = cu!(env, cuIpcGetEventHandle(&raw mut handle, event));
    (code, handle)
}

pub(crate) fn open(env: &Environment, handle: CUipcEventHandle) -> (CUresult, CUevent) {
    let mut event = std::ptr::null_mut();
    let code = cu!(env, cuIpcOpenEventHandle(&raw mut event, handle));
    (code, event)
}

/// What one process can ask.
pub(crate) fn handles(env: &Environment) -> Result<()> {
    let shared = event(env, SHARED)?;
    let before = crate::ipc::open_descriptors() as i64;
    let (code, first) = handle(env, shared);
    env.code("of a shared event", code);
    let (code, second) = handle(env, shared);
    env.code("again", code);
    env.say("the same bytes", yes(first.reserved == second.reserved));
    env.say(
        "descriptors more",
        crate::ipc::open_descriptors() as i64 - before,
    );
    for flags in [0, 1, 2, 3] {
        let code = handle(env, event(env, flags)?).0;
        env.code(format!("of an event with flags {flags}"), code);
    }
    env.code("of null", handle(env, std::ptr::null_mut()).0);
    let null = std::ptr::null_mut();
    env.code("into null", cu!(env, cuIpcGetEventHandle(null, shared)));
    let mut time = 0.0;
    let code = cu!(env, cuEventElapsedTime(&raw mut time, shared, shared));
    env.code("its time", code);
    env.no_context()?;
    env.code("without a context", handle(env, shared).0);
    Ok(())
}

/// Handles that cannot be opened.
pub(crate) fn wrong(env: &Environment) -> Result<()> {
    env.alone("open here", || {
        let shared = event(env, SHARED)?;
        let (_, bytes) = handle(env, shared);
        Ok(name(open(env, bytes).0))
    });
    for (part, byte) in [("zeroes", 0), ("ones", !0)] {
        env.alone(part, || {
            let handle = CUipcEventHandle_st {
                reserved: [byte; 64],
            };
            let code = open(env, handle).0;
            Ok(format!(
                "{}, healthy {}",
                name(code),
                yes(env.plain(64).is_ok())
            ))
        });
    }
    env.alone("into null", || {
        let (_, bytes) = handle(env, event(env, SHARED)?);
        let null = std::ptr::null_mut();
        Ok(name(cu!(env, cuIpcOpenEventHandle(null, bytes))))
    });
    let late = |part: &str, what: u32| {
        pair(
            env,
            part,
            |other| {
                let mut handle = other.wire.take_event_handle()?;
                match what {
                    0 | 1 => other.wire.wait()?,
                    2 => other.kill(),
                    3 => handle.reserved[32..].fill(0),
                    _ => handle.reserved[0] ^= !0,
                }
                let (code, event) = open(env, handle);
                env.code(part, code);
                if code == OK {
                    env.code(format!("{part}, query"), cu!(env, cuEventQuery(event)));
                }
                env.say(format!("{part}, healthy"), yes(env.plain(64).is_ok()));
                Ok(())
            },
            |wire| {
                let shared = event(env, SHARED)?;
                wire.send_event(env, shared)?;
                if what == 0 {
                    env.fine("destroy", cu!(env, cuEventDestroy_v2(shared)))?;
                }
                if what == 1 {
                    env.no_context()?;
                    env.fine("release", env.release())?;
                }
                if what < 2 {
                    wire.go()?;
                }
                wire.wait().or(Ok(()))
            },
        );
    };
    late("of a destroyed event", 0);
    late("of an event whose context is gone", 1);
    late("of a dead process", 2);
    late("cut to its first half", 3);
    late("first byte turned round", 4);
    Ok(())
}

/// The exporter records, the importer looks.
pub(crate) fn order(env: &Environment) -> Result<()> {
    pair(
        env,
        "",
        |other| {
            let (shared, stream) = (event(env, SHARED)?, env.stream()?);
            other.wire.send_event(env, shared)?;
            other.wire.wait()?;
            let gate = Gate::hold(env, stream)?;
            env.record(shared, stream)?;
            other.wire.go()?;
            other.wire.wait()?;
            gate.open();
            env.synchronise(stream)?;
            other.wire.go()?;
            // Now the other way round.
            other.wire.wait()?;
            env.code("the exporter queries", cu!(env, cuEventQuery(shared)));
            let code = cu!(env, cuStreamWaitEvent(stream, shared, 0));
            env.code("the exporter waits", code);
            env.let_it_finish();
            env.code("its stream", cu!(env, cuStreamQuery(stream)));
            other.wire.go()?;
            env.code("its stream, let go", cu!(env, cuStreamSynchronize(stream)));
            env.code("the event, let go", cu!(env, cuEventSynchronize(shared)));
            other.wire.go()
        },
        |wire| {
            let opened = wire.take_event(env)?;
            let (stream, third) = (env.stream()?, env.stream()?);
            env.code("opened, query", cu!(env, cuEventQuery(opened)));
            env.code("opened, synchronise", cu!(env, cuEventSynchronize(opened)));
            env.code("opened, export again", handle(env, opened).0);
            let mut time = 0.0;
            let code = cu!(env, cuEventElapsedTime(&raw mut time, opened, opened));
            env.code("opened, its time", code);
            wire.go()?;
            wire.wait()?;
            env.code("recorded, query", cu!(env, cuEventQuery(opened)));
            let code = cu!(env, cuStreamWaitEvent(stream, opened, 0));
            env.code("recorded, wait", code);
            env.let_it_finish();
            env.code("recorded, the stream", cu!(env, cuStreamQuery(stream)));
            wire.go()?;
            wire.wait()?;
            env.code("done, query", cu!(env, cuEventQuery(opened)));
            env.code("done, synchronise", cu!(env, cuEventSynchronize(opened)));
            env.code("done, the stream", cu!(env, cuStreamSynchronize(stream)));
            let gate = Gate::hold(env, third)?;
            let code = cu!(env, cuEventRecord(opened, third));
            env.code("the importer records", code);
            wire.go()?;
            wire.wait()?;
            gate.open();
            wire.wait()
        },
    );
    Ok(())
}

/// A record after the wait does not move the wait.
pub(crate) fn recorded_again(env: &Environment) -> Result<()> {
    pair(
        env,
        "",
        |other| {
            let (shared, stream, second) = (event(env, SHARED)?, env.stream()?, env.stream()?);
            env.record(shared, stream)?;
            env.synchronise(stream)?;
            other.wire.send_event(env, shared)?;
            other.wire.wait()?;
            let gate = Gate::hold(env, stream)?;
            env.record(shared, stream)?;
            other.wire.go()?;
            other.wire.wait()?;
            env.record(shared, second)?;
            env.synchronise(second)?;
            other.wire.go()?;
            other.wire.wait()?;
            gate.open();
            other.wire.go()?;
            other.wire.wait()
        },
        |wire| {
            let (opened, stream) = (wire.take_event(env)?, env.stream()?);
            env.code("recorded and done before", cu!(env, cuEventQuery(opened)));
            wire.go()?;
            wire.wait()?;
            let code = cu!(env, cuStreamWaitEvent(stream, opened, 0));
            env.fine("cuStreamWaitEvent", code)?;
            env.code("pending", cu!(env, cuEventQuery(opened)));
            wire.go()?;
            wire.wait()?;
            env.let_it_finish();
            env.code("recorded again elsewhere", cu!(env, cuEventQuery(opened)));
            env.code("the stream that waited", cu!(env, cuStreamQuery(stream)));
            wire.go()?;
            wire.wait()?;
            env.code("let go", cu!(env, cuStreamSynchronize(stream)));
            wire.go()
        },
    );
    Ok(())
}

/// What becomes of the importer's event when the exporter's goes.
pub(crate) fn ends(env: &Environment) -> Result<()> {
    let with = |part: &str, dies: bool, pending: bool| {
        pair(
            env,
            part,
            |other| {
                let (opened, stream) = (other.wire.take_event(env)?, env.stream()?);
                other.wire.wait()?;
                if pending {
                    let code = cu!(env, cuStreamWaitEvent(stream, opened, 0));
                    env.fine("cuStreamWaitEvent", code)?;
                }
                other.wire.go()?;
                if dies {
                    other.kill();
                } else {
                    other.wire.wait()?;
                }
                env.let_it_finish();
                env.code(format!("{part}, query"), cu!(env, cuEventQuery(opened)));
                env.code(format!("{part}, stream"), cu!(env, cuStreamQuery(stream)));
                if pending && dies {
                    std::thread::sleep(std::time::Duration::from_secs(3));
                    let code = cu!(env, cuEventQuery(opened));
                    env.code(format!("{part}, query three seconds later"), code);
                    let code = cu!(env, cuStreamQuery(stream));
                    env.code(format!("{part}, stream three seconds later"), code);
                }
                if !pending {
                    let code = cu!(env, cuStreamWaitEvent(stream, opened, 0));
                    env.code(format!("{part}, wait"), code);
                    let code = cu!(env, cuEventRecord(opened, stream));
                    env.code(format!("{part}, record"), code);
                    let code = cu!(env, cuEventSynchronize(opened));
                    env.code(format!("{part}, synchronise"), code);
                }
                let code = cu!(env, cuEventDestroy_v2(opened));
                env.code(format!("{part}, destroy"), code);
                if !dies {
                    other.wire.go()?;
                }
                env.say(format!("{part}, healthy"), yes(env.plain(64).is_ok()));
                Ok(())
            },
            |wire| {
                let (shared, stream) = (event(env, SHARED)?, env.stream()?);
                wire.send_event(env, shared)?;
                let gate = pending.then(|| Gate::hold(env, stream)).transpose()?;
                env.record(shared, stream)?;
                if !pending {
                    env.synchronise(stream)?;
                }
                wire.go()?;
                wire.wait()?;
                if dies {
                    return wire.wait();
                }
                env.fine("destroy", cu!(env, cuEventDestroy_v2(shared)))?;
                wire.go()?;
                wire.wait()?;
                drop(gate);
                env.synchronise(stream)
            },
        );
    };
    with("destroyed when done", false, false);
    with("destroyed while pending", false, true);
    with("dead when done", true, false);
    with("dead while pending", true, true);
    Ok(())
}

/// Whether a stream that waits for a dead process's recording can be ended.
pub(crate) fn stuck(env: &Environment) -> Result<()> {
    type End = fn(&Environment, CUstream, CUevent) -> CUresult;
    let ends: [(&str, End); 3] = [
        ("cuStreamDestroy", |env, stream, _| {
            cu!(env, cuStreamDestroy_v2(stream))
        }),
        ("cuEventDestroy", |env, _, event| {
            cu!(env, cuEventDestroy_v2(event))
        }),
        ("cuDevicePrimaryCtxRelease", |env, _, _| env.release()),
    ];
    for (part, end) in ends {
        pair(
            env,
            part,
            |other| {
                let (opened, stream) = (other.wire.take_event(env)?, env.stream()?);
                let code = cu!(env, cuStreamWaitEvent(stream, opened, 0));
                env.fine("cuStreamWaitEvent", code)?;
                other.kill();
                let (table, stream, opened) = (env.table, stream.addr(), opened.addr());
                let (told, answer) = std::sync::mpsc::channel();
                let current = env.context().addr();
                std::thread::spawn(move || {
                    let env = Environment::new(table, "");
                    let _ = env.current(std::ptr::without_provenance_mut(current));
                    let stream = std::ptr::without_provenance_mut(stream);
                    let opened = std::ptr::without_provenance_mut(opened);
                    let code = end(&env, stream, opened);
                    // Nobody listens any more if it took too long.
                    let _ = told.send(code);
                });
                let answer = answer.recv_timeout(std::time::Duration::from_secs(3));
                env.say(part, answer.map_or("waits".into(), name));
                Ok(())
            },
            |wire| {
                let (shared, stream) = (event(env, SHARED)?, env.stream()?);
                let _gate = Gate::hold(env, stream)?;
                env.record(shared, stream)?;
                wire.send_event(env, shared)?;
                wire.wait()
            },
        );
    }
    Ok(())
}

/// Two opened events of one handle, and waiting on the host.
pub(crate) fn waits(env: &Environment) -> Result<()> {
    pair(
        env,
        "",
        |other| {
            let shared = event(env, SHARED)?;
            other.wire.send_event(env, shared)?;
            other.wire.wait()?;
            let stream = env.stream()?;
            let waited = while_held(env, stream, || {
                let code = cu!(env, cuEventRecord(shared, stream));
                let _ = other.wire.go();
                let _ = other.wire.wait();
                code
            })?;
            env.say("record", format!("{}, {}", name(waited.0), waited.1));
            Ok(())
        },
        |wire| {
            let handle = wire.take_event_handle()?;
            let (code, one) = open(env, handle);
            env.code("open", code);
            let (code, two) = open(env, handle);
            env.code("open again", code);
            env.say("two events", yes(one != two));
            env.code("destroy one", cu!(env, cuEventDestroy_v2(one)));
            env.code("query the other", cu!(env, cuEventQuery(two)));
            wire.go()?;
            wire.wait()?;
            env.code("synchronise", cu!(env, cuEventSynchronize(two)));
            env.code("then query", cu!(env, cuEventQuery(two)));
            wire.go()
        },
    );
    Ok(())
}
