//! `cuStreamAddCallback`: what the function is given, and its order with other work.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::gate::Gate;
use crate::recorder::*;

/// What the callback has seen.
#[derive(Debug)]
struct Seen {
    count: AtomicU32,
    stream: AtomicUsize,
    status: AtomicU32,
    thread: AtomicU64,
    /// A byte that it looks at, late.
    byte: AtomicUsize,
    value: AtomicU32,
    may_return: AtomicBool,
}

fn this_thread() -> u64 {
    // SAFETY: no arguments; it always succeeds.
    unsafe { libc::pthread_self() as u64 }
}

unsafe extern "C" fn look(stream: CUstream, status: CUresult, argument: *mut c_void) {
    // SAFETY: `Seen::fresh` made this place, and it lives for ever.
    let seen = unsafe { &*argument.cast::<Seen>() };
    seen.stream.store(stream.addr(), Ordering::SeqCst);
    seen.status.store(status.0, Ordering::SeqCst);
    seen.thread.store(this_thread(), Ordering::SeqCst);
    let byte: *const u8 = std::ptr::with_exposed_provenance(seen.byte.load(Ordering::SeqCst));
    if !byte.is_null() {
        // Work that did not wait for this function would have time to change the byte.
        std::thread::sleep(Duration::from_millis(60));
        // SAFETY: pinned memory that is never freed.
        let value = unsafe { byte.read_volatile() };
        seen.value.store(u32::from(value), Ordering::SeqCst);
    }
    let start = Instant::now();
    while !seen.may_return.load(Ordering::SeqCst) && start.elapsed() < Duration::from_secs(4) {
        std::thread::sleep(Duration::from_millis(1));
    }
    seen.count.fetch_add(1, Ordering::SeqCst);
}

impl Seen {
    fn fresh() -> &'static Self {
        Box::leak(Box::new(Self {
            count: AtomicU32::new(0),
            stream: AtomicUsize::new(1),
            status: AtomicU32::new(77),
            thread: AtomicU64::new(0),
            byte: AtomicUsize::new(0),
            value: AtomicU32::new(77),
            may_return: AtomicBool::new(true),
        }))
    }

    fn argument(&'static self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    fn runs(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }
}

fn add(env: &Environment, stream: CUstream, seen: &'static Seen, flags: u32) -> CUresult {
    cu!(
        env,
        cuStreamAddCallback(stream, Some(look), seen.argument(), flags)
    )
}

/// Arguments of every kind, and what the callback is given.
pub(crate) fn given(env: &Environment) -> Result<()> {
    let (null, blocking) = (std::ptr::null_mut(), env.stream_with(0)?);
    for (who, stream) in [
        ("a stream", env.stream()?),
        ("a blocking stream", blocking),
        ("the null stream", null),
        ("the legacy stream", CU_STREAM_LEGACY),
        ("the per-thread stream", CU_STREAM_PER_THREAD),
    ] {
        for flags in [0, 1, 2] {
            let seen = Seen::fresh();
            let code = add(env, stream, seen, flags);
            if code != OK {
                env.code(format!("{who}, flags {flags}"), code);
                continue;
            }
            env.synchronise(stream)?;
            let place = match seen.stream.load(Ordering::SeqCst) {
                0 => "null",
                1 => "untouched",
                other if other == stream.addr() => "the same handle",
                _ => "another handle",
            };
            let status = CUresult(seen.status.load(Ordering::SeqCst));
            let own = seen.thread.load(Ordering::SeqCst) == this_thread();
            env.say(
                format!("{who}, flags {flags}"),
                format!(
                    "{}, ran {}, given {place}, {}, in this thread {}",
                    name(code),
                    seen.runs(),
                    name(status),
                    yes(own)
                ),
            );
        }
    }
    let seen = Seen::fresh();
    let code = cu!(
        env,
        cuStreamAddCallback_ptsz(null, Some(look), seen.argument(), 0)
    );
    env.code("the null stream of the twin", code);
    if code == OK {
        env.synchronise(CU_STREAM_PER_THREAD)?;
        let place = match seen.stream.load(Ordering::SeqCst) {
            0 => "null",
            other if other == CU_STREAM_PER_THREAD.addr() => "the per-thread stream",
            _ => "another handle",
        };
        env.say("the null stream of the twin, given", place);
    }
    let nothing = std::ptr::null_mut();
    let stream = env.stream()?;
    unsafe extern "C" fn ignore(_: CUstream, _: CUresult, _: *mut c_void) {}
    env.code(
        "no argument",
        cu!(env, cuStreamAddCallback(stream, Some(ignore), nothing, 0)),
    );
    env.code("synchronise", cu!(env, cuStreamSynchronize(stream)));
    env.no_context()?;
    let seen = Seen::fresh();
    env.code("without a context", add(env, stream, seen, 0));
    env.code("synchronise then", cu!(env, cuStreamSynchronize(stream)));
    env.code("the null stream without a context", add(env, null, seen, 0));
    Ok(())
}

