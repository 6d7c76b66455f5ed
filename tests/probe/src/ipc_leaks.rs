//! Which way of ending shared pools leaves a descriptor of the driver open. Five rounds of each.

use std::os::fd::AsRawFd;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::ipc::{DESCRIPTOR, export, import, open, open_descriptors, own, shared_pool, token};
use crate::lab::{Lab, THRESHOLD, cu};

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

fn round(lab: &Lab, way: Way, stream: CUstream) -> Result<()> {
    let pool = shared_pool(lab)?;
    if way.keeps {
        lab.set(pool, THRESHOLD, u64::MAX)?;
    }
    let block = lab.alloc(pool, 1000, stream)?;
    lab.synchronise(stream)?;
    let (code, descriptor) = export(lab, pool, DESCRIPTOR, 0);
    lab.fine("export", code)?;
    let descriptor = own(descriptor);
    let mut imported = std::ptr::null_mut();
    for _ in 0..way.imports {
        let (code, found) = import(lab, descriptor.as_raw_fd(), DESCRIPTOR, 0);
        lab.fine("import", code)?;
        imported = found;
    }
    if way.has_pointer {
        let (code, token) = token(lab, block);
        lab.fine("token", code)?;
        let (code, address) = open(lab, imported, &token);
        lab.fine("pointer", code)?;
        lab.free(address, stream)?;
    }
    if !way.ends_early {
        lab.synchronise(stream)?;
    }
    for _ in 0..way.imports {
        lab.fine("destroy", cu!(lab, cuMemPoolDestroy(imported)))?;
    }
    lab.free(block, stream)?;
    lab.synchronise(stream)?;
    lab.trim(pool, 0)?;
    lab.end_pool(pool)
}

pub(crate) fn rounds(lab: &Lab) -> Result<()> {
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
        lab.alone(part, || {
            let stream = lab.stream()?;
            // A first round, for what the driver opens once.
            round(lab, way, stream)?;
            let before = open_descriptors() as i64;
            for _ in 0..5 {
                round(lab, way, stream)?;
            }
            let more = open_descriptors() as i64 - before;
            Ok(format!("{more} descriptors more"))
        });
    }
    Ok(())
}
