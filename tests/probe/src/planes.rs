//! Memory with a pitch, and copies and memsets in two dimensions.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::gate::while_held;

/// What a pitched allocation is.
pub(crate) fn pitches(env: &Environment) -> Result<()> {
    for (width, height) in [
        (1, 1),
        (100, 3),
        (511, 2),
        (512, 2),
        (513, 2),
        (100_000, 5),
        (0, 1),
        (1, 0),
    ] {
        for element in [0, 1, 2, 3, 4, 8, 12, 16, 32] {
            let (mut address, mut pitch) = (7, 7);
            let code = cu!(
                env,
                cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, width, height, element)
            );
            let mut text = format!("{}, pitch {pitch}", name(code));
            if code == OK {
                let (mut base, mut size) = (0, 0);
                let code = cu!(
                    env,
                    cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address)
                );
                text += &format!(", {} {size} B", name(code));
                text += &format!(", freed {}", name(cu!(env, cuMemFree_v2(address))));
            } else if address != 7 {
                text += ", address touched";
            }
            env.say(format!("{width} x {height} of {element}"), text);
        }
    }
    let (mut address, mut pitch) = (0, 0);
    let (none, no_address) = (std::ptr::null_mut(), std::ptr::null_mut());
    env.code("no address", {
        cu!(env, cuMemAllocPitch_v2(no_address, &raw mut pitch, 8, 8, 4))
    });
    env.code(
        "no pitch",
        cu!(env, cuMemAllocPitch_v2(&raw mut address, none, 8, 8, 4)),
    );
    let code = cu!(
        env,
        cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, 1 << 40, 1 << 10, 4)
    );
    env.code("too much", code);
    let code = cu!(
        env,
        cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, usize::MAX, 2, 4)
    );
    env.code("a size that overflows", code);
    env.no_context()?;
    let code = cu!(
        env,
        cuMemAllocPitch_v2(&raw mut address, &raw mut pitch, 8, 8, 4)
    );
    env.code("without context", code);
    Ok(())
}

const HOST: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_HOST;
const DEVICE: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_DEVICE;
const UNIFIED: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_UNIFIED;
const PITCH: usize = 64;

/// A copy of 10 x 4 bytes from (3, 1) to (5, 2), rows of 64 bytes.
fn plan(to: (CUmemorytype, u64), from: (CUmemorytype, u64)) -> CUDA_MEMCPY2D {
    let pointer = |address: u64| std::ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    CUDA_MEMCPY2D {
        srcXInBytes: 3,
        srcY: 1,
        srcMemoryType: from.0,
        srcHost: pointer(from.1),
        srcDevice: from.1,
        srcArray: std::ptr::null_mut(),
        srcPitch: PITCH,
        dstXInBytes: 5,
        dstY: 2,
        dstMemoryType: to.0,
        dstHost: pointer(to.1),
        dstDevice: to.1,
        dstArray: std::ptr::null_mut(),
        dstPitch: PITCH,
        WidthInBytes: 10,
        Height: 4,
    }
}

/// Memory of each kind, 16 rows of 64 bytes.
struct Memory {
    device: u64,
    pinned: u64,
    pageable: Vec<u8>,
}

const LEN: usize = 16 * PITCH;

impl Memory {
    fn new(env: &Environment) -> Result<Self> {
        Ok(Self {
            device: env.plain(LEN)?,
            pinned: env.pinned(LEN)?.expose_provenance() as u64,
            pageable: vec![0; LEN],
        })
    }

    fn pageable(&self) -> u64 {
        self.pageable.as_ptr().expose_provenance() as u64
    }
}

/// Whether exactly the rectangle of `plan` has 7s.
fn is_right(bytes: &[u8]) -> &'static str {
    yes(bytes.iter().enumerate().all(|(at, byte)| {
        let inside = (2..6).contains(&(at / PITCH)) && (5..15).contains(&(at % PITCH));
        *byte == if inside { 7 } else { 1 }
    }))
}

