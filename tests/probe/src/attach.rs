//! Managed memory that is attached to a stream.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, cu, name, yes};
use crate::gate::while_held;
use crate::managed::{holds, managed};

const LEN: usize = 4 << 20;

/// Attaching managed memory to a stream. Some of it crashes, so each part is asked alone.
pub(crate) fn attach(env: &Environment) -> Result<()> {
    let call = |stream, at, len, flags| cu!(env, cuStreamAttachMemAsync(stream, at, len, flags));
    for flags in [0, 1, 2, 3, 4, 5, 8] {
        for (part, len) in [("", 0), (", all of it", LEN)] {
            env.alone(&format!("flags {flags}{part}"), || {
                let code = call(env.stream()?, managed(env, LEN)?, len, flags);
                Ok(format!(
                    "{}, {}",
                    name(code),
                    name(cu!(env, cuCtxSynchronize()))
                ))
            });
        }
        for (part, stream) in [
            ("null stream", std::ptr::null_mut()),
            ("legacy", CU_STREAM_LEGACY),
            ("per thread", CU_STREAM_PER_THREAD),
        ] {
            env.alone(&format!("flags {flags}, {part}"), || {
                Ok(name(call(stream, managed(env, LEN)?, 0, flags)))
            });
        }
    }
    let ranges: [(&str, u64, usize); 4] = [
        ("a part", 0, 4096),
        ("from the middle", 4096, 0),
        ("from the middle to the end", 4096, LEN - 4096),
        ("one byte more", 0, LEN + 1),
    ];
    for (part, offset, len) in ranges {
        env.alone(part, || {
            Ok(name(call(
                env.stream()?,
                managed(env, LEN)? + offset,
                len,
                1,
            )))
        });
    }
    for flags in [1, 4] {
        env.alone(&format!("plain memory, flags {flags}"), || {
            Ok(name(call(env.stream()?, env.plain(LEN)?, 0, flags)))
        });
        env.alone(&format!("pinned memory, flags {flags}"), || {
            let pinned = env.pinned(4096)?.expose_provenance() as u64;
            Ok(name(call(env.stream()?, pinned, 0, flags)))
        });
        env.alone(&format!("pageable memory, flags {flags}"), || {
            let local = 0_u64;
            let pageable = (&raw const local).expose_provenance() as u64;
            Ok(name(call(env.stream()?, pageable, 8, flags)))
        });
        env.alone(&format!("null, flags {flags}"), || {
            Ok(name(call(env.stream()?, 0, 0, flags)))
        });
        env.alone(&format!("a managed pool, flags {flags}"), || {
            let stream = env.stream()?;
            let props = CUmemPoolProps {
                allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED,
                ..Environment::props()
            };
            let (code, pool) = env.pool_with(&props);
            env.fine("cuMemPoolCreate", code)?;
            Ok(name(call(
                stream,
                env.alloc(pool, 4 * MIB, stream)?,
                0,
                flags,
            )))
        });
    }
    env.alone("a stream held", || {
        let (stream, block) = (env.stream()?, managed(env, LEN)?);
        let (code, waited) = while_held(env, stream, || call(stream, block, 0, 1))?;
        Ok(format!("{}, {waited}", name(code)))
    });
    env.alone("captured", || {
        let (stream, block) = (env.stream()?, managed(env, LEN)?);
        let mode = CUstreamCaptureMode(2);
        let begun = cu!(env, cuStreamBeginCapture_v2(stream, mode));
        env.fine("cuStreamBeginCapture", begun)?;
        let code = call(stream, block, 0, 1);
        let mut graph = std::ptr::null_mut();
        let ended = cu!(env, cuStreamEndCapture(stream, &raw mut graph));
        Ok(format!("{}, ended {}", name(code), name(ended)))
    });
    // Attached to one stream, it may still be used in another one.
    env.alone("used in another stream", || {
        let (stream, other) = (env.stream()?, env.stream()?);
        let block = managed(env, LEN)?;
        let attached = call(stream, block, 0, 4);
        let used = cu!(env, cuMemsetD8Async(block, 3, LEN, other));
        env.synchronise(other)?;
        let held = yes(holds(block, LEN, 3));
        Ok(format!("{}, {}, {held}", name(attached), name(used)))
    });
    env.alone("no context", || {
        let (stream, block) = (env.stream()?, managed(env, LEN)?);
        env.no_context()?;
        Ok(name(call(stream, block, 0, 1)))
    });
    Ok(())
}
