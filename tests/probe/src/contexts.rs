//! Contexts: the primary one, made ones, and what becomes of what belonged to an ended one.

use std::ffi::c_int;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::gate::while_held;

fn state(env: &Environment, part: &str) {
    let (mut flags, mut active): (_, c_int) = (77, 77);
    let code = cu!(
        env,
        cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active)
    );
    env.say(
        part,
        format!("{}, flags {flags}, active {active}", name(code)),
    );
}

pub(crate) fn primary(env: &Environment) -> Result<()> {
    env.fine("cuInit", cu!(env, cuInit(0)))?;
    state(env, "before the first retain");
    env.code("release before the first retain", env.release());
    let (first, second) = (env.retain()?, env.retain()?);
    env.say("two retains give one handle", yes(first == second));
    state(env, "retained");
    let mut current = std::ptr::null_mut();
    env.fine(
        "cuCtxGetCurrent",
        cu!(env, cuCtxGetCurrent(&raw mut current)),
    )?;
    env.say("a retain makes it current", yes(!current.is_null()));
    env.code("first release", env.release());
    state(env, "released once");
    env.code("second release", env.release());
    state(env, "released twice");
    env.code("third release", env.release());
    env.code("set current after that", cu!(env, cuCtxSetCurrent(first)));
    let third = env.retain()?;
    env.say("a new retain gives the same handle", yes(third == first));
    env.code("cuCtxDestroy of it", cu!(env, cuCtxDestroy_v2(third)));
    state(env, "after that");
    Ok(())
}

fn make(env: &Environment) -> Result<CUcontext> {
    let mut context = std::ptr::null_mut();
    let code = cu!(env, cuCtxCreate_v2(&raw mut context, 0, 0));
    env.fine("cuCtxCreate_v2", code)?;
    Ok(context)
}

pub(crate) fn stack(env: &Environment) -> Result<()> {
    env.fine("cuInit", cu!(env, cuInit(0)))?;
    let context = env.retain()?;
    let (null, mut current) = (std::ptr::null_mut(), std::ptr::null_mut());
    let top = || -> Result<CUcontext> {
        let mut top = std::ptr::null_mut();
        env.fine("cuCtxGetCurrent", cu!(env, cuCtxGetCurrent(&raw mut top)))?;
        Ok(top)
    };
    env.code(
        "pop of an empty stack",
        cu!(env, cuCtxPopCurrent_v2(&raw mut current)),
    );
    env.code("push null", cu!(env, cuCtxPushCurrent_v2(null)));
    env.code(
        "set null on an empty stack",
        cu!(env, cuCtxSetCurrent(null)),
    );
    env.code("set on an empty stack", cu!(env, cuCtxSetCurrent(context)));
    env.code(
        "push the same again",
        cu!(env, cuCtxPushCurrent_v2(context)),
    );
    env.code("set null on two", cu!(env, cuCtxSetCurrent(null)));
    env.say("then the lower one is current", yes(top()? == context));
    env.code("pop", cu!(env, cuCtxPopCurrent_v2(null.cast())));
    env.code("pop again", cu!(env, cuCtxPopCurrent_v2(&raw mut current)));
    let made = make(env)?;
    env.say("a made context is current", yes(top()? == made));
    env.code(
        "set the primary over it",
        cu!(env, cuCtxSetCurrent(context)),
    );
    env.code(
        "pop the primary",
        cu!(env, cuCtxPopCurrent_v2(&raw mut current)),
    );
    env.say("that was all", yes(top()?.is_null()));
    env.code("destroy the made one", cu!(env, cuCtxDestroy_v2(made)));
    let odd = std::ptr::null_mut();
    env.code("cuCtxGetCurrent into null", cu!(env, cuCtxGetCurrent(odd)));
    Ok(())
}