/// Bytes from and to each kind of memory.
pub(crate) fn bytes(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let (from, to) = (Memory::new(env)?, Memory::new(env)?);
    let kinds = |memory: &Memory| {
        [
            ("device", DEVICE, memory.device),
            ("device, unified", UNIFIED, memory.device),
            ("pinned", HOST, memory.pinned),
            ("pinned as device", DEVICE, memory.pinned),
            ("pageable", HOST, memory.pageable()),
            ("pageable, unified", UNIFIED, memory.pageable()),
            ("device as host", HOST, memory.device),
        ]
    };
    for (source, kind_from, at_from) in kinds(&from) {
        for (target, kind_to, at_to) in kinds(&to) {
            if [source, target].contains(&"device as host") {
                continue;
            }
            let set = |at: u64, byte: u8| {
                let bytes = vec![byte; LEN];
                let here = bytes.as_ptr().expose_provenance() as u64;
                let code = cu!(env, cuMemcpy(at, here, LEN));
                env.fine("cuMemcpy", code)
            };
            for way in ["2D", "unaligned", "async"] {
                set(at_from, 7)?;
                set(at_to, 1)?;
                let plan = plan((kind_to, at_to), (kind_from, at_from));
                let plan = &raw const plan;
                let code = match way {
                    "2D" => cu!(env, cuMemcpy2D_v2(plan)),
                    "unaligned" => cu!(env, cuMemcpy2DUnaligned_v2(plan)),
                    _ => cu!(env, cuMemcpy2DAsync_v2(plan, stream)),
                };
                let waited = cu!(env, cuCtxSynchronize());
                let mut seen = vec![0_u8; LEN];
                let here = seen.as_mut_ptr().expose_provenance() as u64;
                env.fine("cuMemcpy", cu!(env, cuMemcpy(here, at_to, LEN)))?;
                env.say(
                    format!("{way}, {source} to {target}"),
                    format!(
                        "{}, {}, right {}",
                        name(code),
                        name(waited),
                        is_right(&seen)
                    ),
                );
            }
        }
    }
    Ok(())
}

type Change = fn(&mut CUDA_MEMCPY2D);

/// Plans that are wrong, or on the border.
pub(crate) fn plans(env: &Environment) -> Result<()> {
    let cases: [(&str, Change); 19] = [
        ("right", |_| {}),
        ("no width", |it| it.WidthInBytes = 0),
        ("no height", |it| it.Height = 0),
        ("source pitch 0, one row", |it| {
            it.srcPitch = 0;
            it.Height = 1;
        }),
        ("source pitch 0", |it| it.srcPitch = 0),
        ("target pitch 0", |it| it.dstPitch = 0),
        ("source pitch below x and width", |it| it.srcPitch = 12),
        ("source pitch of x and width", |it| it.srcPitch = 13),
        ("source pitch below the width", |it| it.srcPitch = 9),
        ("an odd target pitch", |it| it.dstPitch = 63),
        ("past the end of the source", |it| it.srcY = 13),
        ("to the end of the source", |it| {
            it.srcY = 12;
            it.srcXInBytes = 54;
        }),
        ("past the end of the target", |it| it.dstY = 13),
        ("null source", |it| {
            it.srcDevice = 0;
        }),
        ("null target", |it| {
            it.dstDevice = 0;
        }),
        ("source of no type", |it| it.srcMemoryType = CUmemorytype(0)),
        ("source of type 9", |it| it.srcMemoryType = CUmemorytype(9)),
        ("source array null", |it| {
            it.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
        }),
        ("wide pitch", |it| it.srcPitch = 1 << 40),
    ];
    for (part, change) in cases {
        env.alone(part, || {
            let stream = env.stream()?;
            let (from, to) = (env.plain(LEN)?, env.plain(LEN)?);
            let mut plan = plan((DEVICE, to), (DEVICE, from));
            change(&mut plan);
            let plan = &raw const plan;
            let codes = [
                cu!(env, cuMemcpy2D_v2(plan)),
                cu!(env, cuMemcpy2DUnaligned_v2(plan)),
                cu!(env, cuMemcpy2DAsync_v2(plan, stream)),
                cu!(env, cuCtxSynchronize()),
            ];
            Ok(codes.map(name).join(", "))
        });
    }
    env.alone("null", || {
        let stream = env.stream()?;
        let codes = [
            cu!(env, cuMemcpy2D_v2(std::ptr::null())),
            cu!(env, cuMemcpy2DUnaligned_v2(std::ptr::null())),
            cu!(env, cuMemcpy2DAsync_v2(std::ptr::null(), stream)),
        ];
        Ok(codes.map(name).join(", "))
    });
    env.alone("without context", || {
        let stream = env.stream()?;
        let (from, to) = (env.plain(LEN)?, env.plain(LEN)?);
        let plan = plan((DEVICE, to), (DEVICE, from));
        env.no_context()?;
        let codes = [
            cu!(env, cuMemcpy2D_v2(&raw const plan)),
            cu!(env, cuMemcpy2DAsync_v2(&raw const plan, stream)),
            cu!(env, cuStreamSynchronize(stream)),
        ];
        Ok(codes.map(name).join(", "))
    });
    Ok(())
}

