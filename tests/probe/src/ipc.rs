//! Sharing pools and pointers, as far as one process can ask.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, THRESHOLD, cu, name, size, yes};

pub(crate) use crate::share::*;

pub(crate) fn exports(env: &Environment) -> Result<()> {
    let mut default = std::ptr::null_mut();
    let code = cu!(env, cuDeviceGetDefaultMemPool(&raw mut default, 0));
    env.fine("cuDeviceGetDefaultMemPool", code)?;
    let (host_code, host) = env.pool_with(&CUmemPoolProps {
        location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0),
        ..Environment::props()
    });
    let (numa_code, numa) = env.pool_with(&CUmemPoolProps {
        handleTypes: CUmemAllocationHandleType(DESCRIPTOR),
        location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0),
        ..Environment::props()
    });
    env.fine("a host pool", host_code)?;
    env.fine("a shared pool of a host node", numa_code)?;
    let plain = env.pool(0)?;
    let first = shared_pool(env)?;
    let null = std::ptr::null_mut();
    for (what, pool) in [
        ("the default pool", default),
        ("a plain pool", plain),
        ("a host pool", host),
        ("a shared host node pool", numa),
        ("a shared pool", first),
        ("null", null),
    ] {
        for kind in [0, 1, 2, 4, 8, 9, 16] {
            let (code, handle) = export(env, pool, kind, 0);
            env.code(format!("{what} as {kind}"), code);
            if code == OK && kind == 1 {
                drop(own(handle));
            }
        }
    }
    for flags in [1, 2, u64::MAX] {
        let (code, _) = export(env, first, 1, flags);
        env.code(format!("with flags {flags}"), code);
    }
    let kind = CUmemAllocationHandleType(1);
    let code = cu!(
        env,
        cuMemPoolExportToShareableHandle(null.cast(), first, kind, 0)
    );
    env.code("into null", code);
    Ok(())
}

/// A pool of both kinds of handle.
pub(crate) fn both_kinds(env: &Environment) -> Result<()> {
    for kind in [1, 8, 9] {
        env.alone(&format!("as {kind}"), || {
            let (code, pool) = shared(env, DESCRIPTOR | FABRIC);
            env.fine("cuMemPoolCreate", code)?;
            Ok(name(export(env, pool, kind, 0).0))
        });
    }
    for (types, kind) in [(FABRIC, FABRIC), (FABRIC | DESCRIPTOR, DESCRIPTOR)] {
        for end in ["used", "trimmed", "destroyed"] {
            env.alone(&format!("{types} as {kind}, then {end}"), || {
                let (code, pool) = shared(env, types);
                env.fine("cuMemPoolCreate", code)?;
                let failed = export(env, pool, kind, 0).0;
                let stream = env.stream()?;
                let code = match end {
                    "used" => {
                        let block = env.alloc(pool, MIB, stream)?;
                        env.fine("write", write(env, block, 1))?;
                        env.free(block, stream)?;
                        cu!(env, cuStreamSynchronize(stream))
                    }
                    "trimmed" => cu!(env, cuMemPoolTrimTo(pool, 0)),
                    _ => cu!(env, cuMemPoolDestroy(pool)),
                };
                let healthy = yes(env.plain(64).is_ok());
                Ok(format!(
                    "{}, {}, healthy {healthy}",
                    name(failed),
                    name(code)
                ))
            });
        }
    }
    env.alone("as 1, again after a failure", || {
        let (code, pool) = shared(env, DESCRIPTOR | FABRIC);
        env.fine("cuMemPoolCreate", code)?;
        let _ = export(env, pool, 1, 0);
        Ok(name(export(env, pool, 1, 0).0))
    });
    Ok(())
}

pub(crate) fn descriptors(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    // A first round, for what the driver opens once.
    drop(exported(env)?);
    let start = open_descriptors() as i64;
    let pool = shared_pool(env)?;
    let block = env.alloc(pool, 1000, stream)?;
    let (first_code, first) = export(env, pool, 1, 0);
    let (second_code, second) = export(env, pool, 1, 0);
    env.fine("the first export", first_code)?;
    env.fine("the second export", second_code)?;
    let (first, second) = (own(first), own(second));
    let two = first.as_raw_fd() != second.as_raw_fd();
    env.say("two exports are two", yes(two));
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(first.as_raw_fd(), libc::F_GETFD) };
    env.say("close-on-exec", yes(flags & libc::FD_CLOEXEC != 0));
    drop(second);
    let (code, imported) = import(env, first.as_raw_fd(), 1, 0);
    env.code("import here", code);
    env.say("the import is the pool", yes(imported == pool));
    env.say("open after the import", yes(is_open(first.as_raw_fd())));
    let (code, again) = import(env, first.as_raw_fd(), 1, 0);
    env.code("import again", code);
    env.say("two imports are two", yes(imported != again));
    drop(first);
    let (token_code, token) = token(env, block);
    env.fine("cuMemPoolExportPointer", token_code)?;
    let (code, address) = open(env, imported, &token);
    env.code("a pointer with the descriptor closed", code);
    env.say("at the same address", yes(address == block));
    env.code("fill it", write(env, address, 3));
    env.say("the block reads", read(env, block));
    env.code("its free", cu!(env, cuMemFreeAsync(address, stream)));
    env.synchronise(stream)?;
    for part in ["destroy", "destroy a second time", "destroy a third time"] {
        env.code(part, cu!(env, cuMemPoolDestroy(imported)));
    }
    env.free(block, stream)?;
    env.end_pool(pool)?;
    let more = open_descriptors() as i64 - start;
    env.say("descriptors more at the end", more);
    Ok(())
}