pub(crate) fn made(env: &Environment) -> Result<()> {
    env.start()?;
    let made = make(env)?;
    let mut version = 0;
    let code = cu!(env, cuCtxGetApiVersion(made, &raw mut version));
    env.say("api version", format!("{}, {version}", name(code)));
    let code = cu!(env, cuCtxGetApiVersion(env.context(), &raw mut version));
    env.say(
        "api version of the primary",
        format!("{}, {version}", name(code)),
    );
    let mut flags = 77;
    let code = cu!(env, cuCtxGetFlags(&raw mut flags));
    env.say("flags", format!("{}, {flags}", name(code)));
    let (mut least, mut greatest) = (77, 77);
    let code = cu!(
        env,
        cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)
    );
    env.say(
        "priorities",
        format!("{}, {least} to {greatest}", name(code)),
    );
    env.code("destroy while current", cu!(env, cuCtxDestroy_v2(made)));
    let mut top = std::ptr::null_mut();
    env.fine("cuCtxGetCurrent", cu!(env, cuCtxGetCurrent(&raw mut top)))?;
    env.say("then the one below is current", yes(top == env.context()));
    let (mut none, device) = (std::ptr::null_mut(), 0);
    let code = cu!(env, cuCtxCreate_v2(&raw mut none, 1 << 20, device));
    env.code("create with unknown flags", code);
    env.code(
        "create on device 99",
        cu!(env, cuCtxCreate_v2(&raw mut none, 0, 99)),
    );
    env.code(
        "destroy null",
        cu!(env, cuCtxDestroy_v2(std::ptr::null_mut())),
    );
    Ok(())
}

pub(crate) fn release_waits(env: &Environment) -> Result<()> {
    env.alone("for a held stream", || {
        let stream = env.stream()?;
        let (code, waited) = while_held(env, stream, || env.release())?;
        Ok(format!("{}, {waited}", name(code)))
    });
    Ok(())
}

pub(crate) fn destroy_waits(env: &Environment) -> Result<()> {
    env.alone("for a held stream", || {
        let made = make(env)?;
        let stream = env.stream()?;
        let (code, waited) = while_held(env, stream, || cu!(env, cuCtxDestroy_v2(made)))?;
        Ok(format!("{}, {waited}", name(code)))
    });
    Ok(())
}

/// What belonged to a context that is gone.
struct Leftover {
    context: CUcontext,
    stream: CUstream,
    event: CUevent,
    plain: CUdeviceptr,
    pinned: *mut std::ffi::c_void,
    pool: CUmemoryPool,
    block: CUdeviceptr,
}

fn leave(env: &Environment, context: CUcontext) -> Result<Leftover> {
    let (stream, event, pool) = (env.stream()?, env.event()?, env.pool(0)?);
    let block = env.alloc(pool, 1000, stream)?;
    env.record(event, stream)?;
    env.synchronise(stream)?;
    Ok(Leftover {
        context,
        stream,
        event,
        plain: env.plain(1000)?,
        pinned: env.pinned(1000)?,
        pool,
        block,
    })
}

type Ask = fn(&Environment, &Leftover) -> CUresult;

