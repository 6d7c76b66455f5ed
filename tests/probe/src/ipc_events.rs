//! Events between processes.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::{Gate, while_held};
use crate::lab::{Lab, OK, cu, name, yes};
use crate::twin::pair;

/// Flags of an event that may be shared.
const SHARED: u32 = 6;

fn event(lab: &Lab, flags: u32) -> Result<CUevent> {
    let mut event = std::ptr::null_mut();
    let code = cu!(lab, cuEventCreate(&raw mut event, flags));
    lab.fine("cuEventCreate", code)?;
    Ok(event)
}

fn handle(lab: &Lab, event: CUevent) -> (CUresult, CUipcEventHandle) {
    let mut handle = CUipcEventHandle::default();
    let code = cu!(lab, cuIpcGetEventHandle(&raw mut handle, event));
    (code, handle)
}

pub(crate) fn open(lab: &Lab, handle: CUipcEventHandle) -> (CUresult, CUevent) {
    let mut event = std::ptr::null_mut();
    let code = cu!(lab, cuIpcOpenEventHandle(&raw mut event, handle));
    (code, event)
}

/// What one process can ask.
pub(crate) fn handles(lab: &Lab) -> Result<()> {
    let shared = event(lab, SHARED)?;
    let before = crate::ipc::open_descriptors() as i64;
    let (code, first) = handle(lab, shared);
    lab.code("of a shared event", code);
    let (code, second) = handle(lab, shared);
    lab.code("again", code);
    lab.say("the same bytes", yes(first.reserved == second.reserved));
    lab.say(
        "descriptors more",
        crate::ipc::open_descriptors() as i64 - before,
    );
    for flags in [0, 1, 2, 3] {
        let code = handle(lab, event(lab, flags)?).0;
        lab.code(format!("of an event with flags {flags}"), code);
    }
    lab.code("of null", handle(lab, std::ptr::null_mut()).0);
    let null = std::ptr::null_mut();
    lab.code("into null", cu!(lab, cuIpcGetEventHandle(null, shared)));
    let mut time = 0.0;
    let code = cu!(lab, cuEventElapsedTime(&raw mut time, shared, shared));
    lab.code("its time", code);
    lab.no_context()?;
    lab.code("without a context", handle(lab, shared).0);
    Ok(())
}

