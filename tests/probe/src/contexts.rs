//! Contexts: the primary one, made ones, and what becomes of what belonged to an ended one.

use std::ffi::c_int;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::while_held;
use crate::lab::{Lab, OK, cu, name, yes};

fn state(lab: &Lab, part: &str) {
    let (mut flags, mut active): (_, c_int) = (77, 77);
    let code = cu!(
        lab,
        cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active)
    );
    lab.say(
        part,
        format!("{}, flags {flags}, active {active}", name(code)),
    );
}

pub(crate) fn primary(lab: &Lab) -> Result<()> {
    lab.fine("cuInit", cu!(lab, cuInit(0)))?;
    state(lab, "before the first retain");
    lab.code("release before the first retain", lab.release());
    let (first, second) = (lab.retain()?, lab.retain()?);
    lab.say("two retains give one handle", yes(first == second));
    state(lab, "retained");
    let mut current = std::ptr::null_mut();
    lab.fine(
        "cuCtxGetCurrent",
        cu!(lab, cuCtxGetCurrent(&raw mut current)),
    )?;
    lab.say("a retain makes it current", yes(!current.is_null()));
    lab.code("first release", lab.release());
    state(lab, "released once");
    lab.code("second release", lab.release());
    state(lab, "released twice");
    lab.code("third release", lab.release());
    lab.code("set current after that", cu!(lab, cuCtxSetCurrent(first)));
    let third = lab.retain()?;
    lab.say("a new retain gives the same handle", yes(third == first));
    lab.code("cuCtxDestroy of it", cu!(lab, cuCtxDestroy_v2(third)));
    state(lab, "after that");
    Ok(())
}

fn make(lab: &Lab) -> Result<CUcontext> {
    let mut context = std::ptr::null_mut();
    let code = cu!(lab, cuCtxCreate_v2(&raw mut context, 0, 0));
    lab.fine("cuCtxCreate_v2", code)?;
    Ok(context)
}

pub(crate) fn stack(lab: &Lab) -> Result<()> {
    lab.fine("cuInit", cu!(lab, cuInit(0)))?;
    let context = lab.retain()?;
    let (null, mut current) = (std::ptr::null_mut(), std::ptr::null_mut());
    let top = || -> Result<CUcontext> {
        let mut top = std::ptr::null_mut();
        lab.fine("cuCtxGetCurrent", cu!(lab, cuCtxGetCurrent(&raw mut top)))?;
        Ok(top)
    };
    lab.code(
        "pop of an empty stack",
        cu!(lab, cuCtxPopCurrent_v2(&raw mut current)),
    );
    lab.code("push null", cu!(lab, cuCtxPushCurrent_v2(null)));
    lab.code(
        "set null on an empty stack",
        cu!(lab, cuCtxSetCurrent(null)),
    );
    lab.code("set on an empty stack", cu!(lab, cuCtxSetCurrent(context)));
    lab.code(
        "push the same again",
        cu!(lab, cuCtxPushCurrent_v2(context)),
    );
    lab.code("set null on two", cu!(lab, cuCtxSetCurrent(null)));
    lab.say("then the lower one is current", yes(top()? == context));
    lab.code("pop", cu!(lab, cuCtxPopCurrent_v2(null.cast())));
    lab.code("pop again", cu!(lab, cuCtxPopCurrent_v2(&raw mut current)));
    let made = make(lab)?;
    lab.say("a made context is current", yes(top()? == made));
    lab.code(
        "set the primary over it",
        cu!(lab, cuCtxSetCurrent(context)),
    );
    lab.code(
        "pop the primary",
        cu!(lab, cuCtxPopCurrent_v2(&raw mut current)),
    );
    lab.say("that was all", yes(top()?.is_null()));
    lab.code("destroy the made one", cu!(lab, cuCtxDestroy_v2(made)));
    let odd = std::ptr::null_mut();
    lab.code("cuCtxGetCurrent into null", cu!(lab, cuCtxGetCurrent(odd)));
    Ok(())
}

