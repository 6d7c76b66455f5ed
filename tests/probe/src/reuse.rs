//! When freed memory serves another stream. The pools hold at most 64 MiB, so that a second block
//! of 40 MiB fits only where the first was.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::Gate;
use crate::lab::{Lab, MIB, cu, name, yes};

const BLOCK: u64 = 40 * MIB;
const FLAGS: [&str; 4] = [
    "none",
    "follow events",
    "opportunistic",
    "internal dependencies",
];

fn small(lab: &Lab, flag: u32) -> Result<CUmemoryPool> {
    let pool = lab.keeper(64 * MIB)?;
    lab.only_reuse(pool, flag)?;
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

pub(crate) fn matrix(lab: &Lab) -> Result<()> {
    for (flag, what) in FLAGS.iter().enumerate() {
        for (case, when) in CASES {
            let answer = one(lab, flag as u32, case)?;
            lab.say(format!("{what} / {when}"), answer);
        }
    }
    Ok(())
}

fn one(lab: &Lab, flag: u32, case: Case) -> Result<String> {
    let pool = small(lab, flag)?;
    let (a, b, event) = (lab.stream()?, lab.stream()?, lab.event()?);
    let gate = Gate::hold(lab, a)?;
    let block = lab.alloc(pool, BLOCK, a)?;
    lab.free(block, a)?;
    lab.record(event, a)?;
    match case {
        Case::Pending => {}
        Case::AfterEvent => {
            lab.fine(
                "cuStreamWaitEvent",
                cu!(lab, cuStreamWaitEvent(b, event, 0)),
            )?;
        }
        Case::Finished | Case::Synchronised => gate.open(),
    }
    if case == Case::Finished {
        lab.let_it_finish();
    }
    if case == Case::Synchronised {
        lab.synchronise(a)?;
    }
    let answer = lab.where_is(pool, BLOCK, b, block)?;
    let busy = match case {
        Case::Pending | Case::AfterEvent => {
            format!(", the stream answers {}", name(cu!(lab, cuStreamQuery(b))))
        }
        Case::Finished | Case::Synchronised => String::new(),
    };
    gate.open();
    lab.end_pool(pool)?;
    Ok(format!("{answer}{busy}"))
}

pub(crate) fn same_stream(lab: &Lab) -> Result<()> {
    let pool = small(lab, 0)?;
    let a = lab.stream()?;
    let gate = Gate::hold(lab, a)?;
    let block = lab.alloc(pool, BLOCK, a)?;
    lab.free(block, a)?;
    lab.say("held", lab.where_is(pool, BLOCK, a, block)?);
    lab.say("reserved", lab.reserved(pool)?);
    gate.open();
    lab.end_pool(pool)
}

/// A frees, B waits for A, C waits for B.
pub(crate) fn transitive(lab: &Lab) -> Result<()> {
    let pool = small(lab, 1)?;
    let (a, b, c) = (lab.stream()?, lab.stream()?, lab.stream()?);
    let gate = Gate::hold(lab, a)?;
    let block = lab.alloc(pool, BLOCK, a)?;
    lab.free(block, a)?;
    lab.order(b, a)?;
    lab.order(c, b)?;
    lab.say("C after B after A", lab.where_is(pool, BLOCK, c, block)?);
    gate.open();
    lab.end_pool(pool)?;

    let pool = small(lab, 1)?;
    let gate = Gate::hold(lab, a)?;
    let block = lab.alloc(pool, BLOCK, a)?;
    lab.free(block, a)?;
    lab.order(b, a)?;
    let event = lab.event()?;
    lab.record(event, b)?;
    lab.fine(
        "cuStreamWaitEvent",
        cu!(lab, cuStreamWaitEvent(c, event, 0)),
    )?;
    lab.say("event recorded in B", lab.where_is(pool, BLOCK, c, block)?);
    gate.open();
    lab.end_pool(pool)
}

pub(crate) fn event_before_the_free(lab: &Lab) -> Result<()> {
    let pool = small(lab, 1)?;
    let (a, b) = (lab.stream()?, lab.stream()?);
    let gate = Gate::hold(lab, a)?;
    let block = lab.alloc(pool, BLOCK, a)?;
    lab.order(b, a)?;
    lab.free(block, a)?;
    lab.say("pending", lab.where_is(pool, BLOCK, b, block)?);
    gate.open();
    lab.let_it_finish();
    lab.say("finished", lab.where_is(pool, BLOCK, b, block)?);
    lab.end_pool(pool)
}

/// A is destroyed after its free ran.
pub(crate) fn destroyed_stream(lab: &Lab) -> Result<()> {
    for flag in [0, 2] {
        let pool = small(lab, flag)?;
        let (a, b) = (lab.stream()?, lab.stream()?);
        let block = lab.alloc(pool, BLOCK, a)?;
        lab.free(block, a)?;
        lab.let_it_finish();
        lab.fine("cuStreamDestroy", cu!(lab, cuStreamDestroy_v2(a)))?;
        let what = FLAGS[flag as usize];
        let say = |when: &str| -> Result<()> {
            lab.say(
                format!("{what}, {when}"),
                lab.where_is(pool, BLOCK, b, block)?,
            );
            Ok(())
        };
        say("at once")?;
        lab.let_it_finish();
        say("later")?;
        lab.synchronise(b)?;
        say("after a synchronise of the other stream")?;
        lab.trim(pool, 0)?;
        lab.say(
            format!("{what}, reserved after a trim"),
            lab.reserved(pool)?,
        );
        lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))?;
        say("after a synchronise of the context")?;
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// A is destroyed while it is held.
pub(crate) fn destroyed_with_work(lab: &Lab) -> Result<()> {
    for threshold in [u64::MAX, 0] {
        let pool = small(lab, 0)?;
        lab.set(pool, 4, threshold)?;
        let (a, b) = (lab.stream()?, lab.stream()?);
        let gate = Gate::hold(lab, a)?;
        let block = lab.alloc(pool, BLOCK, a)?;
        lab.free(block, a)?;
        lab.fine("cuStreamDestroy", cu!(lab, cuStreamDestroy_v2(a)))?;
        let kind = if threshold == 0 {
            "threshold 0"
        } else {
            "no threshold"
        };
        let say = |when: &str| -> Result<()> {
            let reserved = lab.reserved(pool)?;
            let place = lab.where_is(pool, BLOCK, b, block)?;
            lab.say(
                format!("{kind}, {when}"),
                format!("{place}, reserved {reserved}"),
            );
            Ok(())
        };
        say("held")?;
        gate.open();
        lab.let_it_finish();
        say("finished")?;
        lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))?;
        say("after a synchronise of the context")?;
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// The pool could grow: does the stream wait, or does the pool grow?
pub(crate) fn room_to_grow(lab: &Lab) -> Result<()> {
    for flag in [3, 2, 1, 0] {
        let pool = lab.keeper(0)?;
        lab.only_reuse(pool, flag)?;
        let (a, b) = (lab.stream()?, lab.stream()?);
        let gate = Gate::hold(lab, a)?;
        let block = lab.alloc(pool, BLOCK, a)?;
        lab.free(block, a)?;
        let answer = lab.where_is(pool, BLOCK, b, block)?;
        let busy = cu!(lab, cuStreamQuery(b));
        let reserved = lab.reserved(pool)?;
        lab.say(
            FLAGS[flag as usize],
            format!(
                "{answer}, the stream answers {}, reserved {reserved}",
                name(busy)
            ),
        );
        gate.open();
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// Two blocks of 30 MiB side by side, freed by two streams.
pub(crate) fn neighbours(lab: &Lab) -> Result<()> {
    for (part, seen_first, seen_second) in [
        ("none seen", false, false),
        ("the other's seen", false, true),
        ("the own seen", true, false),
        ("both seen", true, true),
    ] {
        let pool = small(lab, 0)?;
        let (a, b) = (lab.stream()?, lab.stream()?);
        let first = lab.alloc(pool, 30 * MIB, a)?;
        let second = lab.alloc(pool, 30 * MIB, b)?;
        lab.free(first, a)?;
        lab.free(second, b)?;
        if seen_first {
            lab.synchronise(a)?;
        }
        if seen_second {
            lab.synchronise(b)?;
        }
        let lower = first.min(second);
        lab.say(part, lab.where_is(pool, 60 * MIB, a, lower)?);
        lab.end_pool(pool)?;
    }
    // The same by one stream: two pending frees side by side.
    let pool = small(lab, 0)?;
    let a = lab.stream()?;
    let gate = Gate::hold(lab, a)?;
    let first = lab.alloc(pool, 30 * MIB, a)?;
    let second = lab.alloc(pool, 30 * MIB, a)?;
    lab.free(first, a)?;
    lab.free(second, a)?;
    lab.say(
        "one stream, pending",
        lab.where_is(pool, 60 * MIB, a, first.min(second))?,
    );
    gate.open();
    lab.end_pool(pool)
}

/// `cuMemFree` of a block that the host has waited for, and of one in use by nobody.
pub(crate) fn freed_by_the_host(lab: &Lab) -> Result<()> {
    for seen in [true, false] {
        let pool = small(lab, 0)?;
        let (a, b) = (lab.stream()?, lab.stream()?);
        let block = lab.alloc(pool, BLOCK, a)?;
        if seen {
            lab.synchronise(a)?;
        }
        lab.fine("cuMemFree", cu!(lab, cuMemFree_v2(block)))?;
        let part = if seen {
            "synchronised"
        } else {
            "not synchronised"
        };
        let used = || -> Result<String> { Ok(format!("{} B", lab.used(pool)?)) };
        lab.say(format!("{part}: used"), used()?);
        let small = lab.alloc(pool, 1000, b)?;
        lab.say(format!("{part}: used with 1000 B more"), used()?);
        lab.free(small, b)?;
        lab.say(format!("{part}: used with these freed"), used()?);
        lab.synchronise(b)?;
        lab.say(
            format!("{part}: used after a synchronise of the other stream"),
            used()?,
        );
        lab.fine("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()))?;
        lab.say(
            format!("{part}: used after a synchronise of the context"),
            used()?,
        );
        lab.say(
            format!("{part}: another stream"),
            lab.where_is(pool, BLOCK, b, block)?,
        );
        lab.say(
            format!("{part}: the same stream"),
            lab.where_is(pool, BLOCK, a, block)?,
        );
        lab.end_pool(pool)?;
    }
    Ok(())
}

/// The order between the legacy stream and blocking streams is no event.
pub(crate) fn legacy_stream(lab: &Lab) -> Result<()> {
    for flag in [0, 1] {
        let pool = small(lab, flag)?;
        let blocking = lab.stream_with(0)?;
        let gate = Gate::hold(lab, blocking)?;
        let block = lab.alloc(pool, BLOCK, blocking)?;
        lab.free(block, blocking)?;
        let null = std::ptr::null_mut();
        let answer = lab.where_is(pool, BLOCK, null, block)?;
        lab.say(
            format!("{}, legacy after blocking", FLAGS[flag as usize]),
            answer,
        );
        gate.open();
        lab.end_pool(pool)?;
        let pool = small(lab, flag)?;
        let block = lab.alloc(pool, BLOCK, null)?;
        lab.free(block, null)?;
        let answer = lab.where_is(pool, BLOCK, CU_STREAM_LEGACY, block)?;
        lab.say(format!("{}, null and legacy", FLAGS[flag as usize]), answer);
        let mut same = [0; 2];
        for (stream, id) in [null, CU_STREAM_LEGACY].into_iter().zip(&mut same) {
            lab.fine("cuStreamGetId", cu!(lab, cuStreamGetId(stream, id)))?;
        }
        lab.say(
            format!("{}, one stream", FLAGS[flag as usize]),
            yes(same[0] == same[1]),
        );
        lab.end_pool(pool)?;
    }
    Ok(())
}
