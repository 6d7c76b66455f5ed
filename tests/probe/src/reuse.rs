//! When freed memory serves another stream. The pools hold at most 64 MiB, so that a second block
//! of 40 MiB fits only where the first was.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, cu, name, yes};
use crate::gate::Gate;

const BLOCK: u64 = 40 * MIB;
const FLAGS: [&str; 4] = [
    "none",
    "follow events",
    "opportunistic",
    "internal dependencies",
];

fn small(env: &Environment, flag: u32) -> Result<CUmemoryPool> {
    let pool = env.keeper(64 * MIB)?;
    env.only_reuse(pool, flag)?;
    Ok(pool)
}

/// One block freed on stream A, which is held.
#[derive(Clone, Copy, PartialEq)]
enum Case {
    Pending,
    AfterEvent,
    Finished,
    Synchronised,
}

const CASES: [(Case, &str); 4] = [
    (Case::Pending, "pending, no edge"),
    (Case::AfterEvent, "pending, after the event"),
    (Case::Finished, "finished, not seen"),
    (Case::Synchronised, "synchronised"),
];

pub(crate) fn matrix(env: &Environment) -> Result<()> {
    for (flag, what) in FLAGS.iter().enumerate() {
        for (case, when) in CASES {
            let answer = one(env, flag as u32, case)?;
            env.say(format!("{what} / {when}"), answer);
        }
    }
    Ok(())
}

fn one(env: &Environment, flag: u32, case: Case) -> Result<String> {
    let pool = small(env, flag)?;
    let (a, b, event) = (env.stream()?, env.stream()?, env.event()?);
    let gate = Gate::hold(env, a)?;
    let block = env.alloc(pool, BLOCK, a)?;
    env.free(block, a)?;
    env.record(event, a)?;
    match case {
        Case::Pending => {}
        Case::AfterEvent => {
            env.fine(
                "cuStreamWaitEvent",
                cu!(env, cuStreamWaitEvent(b, event, 0)),
            )?;
        }
        Case::Finished | Case::Synchronised => gate.open(),
    }
    if case == Case::Finished {
        env.let_it_finish();
    }
    if case == Case::Synchronised {
        env.synchronise(a)?;
    }
    let answer = env.where_is(pool, BLOCK, b, block)?;
    let busy = match case {
        Case::Pending | Case::AfterEvent => {
            format!(", the stream answers {}", name(cu!(env, cuStreamQuery(b))))
        }
        Case::Finished | Case::Synchronised => String::new(),
    };
    gate.open();
    env.end_pool(pool)?;
    Ok(format!("{answer}{busy}"))
}

pub(crate) fn same_stream(env: &Environment) -> Result<()> {
    let pool = small(env, 0)?;
    let a = env.stream()?;
    let gate = Gate::hold(env, a)?;
    let block = env.alloc(pool, BLOCK, a)?;
    env.free(block, a)?;
    env.say("held", env.where_is(pool, BLOCK, a, block)?);
    env.say("reserved", env.reserved(pool)?);
    gate.open();
    env.end_pool(pool)
}

/// A frees, B waits for A, C waits for B.
pub(crate) fn transitive(env: &Environment) -> Result<()> {
    let pool = small(env, 1)?;
    let (a, b, c) = (env.stream()?, env.stream()?, env.stream()?);
    let gate = Gate::hold(env, a)?;
    let block = env.alloc(pool, BLOCK, a)?;
    env.free(block, a)?;
    env.order(b, a)?;
    env.order(c, b)?;
    env.say("C after B after A", env.where_is(pool, BLOCK, c, block)?);
    gate.open();
    env.end_pool(pool)?;

    let pool = small(env, 1)?;
    let gate = Gate::hold(env, a)?;
    let block = env.alloc(pool, BLOCK, a)?;
    env.free(block, a)?;
    env.order(b, a)?;
    let event = env.event()?;
    env.record(event, b)?;
    env.fine(
        "cuStreamWaitEvent",
        cu!(env, cuStreamWaitEvent(c, event, 0)),
    )?;
    env.say("event recorded in B", env.where_is(pool, BLOCK, c, block)?);
    gate.open();
    env.end_pool(pool)
}

