//! The default streams: what may be asked of them, and what they wait for.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::Gate;
use crate::lab::{Lab, MIB, cu, name, size, yes};

fn streams() -> [(&'static str, CUstream); 3] {
    [
        ("null", std::ptr::null_mut()),
        ("legacy", CU_STREAM_LEGACY),
        ("per-thread", CU_STREAM_PER_THREAD),
    ]
}

/// A second context of the device, which is current then.
fn second_context(lab: &Lab) -> Result<CUcontext> {
    let mut made = std::ptr::null_mut();
    lab.fine("cuCtxCreate", cu!(lab, cuCtxCreate_v2(&raw mut made, 0, 0)))?;
    Ok(made)
}

/// Everything that takes a stream, on one of them.
fn each_call(lab: &Lab, kind: &str, stream: CUstream, pool: CUmemoryPool) -> Result<()> {
    let say = |part: &str, code| lab.code(format!("{kind}: {part}"), code);
    let (code, block) = lab.try_alloc(pool, 4096, stream);
    say("cuMemAllocFromPoolAsync", code);
    let mut plain = 0;
    say(
        "cuMemAllocAsync",
        cu!(lab, cuMemAllocAsync(&raw mut plain, 4096, stream)),
    );
    let mut bytes = [7_u8; 64];
    let host = bytes.as_mut_ptr().cast::<c_void>();
    say(
        "cuMemsetD8Async",
        cu!(lab, cuMemsetD8Async(block, 5, 4096, stream)),
    );
    say(
        "cuMemcpyHtoDAsync",
        cu!(lab, cuMemcpyHtoDAsync_v2(plain, host, 64, stream)),
    );
    say(
        "cuMemcpyDtoDAsync",
        cu!(lab, cuMemcpyDtoDAsync_v2(plain + 64, block, 64, stream)),
    );
    say(
        "cuMemcpyAsync",
        cu!(lab, cuMemcpyAsync(plain + 128, plain, 64, stream)),
    );
    say(
        "cuMemcpyDtoHAsync",
        cu!(lab, cuMemcpyDtoHAsync_v2(host, plain + 64, 64, stream)),
    );
    let event = lab.event()?;
    say("cuEventRecord", cu!(lab, cuEventRecord(event, stream)));
    say(
        "cuStreamWaitEvent",
        cu!(lab, cuStreamWaitEvent(stream, event, 0)),
    );
    let copied = bytes.iter().all(|byte| *byte == 5);
    lab.say(format!("{kind}: the bytes arrived"), yes(copied));
    say("cuMemFreeAsync", cu!(lab, cuMemFreeAsync(block, stream)));
    say(
        "cuMemFreeAsync of the other",
        cu!(lab, cuMemFreeAsync(plain, stream)),
    );
    say(
        "cuMemFreeAsync of null",
        cu!(lab, cuMemFreeAsync(0, stream)),
    );
    say("cuStreamSynchronize", cu!(lab, cuStreamSynchronize(stream)));
    say("cuStreamQuery", cu!(lab, cuStreamQuery(stream)));
    let mut context = std::ptr::null_mut();
    let code = cu!(lab, cuStreamGetCtx(stream, &raw mut context));
    lab.say(
        format!("{kind}: its context is the first"),
        format!("{}, {}", name(code), yes(context == lab.context())),
    );
    for bytes in [0, 1 << 50, u64::MAX] {
        let (code, address) = lab.try_alloc(pool, bytes, stream);
        let null = yes(address == 0);
        lab.say(
            format!("{kind}: {bytes} B"),
            format!("{}, null {null}", name(code)),
        );
    }
    Ok(())
}

pub(crate) fn calls(lab: &Lab) -> Result<()> {
    let pool = lab.pool(0)?;
    for (kind, stream) in streams() {
        each_call(lab, kind, stream, pool)?;
    }
    Ok(())
}

/// The same while another context of the device is current, with blocks of the first.
pub(crate) fn other_context(lab: &Lab) -> Result<()> {
    let pool = lab.pool(0)?;
    let first = lab.stream()?;
    let old = lab.alloc(pool, 4096, first)?;
    lab.synchronise(first)?;
    second_context(lab)?;
    for (kind, stream) in streams() {
        each_call(lab, kind, stream, pool)?;
        let fill = cu!(lab, cuMemsetD8Async(old, 5, 4096, stream));
        lab.code(format!("{kind}: memset of a block of the first"), fill);
    }
    each_call(lab, "a stream of the first", first, pool)?;
    let free = cu!(lab, cuMemFreeAsync(old, CU_STREAM_LEGACY));
    lab.code("legacy: free of a block of the first", free);
    lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))
}

