//! Copy nodes between host and device.

use std::ffi::c_void;

use anyhow::{Result, bail};
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::gate::{Gate, while_held};
use crate::recorder::*;

pub(crate) const HOST: u32 = 1;
pub(crate) const DEVICE: u32 = 2;
pub(crate) const UNIFIED: u32 = 4;

/// How long the copied rows are.
pub(crate) const LEN: usize = 1000;

/// Memory that a copy reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// How the copy names it.
    kind: u32,
    pub(crate) address: usize,
}

impl Place {
    pub(crate) fn new(kind: u32, address: usize) -> Self {
        Self { kind, address }
    }

    fn host(self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.address)
    }
}

/// A copy of one row.
pub(crate) fn row(to: Place, from: Place, len: usize) -> CUDA_MEMCPY3D_st {
    let mut params = CUDA_MEMCPY3D_st {
        srcMemoryType: CUmemorytype_enum(from.kind),
        dstMemoryType: CUmemorytype_enum(to.kind),
        WidthInBytes: len,
        Height: 1,
        Depth: 1,
        ..CUDA_MEMCPY3D_st::default()
    };
    if from.kind == HOST {
        params.srcHost = from.host();
    } else {
        params.srcDevice = from.address as u64;
    }
    if to.kind == HOST {
        params.dstHost = to.host();
    } else {
        params.dstDevice = to.address as u64;
    }
    params
}

pub(crate) fn add(
    env: &Environment,
    graph: CUgraph,
    params: &CUDA_MEMCPY3D_st,
) -> (CUresult, CUgraphNode) {
    let mut node = std::ptr::null_mut();
    let none = std::ptr::null();
    let (params, context) = (std::ptr::from_ref(params), env.context());
    let code = cu!(
        env,
        cuGraphAddMemcpyNode(&raw mut node, graph, none, 0, params, context)
    );
    (code, node)
}

/// Memory of every kind, with its name, and how a copy may name it.
pub(crate) fn places(env: &Environment) -> Result<Vec<(&'static str, Place)>> {
    let pageable = Box::leak(vec![0_u8; 4 * LEN].into_boxed_slice()).as_mut_ptr();
    let (pageable, pinned) = (
        pageable.expose_provenance(),
        env.pinned(4 * LEN)?.expose_provenance(),
    );
    let mut managed = 0;
    let code = cu!(env, cuMemAllocManaged(&raw mut managed, 4 * LEN, 1));
    env.fine("cuMemAllocManaged", code)?;
    let device = env.plain(4 * LEN)? as usize;
    Ok(vec![
        ("pageable", Place::new(HOST, pageable)),
        ("pinned", Place::new(HOST, pinned)),
        ("device", Place::new(DEVICE, device)),
        ("managed", Place::new(DEVICE, managed as usize)),
        ("pageable, unified", Place::new(UNIFIED, pageable)),
        ("pinned, unified", Place::new(UNIFIED, pinned)),
        ("device, unified", Place::new(UNIFIED, device)),
        ("pinned, as device", Place::new(DEVICE, pinned)),
        ("device, as host", Place::new(HOST, device)),
        ("managed, as host", Place::new(HOST, managed as usize)),
    ])
}

pub(crate) fn fill(env: &Environment, at: Place, value: u8, len: usize) -> Result<()> {
    let bytes = vec![value; len];
    let code = cu!(
        env,
        cuMemcpy(
            at.address as u64,
            bytes.as_ptr().expose_provenance() as u64,
            len
        )
    );
    env.fine("cuMemcpy", code)?;
    env.fine("sync", cu!(env, cuCtxSynchronize()))
}

pub(crate) fn read(env: &Environment, at: Place, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0_u8; len];
    let code = cu!(
        env,
        cuMemcpy(
            bytes.as_mut_ptr().expose_provenance() as u64,
            at.address as u64,
            len
        )
    );
    env.fine("cuMemcpy", code)?;
    Ok(bytes)
}