pub(crate) fn event_before_the_free(env: &Environment) -> Result<()> {
    let pool = small(env, 1)?;
    let (a, b) = (env.stream()?, env.stream()?);
    let gate = Gate::hold(env, a)?;
    let block = env.alloc(pool, BLOCK, a)?;
    env.order(b, a)?;
    env.free(block, a)?;
    env.say("pending", env.where_is(pool, BLOCK, b, block)?);
    gate.open();
    env.let_it_finish();
    env.say("finished", env.where_is(pool, BLOCK, b, block)?);
    env.end_pool(pool)
}

/// A is destroyed after its free ran.
pub(crate) fn destroyed_stream(env: &Environment) -> Result<()> {
    for flag in [0, 2] {
        let pool = small(env, flag)?;
        let (a, b) = (env.stream()?, env.stream()?);
        let block = env.alloc(pool, BLOCK, a)?;
        env.free(block, a)?;
        env.let_it_finish();
        env.fine("cuStreamDestroy", cu!(env, cuStreamDestroy_v2(a)))?;
        let what = FLAGS[flag as usize];
        let say = |when: &str| -> Result<()> {
            env.say(
                format!("{what}, {when}"),
                env.where_is(pool, BLOCK, b, block)?,
            );
            Ok(())
        };
        say("at once")?;
        env.let_it_finish();
        say("later")?;
        env.synchronise(b)?;
        say("after a synchronise of the other stream")?;
        env.trim(pool, 0)?;
        env.say(
            format!("{what}, reserved after a trim"),
            env.reserved(pool)?,
        );
        env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
        say("after a synchronise of the context")?;
        env.end_pool(pool)?;
    }
    Ok(())
}

/// A is destroyed while it is held.
pub(crate) fn destroyed_with_work(env: &Environment) -> Result<()> {
    for threshold in [u64::MAX, 0] {
        let pool = small(env, 0)?;
        env.set(pool, 4, threshold)?;
        let (a, b) = (env.stream()?, env.stream()?);
        let gate = Gate::hold(env, a)?;
        let block = env.alloc(pool, BLOCK, a)?;
        env.free(block, a)?;
        env.fine("cuStreamDestroy", cu!(env, cuStreamDestroy_v2(a)))?;
        let kind = if threshold == 0 {
            "threshold 0"
        } else {
            "no threshold"
        };
        let say = |when: &str| -> Result<()> {
            let reserved = env.reserved(pool)?;
            let place = env.where_is(pool, BLOCK, b, block)?;
            env.say(
                format!("{kind}, {when}"),
                format!("{place}, reserved {reserved}"),
            );
            Ok(())
        };
        say("held")?;
        gate.open();
        env.let_it_finish();
        say("finished")?;
        env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
        say("after a synchronise of the context")?;
        env.end_pool(pool)?;
    }
    Ok(())
}

/// The pool could grow: does the stream wait, or does the pool grow?
pub(crate) fn room_to_grow(env: &Environment) -> Result<()> {
    for flag in [3, 2, 1, 0] {
        let pool = env.keeper(0)?;
        env.only_reuse(pool, flag)?;
        let (a, b) = (env.stream()?, env.stream()?);
        let gate = Gate::hold(env, a)?;
        let block = env.alloc(pool, BLOCK, a)?;
        env.free(block, a)?;
        let answer = env.where_is(pool, BLOCK, b, block)?;
        let busy = cu!(env, cuStreamQuery(b));
        let reserved = env.reserved(pool)?;
        env.say(
            FLAGS[flag as usize],
            format!(
                "{answer}, the stream answers {}, reserved {reserved}",
                name(busy)
            ),
        );
        gate.open();
        env.end_pool(pool)?;
    }
    Ok(())
}