/// Handles that cannot be opened.
pub(crate) fn wrong(lab: &Lab) -> Result<()> {
    lab.alone("open here", || {
        let shared = event(lab, SHARED)?;
        let (_, bytes) = handle(lab, shared);
        Ok(name(open(lab, bytes).0))
    });
    for (part, byte) in [("zeroes", 0), ("ones", -1)] {
        lab.alone(part, || {
            let handle = CUipcEventHandle_st {
                reserved: [byte; 64],
            };
            let code = open(lab, handle).0;
            Ok(format!(
                "{}, healthy {}",
                name(code),
                yes(lab.plain(64).is_ok())
            ))
        });
    }
    lab.alone("into null", || {
        let (_, bytes) = handle(lab, event(lab, SHARED)?);
        let null = std::ptr::null_mut();
        Ok(name(cu!(lab, cuIpcOpenEventHandle(null, bytes))))
    });
    let late = |part: &str, what: u32| {
        pair(
            lab,
            part,
            |other| {
                let mut handle = other.wire.take_event_handle()?;
                match what {
                    0 | 1 => other.wire.wait()?,
                    2 => other.kill(),
                    3 => handle.reserved[32..].fill(0),
                    _ => handle.reserved[0] ^= -1,
                }
                let (code, event) = open(lab, handle);
                lab.code(part, code);
                if code == OK {
                    lab.code(format!("{part}, query"), cu!(lab, cuEventQuery(event)));
                }
                lab.say(format!("{part}, healthy"), yes(lab.plain(64).is_ok()));
                Ok(())
            },
            |wire| {
                let shared = event(lab, SHARED)?;
                wire.send_event(lab, shared)?;
                if what == 0 {
                    lab.fine("destroy", cu!(lab, cuEventDestroy_v2(shared)))?;
                }
                if what == 1 {
                    lab.no_context()?;
                    lab.fine("release", lab.release())?;
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
pub(crate) fn order(lab: &Lab) -> Result<()> {
    pair(
        lab,
        "",
        |other| {
            let (shared, stream) = (event(lab, SHARED)?, lab.stream()?);
            other.wire.send_event(lab, shared)?;
            other.wire.wait()?;
            let gate = Gate::hold(lab, stream)?;
            lab.record(shared, stream)?;
            other.wire.go()?;
            other.wire.wait()?;
            gate.open();
            lab.synchronise(stream)?;
            other.wire.go()?;
            // Now the other way round.
            other.wire.wait()?;
            lab.code("the exporter queries", cu!(lab, cuEventQuery(shared)));
            let code = cu!(lab, cuStreamWaitEvent(stream, shared, 0));
            lab.code("the exporter waits", code);
            lab.let_it_finish();
            lab.code("its stream", cu!(lab, cuStreamQuery(stream)));
            other.wire.go()?;
            lab.code("its stream, let go", cu!(lab, cuStreamSynchronize(stream)));
            lab.code("the event, let go", cu!(lab, cuEventSynchronize(shared)));
            other.wire.go()
        },
        |wire| {
            let opened = wire.take_event(lab)?;
            let (stream, third) = (lab.stream()?, lab.stream()?);
            lab.code("opened, query", cu!(lab, cuEventQuery(opened)));
            lab.code("opened, synchronise", cu!(lab, cuEventSynchronize(opened)));
            lab.code("opened, export again", handle(lab, opened).0);
            let mut time = 0.0;
            let code = cu!(lab, cuEventElapsedTime(&raw mut time, opened, opened));
            lab.code("opened, its time", code);
            wire.go()?;
            wire.wait()?;
            lab.code("recorded, query", cu!(lab, cuEventQuery(opened)));
            let code = cu!(lab, cuStreamWaitEvent(stream, opened, 0));
            lab.code("recorded, wait", code);
            lab.let_it_finish();
            lab.code("recorded, the stream", cu!(lab, cuStreamQuery(stream)));
            wire.go()?;
            wire.wait()?;
            lab.code("done, query", cu!(lab, cuEventQuery(opened)));
            lab.code("done, synchronise", cu!(lab, cuEventSynchronize(opened)));
            lab.code("done, the stream", cu!(lab, cuStreamSynchronize(stream)));
            let gate = Gate::hold(lab, third)?;
            let code = cu!(lab, cuEventRecord(opened, third));
            lab.code("the importer records", code);
            wire.go()?;
            wire.wait()?;
            gate.open();
            wire.wait()
        },
    );
    Ok(())
}

/// A record after the wait does not move the wait.
pub(crate) fn recorded_again(lab: &Lab) -> Result<()> {
    pair(
        lab,
        "",
        |other| {
            let (shared, stream, second) = (event(lab, SHARED)?, lab.stream()?, lab.stream()?);
            lab.record(shared, stream)?;
            lab.synchronise(stream)?;
            other.wire.send_event(lab, shared)?;
            other.wire.wait()?;
            let gate = Gate::hold(lab, stream)?;
            lab.record(shared, stream)?;
            other.wire.go()?;
            other.wire.wait()?;
            lab.record(shared, second)?;
            lab.synchronise(second)?;
            other.wire.go()?;
            other.wire.wait()?;
            gate.open();
            other.wire.go()?;
            other.wire.wait()
        },
        |wire| {
            let (opened, stream) = (wire.take_event(lab)?, lab.stream()?);
            lab.code("recorded and done before", cu!(lab, cuEventQuery(opened)));
            wire.go()?;
            wire.wait()?;
            let code = cu!(lab, cuStreamWaitEvent(stream, opened, 0));
            lab.fine("cuStreamWaitEvent", code)?;
            lab.code("pending", cu!(lab, cuEventQuery(opened)));
            wire.go()?;
            wire.wait()?;
            lab.let_it_finish();
            lab.code("recorded again elsewhere", cu!(lab, cuEventQuery(opened)));
            lab.code("the stream that waited", cu!(lab, cuStreamQuery(stream)));
            wire.go()?;
            wire.wait()?;
            lab.code("let go", cu!(lab, cuStreamSynchronize(stream)));
            wire.go()
        },
    );
    Ok(())
}

/// What becomes of the importer's event when the exporter's goes.
pub(crate) fn ends(lab: &Lab) -> Result<()> {
    let with = |part: &str, dies: bool, pending: bool| {
        pair(
            lab,
            part,
            |other| {
                let (opened, stream) = (other.wire.take_event(lab)?, lab.stream()?);
                other.wire.wait()?;
                if pending {
                    let code = cu!(lab, cuStreamWaitEvent(stream, opened, 0));
                    lab.fine("cuStreamWaitEvent", code)?;
                }
                other.wire.go()?;
                if dies {
                    other.kill();
                } else {
                    other.wire.wait()?;
                }
                lab.let_it_finish();
                lab.code(format!("{part}, query"), cu!(lab, cuEventQuery(opened)));
                lab.code(format!("{part}, stream"), cu!(lab, cuStreamQuery(stream)));
                if pending && dies {
                    std::thread::sleep(std::time::Duration::from_secs(3));
                    let code = cu!(lab, cuEventQuery(opened));
                    lab.code(format!("{part}, query three seconds later"), code);
                    let code = cu!(lab, cuStreamQuery(stream));
                    lab.code(format!("{part}, stream three seconds later"), code);
                }
                if !pending {
                    let code = cu!(lab, cuStreamWaitEvent(stream, opened, 0));
                    lab.code(format!("{part}, wait"), code);
                    let code = cu!(lab, cuEventRecord(opened, stream));
                    lab.code(format!("{part}, record"), code);
                    let code = cu!(lab, cuEventSynchronize(opened));
                    lab.code(format!("{part}, synchronise"), code);
                }
                let code = cu!(lab, cuEventDestroy_v2(opened));
                lab.code(format!("{part}, destroy"), code);
                if !dies {
                    other.wire.go()?;
                }
                lab.say(format!("{part}, healthy"), yes(lab.plain(64).is_ok()));
                Ok(())
            },
            |wire| {
                let (shared, stream) = (event(lab, SHARED)?, lab.stream()?);
                wire.send_event(lab, shared)?;
                let gate = pending.then(|| Gate::hold(lab, stream)).transpose()?;
                lab.record(shared, stream)?;
                if !pending {
                    lab.synchronise(stream)?;
                }
                wire.go()?;
                wire.wait()?;
                if dies {
                    return wire.wait();
                }
                lab.fine("destroy", cu!(lab, cuEventDestroy_v2(shared)))?;
                wire.go()?;
                wire.wait()?;
                drop(gate);
                lab.synchronise(stream)
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
pub(crate) fn stuck(lab: &Lab) -> Result<()> {
    type End = fn(&Lab, CUstream, CUevent) -> CUresult;
    let ends: [(&str, End); 3] = [
        ("cuStreamDestroy", |lab, stream, _| {
            cu!(lab, cuStreamDestroy_v2(stream))
        }),
        ("cuEventDestroy", |lab, _, event| {
            cu!(lab, cuEventDestroy_v2(event))
        }),
        ("cuDevicePrimaryCtxRelease", |lab, _, _| lab.release()),
    ];
    for (part, end) in ends {
        pair(
            lab,
            part,
            |other| {
                let (opened, stream) = (other.wire.take_event(lab)?, lab.stream()?);
                let code = cu!(lab, cuStreamWaitEvent(stream, opened, 0));
                lab.fine("cuStreamWaitEvent", code)?;
                other.kill();
                let (table, stream, opened) = (lab.table, stream.addr(), opened.addr());
                let (told, answer) = std::sync::mpsc::channel();
                let current = lab.context().addr();
                std::thread::spawn(move || {
                    let lab = Lab::new(table, "");
                    let _ = lab.current(std::ptr::without_provenance_mut(current));
                    let stream = std::ptr::without_provenance_mut(stream);
                    let opened = std::ptr::without_provenance_mut(opened);
                    let code = end(&lab, stream, opened);
                    // Nobody listens any more if it took too long.
                    let _ = told.send(code);
                });
                let answer = answer.recv_timeout(std::time::Duration::from_secs(3));
                lab.say(part, answer.map_or("waits".into(), name));
                Ok(())
            },
            |wire| {
                let (shared, stream) = (event(lab, SHARED)?, lab.stream()?);
                let _gate = Gate::hold(lab, stream)?;
                lab.record(shared, stream)?;
                wire.send_event(lab, shared)?;
                wire.wait()
            },
        );
    }
    Ok(())
}

/// Two opened events of one handle, and waiting on the host.
pub(crate) fn waits(lab: &Lab) -> Result<()> {
    pair(
        lab,
        "",
        |other| {
            let shared = event(lab, SHARED)?;
            other.wire.send_event(lab, shared)?;
            other.wire.wait()?;
            let stream = lab.stream()?;
            let waited = while_held(lab, stream, || {
                let code = cu!(lab, cuEventRecord(shared, stream));
                let _ = other.wire.go();
                let _ = other.wire.wait();
                code
            })?;
            lab.say("record", format!("{}, {}", name(waited.0), waited.1));
            Ok(())
        },
        |wire| {
            let handle = wire.take_event_handle()?;
            let (code, one) = open(lab, handle);
            lab.code("open", code);
            let (code, two) = open(lab, handle);
            lab.code("open again", code);
            lab.say("two events", yes(one != two));
            lab.code("destroy one", cu!(lab, cuEventDestroy_v2(one)));
            lab.code("query the other", cu!(lab, cuEventQuery(two)));
            wire.go()?;
            wire.wait()?;
            lab.code("synchronise", cu!(lab, cuEventSynchronize(two)));
            lab.code("then query", cu!(lab, cuEventQuery(two)));
            wire.go()
        },
    );
    Ok(())
}
