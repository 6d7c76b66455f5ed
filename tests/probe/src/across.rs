//! Two devices: work of one on memory of the other. Nothing is asked where there is one device.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, size};
use crate::gate::{Gate, while_held};
use crate::two::{
    Two, access_of, and_synchronise, apart, arrived, attribute, pool_at, set_access, wish,
};

const LEN: usize = 4096;

/// Copies between blocks of the two devices; each access and current context in its own process.
pub(crate) fn copies(env: &Environment) -> Result<()> {
    for (given, access) in [
        ("no access", [0, 0]),
        ("the first may", [0, 3]),
        ("both may", [3, 3]),
    ] {
        for (from, current) in [("0", Some(0)), ("1", Some(1)), ("none", None)] {
            // Without access and without a context the driver crashes: that is asked below.
            if current.is_none() && access != [3, 3] {
                continue;
            }
            let part = format!("{given}, context {from}");
            apart(env, &part, |two| {
                let pools = [pool_at(env, 1, 0, 0)?, pool_at(env, 1, 1, 0)?];
                // `access` is that of the other device to the pools of the first and the second.
                for (pool, other, flags) in [(0, 1, access[0]), (1, 0, access[1])] {
                    let code = set_access(env, pools[pool], &[wish(1, other, flags)]);
                    env.fine("cuMemPoolSetAccess", code)?;
                }
                let blocks = [
                    two.block(env, pools[0], 0, LEN as u64, 1)?,
                    two.block(env, pools[1], 1, LEN as u64, 1)?,
                ];
                each_copy(env, two, &part, blocks, current)
            });
        }
    }
    Ok(())
}

/// Without a current context and without access, each in its own process.
pub(crate) fn without_context(env: &Environment) -> Result<()> {
    for (given, access) in [("no access", 0), ("the first may", 3)] {
        for (number, what) in ["cuMemcpyDtoDAsync", "cuMemcpyAsync", "cuMemcpyPeerAsync"]
            .iter()
            .enumerate()
        {
            for stream in [0, 1] {
                let part = format!("{what} on the stream of {stream}, {given}");
                apart(env, &part, |two| {
                    let pools = [pool_at(env, 1, 0, 0)?, pool_at(env, 1, 1, 0)?];
                    let code = set_access(env, pools[1], &[wish(1, 0, access)]);
                    env.fine("cuMemPoolSetAccess", code)?;
                    let to = two.block(env, pools[0], 0, LEN as u64, 1)?;
                    let from = two.block(env, pools[1], 1, LEN as u64, 2)?;
                    two.enter(env, None)?;
                    let queue = two.streams[stream];
                    let [there, here] = two.contexts;
                    let code = match number {
                        0 => cu!(env, cuMemcpyDtoDAsync_v2(to, from, LEN, queue)),
                        1 => cu!(env, cuMemcpyAsync(to, from, LEN, queue)),
                        _ => cu!(env, cuMemcpyPeerAsync(to, there, from, here, LEN, queue)),
                    };
                    let answer = and_synchronise(env, code, queue);
                    let there = answer == "SUCCESS" && two.holds(env, to, 0, LEN, 2)?;
                    env.say(&part, arrived(&answer, there));
                    Ok(())
                });
            }
        }
    }
    Ok(())
}

/// Copies between devices that name other contexts than those of the memory.
pub(crate) fn contexts_of_copies(env: &Environment) -> Result<()> {
    for (part, to_context, from_context) in [
        ("swapped", Some(1), Some(0)),
        ("both the first", Some(0), Some(0)),
        ("both the second", Some(1), Some(1)),
        ("none", None, None),
    ] {
        for (what, waits) in [("cuMemcpyPeerAsync", false), ("cuMemcpyPeer", true)] {
            let part = format!("{what}, {part}");
            apart(env, &part, |two| {
                let pools = [pool_at(env, 1, 0, 0)?, pool_at(env, 1, 1, 0)?];
                let to = two.block(env, pools[0], 0, LEN as u64, 1)?;
                let from = two.block(env, pools[1], 1, LEN as u64, 2)?;
                two.enter(env, Some(0))?;
                let handle = |which: Option<usize>| {
                    which.map_or(std::ptr::null_mut(), |which| two.contexts[which])
                };
                let (there, here) = (handle(to_context), handle(from_context));
                let queue = two.streams[0];
                let code = if waits {
                    cu!(env, cuMemcpyPeer(to, there, from, here, LEN))
                } else {
                    cu!(env, cuMemcpyPeerAsync(to, there, from, here, LEN, queue))
                };
                let queue = if waits { CU_STREAM_LEGACY } else { queue };
                let answer = and_synchronise(env, code, queue);
                let there = answer == "SUCCESS" && two.holds(env, to, 0, LEN, 2)?;
                env.say(&part, arrived(&answer, there));
                Ok(())
            });
        }
    }
    Ok(())
}