/// How many ends two imports of one pool need.
pub(crate) fn imported_twice(env: &Environment) -> Result<()> {
    // A first round, for what the driver opens once.
    let warm = exported(env)?;
    let (_, warm) = import(env, warm.as_raw_fd(), DESCRIPTOR, 0);
    env.fine("destroy", cu!(env, cuMemPoolDestroy(warm)))?;
    let (pool, stream) = (shared_pool(env)?, env.stream()?);
    let block = env.alloc(pool, 1000, stream)?;
    env.fine("write", write(env, block, 5))?;
    let (code, descriptor) = export(env, pool, DESCRIPTOR, 0);
    env.fine("export", code)?;
    let descriptor = own(descriptor);
    let (code, token) = token(env, block);
    env.fine("token", code)?;
    let start = open_descriptors() as i64;
    let (_, first) = import(env, descriptor.as_raw_fd(), DESCRIPTOR, 0);
    let (_, second) = import(env, descriptor.as_raw_fd(), DESCRIPTOR, 0);
    env.code("destroy once", cu!(env, cuMemPoolDestroy(first)));
    let more = open_descriptors() as i64 - start;
    env.say("descriptors more then", more);
    let (code, address) = open(env, second, &token);
    env.code("import a pointer then", code);
    if code == OK {
        env.say("read then", read(env, address));
        let code = cu!(env, cuMemFreeAsync(address, stream));
        env.code("free then", code);
    }
    let (code, third) = import(env, descriptor.as_raw_fd(), DESCRIPTOR, 0);
    env.code("import again", code);
    let (code, address) = open(env, third, &token);
    env.code("import a pointer after that", code);
    env.say("read after that", read(env, address));
    Ok(())
}

/// What a driver says to a descriptor, and whether it took or leaked any.
fn verdict(env: &Environment, descriptor: c_int, kind: u32, flags: u64) -> String {
    let was_open = is_open(descriptor);
    let before = open_descriptors() as i64;
    let (code, _) = import(env, descriptor, kind, flags);
    let more = open_descriptors() as i64 - before;
    let kept = yes(is_open(descriptor) == was_open);
    let healthy = yes(env.plain(64).is_ok());
    let code = name(code);
    format!("{code}, descriptor as before {kept}, more {more}, healthy {healthy}")
}

/// What is no pool's handle.
pub(crate) fn bad_imports(env: &Environment) -> Result<()> {
    let ask = |part: &str, make: &dyn Fn() -> Result<OwnedFd>| {
        env.alone(part, || {
            Ok(verdict(env, make()?.into_raw_fd(), DESCRIPTOR, 0))
        });
    };
    for (part, number) in [
        ("-1", -1),
        ("the smallest", c_int::MIN),
        ("a number that is not open", 900),
    ] {
        env.alone(part, || Ok(verdict(env, number, DESCRIPTOR, 0)));
    }
    env.alone("a closed descriptor", || {
        let number = exported(env)?.into_raw_fd();
        drop(own(number));
        Ok(verdict(env, number, DESCRIPTOR, 0))
    });
    ask("a file", &|| Ok(File::open("/proc/self/exe")?.into()));
    ask("/dev/null", &|| Ok(File::open("/dev/null")?.into()));
    ask("/dev/zero", &|| Ok(File::open("/dev/zero")?.into()));
    ask("a folder", &|| Ok(File::open("/")?.into()));
    ask("a pipe", &|| Ok(std::io::pipe()?.0.into()));
    ask("a socket", &|| Ok(UnixDatagram::unbound()?.into()));
    ask("memory of the system", &|| {
        // SAFETY: the name is a literal.
        let fd = unsafe { libc::memfd_create(c"probe".as_ptr(), libc::MFD_CLOEXEC) };
        Ok(own(fd))
    });
    ask("a physical allocation", &|| physical(env));
    ask("a pool that was destroyed", &|| {
        let pool = shared_pool(env)?;
        let (code, descriptor) = export(env, pool, DESCRIPTOR, 0);
        env.fine("export", code)?;
        env.end_pool(pool)?;
        Ok(own(descriptor))
    });
    for kind in [0, 2, 4, 9, 16] {
        env.alone(&format!("a pool as {kind}"), || {
            Ok(verdict(env, exported(env)?.into_raw_fd(), kind, 0))
        });
    }
    for flags in [1, u64::MAX] {
        env.alone(&format!("a pool with flags {flags}"), || {
            let descriptor = exported(env)?.into_raw_fd();
            Ok(verdict(env, descriptor, DESCRIPTOR, flags))
        });
    }
    env.alone("a pool into null", || {
        let descriptor = exported(env)?.into_raw_fd();
        let handle = std::ptr::without_provenance_mut(descriptor as usize);
        let (out, kind) = (std::ptr::null_mut(), CUmemAllocationHandleType(DESCRIPTOR));
        Ok(name(cu!(
            env,
            cuMemPoolImportFromShareableHandle(out, handle, kind, 0)
        )))
    });
    Ok(())
}