/// Which streams wait while one of them is held. `held` names the one; an event in each of the
/// others tells.
fn who_waits(lab: &Lab, part: &str, held: CUstream, others: &[(&str, CUstream)]) -> Result<()> {
    let plain = lab.plain(64)?;
    let gate = Gate::hold(lab, held)?;
    let mut events = Vec::new();
    for (name, stream) in others {
        let fill = cu!(lab, cuMemsetD8Async(plain, 1, 64, *stream));
        lab.fine("cuMemsetD8Async", fill)?;
        let event = lab.event()?;
        lab.record(event, *stream)?;
        events.push((name, event));
        // Each is asked before work for the next is given, which could make it wait.
        lab.let_it_finish();
        lab.code(
            format!("{part} held, {name}"),
            cu!(lab, cuEventQuery(event)),
        );
    }
    gate.open();
    lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))
}

pub(crate) fn order(lab: &Lab) -> Result<()> {
    let (blocking, free) = (lab.stream_with(0)?, lab.stream()?);
    let legacy = ("legacy", std::ptr::null_mut());
    let thread = ("per-thread", CU_STREAM_PER_THREAD);
    let (blocking, free) = (("blocking", blocking), ("non-blocking", free));
    let another = ("another blocking", lab.stream_with(0)?);
    who_waits(lab, "legacy", legacy.1, &[free, thread, blocking])?;
    who_waits(lab, "blocking", blocking.1, &[free, thread, another])?;
    who_waits(lab, "blocking, in turn", blocking.1, &[legacy])?;
    who_waits(lab, "non-blocking", free.1, &[thread, blocking, legacy])?;
    who_waits(lab, "per-thread", thread.1, &[free, blocking])?;
    who_waits(lab, "per-thread, in turn", thread.1, &[legacy])?;
    // What is behind the legacy stream while that waits.
    who_waits(
        lab,
        "blocking, chain",
        blocking.1,
        &[legacy, another, thread],
    )
}

/// Contexts of one device have a legacy stream each.
pub(crate) fn order_of_contexts(lab: &Lab) -> Result<()> {
    let blocking = lab.stream_with(0)?;
    let plain = lab.plain(64)?;
    let second = second_context(lab)?;
    let gate = Gate::hold(lab, std::ptr::null_mut())?;
    lab.current(lab.context())?;
    for (part, stream) in [("legacy", CU_STREAM_LEGACY), ("blocking", blocking)] {
        let fill = cu!(lab, cuMemsetD8Async(plain, 1, 64, stream));
        lab.fine("cuMemsetD8Async", fill)?;
        let event = lab.event()?;
        lab.record(event, stream)?;
        lab.let_it_finish();
        lab.code(
            format!("{part}, legacy of another context held"),
            cu!(lab, cuEventQuery(event)),
        );
    }
    gate.open();
    lab.current(second)?;
    lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))
}

/// Runs in another thread with the same context.
fn elsewhere<T: Send>(lab: &Lab, body: impl FnOnce(&Lab) -> Result<T> + Send) -> Result<T> {
    let (table, context) = (lab.table, lab.context().expose_provenance());
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let lab = Lab::new(table, "another thread");
            lab.current(std::ptr::with_exposed_provenance_mut(context))?;
            body(&lab)
        });
        match thread.join() {
            Ok(result) => result,
            Err(_) => anyhow::bail!("the thread panicked"),
        }
    })
}

fn id_of_mine(lab: &Lab) -> Result<u64> {
    let mut id = 0;
    let code = cu!(lab, cuStreamGetId(CU_STREAM_PER_THREAD, &raw mut id));
    lab.fine("cuStreamGetId", code)?;
    Ok(id)
}