/// The same of memory of `cuMemAlloc`, of which nobody gave access.
pub(crate) fn copies_of_plain_memory(env: &Environment) -> Result<()> {
    for (from, current) in [("0", Some(0)), ("1", Some(1)), ("none", None)] {
        let part = format!("context {from}");
        apart(env, &part, |two| {
            two.enter(env, Some(0))?;
            let first = env.plain(LEN)?;
            two.enter(env, Some(1))?;
            let blocks = [first, env.plain(LEN)?];
            each_copy(env, two, &part, blocks, current)
        });
    }
    Ok(())
}

fn each_copy(
    env: &Environment,
    two: &Two,
    part: &str,
    blocks: [CUdeviceptr; 2],
    current: Option<usize>,
) -> Result<()> {
    let mut byte = 10;
    for (to, from) in [(0, 1), (1, 0)] {
        for (number, what) in [
            "cuMemcpyDtoDAsync",
            "cuMemcpyAsync",
            "cuMemcpyPeerAsync",
            "cuMemcpyPeer",
            "cuMemcpyDtoD",
            "cuMemcpy",
        ]
        .iter()
        .enumerate()
        {
            for stream in [0, 1] {
                if number > 2 && stream == 1 {
                    continue;
                }
                byte += 1;
                two.fill(env, blocks[from], from, LEN as u64, byte)?;
                two.fill(env, blocks[to], to, LEN as u64, 0)?;
                two.enter(env, current)?;
                let queue = two.streams[stream];
                let (target, source) = (blocks[to], blocks[from]);
                let (there, here) = (two.contexts[to], two.contexts[from]);
                let code = match number {
                    0 => cu!(env, cuMemcpyDtoDAsync_v2(target, source, LEN, queue)),
                    1 => cu!(env, cuMemcpyAsync(target, source, LEN, queue)),
                    2 => cu!(
                        env,
                        cuMemcpyPeerAsync(target, there, source, here, LEN, queue)
                    ),
                    3 => cu!(env, cuMemcpyPeer(target, there, source, here, LEN)),
                    4 => cu!(env, cuMemcpyDtoD_v2(target, source, LEN)),
                    _ => cu!(env, cuMemcpy(target, source, LEN)),
                };
                let on = if number > 2 {
                    String::new()
                } else {
                    format!(" on the stream of {stream}")
                };
                let label = format!("{part}: {what} from {from} to {to}{on}");
                let queue = if number > 2 { CU_STREAM_LEGACY } else { queue };
                let answer = and_synchronise(env, code, queue);
                if code != OK || answer != "SUCCESS" {
                    env.say(label, &answer);
                    if answer.contains("then") {
                        return Ok(());
                    }
                    continue;
                }
                let there = two.holds(env, target, to, LEN, byte)?;
                env.say(label, arrived(&answer, there));
            }
        }
    }
    Ok(())
}

