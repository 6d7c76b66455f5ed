//! Copy nodes of every shape, and copies that are wrong or odd.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name};
use crate::graph_copies::{DEVICE, HOST, LEN, Place, UNIFIED, add, fill, places, read, row};
use crate::recorder::*;

/// Shapes, offsets and limits.
pub(crate) fn shapes(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let all = places(env)?;
    let (pageable, pinned) = (all[0].1, all[1].1);
    let (device, second) = (
        Place::new(DEVICE, env.plain(LEN)? as usize),
        Place::new(DEVICE, env.plain(LEN)? as usize),
    );
    // Also says which bytes of the target come from where, by a sum.
    let ask = |part: &str, from: Place, to: Place, change: &dyn Fn(&mut CUDA_MEMCPY3D_st)| {
        let mut params = row(to, from, 16);
        change(&mut params);
        let graph = graph(env)?;
        let (code, _) = add(env, graph, &params);
        if code != OK {
            env.code(part, code);
            return Ok(());
        }
        let (made, exec) = try_instantiate(env, graph, 0);
        if made != OK {
            env.say(part, format!("SUCCESS, instantiate {}", name(made)));
            return Ok(());
        }
        let bytes: Vec<u8> = (0..LEN).map(|index| (index % 251) as u8).collect();
        let (at, source) = (
            from.address as u64,
            bytes.as_ptr().expose_provenance() as u64,
        );
        env.fine("cuMemcpy", cu!(env, cuMemcpy(at, source, LEN)))?;
        fill(env, to, 0, LEN)?;
        let code = try_launch(env, exec, stream);
        env.synchronise(stream)?;
        let seen = read(env, to, LEN)?;
        let count = seen.iter().filter(|byte| **byte != 0).count();
        let sum: usize = seen
            .iter()
            .enumerate()
            .map(|(at, byte)| at * usize::from(*byte))
            .sum();
        let answer = format!("SUCCESS, {}, {count} bytes, sum {sum}", name(code));
        env.say(part, answer);
        anyhow::Ok(())
    };
    let ways = [
        ("pinned to device", pinned, device),
        ("device to pinned", device, pinned),
        ("device to device", device, second),
        ("pageable to device", pageable, device),
        ("pageable to pinned", pageable, pinned),
    ];
    for (way, from, to) in ways {
        ask(&format!("{way}, a row"), from, to, &|_| {})?;
        ask(&format!("{way}, no width"), from, to, &|p| {
            p.WidthInBytes = 0
        })?;
        ask(&format!("{way}, no height"), from, to, &|p| p.Height = 0)?;
        ask(&format!("{way}, no depth"), from, to, &|p| p.Depth = 0)?;
        ask(&format!("{way}, offsets"), from, to, &|p| {
            (p.srcXInBytes, p.dstXInBytes) = (3, 5);
        })?;
        ask(&format!("{way}, four rows"), from, to, &|p| {
            (p.Height, p.srcPitch, p.dstPitch) = (4, 32, 64);
        })?;
        ask(
            &format!("{way}, four rows, rows and bytes skipped"),
            from,
            to,
            &|p| {
                (p.Height, p.srcPitch, p.dstPitch) = (4, 32, 64);
                (p.srcY, p.dstY, p.srcXInBytes, p.dstXInBytes) = (1, 2, 3, 4);
            },
        )?;
        ask(&format!("{way}, four rows, no pitch"), from, to, &|p| {
            p.Height = 4
        })?;
        ask(&format!("{way}, four rows, narrow pitch"), from, to, &|p| {
            (p.Height, p.srcPitch, p.dstPitch) = (4, 8, 64);
        })?;
        ask(&format!("{way}, a row, narrow pitch"), from, to, &|p| {
            (p.srcPitch, p.dstPitch) = (8, 8);
        })?;
        ask(&format!("{way}, two layers"), from, to, &|p| {
            (p.Height, p.Depth, p.srcPitch, p.dstPitch) = (2, 2, 32, 64);
            (p.srcHeight, p.dstHeight) = (3, 4);
        })?;
        ask(&format!("{way}, two layers, low height"), from, to, &|p| {
            (p.Height, p.Depth, p.srcPitch, p.dstPitch) = (2, 2, 32, 64);
            (p.srcHeight, p.dstHeight) = (1, 4);
        })?;
        ask(&format!("{way}, two layers, no heights"), from, to, &|p| {
            (p.Height, p.Depth, p.srcPitch, p.dstPitch) = (2, 2, 32, 64);
        })?;
        ask(&format!("{way}, level of detail"), from, to, &|p| {
            p.srcLOD = 1
        })?;
    }
    // Added, and never launched.
    let only = |part: &str, from: Place, to: Place, len: usize| -> Result<()> {
        let graph = graph(env)?;
        env.code(part, add(env, graph, &row(to, from, len)).0);
        Ok(())
    };
    only("past the device's end, source", device, pinned, LEN + 25)?;
    only("past the device's end, target", pinned, device, LEN + 25)?;
    only(
        "past the pinned end, source",
        pinned,
        Place::new(DEVICE, env.plain(1 << 20)? as usize),
        1 << 16,
    )?;
    only(
        "past the pinned end, target",
        Place::new(DEVICE, env.plain(1 << 20)? as usize),
        pinned,
        1 << 16,
    )?;
    only(
        "no memory of the device, source",
        Place::new(DEVICE, 4096),
        pinned,
        16,
    )?;
    only(
        "no memory of the device, target",
        pinned,
        Place::new(DEVICE, 4096),
        16,
    )?;
    only(
        "no memory, unified, source",
        Place::new(UNIFIED, 4096),
        pinned,
        16,
    )?;
    only(
        "no memory, unified, target",
        pinned,
        Place::new(UNIFIED, 4096),
        16,
    )?;
    let (mut node, none) = (std::ptr::null_mut(), std::ptr::null());
    let (graph_, params) = (graph(env)?, row(device, pinned, 16));
    let code = cu!(
        env,
        cuGraphAddMemcpyNode(
            &raw mut node,
            graph_,
            none,
            0,
            &raw const params,
            std::ptr::null_mut()
        )
    );
    env.code("a null context", code);
    let code = cu!(
        env,
        cuGraphAddMemcpyNode(
            &raw mut node,
            graph_,
            none,
            0,
            std::ptr::null(),
            env.context()
        )
    );
    env.code("no parameters", code);
    env.no_context()?;
    env.code("without a context", add(env, graph(env)?, &params).0);
    Ok(())
}