/// The per-thread streams of two threads.
pub(crate) fn two_threads(lab: &Lab) -> Result<()> {
    let mine = CU_STREAM_PER_THREAD;
    let same = id_of_mine(lab)? == elsewhere(lab, id_of_mine)?;
    lab.say("one and the same", yes(same));
    let pool = lab.keeper(64 * MIB)?;
    lab.only_reuse(pool, 0)?;
    let block = lab.alloc(pool, 40 * MIB, mine)?;
    let raw = pool.expose_provenance();
    let gate = Gate::hold(lab, mine)?;
    let fill = cu!(lab, cuMemsetD8Async(block, 1, 4096, mine));
    lab.fine("cuMemsetD8Async", fill)?;
    let query = elsewhere(lab, |lab| {
        Ok(name(cu!(lab, cuStreamQuery(CU_STREAM_PER_THREAD))))
    })?;
    lab.say("another's while this thread's is held", query);
    lab.free(block, mine)?;
    let place = elsewhere(lab, |lab| {
        let pool = std::ptr::with_exposed_provenance_mut(raw);
        lab.where_is(pool, 40 * MIB, CU_STREAM_PER_THREAD, block)
    })?;
    lab.say("a block freed here, wanted there", place);
    gate.open();
    lab.let_it_finish();
    let place = elsewhere(lab, |lab| {
        let pool = std::ptr::with_exposed_provenance_mut(raw);
        lab.where_is(pool, 40 * MIB, CU_STREAM_PER_THREAD, block)
    })?;
    lab.say("the same, let go", place);
    lab.synchronise(mine)?;
    let place = lab.where_is(pool, 40 * MIB, mine, block)?;
    lab.say("and here after a synchronise", place);
    let block = lab.alloc(pool, 40 * MIB, mine)?;
    let freed = elsewhere(lab, |lab| {
        Ok(name(cu!(lab, cuMemFreeAsync(block, CU_STREAM_PER_THREAD))))
    })?;
    lab.say("freed on another's", freed);
    lab.say("used then", format!("{} B", lab.used(pool)?));
    lab.say(
        "wanted again on this thread's",
        lab.where_is(pool, 40 * MIB, mine, block)?,
    );
    lab.say(
        "wanted again on the legacy stream",
        lab.where_is(pool, 40 * MIB, CU_STREAM_LEGACY, block)?,
    );
    lab.synchronise(mine)?;
    lab.say(
        "and after a synchronise of this thread's",
        lab.where_is(pool, 40 * MIB, mine, block)?,
    );
    lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))?;
    lab.say(
        "and of the context",
        lab.where_is(pool, 40 * MIB, mine, block)?,
    );
    Ok(())
}

