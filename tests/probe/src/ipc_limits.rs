//! Exports of pools and of physical memory in a process that can open few descriptors or none.

use std::fs::File;
use std::os::fd::AsRawFd;

use anyhow::{Result, ensure};
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name};
use crate::ipc::{DESCRIPTOR, export, own, shared_pool};
use crate::vmm::{STEP, prop, release, try_create};

/// Runs `what` while this process can open only `left` more descriptors.
fn with_descriptors<T>(left: usize, what: impl FnOnce() -> T) -> Result<T> {
    let mut usual = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid place for the answer.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut usual) };
    ensure!(read == 0, "{}", std::io::Error::last_os_error());
    // New ones take the lowest free numbers, which have to be below the limit.
    let free = (0..=left)
        .map(|_| File::open("/dev/null"))
        .collect::<Result<Vec<_>, _>>()?;
    let limit = free[left].as_raw_fd();
    drop(free);
    let few = libc::rlimit {
        rlim_cur: limit.cast_unsigned().into(),
        ..usual
    };
    // SAFETY: a valid limit, not above the highest.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) };
    ensure!(set == 0, "{}", std::io::Error::last_os_error());
    let outcome = what();
    // SAFETY: the limit that was there.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const usual) };
    ensure!(set == 0, "{}", std::io::Error::last_os_error());
    Ok(outcome)
}

/// The driver's answer to an export while the process can open `left` more descriptors.
fn export_with(env: &Environment, pool: CUmemoryPool, left: usize) -> Result<String> {
    let (code, handle) = with_descriptors(left, || export(env, pool, DESCRIPTOR, 0))?;
    if code == OK {
        drop(own(handle));
    }
    Ok(name(code))
}

/// Allocates from the pool, frees and waits.
fn use_once(env: &Environment, pool: CUmemoryPool) -> Result<()> {
    let stream = env.stream()?;
    let block = env.alloc(pool, MIB, stream)?;
    env.free(block, stream)?;
    env.synchronise(stream)
}

pub(crate) fn pools(env: &Environment) -> Result<()> {
    for left in 0..3 {
        for earlier in ["", ", exported before", ", used before"] {
            for end in ["kept", "exported again", "used", "trimmed", "destroyed"] {
                env.alone(&format!("{left} left{earlier}, then {end}"), || {
                    let pool = shared_pool(env)?;
                    match earlier {
                        ", exported before" => drop(own(export(env, pool, DESCRIPTOR, 0).1)),
                        ", used before" => use_once(env, pool)?,
                        _ => {}
                    }
                    let first = export_with(env, pool, left)?;
                    let then = match end {
                        "exported again" => export_with(env, pool, 8)?,
                        "used" => use_once(env, pool).is_ok().to_string(),
                        "trimmed" => name(cu!(env, cuMemPoolTrimTo(pool, 0))),
                        "destroyed" => name(cu!(env, cuMemPoolDestroy(pool))),
                        _ => String::new(),
                    };
                    Ok(format!("{first}, {then}"))
                });
            }
        }
    }
    env.alone("another pool beside one that failed", || {
        let failed = export_with(env, shared_pool(env)?, 0)?;
        let other = shared_pool(env)?;
        use_once(env, other)?;
        let exported = export_with(env, other, 8)?;
        let destroyed = name(cu!(env, cuMemPoolDestroy(other)));
        Ok(format!("{failed}, {exported}, {destroyed}"))
    });
    env.alone("the context of one that failed released", || {
        let failed = export_with(env, shared_pool(env)?, 0)?;
        Ok(format!("{failed}, {}", name(env.release())))
    });
    Ok(())
}

pub(crate) fn physical(env: &Environment) -> Result<()> {
    for left in 0..3 {
        env.alone(&format!("{left} left"), || {
            let kind = CUmemAllocationHandleType(DESCRIPTOR);
            let properties = CUmemAllocationProp {
                requestedHandleTypes: kind,
                ..prop(1, 0)
            };
            let (code, memory) = try_create(env, STEP, &properties, 0);
            env.fine("cuMemCreate", code)?;
            let export = || {
                let mut descriptor = -1;
                let place = (&raw mut descriptor).cast();
                let code = cu!(env, cuMemExportToShareableHandle(place, memory, kind, 0));
                if code == OK {
                    drop(own(descriptor));
                }
                name(code)
            };
            let first = with_descriptors(left, export)?;
            let again = export();
            let released = name(release(env, memory));
            Ok(format!("{first}, {again}, {released}"))
        });
    }
    Ok(())
}
