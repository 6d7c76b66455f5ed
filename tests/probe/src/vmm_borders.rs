//! Fills and copies from one mapping of the host's memory into the next.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, cu, size};
use crate::two::and_synchronise;
use crate::vmm::{STEP, allow, map, prop, reserve, try_create};
use crate::vmm_host::{HOST, NODE};

/// Copies and fills from one mapping into the next, with a context current.
pub(crate) fn mappings(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for (kind, place) in [("host", HOST), ("node", NODE), ("device", 1)] {
        let range = reserve(env, 2 * STEP)?;
        for at in [range, range + STEP] {
            let (code, handle) = try_create(env, STEP, &prop(place, 0), 0);
            env.fine("cuMemCreate", code)?;
            env.fine("cuMemMap", map(env, at, STEP, handle))?;
            env.fine("cuMemSetAccess", allow(env, (at, STEP), (1, 0), 3))?;
        }
        let mut bytes = vec![1_u8; 64];
        let (other, len) = (env.plain(64)?, bytes.len());
        let memory = bytes.as_mut_ptr().cast();
        let border = range + STEP - 16;
        let say = |what: &str, code: CUresult| {
            env.say(
                format!("{kind}, {what}"),
                and_synchronise(env, code, stream),
            );
        };
        say(
            "memset 8",
            cu!(env, cuMemsetD8Async(border, 1, len, stream)),
        );
        say(
            "memset 16",
            cu!(env, cuMemsetD16Async(border, 1, len / 2, stream)),
        );
        say(
            "memset 32",
            cu!(env, cuMemsetD32Async(border, 1, len / 4, stream)),
        );
        say(
            "memset of a MiB",
            cu!(
                env,
                cuMemsetD8Async(range + MIB, 1, 2 * MIB as usize, stream)
            ),
        );
        say(
            "memset within one",
            cu!(env, cuMemsetD8Async(range, 1, len, stream)),
        );
        say(
            "from there",
            cu!(env, cuMemcpyDtoDAsync_v2(other, border, len, stream)),
        );
        say(
            "to there",
            cu!(env, cuMemcpyDtoDAsync_v2(border, other, len, stream)),
        );
        say(
            "by address, to there",
            cu!(env, cuMemcpyAsync(border, other, len, stream)),
        );
        say(
            "by address, from there",
            cu!(env, cuMemcpyAsync(other, border, len, stream)),
        );
        say(
            "to the host",
            cu!(env, cuMemcpyDtoHAsync_v2(memory, border, len, stream)),
        );
        say(
            "from the host",
            cu!(env, cuMemcpyHtoDAsync_v2(border, memory, len, stream)),
        );
    }
    Ok(())
}

/// The same where the second mapping is larger, comes later, and the host has access too.
pub(crate) fn later(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for (kind, place) in [("host", HOST), ("node", NODE)] {
        for (who, of_host) in [("device", false), ("device and host", true)] {
            for more in [STEP, 9 * STEP] {
                let range = reserve(env, STEP + more)?;
                let say = |what: &str, code: CUresult| {
                    let part = format!("{kind}, {who}, {} behind, {what}", size(more));
                    env.say(part, and_synchronise(env, code, stream));
                };
                for (at, bytes) in [(range, STEP), (range + STEP, more)] {
                    let (code, handle) = try_create(env, bytes, &prop(place, 0), 0);
                    env.fine("cuMemCreate", code)?;
                    env.fine("cuMemMap", map(env, at, bytes, handle))?;
                    if of_host {
                        env.fine("cuMemSetAccess", allow(env, (at, bytes), (HOST, 0), 3))?;
                    }
                    env.fine("cuMemSetAccess", allow(env, (at, bytes), (1, 0), 3))?;
                    if at == range {
                        say("first", cu!(env, cuMemsetD8Async(range, 1, 1000, stream)));
                    }
                }
                let all = (STEP + more) as usize;
                say(
                    "small",
                    cu!(env, cuMemsetD8Async(range + STEP - 16, 1, 64, stream)),
                );
                say(
                    "a MiB",
                    cu!(
                        env,
                        cuMemsetD8Async(range + MIB, 1, 2 * MIB as usize, stream)
                    ),
                );
                say(
                    "odd",
                    cu!(env, cuMemsetD8Async(range + 1000, 1, all - 1000, stream)),
                );
                say("whole", cu!(env, cuMemsetD8Async(range, 1, all, stream)));
            }
        }
    }
    Ok(())
}