pub(crate) fn made(lab: &Lab) -> Result<()> {
    lab.start()?;
    let made = make(lab)?;
    let mut version = 0;
    let code = cu!(lab, cuCtxGetApiVersion(made, &raw mut version));
    lab.say("api version", format!("{}, {version}", name(code)));
    let code = cu!(lab, cuCtxGetApiVersion(lab.context(), &raw mut version));
    lab.say(
        "api version of the primary",
        format!("{}, {version}", name(code)),
    );
    let mut flags = 77;
    let code = cu!(lab, cuCtxGetFlags(&raw mut flags));
    lab.say("flags", format!("{}, {flags}", name(code)));
    let (mut least, mut greatest) = (77, 77);
    let code = cu!(
        lab,
        cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)
    );
    lab.say(
        "priorities",
        format!("{}, {least} to {greatest}", name(code)),
    );
    lab.code("destroy while current", cu!(lab, cuCtxDestroy_v2(made)));
    let mut top = std::ptr::null_mut();
    lab.fine("cuCtxGetCurrent", cu!(lab, cuCtxGetCurrent(&raw mut top)))?;
    lab.say("then the one below is current", yes(top == lab.context()));
    let (mut none, device) = (std::ptr::null_mut(), 0);
    let code = cu!(lab, cuCtxCreate_v2(&raw mut none, 1 << 20, device));
    lab.code("create with unknown flags", code);
    lab.code(
        "create on device 99",
        cu!(lab, cuCtxCreate_v2(&raw mut none, 0, 99)),
    );
    lab.code(
        "destroy null",
        cu!(lab, cuCtxDestroy_v2(std::ptr::null_mut())),
    );
    Ok(())
}

pub(crate) fn release_waits(lab: &Lab) -> Result<()> {
    lab.alone("for a held stream", || {
        let stream = lab.stream()?;
        let (code, waited) = while_held(lab, stream, || lab.release())?;
        Ok(format!("{}, {waited}", name(code)))
    });
    Ok(())
}

pub(crate) fn destroy_waits(lab: &Lab) -> Result<()> {
    lab.alone("for a held stream", || {
        let made = make(lab)?;
        let stream = lab.stream()?;
        let (code, waited) = while_held(lab, stream, || cu!(lab, cuCtxDestroy_v2(made)))?;
        Ok(format!("{}, {waited}", name(code)))
    });
    Ok(())
}

/// What belonged to a context that is gone.
struct Left {
    context: CUcontext,
    stream: CUstream,
    event: CUevent,
    plain: CUdeviceptr,
    pinned: *mut std::ffi::c_void,
    pool: CUmemoryPool,
    block: CUdeviceptr,
}

fn leave(lab: &Lab, context: CUcontext) -> Result<Left> {
    let (stream, event, pool) = (lab.stream()?, lab.event()?, lab.pool(0)?);
    let block = lab.alloc(pool, 1000, stream)?;
    lab.record(event, stream)?;
    lab.synchronise(stream)?;
    Ok(Left {
        context,
        stream,
        event,
        plain: lab.plain(1000)?,
        pinned: lab.pinned(1000)?,
        pool,
        block,
    })
}

type Ask = fn(&Lab, &Left) -> CUresult;

