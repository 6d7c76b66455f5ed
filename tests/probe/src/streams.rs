//! Streams: flags, priorities, default streams, host functions.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::gate::{Gate, while_held};

pub(crate) fn flags(env: &Environment) -> Result<()> {
    let mut stream = std::ptr::null_mut();
    for flags in [0, 1, 2, 3, 1 << 31] {
        let code = cu!(env, cuStreamCreate(&raw mut stream, flags));
        let mut read = 77;
        if code == OK {
            env.fine(
                "cuStreamGetFlags",
                cu!(env, cuStreamGetFlags(stream, &raw mut read)),
            )?;
        }
        env.say(
            format!("create with {flags}"),
            format!("{}, reads {read}", name(code)),
        );
    }
    env.code(
        "create into null",
        cu!(env, cuStreamCreate(std::ptr::null_mut(), 0)),
    );
    let (stream, event) = (env.stream()?, env.event()?);
    for flags in [0, 1, 2, 3] {
        let code = cu!(env, cuStreamWaitEvent(stream, event, flags));
        env.code(format!("cuStreamWaitEvent with {flags}"), code);
    }
    let null = std::ptr::null_mut();
    env.code(
        "cuStreamWaitEvent for null",
        cu!(env, cuStreamWaitEvent(stream, null, 0)),
    );
    env.code(
        "cuStreamGetFlags into null",
        cu!(env, cuStreamGetFlags(stream, null.cast())),
    );
    env.code(
        "cuLaunchHostFunc of null",
        cu!(env, cuLaunchHostFunc(stream, None, null.cast())),
    );
    let (mut context, mut device) = (std::ptr::null_mut(), 7);
    let code = cu!(env, cuStreamGetCtx(stream, &raw mut context));
    let own = yes(context == env.context());
    env.say(
        "cuStreamGetCtx is the current context",
        format!("{}, {own}", name(code)),
    );
    let code = cu!(env, cuStreamGetDevice(stream, &raw mut device));
    env.say("cuStreamGetDevice", format!("{}, {device}", name(code)));
    Ok(())
}

pub(crate) fn priorities(env: &Environment) -> Result<()> {
    let (mut least, mut greatest) = (77, 77);
    let code = cu!(
        env,
        cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)
    );
    env.say("range", format!("{}, {least} to {greatest}", name(code)));
    let null = std::ptr::null_mut();
    env.code(
        "range into null",
        cu!(env, cuCtxGetStreamPriorityRange(null, null)),
    );
    for wanted in [-99, -5, -3, 0, 1, 99] {
        let mut stream = std::ptr::null_mut();
        let code = cu!(env, cuStreamCreateWithPriority(&raw mut stream, 1, wanted));
        let mut given = 77;
        if code == OK {
            let code = cu!(env, cuStreamGetPriority(stream, &raw mut given));
            env.fine("cuStreamGetPriority", code)?;
        }
        env.say(wanted, format!("{}, reads {given}", name(code)));
    }
    Ok(())
}

pub(crate) fn defaults(env: &Environment) -> Result<()> {
    let null = std::ptr::null_mut();
    for (part, stream) in [
        ("null", null),
        ("legacy", CU_STREAM_LEGACY),
        ("per-thread", CU_STREAM_PER_THREAD),
    ] {
        let (mut flags, mut priority) = (77, 77);
        let code = cu!(env, cuStreamGetFlags(stream, &raw mut flags));
        env.say(format!("{part}: flags"), format!("{}, {flags}", name(code)));
        let code = cu!(env, cuStreamGetPriority(stream, &raw mut priority));
        env.say(
            format!("{part}: priority"),
            format!("{}, {priority}", name(code)),
        );
        env.code(format!("{part}: query"), cu!(env, cuStreamQuery(stream)));
    }
    let id = |stream: CUstream, twin: bool| -> Result<u64> {
        let mut id = 0;
        let code = if twin {
            cu!(env, cuStreamGetId_ptsz(stream, &raw mut id))
        } else {
            cu!(env, cuStreamGetId(stream, &raw mut id))
        };
        env.fine("cuStreamGetId", code)?;
        Ok(id)
    };
    env.say(
        "null is legacy",
        yes(id(null, false)? == id(CU_STREAM_LEGACY, false)?),
    );
    let twin = id(null, true)? == id(CU_STREAM_PER_THREAD, false)?;
    env.say("null is per-thread for the twin", yes(twin));
    let blocking = env.stream_with(0)?;
    let gate = Gate::hold(env, blocking)?;
    env.code(
        "legacy, a blocking stream held",
        cu!(env, cuStreamQuery(null)),
    );
    let per_thread = cu!(env, cuStreamQuery(CU_STREAM_PER_THREAD));
    env.code("per-thread, a blocking stream held", per_thread);
    gate.open();
    env.synchronise(blocking)?;
    let free_running = env.stream()?;
    let gate = Gate::hold(env, free_running)?;
    env.code("legacy, a free stream held", cu!(env, cuStreamQuery(null)));
    gate.open();
    env.synchronise(free_running)?;
    let gate = Gate::hold(env, null)?;
    env.code(
        "a blocking stream, legacy held",
        cu!(env, cuStreamQuery(blocking)),
    );
    let event = env.event()?;
    env.record(event, blocking)?;
    env.code("an event in it, legacy held", cu!(env, cuEventQuery(event)));
    gate.open();
    Ok(())
}

