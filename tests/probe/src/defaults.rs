//! The default streams: what may be asked of them, and what they wait for.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, cu, name, size, yes};
use crate::gate::Gate;

fn streams() -> [(&'static str, CUstream); 3] {
    [
        ("null", std::ptr::null_mut()),
        ("legacy", CU_STREAM_LEGACY),
        ("per-thread", CU_STREAM_PER_THREAD),
    ]
}

/// A second context of the device, which is current then.
fn second_context(env: &Environment) -> Result<CUcontext> {
    let mut made = std::ptr::null_mut();
    env.fine("cuCtxCreate", cu!(env, cuCtxCreate_v2(&raw mut made, 0, 0)))?;
    Ok(made)
}

/// Everything that takes a stream, on one of them.
fn each_call(env: &Environment, kind: &str, stream: CUstream, pool: CUmemoryPool) -> Result<()> {
    let say = |part: &str, code| env.code(format!("{kind}: {part}"), code);
    let (code, block) = env.try_alloc(pool, 4096, stream);
    say("cuMemAllocFromPoolAsync", code);
    let mut plain = 0;
    say(
        "cuMemAllocAsync",
        cu!(env, cuMemAllocAsync(&raw mut plain, 4096, stream)),
    );
    let mut bytes = [7_u8; 64];
    let host = bytes.as_mut_ptr().cast::<c_void>();
    say(
        "cuMemsetD8Async",
        cu!(env, cuMemsetD8Async(block, 5, 4096, stream)),
    );
    say(
        "cuMemcpyHtoDAsync",
        cu!(env, cuMemcpyHtoDAsync_v2(plain, host, 64, stream)),
    );
    say(
        "cuMemcpyDtoDAsync",
        cu!(env, cuMemcpyDtoDAsync_v2(plain + 64, block, 64, stream)),
    );
    say(
        "cuMemcpyAsync",
        cu!(env, cuMemcpyAsync(plain + 128, plain, 64, stream)),
    );
    say(
        "cuMemcpyDtoHAsync",
        cu!(env, cuMemcpyDtoHAsync_v2(host, plain + 64, 64, stream)),
    );
    let event = env.event()?;
    say("cuEventRecord", cu!(env, cuEventRecord(event, stream)));
    say(
        "cuStreamWaitEvent",
        cu!(env, cuStreamWaitEvent(stream, event, 0)),
    );
    let copied = bytes.iter().all(|byte| *byte == 5);
    env.say(format!("{kind}: the bytes arrived"), yes(copied));
    say("cuMemFreeAsync", cu!(env, cuMemFreeAsync(block, stream)));
    say(
        "cuMemFreeAsync of the other",
        cu!(env, cuMemFreeAsync(plain, stream)),
    );
    say(
        "cuMemFreeAsync of null",
        cu!(env, cuMemFreeAsync(0, stream)),
    );
    say("cuStreamSynchronize", cu!(env, cuStreamSynchronize(stream)));
    say("cuStreamQuery", cu!(env, cuStreamQuery(stream)));
    let mut context = std::ptr::null_mut();
    let code = cu!(env, cuStreamGetCtx(stream, &raw mut context));
    env.say(
        format!("{kind}: its context is the first"),
        format!("{}, {}", name(code), yes(context == env.context())),
    );
    for bytes in [0, 1 << 50, u64::MAX] {
        let (code, address) = env.try_alloc(pool, bytes, stream);
        let null = yes(address == 0);
        env.say(
            format!("{kind}: {bytes} B"),
            format!("{}, null {null}", name(code)),
        );
    }
    Ok(())
}

pub(crate) fn calls(env: &Environment) -> Result<()> {
    let pool = env.pool(0)?;
    for (kind, stream) in streams() {
        each_call(env, kind, stream, pool)?;
    }
    Ok(())
}

/// The same while another context of the device is current, with blocks of the first.
pub(crate) fn other_context(env: &Environment) -> Result<()> {
    let pool = env.pool(0)?;
    let first = env.stream()?;
    let old = env.alloc(pool, 4096, first)?;
    env.synchronise(first)?;
    second_context(env)?;
    for (kind, stream) in streams() {
        each_call(env, kind, stream, pool)?;
        let fill = cu!(env, cuMemsetD8Async(old, 5, 4096, stream));
        env.code(format!("{kind}: memset of a block of the first"), fill);
    }
    each_call(env, "a stream of the first", first, pool)?;
    let free = cu!(env, cuMemFreeAsync(old, CU_STREAM_LEGACY));
    env.code("legacy: free of a block of the first", free);
    env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))
}