/// What a thread freed on its own stream, while it lives and when it has ended.
pub(crate) fn ended_thread(lab: &Lab) -> Result<()> {
    let mine = CU_STREAM_PER_THREAD;
    for held in [false, true] {
        let pool = lab.keeper(64 * MIB)?;
        lab.only_reuse(pool, 0)?;
        let block = lab.alloc(pool, 40 * MIB, mine)?;
        lab.synchronise(mine)?;
        let (table, context) = (lab.table, lab.context().expose_provenance());
        let (done, wait_for_done) = std::sync::mpsc::channel();
        let (end, wait_for_end) = std::sync::mpsc::channel::<()>();
        let part = if held { "held: " } else { "" };
        let gate = std::thread::scope(|scope| {
            scope.spawn(move || {
                let lab = Lab::new(table, "another thread");
                let work = || -> Result<Option<Gate>> {
                    lab.current(std::ptr::with_exposed_provenance_mut(context))?;
                    let gate = if held {
                        Some(Gate::hold(&lab, CU_STREAM_PER_THREAD)?)
                    } else {
                        None
                    };
                    lab.free(block, CU_STREAM_PER_THREAD)?;
                    Ok(gate)
                };
                // The receiver may have given up.
                let _ = done.send(work());
                let _ = wait_for_end.recv();
            });
            let gate = wait_for_done.recv()??;
            lab.let_it_finish();
            let place = lab.where_is(pool, 40 * MIB, mine, block)?;
            lab.say(format!("{part}the thread lives"), place);
            let _ = end.send(());
            Ok::<_, anyhow::Error>(gate)
        })?;
        lab.let_it_finish();
        let place = lab.where_is(pool, 40 * MIB, mine, block)?;
        lab.say(format!("{part}the thread has ended"), place);
        if let Some(gate) = gate {
            gate.open();
            lab.let_it_finish();
            let place = lab.where_is(pool, 40 * MIB, mine, block)?;
            lab.say(format!("{part}and its stream was let go"), place);
        }
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// Reuse between the default streams: each of the pairs that the driver itself puts in order.
pub(crate) fn reuse(lab: &Lab) -> Result<()> {
    let blocking = lab.stream_with(0)?;
    let all = [
        ("legacy", CU_STREAM_LEGACY),
        ("per-thread", CU_STREAM_PER_THREAD),
        ("blocking", blocking),
    ];
    for (freed_on, first) in all {
        for (wanted_on, second) in all {
            if first == second {
                continue;
            }
            let pool = lab.keeper(64 * MIB)?;
            lab.only_reuse(pool, 1)?;
            let block = lab.alloc(pool, 40 * MIB, first)?;
            let gate = Gate::hold(lab, first)?;
            lab.free(block, first)?;
            let place = lab.where_is(pool, 40 * MIB, second, block)?;
            lab.say(format!("freed on {freed_on}, wanted on {wanted_on}"), place);
            gate.open();
            lab.end_pool(pool)?;
        }
    }
    Ok(())
}

/// Memory of `cuMemAlloc`, freed in stream order.
pub(crate) fn plain_memory(lab: &Lab) -> Result<()> {
    let (stream, other) = (lab.stream()?, lab.stream()?);
    let start = lab.device_free()?;
    let missing = || -> Result<String> { Ok(size(start.saturating_sub(lab.device_free()?))) };
    let known = |address| {
        let mut value = 0_u64;
        let place = (&raw mut value).cast::<c_void>();
        let id = CUpointer_attribute(2);
        name(cu!(lab, cuPointerGetAttribute(place, id, address)))
    };
    let plain = lab.plain(64 << 20)?;
    let gate = Gate::hold(lab, stream)?;
    lab.code("held, free", cu!(lab, cuMemFreeAsync(plain, stream)));
    lab.say("held, the device misses", missing()?);
    lab.say("held, its type", known(plain));
    lab.synchronise(other)?;
    lab.say("held, another stream synchronised", missing()?);
    gate.open();
    lab.let_it_finish();
    lab.say("let go, the device misses", missing()?);
    lab.say("let go, its type", known(plain));
    let code = cu!(lab, cuStreamQuery(stream));
    lab.say("after a query", format!("{}, {}", name(code), missing()?));
    lab.synchronise(other)?;
    lab.say("another stream synchronised", missing()?);
    lab.synchronise(stream)?;
    lab.say("synchronised", missing()?);
    for (part, stream) in streams() {
        let plain = lab.plain(64 << 20)?;
        lab.code(part, cu!(lab, cuMemFreeAsync(plain, stream)));
        lab.say(format!("{part}, the device misses"), missing()?);
        lab.synchronise(stream)?;
        lab.say(format!("{part}, synchronised"), missing()?);
    }
    Ok(())
}

/// Frees in stream order that are wrong, each in a process of its own.
pub(crate) fn wrong_frees(lab: &Lab) -> Result<()> {
    for (number, part) in [
        "an address inside",
        "pinned memory",
        "held, a memset after the free",
    ]
    .iter()
    .enumerate()
    {
        lab.alone(part, || {
            let (stream, plain) = (lab.stream()?, lab.plain(64 << 20)?);
            let code = match number {
                0 => cu!(lab, cuMemFreeAsync(plain + 512, stream)),
                1 => {
                    let pinned = lab.pinned(4096)?.expose_provenance() as u64;
                    cu!(lab, cuMemFreeAsync(pinned, stream))
                }
                _ => {
                    let _gate = Gate::hold(lab, stream)?;
                    lab.fine("cuMemFreeAsync", cu!(lab, cuMemFreeAsync(plain, stream)))?;
                    cu!(lab, cuMemsetD8Async(plain, 1, 64, stream))
                }
            };
            lab.synchronise(stream)?;
            Ok(name(code))
        });
    }
    Ok(())
}