/// Fills and copies to and from the host, on a stream of the other device.
pub(crate) fn foreign_stream(env: &Environment) -> Result<()> {
    for (given, access) in [("no access", 0), ("access", 3)] {
        for (from, current) in [("0", Some(0)), ("1", Some(1)), ("none", None)] {
            for (number, what) in ["memset", "from the host", "to the host", "within the block"]
                .iter()
                .enumerate()
            {
                let part = format!("{what}, {given}, context {from}");
                apart(env, &part, |two| {
                    let pool = pool_at(env, 1, 1, 0)?;
                    let code = set_access(env, pool, &[wish(1, 0, access)]);
                    env.fine("cuMemPoolSetAccess", code)?;
                    let block = two.block(env, pool, 1, 2 * LEN as u64, 1)?;
                    two.enter(env, current)?;
                    let mut bytes = vec![7_u8; LEN];
                    let host = bytes.as_mut_ptr().cast::<c_void>();
                    let stream = two.streams[0];
                    let code = match number {
                        0 => cu!(env, cuMemsetD8Async(block, 7, LEN, stream)),
                        1 => cu!(env, cuMemcpyHtoDAsync_v2(block, host, LEN, stream)),
                        2 => cu!(env, cuMemcpyDtoHAsync_v2(host, block, LEN, stream)),
                        _ => {
                            let to = block + LEN as u64;
                            cu!(env, cuMemcpyDtoDAsync_v2(to, block, LEN, stream))
                        }
                    };
                    let answer = and_synchronise(env, code, stream);
                    let there = answer == "SUCCESS"
                        && match number {
                            0 | 1 => two.holds(env, block, 1, LEN, 7)?,
                            2 => bytes.iter().all(|byte| *byte == 1),
                            _ => two.holds(env, block + LEN as u64, 1, LEN, 1)?,
                        };
                    env.say(&part, arrived(&answer, there));
                    Ok(())
                });
            }
        }
    }
    Ok(())
}

/// Memory of a device allocated and freed on streams of the other.
pub(crate) fn allocations(env: &Environment) -> Result<()> {
    for (given, access) in [("no access", 0), ("access", 3)] {
        for (from, current) in [("0", Some(0)), ("1", Some(1)), ("none", None)] {
            let part = format!("{given}, context {from}");
            apart(env, &part, |two| {
                let pool = pool_at(env, 1, 1, 0)?;
                let code = set_access(env, pool, &[wish(1, 0, access)]);
                env.fine("cuMemPoolSetAccess", code)?;
                two.enter(env, current)?;
                let (code, block) = env.try_alloc(pool, MIB, two.streams[0]);
                env.code(format!("{part}: allocate"), code);
                let (code, device) = attribute(env, 9, block);
                env.say(
                    format!("{part}: its device"),
                    format!("{}, {device}", name(code)),
                );
                env.say(format!("{part}: used"), size(env.used(pool)?));
                env.synchronise(two.streams[0])?;
                let filled = cu!(env, cuMemsetD8Async(block, 1, LEN, two.streams[1]));
                env.say(
                    format!("{part}: filled by its device"),
                    and_synchronise(env, filled, two.streams[1]),
                );
                let (_, other) = env.try_alloc(pool, MIB, two.streams[0]);
                env.code(
                    format!("{part}: freed on the stream it came from"),
                    cu!(env, cuMemFreeAsync(other, two.streams[0])),
                );
                env.code(
                    format!("{part}: freed on the other stream"),
                    cu!(env, cuMemFreeAsync(block, two.streams[1])),
                );
                env.say(format!("{part}: reserved"), env.reserved(pool)?);
                env.synchronise(two.streams[0])?;
                env.say(format!("{part}: one synchronised"), env.reserved(pool)?);
                env.synchronise(two.streams[1])?;
                env.say(format!("{part}: both synchronised"), env.reserved(pool)?);
                let filled = cu!(env, cuMemsetD8Async(block, 1, LEN, two.streams[1]));
                env.code(format!("{part}: filled after the free"), filled);
                Ok(())
            });
        }
    }
    Ok(())
}

/// What synchronising one device says about frees on the streams of the other.
pub(crate) fn seen(env: &Environment) -> Result<()> {
    apart(env, "", |two| {
        let pool = pool_at(env, 1, 0, 0)?;
        for (part, freed_on, seen_by) in [
            ("freed on 0, stream of 1", 0, 1),
            ("freed on 1, stream of 0", 1, 0),
            ("freed on 0, context of 1", 0, 11),
            ("freed on 1, context of 0", 1, 10),
            ("freed on 1, context of 1", 1, 11),
        ] {
            let block = env.alloc(pool, 40 * MIB, two.streams[freed_on])?;
            env.free(block, two.streams[freed_on])?;
            if seen_by >= 10 {
                two.enter(env, Some(seen_by - 10))?;
                env.fine("cuCtxSynchronize", cu!(env, cuCtxSynchronize()))?;
            } else {
                env.synchronise(two.streams[seen_by])?;
            }
            env.say(format!("{part}, reserved"), env.reserved(pool)?);
            two.synchronise(env)?;
            env.say(format!("{part}, both streams"), env.reserved(pool)?);
        }
        Ok(())
    });
    Ok(())
}

