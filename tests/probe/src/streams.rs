//! Streams: flags, priorities, default streams, host functions.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::{Gate, while_held};
use crate::lab::{Lab, OK, cu, name, yes};

pub(crate) fn flags(lab: &Lab) -> Result<()> {
    let mut stream = std::ptr::null_mut();
    for flags in [0, 1, 2, 3, 1 << 31] {
        let code = cu!(lab, cuStreamCreate(&raw mut stream, flags));
        let mut read = 77;
        if code == OK {
            lab.fine(
                "cuStreamGetFlags",
                cu!(lab, cuStreamGetFlags(stream, &raw mut read)),
            )?;
        }
        lab.say(
            format!("create with {flags}"),
            format!("{}, reads {read}", name(code)),
        );
    }
    lab.code(
        "create into null",
        cu!(lab, cuStreamCreate(std::ptr::null_mut(), 0)),
    );
    let (stream, event) = (lab.stream()?, lab.event()?);
    for flags in [0, 1, 2, 3] {
        let code = cu!(lab, cuStreamWaitEvent(stream, event, flags));
        lab.code(format!("cuStreamWaitEvent with {flags}"), code);
    }
    let null = std::ptr::null_mut();
    lab.code(
        "cuStreamWaitEvent for null",
        cu!(lab, cuStreamWaitEvent(stream, null, 0)),
    );
    lab.code(
        "cuStreamGetFlags into null",
        cu!(lab, cuStreamGetFlags(stream, null.cast())),
    );
    lab.code(
        "cuLaunchHostFunc of null",
        cu!(lab, cuLaunchHostFunc(stream, None, null.cast())),
    );
    let (mut context, mut device) = (std::ptr::null_mut(), 7);
    let code = cu!(lab, cuStreamGetCtx(stream, &raw mut context));
    let own = yes(context == lab.context());
    lab.say(
        "cuStreamGetCtx is the current context",
        format!("{}, {own}", name(code)),
    );
    let code = cu!(lab, cuStreamGetDevice(stream, &raw mut device));
    lab.say("cuStreamGetDevice", format!("{}, {device}", name(code)));
    Ok(())
}

pub(crate) fn priorities(lab: &Lab) -> Result<()> {
    let (mut least, mut greatest) = (77, 77);
    let code = cu!(
        lab,
        cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)
    );
    lab.say("range", format!("{}, {least} to {greatest}", name(code)));
    let null = std::ptr::null_mut();
    lab.code(
        "range into null",
        cu!(lab, cuCtxGetStreamPriorityRange(null, null)),
    );
    for wanted in [-99, -5, -3, 0, 1, 99] {
        let mut stream = std::ptr::null_mut();
        let code = cu!(lab, cuStreamCreateWithPriority(&raw mut stream, 1, wanted));
        let mut given = 77;
        if code == OK {
            let code = cu!(lab, cuStreamGetPriority(stream, &raw mut given));
            lab.fine("cuStreamGetPriority", code)?;
        }
        lab.say(wanted, format!("{}, reads {given}", name(code)));
    }
    Ok(())
}

pub(crate) fn defaults(lab: &Lab) -> Result<()> {
    let null = std::ptr::null_mut();
    for (part, stream) in [
        ("null", null),
        ("legacy", CU_STREAM_LEGACY),
        ("per-thread", CU_STREAM_PER_THREAD),
    ] {
        let (mut flags, mut priority) = (77, 77);
        let code = cu!(lab, cuStreamGetFlags(stream, &raw mut flags));
        lab.say(format!("{part}: flags"), format!("{}, {flags}", name(code)));
        let code = cu!(lab, cuStreamGetPriority(stream, &raw mut priority));
        lab.say(
            format!("{part}: priority"),
            format!("{}, {priority}", name(code)),
        );
        lab.code(format!("{part}: query"), cu!(lab, cuStreamQuery(stream)));
    }
    let id = |stream: CUstream, twin: bool| -> Result<u64> {
        let mut id = 0;
        let code = if twin {
            cu!(lab, cuStreamGetId_ptsz(stream, &raw mut id))
        } else {
            cu!(lab, cuStreamGetId(stream, &raw mut id))
        };
        lab.fine("cuStreamGetId", code)?;
        Ok(id)
    };
    lab.say(
        "null is legacy",
        yes(id(null, false)? == id(CU_STREAM_LEGACY, false)?),
    );
    let twin = id(null, true)? == id(CU_STREAM_PER_THREAD, false)?;
    lab.say("null is per-thread for the twin", yes(twin));
    let blocking = lab.stream_with(0)?;
    let gate = Gate::hold(lab, blocking)?;
    lab.code(
        "legacy, a blocking stream held",
        cu!(lab, cuStreamQuery(null)),
    );
    let per_thread = cu!(lab, cuStreamQuery(CU_STREAM_PER_THREAD));
    lab.code("per-thread, a blocking stream held", per_thread);
    gate.open();
    lab.synchronise(blocking)?;
    let free_running = lab.stream()?;
    let gate = Gate::hold(lab, free_running)?;
    lab.code("legacy, a free stream held", cu!(lab, cuStreamQuery(null)));
    gate.open();
    lab.synchronise(free_running)?;
    let gate = Gate::hold(lab, null)?;
    lab.code(
        "a blocking stream, legacy held",
        cu!(lab, cuStreamQuery(blocking)),
    );
    let event = lab.event()?;
    lab.record(event, blocking)?;
    lab.code("an event in it, legacy held", cu!(lab, cuEventQuery(event)));
    gate.open();
    Ok(())
}