/// Work before and after a callback.
pub(crate) fn order(env: &Environment) -> Result<()> {
    let (stream, plain) = (env.stream()?, env.plain(64)?);
    let pinned = env.pinned(64)?;
    let write = |value: u8| -> Result<()> {
        env.fine(
            "memset",
            cu!(env, cuMemsetD8Async(plain, value, 64, stream)),
        )?;
        let code = cu!(env, cuMemcpyDtoHAsync_v2(pinned, plain, 64, stream));
        env.fine("cuMemcpyDtoHAsync", code)
    };
    write(9)?;
    env.synchronise(stream)?;
    let seen = Seen::fresh();
    seen.byte
        .store(pinned.expose_provenance(), Ordering::SeqCst);
    write(1)?;
    let code = add(env, stream, seen, 0);
    env.code("add", code);
    write(2)?;
    env.synchronise(stream)?;
    if code != OK {
        return Ok(());
    }
    env.say("it read", seen.value.load(Ordering::SeqCst));
    let byte: *const u8 = pinned.cast_const().cast();
    // SAFETY: pinned memory, and the stream is done.
    env.say("at last", unsafe { byte.read_volatile() });
    // It has not returned.
    let (seen, event) = (Seen::fresh(), env.event()?);
    seen.may_return.store(false, Ordering::SeqCst);
    env.fine("add", add(env, stream, seen, 0))?;
    env.record(event, stream)?;
    env.let_it_finish();
    env.code("stream, not returned", cu!(env, cuStreamQuery(stream)));
    env.code("event after it", cu!(env, cuEventQuery(event)));
    let other = env.stream()?;
    let code = cu!(env, cuStreamWaitEvent(other, event, 0));
    env.code("another stream waits", code);
    env.let_it_finish();
    env.code("that stream", cu!(env, cuStreamQuery(other)));
    seen.may_return.store(true, Ordering::SeqCst);
    env.code("synchronise", cu!(env, cuStreamSynchronize(stream)));
    env.say("it has run", seen.runs());
    env.synchronise(other)?;
    // Several, and one that was held when its stream ended.
    let many: Vec<_> = (0..20).map(|_| Seen::fresh()).collect();
    for seen in &many {
        env.fine("add", add(env, stream, seen, 0))?;
    }
    env.synchronise(stream)?;
    env.say(
        "of twenty have run",
        many.iter().map(|seen| seen.runs()).sum::<u32>(),
    );
    let (seen, gate) = (Seen::fresh(), Gate::hold(env, stream)?);
    env.fine("add", add(env, stream, seen, 0))?;
    env.say("held, runs", seen.runs());
    env.code("destroy the stream", cu!(env, cuStreamDestroy_v2(stream)));
    gate.open();
    env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
    env.say("of the destroyed stream, runs", seen.runs());
    Ok(())
}