/// Memory that is named as another kind.
pub(crate) fn misnamed(env: &Environment) -> Result<()> {
    for index in [7, 8, 9] {
        for is_source in [true, false] {
            let which = if is_source { "from" } else { "to" };
            let label = ["pinned as device", "device as host", "managed as host"][index - 7];
            env.alone(&format!("{which} {label}"), || {
                let (all, stream, graph) = (places(env)?, env.stream()?, graph(env)?);
                let (odd, device) = (all[index].1, Place::new(DEVICE, env.plain(LEN)? as usize));
                fill(env, odd, 5, LEN)?;
                fill(env, device, 5, LEN)?;
                let params = if is_source {
                    row(device, odd, LEN)
                } else {
                    row(odd, device, LEN)
                };
                let (code, _) = add(env, graph, &params);
                if code != OK {
                    return Ok(name(code));
                }
                let (made, exec) = try_instantiate(env, graph, 0);
                if made != OK {
                    return Ok(format!("{}, {}", name(code), name(made)));
                }
                let launched = try_launch(env, exec, stream);
                let done = cu!(env, cuStreamSynchronize(stream));
                Ok([code, made, launched, done].map(name).join(", "))
            });
        }
    }
    Ok(())
}

/// Addresses that are null, kinds that are none, and parameters that are not there.
pub(crate) fn odd(env: &Environment) -> Result<()> {
    type Change<'a> = (String, Box<dyn Fn(&mut CUDA_MEMCPY3D_st) + 'a>);
    let mut changes: Vec<Change<'_>> = vec![
        (
            "null source".into(),
            Box::new(|p| (p.srcHost, p.srcDevice) = (std::ptr::null(), 0)),
        ),
        (
            "null target".into(),
            Box::new(|p| (p.dstHost, p.dstDevice) = (std::ptr::null_mut(), 0)),
        ),
    ];
    for kind in [0, 3, 5] {
        changes.push((
            format!("source kind {kind}"),
            Box::new(move |p| p.srcMemoryType = CUmemorytype_enum(kind)),
        ));
        changes.push((
            format!("target kind {kind}"),
            Box::new(move |p| p.dstMemoryType = CUmemorytype_enum(kind)),
        ));
    }
    for is_upload in [true, false] {
        let way = if is_upload {
            "pinned to device"
        } else {
            "device to pinned"
        };
        for (part, change) in &changes {
            env.alone(&format!("{way}, {part}"), || {
                let pinned = Place::new(HOST, env.pinned(LEN)?.expose_provenance());
                let device = Place::new(DEVICE, env.plain(LEN)? as usize);
                let mut params = if is_upload {
                    row(device, pinned, 16)
                } else {
                    row(pinned, device, 16)
                };
                change(&mut params);
                let graph = graph(env)?;
                let (code, _) = add(env, graph, &params);
                if code != OK {
                    return Ok(name(code));
                }
                let made = try_instantiate(env, graph, 0).0;
                Ok(format!("{}, instantiate {}", name(code), name(made)))
            });
        }
    }
    env.alone("set null", || {
        let pinned = Place::new(HOST, env.pinned(LEN)?.expose_provenance());
        let device = Place::new(DEVICE, env.plain(LEN)? as usize);
        let (code, node) = add(env, graph(env)?, &row(device, pinned, 16));
        env.fine("cuGraphAddMemcpyNode", code)?;
        let nowhere = std::ptr::null();
        Ok(name(cu!(env, cuGraphMemcpyNodeSetParams(node, nowhere))))
    });
    Ok(())
}