/// Which streams wait while one of them is held. `held` names the one; an event in each of the
/// others tells.
fn who_waits(
    env: &Environment,
    part: &str,
    held: CUstream,
    others: &[(&str, CUstream)],
) -> Result<()> {
    let plain = env.plain(64)?;
    let gate = Gate::hold(env, held)?;
    let mut events = Vec::new();
    for (name, stream) in others {
        let fill = cu!(env, cuMemsetD8Async(plain, 1, 64, *stream));
        env.fine("cuMemsetD8Async", fill)?;
        let event = env.event()?;
        env.record(event, *stream)?;
        events.push((name, event));
        // Each is asked before work for the next is given, which could make it wait.
        env.let_it_finish();
        env.code(
            format!("{part} held, {name}"),
            cu!(env, cuEventQuery(event)),
        );
    }
    gate.open();
    env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))
}

pub(crate) fn order(env: &Environment) -> Result<()> {
    let (blocking, free) = (env.stream_with(0)?, env.stream()?);
    let legacy = ("legacy", std::ptr::null_mut());
    let thread = ("per-thread", CU_STREAM_PER_THREAD);
    let (blocking, free) = (("blocking", blocking), ("non-blocking", free));
    let another = ("another blocking", env.stream_with(0)?);
    who_waits(env, "legacy", legacy.1, &[free, thread, blocking])?;
    who_waits(env, "blocking", blocking.1, &[free, thread, another])?;
    who_waits(env, "blocking, in turn", blocking.1, &[legacy])?;
    who_waits(env, "non-blocking", free.1, &[thread, blocking, legacy])?;
    who_waits(env, "per-thread", thread.1, &[free, blocking])?;
    who_waits(env, "per-thread, in turn", thread.1, &[legacy])?;
    // What is behind the legacy stream while that waits.
    who_waits(
        env,
        "blocking, chain",
        blocking.1,
        &[legacy, another, thread],
    )
}

/// Contexts of one device have a legacy stream each.
pub(crate) fn order_of_contexts(env: &Environment) -> Result<()> {
    let blocking = env.stream_with(0)?;
    let plain = env.plain(64)?;
    let second = second_context(env)?;
    let gate = Gate::hold(env, std::ptr::null_mut())?;
    env.current(env.context())?;
    for (part, stream) in [("legacy", CU_STREAM_LEGACY), ("blocking", blocking)] {
        let fill = cu!(env, cuMemsetD8Async(plain, 1, 64, stream));
        env.fine("cuMemsetD8Async", fill)?;
        let event = env.event()?;
        env.record(event, stream)?;
        env.let_it_finish();
        env.code(
            format!("{part}, legacy of another context held"),
            cu!(env, cuEventQuery(event)),
        );
    }
    gate.open();
    env.current(second)?;
    env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))
}

/// Runs in another thread with the same context.
fn elsewhere<T: Send>(
    env: &Environment,
    body: impl FnOnce(&Environment) -> Result<T> + Send,
) -> Result<T> {
    let (table, context) = (env.table, env.context().expose_provenance());
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let env = Environment::new(table, "another thread");
            env.current(std::ptr::with_exposed_provenance_mut(context))?;
            body(&env)
        });
        match thread.join() {
            Ok(result) => result,
            Err(_) => anyhow::bail!("the thread panicked"),
        }
    })
}