/// Two blocks of 30 MiB side by side, freed by two streams.
pub(crate) fn neighbours(env: &Environment) -> Result<()> {
    for (part, seen_first, seen_second) in [
        ("none seen", false, false),
        ("the other's seen", false, true),
        ("the own seen", true, false),
        ("both seen", true, true),
    ] {
        let pool = small(env, 0)?;
        let (a, b) = (env.stream()?, env.stream()?);
        let first = env.alloc(pool, 30 * MIB, a)?;
        let second = env.alloc(pool, 30 * MIB, b)?;
        env.free(first, a)?;
        env.free(second, b)?;
        if seen_first {
            env.synchronise(a)?;
        }
        if seen_second {
            env.synchronise(b)?;
        }
        let lower = first.min(second);
        env.say(part, env.where_is(pool, 60 * MIB, a, lower)?);
        env.end_pool(pool)?;
    }
    // The same by one stream: two pending frees side by side.
    let pool = small(env, 0)?;
    let a = env.stream()?;
    let gate = Gate::hold(env, a)?;
    let first = env.alloc(pool, 30 * MIB, a)?;
    let second = env.alloc(pool, 30 * MIB, a)?;
    env.free(first, a)?;
    env.free(second, a)?;
    env.say(
        "one stream, pending",
        env.where_is(pool, 60 * MIB, a, first.min(second))?,
    );
    gate.open();
    env.end_pool(pool)
}

/// `cuMemFree` of a block that the host has waited for, and of one in use by nobody.
pub(crate) fn freed_by_the_host(env: &Environment) -> Result<()> {
    for seen in [true, false] {
        let pool = small(env, 0)?;
        let (a, b) = (env.stream()?, env.stream()?);
        let block = env.alloc(pool, BLOCK, a)?;
        if seen {
            env.synchronise(a)?;
        }
        env.fine("cuMemFree", cu!(env, cuMemFree_v2(block)))?;
        let part = if seen {
            "synchronised"
        } else {
            "not synchronised"
        };
        let used = || -> Result<String> { Ok(format!("{} B", env.used(pool)?)) };
        env.say(format!("{part}: used"), used()?);
        let small = env.alloc(pool, 1000, b)?;
        env.say(format!("{part}: used with 1000 B more"), used()?);
        env.free(small, b)?;
        env.say(format!("{part}: used with these freed"), used()?);
        env.synchronise(b)?;
        env.say(
            format!("{part}: used after a synchronise of the other stream"),
            used()?,
        );
        env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
        env.say(
            format!("{part}: used after a synchronise of the context"),
            used()?,
        );
        env.say(
            format!("{part}: another stream"),
            env.where_is(pool, BLOCK, b, block)?,
        );
        env.say(
            format!("{part}: the same stream"),
            env.where_is(pool, BLOCK, a, block)?,
        );
        env.end_pool(pool)?;
    }
    Ok(())
}

/// The order between the legacy stream and blocking streams is no event.
pub(crate) fn legacy_stream(env: &Environment) -> Result<()> {
    for flag in [0, 1] {
        let pool = small(env, flag)?;
        let blocking = env.stream_with(0)?;
        let gate = Gate::hold(env, blocking)?;
        let block = env.alloc(pool, BLOCK, blocking)?;
        env.free(block, blocking)?;
        let null = std::ptr::null_mut();
        let answer = env.where_is(pool, BLOCK, null, block)?;
        env.say(
            format!("{}, legacy after blocking", FLAGS[flag as usize]),
            answer,
        );
        gate.open();
        env.end_pool(pool)?;
        let pool = small(env, flag)?;
        let block = env.alloc(pool, BLOCK, null)?;
        env.free(block, null)?;
        let answer = env.where_is(pool, BLOCK, CU_STREAM_LEGACY, block)?;
        env.say(format!("{}, null and legacy", FLAGS[flag as usize]), answer);
        let mut same = [0; 2];
        for (stream, id) in [null, CU_STREAM_LEGACY].into_iter().zip(&mut same) {
            env.fine("cuStreamGetId", cu!(env, cuStreamGetId(stream, id)))?;
        }
        env.say(
            format!("{}, one stream", FLAGS[flag as usize]),
            yes(same[0] == same[1]),
        );
        env.end_pool(pool)?;
    }
    Ok(())
}