static DONE: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn note(_: *mut c_void) {
    DONE.store(true, Ordering::SeqCst);
}

/// Whether a host function runs while another stream's does not return.
pub(crate) fn host_functions(lab: &Lab) -> Result<()> {
    let (a, b) = (lab.stream()?, lab.stream()?);
    let gate = Gate::hold(lab, a)?;
    let null = std::ptr::null_mut();
    lab.fine(
        "cuLaunchHostFunc",
        cu!(lab, cuLaunchHostFunc(b, Some(note), null)),
    )?;
    let start = Instant::now();
    while !DONE.load(Ordering::SeqCst) && start.elapsed() < Duration::from_millis(400) {
        std::thread::sleep(Duration::from_millis(5));
    }
    lab.say(
        "of two streams run at the same time",
        yes(DONE.load(Ordering::SeqCst)),
    );
    DONE.store(false, Ordering::SeqCst);
    let mut made = std::ptr::null_mut();
    lab.fine("cuCtxCreate", cu!(lab, cuCtxCreate_v2(&raw mut made, 0, 0)))?;
    let there = lab.stream()?;
    lab.fine(
        "cuLaunchHostFunc",
        cu!(lab, cuLaunchHostFunc(there, Some(note), null)),
    )?;
    let start = Instant::now();
    while !DONE.load(Ordering::SeqCst) && start.elapsed() < Duration::from_millis(400) {
        std::thread::sleep(Duration::from_millis(5));
    }
    lab.say(
        "of two contexts run at the same time",
        yes(DONE.load(Ordering::SeqCst)),
    );
    lab.fine(
        "cuCtxPopCurrent",
        cu!(lab, cuCtxPopCurrent_v2(&raw mut made)),
    )?;
    let (plain, event) = (lab.plain(64)?, lab.event()?);
    let c = lab.stream()?;
    lab.fine(
        "cuMemsetD8Async",
        cu!(lab, cuMemsetD8Async(plain, 1, 64, c)),
    )?;
    lab.record(event, c)?;
    lab.let_it_finish();
    lab.code("other work goes on", cu!(lab, cuEventQuery(event)));
    gate.open();
    lab.synchronise(a)?;
    lab.synchronise(b)
}

pub(crate) fn destroy_with_work(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let destroyed = while_held(lab, stream, || {
        DONE.store(false, Ordering::SeqCst);
        let null = std::ptr::null_mut();
        let code = cu!(lab, cuLaunchHostFunc(stream, Some(note), null));
        if code != OK {
            return code;
        }
        cu!(lab, cuStreamDestroy_v2(stream))
    })?;
    lab.say(
        "while held",
        format!("{}, {}", name(destroyed.0), destroyed.1),
    );
    lab.code("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()));
    lab.say("its work was done", yes(DONE.load(Ordering::SeqCst)));
    let null = std::ptr::null_mut();
    lab.code("of the null stream", cu!(lab, cuStreamDestroy_v2(null)));
    lab.code(
        "of the legacy stream",
        cu!(lab, cuStreamDestroy_v2(CU_STREAM_LEGACY)),
    );
    lab.code(
        "of the per-thread stream",
        cu!(lab, cuStreamDestroy_v2(CU_STREAM_PER_THREAD)),
    );
    Ok(())
}