/// From every kind of memory to every kind, with the bytes.
pub(crate) fn pairs(env: &Environment) -> Result<()> {
    let (sources, targets) = (places(env)?, places(env)?);
    let stream = env.stream()?;
    for (from_name, from) in &sources {
        for (to_name, to) in &targets {
            // Host memory named as the device's, and the reverse, are asked one by one.
            if from_name.contains("as ") || to_name.contains("as ") {
                continue;
            }
            let part = format!("{from_name} to {to_name}");
            let graph = graph(env)?;
            let (code, node) = add(env, graph, &row(*to, *from, LEN));
            if code != OK {
                env.code(part, code);
                continue;
            }
            let kind = kind(env, node);
            let (code, exec) = try_instantiate(env, graph, 0);
            if code != OK {
                env.say(part, format!("{kind}, instantiate {}", name(code)));
                continue;
            }
            fill(env, *from, 5, LEN)?;
            fill(env, *to, 0, LEN)?;
            let code = try_launch(env, exec, stream);
            env.synchronise(stream)?;
            let there = yes(read(env, *to, LEN)? == [5; LEN]);
            env.say(
                part,
                format!("{kind}, {}, bytes are there {there}", name(code)),
            );
            destroy_exec(env, exec)?;
        }
    }
    Ok(())
}

/// When host memory is read and written, and whether a launch waits.
pub(crate) fn times(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let device = Place::new(DEVICE, env.plain(LEN)? as usize);
    for (label, host) in places(env)?.into_iter().take(2) {
        let graph_ = graph(env)?;
        let (code, _) = add(env, graph_, &row(device, host, LEN));
        env.code(format!("{label} to device"), code);
        let back = graph(env)?;
        let (code, _) = add(env, back, &row(host, device, LEN));
        env.code(format!("device to {label}"), code);
        if code != OK {
            continue;
        }
        fill(env, host, 1, LEN)?;
        let exec = instantiate(env, graph_, 0)?;
        fill(env, host, 2, LEN)?;
        let (code, waited) = while_held(env, stream, || {
            let code = try_launch(env, exec, stream);
            // SAFETY: host memory of this length, which no call uses now but the launched copy.
            unsafe { host.host().cast::<u8>().write_bytes(3, LEN) };
            code
        })?;
        env.say(
            format!("{label} to device, held"),
            format!("{}, {waited}", name(code)),
        );
        env.synchronise(stream)?;
        let value = read(env, device, 1)?[0];
        env.say(format!("{label} was read with"), value);
        let exec = instantiate(env, back, 0)?;
        fill(env, device, 7, LEN)?;
        let gate = Gate::hold(env, stream)?;
        env.code(
            format!("device to {label}, held"),
            try_launch(env, exec, stream),
        );
        env.code(format!("{label}, stream"), cu!(env, cuStreamQuery(stream)));
        gate.open();
        env.synchronise(stream)?;
        let value = read(env, host, 1)?[0];
        env.say(format!("{label} then holds"), value);
    }
    Ok(())
}