static DONE: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn note(_: *mut c_void) {
    DONE.store(true, Ordering::SeqCst);
}

/// Whether a host function runs while another stream's does not return.
pub(crate) fn host_functions(env: &Environment) -> Result<()> {
    let (a, b) = (env.stream()?, env.stream()?);
    let gate = Gate::hold(env, a)?;
    let null = std::ptr::null_mut();
    env.fine(
        "cuLaunchHostFunc",
        cu!(env, cuLaunchHostFunc(b, Some(note), null)),
    )?;
    let start = Instant::now();
    while !DONE.load(Ordering::SeqCst) && start.elapsed() < Duration::from_millis(400) {
        std::thread::sleep(Duration::from_millis(5));
    }
    env.say(
        "of two streams run at the same time",
        yes(DONE.load(Ordering::SeqCst)),
    );
    DONE.store(false, Ordering::SeqCst);
    let mut made = std::ptr::null_mut();
    env.fine("cuCtxCreate", cu!(env, cuCtxCreate_v2(&raw mut made, 0, 0)))?;
    let there = env.stream()?;
    env.fine(
        "cuLaunchHostFunc",
        cu!(env, cuLaunchHostFunc(there, Some(note), null)),
    )?;
    let start = Instant::now();
    while !DONE.load(Ordering::SeqCst) && start.elapsed() < Duration::from_millis(400) {
        std::thread::sleep(Duration::from_millis(5));
    }
    env.say(
        "of two contexts run at the same time",
        yes(DONE.load(Ordering::SeqCst)),
    );
    env.fine(
        "cuCtxPopCurrent",
        cu!(env, cuCtxPopCurrent_v2(&raw mut made)),
    )?;
    let (plain, event) = (env.plain(64)?, env.event()?);
    let c = env.stream()?;
    env.fine(
        "cuMemsetD8Async",
        cu!(env, cuMemsetD8Async(plain, 1, 64, c)),
    )?;
    env.record(event, c)?;
    env.let_it_finish();
    env.code("other work goes on", cu!(env, cuEventQuery(event)));
    gate.open();
    env.synchronise(a)?;
    env.synchronise(b)
}

pub(crate) fn destroy_with_work(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let destroyed = while_held(env, stream, || {
        DONE.store(false, Ordering::SeqCst);
        let null = std::ptr::null_mut();
        let code = cu!(env, cuLaunchHostFunc(stream, Some(note), null));
        if code != OK {
            return code;
        }
        cu!(env, cuStreamDestroy_v2(stream))
    })?;
    env.say(
        "while held",
        format!("{}, {}", name(destroyed.0), destroyed.1),
    );
    env.code("cuCtxSynchronize", cu!(env, cuCtxSynchronize()));
    env.say("its work was done", yes(DONE.load(Ordering::SeqCst)));
    let null = std::ptr::null_mut();
    env.code("of the null stream", cu!(env, cuStreamDestroy_v2(null)));
    env.code(
        "of the legacy stream",
        cu!(env, cuStreamDestroy_v2(CU_STREAM_LEGACY)),
    );
    env.code(
        "of the per-thread stream",
        cu!(env, cuStreamDestroy_v2(CU_STREAM_PER_THREAD)),
    );
    Ok(())
}