fn exported(env: &Environment) -> Result<OwnedFd> {
    let (code, descriptor) = export(env, shared_pool(env)?, DESCRIPTOR, 0);
    env.fine("export", code)?;
    Ok(own(descriptor))
}

/// The descriptor of memory that belongs to no pool.
fn physical(env: &Environment) -> Result<OwnedFd> {
    let kind = CUmemAllocationHandleType(DESCRIPTOR);
    let prop = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: kind,
        location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
        ..CUmemAllocationProp::default()
    };
    let (mut handle, mut descriptor) = (0, -1_i32);
    let bytes = 2 * MIB as usize;
    let code = cu!(env, cuMemCreate(&raw mut handle, bytes, &raw const prop, 0));
    env.fine("cuMemCreate", code)?;
    let place = (&raw mut descriptor).cast::<c_void>();
    let code = cu!(env, cuMemExportToShareableHandle(place, handle, kind, 0));
    env.fine("cuMemExportToShareableHandle", code)?;
    Ok(own(descriptor))
}

/// When memory of a shared pool goes back.
pub(crate) fn gives_back(env: &Environment) -> Result<()> {
    for (types, threshold) in [
        (0, 0),
        (DESCRIPTOR, 0),
        (DESCRIPTOR, u64::MAX),
        (DESCRIPTOR, 64 * MIB),
        (FABRIC, 0),
    ] {
        let part = format!(
            "kinds {types}, threshold {}",
            match threshold {
                u64::MAX => "max".into(),
                bytes => size(bytes),
            }
        );
        let (code, pool) = shared(env, types);
        if code != OK {
            env.code(&part, code);
            continue;
        }
        let stream = env.stream()?;
        env.set(pool, THRESHOLD, threshold)?;
        let small = env.alloc(pool, 1, stream)?;
        let grown = env.reserved(pool)?;
        let block = env.alloc(pool, 160 * MIB, stream)?;
        let full = env.reserved(pool)?;
        env.free(small, stream)?;
        env.free(block, stream)?;
        let freed = env.reserved(pool)?;
        env.synchronise(stream)?;
        let seen = env.reserved(pool)?;
        env.trim(pool, 0)?;
        let trimmed = env.reserved(pool)?;
        env.say(
            part,
            format!("{grown}, {full}, freed {freed}, seen {seen}, trimmed {trimmed}"),
        );
        env.end_pool(pool)?;
    }
    Ok(())
}

pub(crate) fn fabric(env: &Environment) -> Result<()> {
    let (code, pool) = shared(env, FABRIC);
    env.code("make", code);
    if code != OK {
        return Ok(());
    }
    let mut handle = CUmemFabricHandle_st::default();
    let kind = CUmemAllocationHandleType(FABRIC);
    let place = (&raw mut handle).cast::<c_void>();
    let code = cu!(env, cuMemPoolExportToShareableHandle(place, pool, kind, 0));
    env.code("export", code);
    env.code("export as a descriptor", export(env, pool, 1, 0).0);
    let mut imported = std::ptr::null_mut();
    let code = cu!(
        env,
        cuMemPoolImportFromShareableHandle(&raw mut imported, place, kind, 0)
    );
    env.code("import here", code);
    Ok(())
}

/// Fabric handles that were never exported.
pub(crate) fn fabric_forged(env: &Environment) -> Result<()> {
    for (part, byte) in [("zeroes", 0), ("ones", 0xff)] {
        env.alone(part, || {
            let mut handle = CUmemFabricHandle_st { data: [byte; 64] };
            let place = (&raw mut handle).cast::<c_void>();
            let (mut out, kind) = (std::ptr::null_mut(), CUmemAllocationHandleType(FABRIC));
            let code = cu!(
                env,
                cuMemPoolImportFromShareableHandle(&raw mut out, place, kind, 0)
            );
            Ok(name(code))
        });
    }
    env.alone("null", || Ok(name(import(env, 0, FABRIC, 0).0)));
    Ok(())
}

/// Without a current context.
pub(crate) fn no_context(env: &Environment) -> Result<()> {
    let (pool, stream) = (shared_pool(env)?, env.stream()?);
    let block = env.alloc(pool, 1000, stream)?;
    env.synchronise(stream)?;
    env.no_context()?;
    let (code, handle) = export(env, pool, 1, 0);
    env.code("export", code);
    let (code, imported) = import(env, handle, 1, 0);
    env.code("import", code);
    let (code, token) = token(env, block);
    env.code("export a pointer", code);
    let (code, address) = open(env, imported, &token);
    env.code("import a pointer", code);
    env.code("free it", cu!(env, cuMemFreeAsync(address, stream)));
    env.code("destroy the import", cu!(env, cuMemPoolDestroy(imported)));
    Ok(())
}