fn id_of_mine(env: &Environment) -> Result<u64> {
    let mut id = 0;
    let code = cu!(env, cuStreamGetId(CU_STREAM_PER_THREAD, &raw mut id));
    env.fine("cuStreamGetId", code)?;
    Ok(id)
}

/// The per-thread streams of two threads.
pub(crate) fn two_threads(env: &Environment) -> Result<()> {
    let mine = CU_STREAM_PER_THREAD;
    let same = id_of_mine(env)? == elsewhere(env, id_of_mine)?;
    env.say("one and the same", yes(same));
    let pool = env.keeper(64 * MIB)?;
    env.only_reuse(pool, 0)?;
    let block = env.alloc(pool, 40 * MIB, mine)?;
    let raw = pool.expose_provenance();
    let gate = Gate::hold(env, mine)?;
    let fill = cu!(env, cuMemsetD8Async(block, 1, 4096, mine));
    env.fine("cuMemsetD8Async", fill)?;
    let query = elsewhere(env, |env| {
        Ok(name(cu!(env, cuStreamQuery(CU_STREAM_PER_THREAD))))
    })?;
    env.say("another's while this thread's is held", query);
    env.free(block, mine)?;
    let place = elsewhere(env, |env| {
        let pool = std::ptr::with_exposed_provenance_mut(raw);
        env.where_is(pool, 40 * MIB, CU_STREAM_PER_THREAD, block)
    })?;
    env.say("a block freed here, wanted there", place);
    gate.open();
    env.let_it_finish();
    let place = elsewhere(env, |env| {
        let pool = std::ptr::with_exposed_provenance_mut(raw);
        env.where_is(pool, 40 * MIB, CU_STREAM_PER_THREAD, block)
    })?;
    env.say("the same, let go", place);
    env.synchronise(mine)?;
    let place = env.where_is(pool, 40 * MIB, mine, block)?;
    env.say("and here after a synchronise", place);
    let block = env.alloc(pool, 40 * MIB, mine)?;
    let freed = elsewhere(env, |env| {
        Ok(name(cu!(env, cuMemFreeAsync(block, CU_STREAM_PER_THREAD))))
    })?;
    env.say("freed on another's", freed);
    env.say("used then", format!("{} B", env.used(pool)?));
    env.say(
        "wanted again on this thread's",
        env.where_is(pool, 40 * MIB, mine, block)?,
    );
    env.say(
        "wanted again on the legacy stream",
        env.where_is(pool, 40 * MIB, CU_STREAM_LEGACY, block)?,
    );
    env.synchronise(mine)?;
    env.say(
        "and after a synchronise of this thread's",
        env.where_is(pool, 40 * MIB, mine, block)?,
    );
    env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
    env.say(
        "and of the context",
        env.where_is(pool, 40 * MIB, mine, block)?,
    );
    Ok(())
}

/// What a thread freed on its own stream, while it lives and when it has ended.
pub(crate) fn ended_thread(env: &Environment) -> Result<()> {
    let mine = CU_STREAM_PER_THREAD;
    for held in [false, true] {
        let pool = env.keeper(64 * MIB)?;
        env.only_reuse(pool, 0)?;
        let block = env.alloc(pool, 40 * MIB, mine)?;
        env.synchronise(mine)?;
        let (table, context) = (env.table, env.context().expose_provenance());
        let (done, wait_for_done) = std::sync::mpsc::channel();
        let (end, wait_for_end) = std::sync::mpsc::channel::<()>();
        let part = if held { "held: " } else { "" };
        let gate = std::thread::scope(|scope| {
            scope.spawn(move || {
                let env = Environment::new(table, "another thread");
                let work = || -> Result<Option<Gate>> {
                    env.current(std::ptr::with_exposed_provenance_mut(context))?;
                    let gate = if held {
                        Some(Gate::hold(&env, CU_STREAM_PER_THREAD)?)
                    } else {
                        None
                    };
                    env.free(block, CU_STREAM_PER_THREAD)?;
                    Ok(gate)
                };
                // The receiver may have given up.
                let _ = done.send(work());
                let _ = wait_for_end.recv();
            });
            let gate = wait_for_done.recv()??;
            env.let_it_finish();
            let place = env.where_is(pool, 40 * MIB, mine, block)?;
            env.say(format!("{part}the thread lives"), place);
            let _ = end.send(());
            Ok::<_, anyhow::Error>(gate)
        })?;
        env.let_it_finish();
        let place = env.where_is(pool, 40 * MIB, mine, block)?;
        env.say(format!("{part}the thread has ended"), place);
        if let Some(gate) = gate {
            gate.open();
            env.let_it_finish();
            let place = env.where_is(pool, 40 * MIB, mine, block)?;
            env.say(format!("{part}and its stream was let go"), place);
        }
        env.end_pool(pool)?;
    }
    Ok(())
}