/// What a copy node says about itself.
fn described(env: &Environment, node: CUgraphNode, all: &[(&'static str, Place)]) -> String {
    let mut seen = CUDA_MEMCPY3D_st::default();
    let code = cu!(env, cuGraphMemcpyNodeGetParams(node, &raw mut seen));
    if code != OK {
        return name(code);
    }
    let find = |host: usize, device: usize| {
        let known = |address: usize| {
            let found = all.iter().find(|(_, place)| place.address == address);
            found.map_or("other", |(label, _)| *label)
        };
        match (host, device) {
            (0, 0) => "nowhere".into(),
            (host, 0) => format!("host {}", known(host)),
            (0, device) => format!("device {}", known(device)),
            (host, device) => format!("host {} device {}", known(host), known(device)),
        }
    };
    format!(
        "from {} {}, pitch {}, height {}, to {} {}, pitch {}, height {}, {} by {} by {}, skips {} {} {}",
        seen.srcMemoryType.0,
        find(seen.srcHost.addr(), seen.srcDevice as usize),
        seen.srcPitch,
        seen.srcHeight,
        seen.dstMemoryType.0,
        find(seen.dstHost.addr(), seen.dstDevice as usize),
        seen.dstPitch,
        seen.dstHeight,
        seen.WidthInBytes,
        seen.Height,
        seen.Depth,
        seen.srcXInBytes,
        seen.srcY,
        seen.srcZ
    )
}

/// Parameters read back, from nodes and from captured copies.
pub(crate) fn params(env: &Environment) -> Result<()> {
    let all = places(env)?;
    let all = &all[..7];
    let graph_ = graph(env)?;
    for (from_name, from) in all {
        for (to_name, to) in all {
            let (code, node) = add(env, graph_, &row(*to, *from, LEN));
            if code == OK {
                let told = described(env, node, all);
                env.say(format!("{from_name} to {to_name}"), told);
            }
        }
    }
    let (pinned, device) = (all[1].1, all[2].1);
    let mut params = row(device, pinned, 16);
    (params.Height, params.srcPitch, params.dstPitch) = (4, 32, 64);
    (params.srcXInBytes, params.srcY) = (3, 1);
    let (code, node) = add(env, graph_, &params);
    env.code("four rows", code);
    if code != OK {
        return Ok(());
    }
    env.say("four rows, read", described(env, node, all));
    let exec = instantiate(env, graph_, 0)?;
    let other = row(pinned, device, 16);
    let code = cu!(env, cuGraphMemcpyNodeSetParams(node, &raw const other));
    env.code("set another copy", code);
    env.say("set, read", described(env, node, all));
    let null = std::ptr::null_mut::<u8>();
    let code = cu!(env, cuGraphMemcpyNodeGetParams(node, null.cast()));
    env.code("get into null", code);
    let (code, set) = try_memset_node(env, graph_, &[], device.address as u64, 16);
    env.fine("memset node", code)?;
    env.say("of a memset node", described(env, set, all));
    destroy_exec(env, exec)?;
    // Captured copies.
    let stream = env.stream()?;
    let (d, h) = (device.address as u64, pinned.host());
    let pageable = all[0].1.host();
    let managed = all[3].1.address as u64;
    for (part, copy) in [
        ("HtoD pinned", 0),
        ("DtoH pinned", 1),
        ("HtoD pageable", 2),
        ("DtoH pageable", 3),
        ("DtoD", 4),
        ("unified pinned to device", 5),
        ("unified pageable to device", 6),
        ("unified to managed", 7),
        ("unified host to host", 8),
    ] {
        env.fine("begin", begin(env, stream, 2))?;
        let second = d + LEN as u64;
        let at = |place: *mut c_void| place.expose_provenance() as u64;
        let code = match copy {
            0 => cu!(env, cuMemcpyHtoDAsync_v2(d, h, 16, stream)),
            1 => cu!(env, cuMemcpyDtoHAsync_v2(h, d, 16, stream)),
            2 => cu!(env, cuMemcpyHtoDAsync_v2(d, pageable, 16, stream)),
            3 => cu!(env, cuMemcpyDtoHAsync_v2(pageable, d, 16, stream)),
            4 => cu!(env, cuMemcpyDtoDAsync_v2(second, d, 16, stream)),
            5 => cu!(env, cuMemcpyAsync(d, at(h), 16, stream)),
            6 => cu!(env, cuMemcpyAsync(d, at(pageable), 16, stream)),
            7 => cu!(env, cuMemcpyAsync(managed, d, 16, stream)),
            8 => cu!(env, cuMemcpyAsync(at(h), at(pageable), 16, stream)),
            _ => bail!("no such copy"),
        };
        env.code(format!("captured {part}"), code);
        let (code, graph) = end(env, stream);
        if code != OK {
            env.code(format!("captured {part}, end"), code);
            continue;
        }
        env.say(format!("captured {part}, nodes"), kinds(env, graph));
        if let Some(node) = nodes(env, graph).first() {
            env.say(format!("captured {part}, read"), described(env, *node, all));
        }
    }
    Ok(())
}