/// Questions about what is left, each with its name.
const LEFT: [(&str, Ask); 19] = [
    ("cuCtxSetCurrent", |lab, left| {
        cu!(lab, cuCtxSetCurrent(left.context))
    }),
    ("cuCtxPushCurrent", |lab, left| {
        cu!(lab, cuCtxPushCurrent_v2(left.context))
    }),
    ("cuCtxSynchronize", |lab, _| cu!(lab, cuCtxSynchronize())),
    ("cuStreamQuery", |lab, left| {
        cu!(lab, cuStreamQuery(left.stream))
    }),
    ("cuStreamSynchronize", |lab, left| {
        cu!(lab, cuStreamSynchronize(left.stream))
    }),
    ("cuStreamDestroy", |lab, left| {
        cu!(lab, cuStreamDestroy_v2(left.stream))
    }),
    ("cuEventQuery", |lab, left| {
        cu!(lab, cuEventQuery(left.event))
    }),
    ("cuEventSynchronize", |lab, left| {
        cu!(lab, cuEventSynchronize(left.event))
    }),
    ("cuEventRecord", |lab, left| {
        cu!(lab, cuEventRecord(left.event, left.stream))
    }),
    ("cuEventDestroy", |lab, left| {
        cu!(lab, cuEventDestroy_v2(left.event))
    }),
    ("cuMemFree of plain memory", |lab, left| {
        cu!(lab, cuMemFree_v2(left.plain))
    }),
    ("cuMemFreeHost", |lab, left| {
        cu!(lab, cuMemFreeHost(left.pinned))
    }),
    ("cuMemFree of pool memory", |lab, left| {
        cu!(lab, cuMemFree_v2(left.block))
    }),
    ("cuMemFreeAsync", |lab, left| {
        cu!(lab, cuMemFreeAsync(left.block, left.stream))
    }),
    ("cuMemAllocFromPoolAsync", |lab, left| {
        lab.try_alloc(left.pool, 1, left.stream).0
    }),
    ("cuMemPoolTrimTo", |lab, left| {
        cu!(lab, cuMemPoolTrimTo(left.pool, 0))
    }),
    ("cuMemPoolDestroy", |lab, left| {
        cu!(lab, cuMemPoolDestroy(left.pool))
    }),
    ("cuMemsetD8Async", |lab, left| {
        cu!(lab, cuMemsetD8Async(left.block, 0, 9, left.stream))
    }),
    ("cuPointerGetAttribute of pool memory", |lab, left| {
        let mut value = 0_u64;
        let place = (&raw mut value).cast();
        cu!(
            lab,
            cuPointerGetAttribute(place, CUpointer_attribute(2), left.block)
        )
    }),
];

/// After the last release of the primary context, which stays current.
pub(crate) fn after_release(lab: &Lab) -> Result<()> {
    for (part, ask) in LEFT {
        lab.alone(part, || {
            let left = leave(lab, lab.context())?;
            lab.fine("cuDevicePrimaryCtxRelease", lab.release())?;
            Ok(name(ask(lab, &left)))
        });
    }
    Ok(())
}

/// Who holds the primary context after a reset, and whether it is told apart from the one before.
pub(crate) fn after_reset(lab: &Lab) -> Result<()> {
    lab.fine("cuInit", cu!(lab, cuInit(0)))?;
    let id = |context: CUcontext| {
        let mut id = 0;
        let code = cu!(lab, cuCtxGetId(context, &raw mut id));
        (code == OK).then_some(id)
    };
    let first = (lab.retain()?, lab.retain()?).0;
    let before = id(first);
    lab.code(
        "reset of two retains",
        cu!(lab, cuDevicePrimaryCtxReset_v2(0)),
    );
    state(lab, "after the reset");
    lab.say(
        "the id of the context is answered then",
        yes(id(first).is_some()),
    );
    let second = lab.retain()?;
    lab.say("a new retain gives the same handle", yes(first == second));
    let after = id(second);
    lab.say("and the same id", yes(after == before));
    lab.code("first release", lab.release());
    state(lab, "after it");
    lab.code("second release", lab.release());
    state(lab, "after that");
    lab.code("third release", lab.release());
    Ok(())
}

/// After a made context was destroyed and the primary one is current again. What a second
/// `cuCtxDestroy` answers differs from run to run.
pub(crate) fn after_destroy(lab: &Lab) -> Result<()> {
    for (part, ask) in LEFT {
        lab.alone(part, || {
            let made = make(lab)?;
            let left = leave(lab, made)?;
            lab.fine("cuCtxDestroy", cu!(lab, cuCtxDestroy_v2(made)))?;
            Ok(name(ask(lab, &left)))
        });
    }
    Ok(())
}

/// After the primary context was released and retained again.
pub(crate) fn again(lab: &Lab) -> Result<()> {
    for (part, ask) in LEFT {
        lab.alone(part, || {
            let left = leave(lab, lab.context())?;
            lab.fine("cuDevicePrimaryCtxRelease", lab.release())?;
            let context = lab.retain()?;
            let code = cu!(lab, cuCtxSetCurrent(context));
            if code != OK {
                return Ok(format!("cuCtxSetCurrent answers {}", name(code)));
            }
            Ok(name(ask(lab, &left)))
        });
    }
    Ok(())
}