/// While streams are captured.
pub(crate) fn captured(env: &Environment) -> Result<()> {
    let other = env.stream()?;
    for (mode, number) in MODES {
        let stream = env.stream()?;
        env.fine("begin", begin(env, stream, number))?;
        let seen = Seen::fresh();
        let code = add(env, other, seen, 0);
        env.code(format!("another stream, {mode}"), code);
        env.say(
            format!("then the captured one is, {mode}"),
            status(env, stream),
        );
        env.say(format!("its end, {mode}"), ended(env, stream));
        env.fine("sync", cu!(env, cuStreamSynchronize(other)))?;
        env.say(format!("it has run, {mode}"), seen.runs());
        env.fine("begin", begin(env, stream, number))?;
        let seen = Seen::fresh();
        let code = add(env, stream, seen, 0);
        env.code(format!("the captured stream, {mode}"), code);
        env.say(format!("it is, {mode}"), status(env, stream));
        env.say(format!("end, {mode}"), ended(env, stream));
        env.fine("sync", cu!(env, cuCtxSynchronize()))?;
        env.say(format!("that has run, {mode}"), seen.runs());
        let blocking = env.stream_with(0)?;
        env.fine("begin", begin(env, blocking, number))?;
        let code = add(env, std::ptr::null_mut(), Seen::fresh(), 0);
        env.code(
            format!("the null stream, a blocking one captured, {mode}"),
            code,
        );
        env.say(
            format!("end of the blocking one, {mode}"),
            ended(env, blocking),
        );
    }
    Ok(())
}

/// A callback that calls the driver, which is forbidden.
pub(crate) fn calls(env: &Environment) -> Result<()> {
    struct Told {
        table: &'static DriverTable,
        codes: [AtomicU32; 4],
    }
    unsafe extern "C" fn call(_: CUstream, _: CUresult, argument: *mut c_void) {
        // SAFETY: the argument below lives for ever.
        let told = unsafe { &*argument.cast::<Told>() };
        let env = Environment::new(told.table, "callback");
        let (mut free, mut total, mut address) = (0, 0, 0);
        let codes = [
            cu!(env, cuMemGetInfo_v2(&raw mut free, &raw mut total)),
            cu!(env, cuMemAlloc_v2(&raw mut address, 64)),
            cu!(env, cuStreamQuery(std::ptr::null_mut())),
            cu!(env, cuDriverGetVersion(std::ptr::from_mut(&mut 0))),
        ];
        for (place, code) in told.codes.iter().zip(codes) {
            place.store(code.0, Ordering::SeqCst);
        }
    }
    let part = |part: &str, submit: &dyn Fn(CUstream, *mut c_void) -> CUresult| {
        env.alone(part, || {
            let told: &'static Told = Box::leak(Box::new(Told {
                table: env.table,
                codes: Default::default(),
            }));
            let stream = env.stream()?;
            let argument = std::ptr::from_ref(told).cast_mut().cast();
            env.fine("add", submit(stream, argument))?;
            env.synchronise(stream)?;
            let codes = told.codes.each_ref();
            let codes = codes.map(|code| name(CUresult(code.load(Ordering::SeqCst))));
            Ok(codes.join(", "))
        });
    };
    part("in a callback", &|stream, argument| {
        cu!(env, cuStreamAddCallback(stream, Some(call), argument, 0))
    });
    env.alone("no callback", || {
        let (stream, nothing) = (env.stream()?, std::ptr::null_mut());
        let code = cu!(env, cuStreamAddCallback(stream, None, nothing, 0));
        let done = cu!(env, cuStreamSynchronize(stream));
        Ok(format!("{}, {}", name(code), name(done)))
    });
    unsafe extern "C" fn host(argument: *mut c_void) {
        // SAFETY: passes the promise on.
        unsafe { call(std::ptr::null_mut(), OK, argument) };
    }
    part("in a host function", &|stream, argument| {
        cu!(env, cuLaunchHostFunc(stream, Some(host), argument))
    });
    Ok(())
}