/// Which bytes a pitch of 0 means: each byte of the source is its own number, modulo 251.
pub(crate) fn pitch_zero(env: &Environment) -> Result<()> {
    let (from, to) = (env.plain(LEN)?, env.plain(LEN)?);
    let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
    let parts: [(&str, Change); 3] = [
        ("source", |it| it.srcPitch = 0),
        ("target", |it| it.dstPitch = 0),
        ("both", |it| (it.srcPitch, it.dstPitch) = (0, 0)),
    ];
    for (part, change) in parts {
        let up = cu!(env, cuMemcpyHtoD_v2(from, bytes.as_ptr().cast(), LEN));
        env.fine("cuMemcpyHtoD", up)?;
        env.fine("cuMemsetD8", cu!(env, cuMemsetD8_v2(to, 255, LEN)))?;
        let mut plan = plan((DEVICE, to), (DEVICE, from));
        change(&mut plan);
        let code = cu!(env, cuMemcpy2D_v2(&raw const plan));
        let mut seen = vec![0_u8; LEN];
        let down = cu!(env, cuMemcpyDtoH_v2(seen.as_mut_ptr().cast(), to, LEN));
        env.fine("cuMemcpyDtoH", down)?;
        let mut runs = Vec::new();
        for at in (0..LEN).filter(|at| seen[*at] != 255) {
            // The first byte of a run.
            if at == 0 || seen[at - 1] == 255 || seen[at] != seen[at - 1] + 1 {
                runs.push(format!("{at} has {}", seen[at]));
            }
        }
        env.say(part, format!("{}, {}", name(code), runs.join(", ")));
    }
    Ok(())
}

/// Which calls wait.
pub(crate) fn waits(env: &Environment) -> Result<()> {
    let memory = Memory::new(env)?;
    let kinds = [
        ("pinned", HOST, memory.pinned),
        ("pageable", HOST, memory.pageable()),
        ("device", DEVICE, env.plain(LEN)?),
    ];
    let (stream, blocking) = (env.stream()?, env.stream_with(0)?);
    for (kind, of, at) in kinds {
        for (way, plan) in [
            ("to it", plan((of, at), (DEVICE, memory.device))),
            ("from it", plan((DEVICE, memory.device), (of, at))),
        ] {
            let plan = &raw const plan;
            let (code, waited) =
                while_held(env, stream, || cu!(env, cuMemcpy2DAsync_v2(plan, stream)))?;
            env.say(
                format!("async, {kind}, {way}"),
                format!("{}, {waited}", name(code)),
            );
            env.synchronise(stream)?;
            let (code, waited) = while_held(env, blocking, || cu!(env, cuMemcpy2D_v2(plan)))?;
            env.say(
                format!("{kind}, {way}, a blocking stream held"),
                format!("{}, {waited}", name(code)),
            );
            env.synchronise(blocking)?;
        }
    }
    Ok(())
}

/// Copies and memsets while a stream is captured.
pub(crate) fn recorded(env: &Environment) -> Result<()> {
    let (from, to) = (Memory::new(env)?, Memory::new(env)?);
    for (part, plan) in [
        (
            "device to device",
            plan((DEVICE, to.device), (DEVICE, from.device)),
        ),
        (
            "pinned to device",
            plan((DEVICE, to.device), (HOST, from.pinned)),
        ),
        (
            "pageable to device",
            plan((DEVICE, to.device), (HOST, from.pageable())),
        ),
        (
            "device to pageable",
            plan((HOST, to.pageable()), (DEVICE, from.device)),
        ),
    ] {
        let stream = env.stream()?;
        let begun = cu!(env, cuStreamBeginCapture_v2(stream, CUstreamCaptureMode(2)));
        env.fine("cuStreamBeginCapture", begun)?;
        let code = cu!(env, cuMemcpy2DAsync_v2(&raw const plan, stream));
        let set = cu!(env, cuMemsetD2D32Async(to.device, PITCH, 0, 4, 4, stream));
        let mut graph = std::ptr::null_mut();
        let ended = cu!(env, cuStreamEndCapture(stream, &raw mut graph));
        let mut nodes = 0;
        let counted = cu!(
            env,
            cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut nodes)
        );
        env.say(
            part,
            format!(
                "{}, memset {}, ended {}, {} {nodes} nodes",
                name(code),
                name(set),
                name(ended),
                name(counted)
            ),
        );
    }
    Ok(())
}