/// The same in addresses for much more than there is.
pub(crate) fn far(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for (kind, place) in [("device", 1), ("host", HOST), ("node", NODE)] {
        for reserved in [20 * MIB, 1 << 30, 64 << 30, 140 << 30] {
            let range = reserve(env, reserved)?;
            let say = |what: &str, code: CUresult| {
                let part = format!("{kind}, addresses for {}, {what}", size(reserved));
                env.say(part, and_synchronise(env, code, stream));
            };
            for (at, bytes) in [(range, STEP), (range + STEP, 9 * STEP)] {
                let (code, handle) = try_create(env, bytes, &prop(place, 0), 0);
                env.fine("cuMemCreate", code)?;
                env.fine("cuMemMap", map(env, at, bytes, handle))?;
                env.fine("cuMemSetAccess", allow(env, (at, bytes), (1, 0), 3))?;
            }
            let all = 10 * STEP as usize;
            say(
                "small",
                cu!(env, cuMemsetD8Async(range + STEP - 16, 1, 64, stream)),
            );
            say(
                "odd",
                cu!(env, cuMemsetD8Async(range + 1000, 1, all - 1000, stream)),
            );
            say("whole", cu!(env, cuMemsetD8Async(range, 1, all, stream)));
            env.no_context()?;
            let part = format!(
                "{kind}, addresses for {}, odd without a context",
                size(reserved)
            );
            let code = cu!(env, cuMemsetD8Async(range + 1000, 1, all - 1000, stream));
            env.code(part, code);
            env.current(env.context())?;
        }
    }
    Ok(())
}

/// Borders by the order in which device and host were given access.
pub(crate) fn given(env: &Environment) -> Result<()> {
    const DEVICE: u32 = 1;
    let stream = env.stream()?;
    let other = env.plain(64)?;
    let orders: [(&str, &[&[u32]]); 6] = [
        ("the device", &[&[DEVICE]]),
        ("host, device", &[&[HOST], &[DEVICE]]),
        ("device, host", &[&[DEVICE], &[HOST]]),
        ("device and host", &[&[DEVICE, HOST]]),
        ("host and device", &[&[HOST, DEVICE]]),
        ("device, host, device", &[&[DEVICE], &[HOST], &[DEVICE]]),
    ];
    for (kind, place) in [("host", HOST), ("node", NODE)] {
        for (order, calls) in orders {
            let range = reserve(env, 10 * STEP)?;
            let say = |what: &str, code: CUresult| {
                let part = format!("{kind}, {order}, {what}");
                env.say(part, and_synchronise(env, code, stream));
            };
            for (at, bytes) in [(range, STEP), (range + STEP, 9 * STEP)] {
                let (code, handle) = try_create(env, bytes, &prop(place, 0), 0);
                env.fine("cuMemCreate", code)?;
                env.fine("cuMemMap", map(env, at, bytes, handle))?;
                for call in calls {
                    let who: Vec<CUmemAccessDesc> = call
                        .iter()
                        .map(|kind| CUmemAccessDesc {
                            location: location(CUmemLocationType_enum(*kind), 0),
                            flags: CUmemAccess_flags_enum(3),
                        })
                        .collect();
                    let (bytes, count) = (bytes as usize, who.len());
                    let code = cu!(env, cuMemSetAccess(at, bytes, who.as_ptr(), count));
                    env.fine("cuMemSetAccess", code)?;
                }
            }
            let (border, all) = (range + STEP - 16, 10 * STEP as usize);
            say("fill", cu!(env, cuMemsetD8Async(border, 1, 64, stream)));
            say(
                "fill of all",
                cu!(env, cuMemsetD8Async(range, 1, all, stream)),
            );
            say(
                "fill of one",
                cu!(env, cuMemsetD8Async(range, 1, 64, stream)),
            );
            say(
                "from there",
                cu!(env, cuMemcpyDtoDAsync_v2(other, border, 64, stream)),
            );
            say(
                "to there",
                cu!(env, cuMemcpyDtoDAsync_v2(border, other, 64, stream)),
            );
            say(
                "by address",
                cu!(env, cuMemcpyAsync(border, other, 64, stream)),
            );
        }
    }
    Ok(())
}