/// Reuse between the default streams: each of the pairs that the driver itself puts in order.
pub(crate) fn reuse(env: &Environment) -> Result<()> {
    let blocking = env.stream_with(0)?;
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
            let pool = env.keeper(64 * MIB)?;
            env.only_reuse(pool, 1)?;
            let block = env.alloc(pool, 40 * MIB, first)?;
            let gate = Gate::hold(env, first)?;
            env.free(block, first)?;
            let place = env.where_is(pool, 40 * MIB, second, block)?;
            env.say(format!("freed on {freed_on}, wanted on {wanted_on}"), place);
            gate.open();
            env.end_pool(pool)?;
        }
    }
    Ok(())
}

/// Memory of `cuMemAlloc`, freed in stream order.
pub(crate) fn plain_memory(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    let start = env.device_free()?;
    let missing = || -> Result<String> { Ok(size(start.saturating_sub(env.device_free()?))) };
    let known = |address| {
        let mut value = 0_u64;
        let place = (&raw mut value).cast::<c_void>();
        let id = CUpointer_attribute(2);
        name(cu!(env, cuPointerGetAttribute(place, id, address)))
    };
    let plain = env.plain(64 << 20)?;
    let gate = Gate::hold(env, stream)?;
    env.code("held, free", cu!(env, cuMemFreeAsync(plain, stream)));
    env.say("held, the device misses", missing()?);
    env.say("held, its type", known(plain));
    env.synchronise(other)?;
    env.say("held, another stream synchronised", missing()?);
    gate.open();
    env.let_it_finish();
    env.say("let go, the device misses", missing()?);
    env.say("let go, its type", known(plain));
    let code = cu!(env, cuStreamQuery(stream));
    env.say("after a query", format!("{}, {}", name(code), missing()?));
    env.synchronise(other)?;
    env.say("another stream synchronised", missing()?);
    env.synchronise(stream)?;
    env.say("synchronised", missing()?);
    for (part, stream) in streams() {
        let plain = env.plain(64 << 20)?;
        env.code(part, cu!(env, cuMemFreeAsync(plain, stream)));
        env.say(format!("{part}, the device misses"), missing()?);
        env.synchronise(stream)?;
        env.say(format!("{part}, synchronised"), missing()?);
    }
    Ok(())
}

/// Frees in stream order that are wrong, each in a process of its own.
pub(crate) fn wrong_frees(env: &Environment) -> Result<()> {
    for (number, part) in [
        "an address inside",
        "pinned memory",
        "held, a memset after the free",
    ]
    .iter()
    .enumerate()
    {
        env.alone(part, || {
            let (stream, plain) = (env.stream()?, env.plain(64 << 20)?);
            let code = match number {
                0 => cu!(env, cuMemFreeAsync(plain + 512, stream)),
                1 => {
                    let pinned = env.pinned(4096)?.expose_provenance() as u64;
                    cu!(env, cuMemFreeAsync(pinned, stream))
                }
                _ => {
                    let _gate = Gate::hold(env, stream)?;
                    env.fine("cuMemFreeAsync", cu!(env, cuMemFreeAsync(plain, stream)))?;
                    cu!(env, cuMemsetD8Async(plain, 1, 64, stream))
                }
            };
            env.synchronise(stream)?;
            Ok(name(code))
        });
    }
    Ok(())
}