/// Events and waits between the devices.
pub(crate) fn events(env: &Environment) -> Result<()> {
    apart(env, "", |two| {
        let [first, second] = two.streams;
        two.enter(env, Some(0))?;
        let event = env.event()?;
        for (part, current) in [("0", Some(0)), ("1", Some(1)), ("none", None)] {
            two.enter(env, current)?;
            let say = |what: &str, code| env.code(format!("context {part}: {what}"), code);
            say("record here", cu!(env, cuEventRecord(event, first)));
            say("wait there", cu!(env, cuStreamWaitEvent(second, event, 0)));
            say("record there", cu!(env, cuEventRecord(event, second)));
            two.synchronise(env)?;
            say("query", cu!(env, cuEventQuery(event)));
            say("synchronise", cu!(env, cuEventSynchronize(event)));
        }
        let gate = Gate::hold(env, first)?;
        env.record(event, first)?;
        env.code(
            "held, wait there",
            cu!(env, cuStreamWaitEvent(second, event, 0)),
        );
        env.code("held, the other stream", cu!(env, cuStreamQuery(second)));
        gate.open();
        env.code("let go", cu!(env, cuStreamSynchronize(second)));
        // Streams of two devices do not share a queue of host functions.
        let gate = Gate::hold(env, first)?;
        let other = Gate::hold(env, second);
        env.say(
            "host functions of two devices run at the same time",
            if other.is_ok() { "yes" } else { "no" },
        );
        drop(other);
        gate.open();
        two.synchronise(env)
    });
    Ok(())
}

/// What waits for the other device.
pub(crate) fn waits(env: &Environment) -> Result<()> {
    apart(env, "", |two| {
        let pools = [pool_at(env, 1, 0, 0)?, pool_at(env, 1, 1, 0)?];
        let blocks = [
            two.block(env, pools[0], 0, LEN as u64, 1)?,
            two.block(env, pools[1], 1, LEN as u64, 1)?,
        ];
        let held = two.streams[0];
        let say = |part: &str, (code, waited): (CUresult, &str)| {
            env.say(part, format!("{}, {waited}", name(code)));
        };
        let [first, second] = two.contexts;
        let [to, from] = blocks;
        let asked = while_held(env, held, || {
            cu!(env, cuMemcpyPeerAsync(to, first, from, second, LEN, held))
        })?;
        say("cuMemcpyPeerAsync on the held stream", asked);
        two.synchronise(env)?;
        let asked = while_held(env, held, || {
            cu!(env, cuMemcpyPeer(to, first, from, second, LEN))
        })?;
        say("cuMemcpyPeer, a free stream held", asked);
        two.enter(env, Some(0))?;
        let blocking = env.stream_with(0)?;
        let asked = while_held(env, blocking, || {
            cu!(env, cuMemcpyPeer(to, first, from, second, LEN))
        })?;
        say("cuMemcpyPeer, a blocking stream of 0 held", asked);
        let asked = while_held(env, held, || set_access(env, pools[0], &[wish(1, 1, 3)]))?;
        say("giving access while a stream is held", asked);
        let asked = while_held(env, held, || set_access(env, pools[0], &[wish(1, 1, 0)]))?;
        say("taking access while a stream is held", asked);
        two.enter(env, Some(1))?;
        let plain = env.plain(LEN)?;
        let asked = while_held(env, held, || cu!(env, cuMemFree_v2(plain)))?;
        say("cuMemFree of the other device's memory", asked);
        let plain = env.plain(64 << 20)?;
        let free = env.device_free()?;
        env.code(
            "its memory freed on a stream of the first",
            cu!(env, cuMemFreeAsync(plain, held)),
        );
        env.synchronise(held)?;
        let now = env.device_free()?;
        env.say("and given back", size(now.saturating_sub(free)));
        env.say("access is as before", access_of(env, pools[0], 1));
        Ok(())
    });
    Ok(())
}
