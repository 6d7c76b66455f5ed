//! Which way of ending shared pools leaves a descriptor of the driver open. Five rounds of each.

use std::os::fd::AsRawFd;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, THRESHOLD, cu};
use crate::ipc::{DESCRIPTOR, export, import, open, open_descriptors, own, shared_pool, token};

/// How one round goes.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    imports: usize,
    /// A pointer is imported and freed.
    has_pointer: bool,
    /// The imported pool is destroyed while the free is not seen.
    ends_early: bool,
    /// The exporter keeps its memory when streams synchronise.
    keeps: bool,
}

fn round(env: &Environment, way: Way, stream: CUstream) -> Result<()> {
    let pool = shared_pool(env)?;
    if way.keeps {
        env.set(pool, THRESHOLD, u64::MAX)?;
    }
    let block = env.alloc(pool, 1000, stream)?;
    env.synchronise(stream)?;
    let (code, descriptor) = export(env, pool, DESCRIPTOR, 0);
    env.fine("export", code)?;
    let descriptor = own(descriptor);
    let mut imported = std::ptr::null_mut();
    for _ in 0..way.imports {
        let (code, found) = import(env, descriptor.as_raw_fd(), DESCRIPTOR, 0);
        env.fine("import", code)?;
        imported = found;
    }
    if way.has_pointer {
        let (code, token) = token(env, block);
        env.fine("token", code)?;
        let (code, address) = open(env, imported, &token);
        env.fine("pointer", code)?;
        env.free(address, stream)?;
    }
    if !way.ends_early {
        env.synchronise(stream)?;
    }
    for _ in 0..way.imports {
        env.fine("destroy", cu!(env, cuMemPoolDestroy(imported)))?;
    }
    env.free(block, stream)?;
    env.synchronise(stream)?;
    env.trim(pool, 0)?;
    env.end_pool(pool)
}

pub(crate) fn rounds(env: &Environment) -> Result<()> {
    let pointer = Way {
        imports: 1,
        has_pointer: true,
        ..Way::default()
    };
    let ways = [
        ("exported only", Way::default()),
        (
            "imported",
            Way {
                imports: 1,
                ..Way::default()
            },
        ),
        (
            "imported twice",
            Way {
                imports: 2,
                ..Way::default()
            },
        ),
        ("a pointer imported", pointer),
        (
            "a pointer imported, of two imports",
            Way {
                imports: 2,
                ..pointer
            },
        ),
        (
            "a pointer imported, its free not seen",
            Way {
                ends_early: true,
                ..pointer
            },
        ),
        (
            "a pointer imported, of a pool that keeps",
            Way {
                keeps: true,
                ..pointer
            },
        ),
    ];
    for (part, way) in ways {
        env.alone(part, || {
            let stream = env.stream()?;
            // A first round, for what the driver opens once.
            round(env, way, stream)?;
            let before = open_descriptors() as i64;
            for _ in 0..5 {
                round(env, way, stream)?;
            }
            let more = open_descriptors() as i64 - before;
            Ok(format!("{more} descriptors more"))
        });
    }
    Ok(())
}