/// Questions about what is left, each with its name.
const LEFT: [(&str, Ask); 19] = [
    ("cuCtxSetCurrent", |env, left| {
        cu!(env, cuCtxSetCurrent(left.context))
    }),
    ("cuCtxPushCurrent", |env, left| {
        cu!(env, cuCtxPushCurrent_v2(left.context))
    }),
    ("cuCtxSynchronize", |env, _| cu!(env, cuCtxSynchronize())),
    ("cuStreamQuery", |env, left| {
        cu!(env, cuStreamQuery(left.stream))
    }),
    ("cuStreamSynchronize", |env, left| {
        cu!(env, cuStreamSynchronize(left.stream))
    }),
    ("cuStreamDestroy", |env, left| {
        cu!(env, cuStreamDestroy_v2(left.stream))
    }),
    ("cuEventQuery", |env, left| {
        cu!(env, cuEventQuery(left.event))
    }),
    ("cuEventSynchronize", |env, left| {
        cu!(env, cuEventSynchronize(left.event))
    }),
    ("cuEventRecord", |env, left| {
        cu!(env, cuEventRecord(left.event, left.stream))
    }),
    ("cuEventDestroy", |env, left| {
        cu!(env, cuEventDestroy_v2(left.event))
    }),
    ("cuMemFree of plain memory", |env, left| {
        cu!(env, cuMemFree_v2(left.plain))
    }),
    ("cuMemFreeHost", |env, left| {
        cu!(env, cuMemFreeHost(left.pinned))
    }),
    ("cuMemFree of pool memory", |env, left| {
        cu!(env, cuMemFree_v2(left.block))
    }),
    ("cuMemFreeAsync", |env, left| {
        cu!(env, cuMemFreeAsync(left.block, left.stream))
    }),
    ("cuMemAllocFromPoolAsync", |env, left| {
        env.try_alloc(left.pool, 1, left.stream).0
    }),
    ("cuMemPoolTrimTo", |env, left| {
        cu!(env, cuMemPoolTrimTo(left.pool, 0))
    }),
    ("cuMemPoolDestroy", |env, left| {
        cu!(env, cuMemPoolDestroy(left.pool))
    }),
    ("cuMemsetD8Async", |env, left| {
        cu!(env, cuMemsetD8Async(left.block, 0, 9, left.stream))
    }),
    ("cuPointerGetAttribute of pool memory", |env, left| {
        let mut value = 0_u64;
        let place = (&raw mut value).cast();
        cu!(
            env,
            cuPointerGetAttribute(place, CUpointer_attribute(2), left.block)
        )
    }),
];

/// After the last release of the primary context, which stays current.
pub(crate) fn after_release(env: &Environment) -> Result<()> {
    for (part, ask) in LEFT {
        env.alone(part, || {
            let left = leave(env, env.context())?;
            env.fine("cuDevicePrimaryCtxRelease", env.release())?;
            Ok(name(ask(env, &left)))
        });
    }
    Ok(())
}

/// Who holds the primary context after a reset, and whether it is told apart from the one before.
pub(crate) fn after_reset(env: &Environment) -> Result<()> {
    env.fine("cuInit", cu!(env, cuInit(0)))?;
    let id = |context: CUcontext| {
        let mut id = 0;
        let code = cu!(env, cuCtxGetId(context, &raw mut id));
        (code == OK).then_some(id)
    };
    let first = (env.retain()?, env.retain()?).0;
    let before = id(first);
    env.code(
        "reset of two retains",
        cu!(env, cuDevicePrimaryCtxReset_v2(0)),
    );
    state(env, "after the reset");
    env.say(
        "the id of the context is answered then",
        yes(id(first).is_some()),
    );
    let second = env.retain()?;
    env.say("a new retain gives the same handle", yes(first == second));
    let after = id(second);
    env.say("and the same id", yes(after == before));
    env.code("first release", env.release());
    state(env, "after it");
    env.code("second release", env.release());
    state(env, "after that");
    env.code("third release", env.release());
    Ok(())
}

/// After a made context was destroyed and the primary one is current again. What a second
/// `cuCtxDestroy` answers differs from run to run.
pub(crate) fn after_destroy(env: &Environment) -> Result<()> {
    for (part, ask) in LEFT {
        env.alone(part, || {
            let made = make(env)?;
            let left = leave(env, made)?;
            env.fine("cuCtxDestroy", cu!(env, cuCtxDestroy_v2(made)))?;
            Ok(name(ask(env, &left)))
        });
    }
    Ok(())
}

/// After the primary context was released and retained again.
pub(crate) fn again(env: &Environment) -> Result<()> {
    for (part, ask) in LEFT {
        env.alone(part, || {
            let left = leave(env, env.context())?;
            env.fine("cuDevicePrimaryCtxRelease", env.release())?;
            let context = env.retain()?;
            let code = cu!(env, cuCtxSetCurrent(context));
            if code != OK {
                return Ok(format!("cuCtxSetCurrent answers {}", name(code)));
            }
            Ok(name(ask(env, &left)))
        });
    }
    Ok(())
}
