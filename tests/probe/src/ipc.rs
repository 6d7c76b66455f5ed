//! Sharing pools and pointers, as far as one process can ask.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB, OK, THRESHOLD, cu, name, size, yes};

pub(crate) use crate::share::*;

pub(crate) fn exports(lab: &Lab) -> Result<()> {
    let mut default = std::ptr::null_mut();
    let code = cu!(lab, cuDeviceGetDefaultMemPool(&raw mut default, 0));
    lab.fine("cuDeviceGetDefaultMemPool", code)?;
    let (host_code, host) = lab.pool_with(&CUmemPoolProps {
        location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0),
        ..Lab::props()
    });
    let (numa_code, numa) = lab.pool_with(&CUmemPoolProps {
        handleTypes: CUmemAllocationHandleType(DESCRIPTOR),
        location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0),
        ..Lab::props()
    });
    lab.fine("a host pool", host_code)?;
    lab.fine("a shared pool of a host node", numa_code)?;
    let plain = lab.pool(0)?;
    let first = shared_pool(lab)?;
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
            let (code, handle) = export(lab, pool, kind, 0);
            lab.code(format!("{what} as {kind}"), code);
            if code == OK && kind == 1 {
                drop(own(handle));
            }
        }
    }
    for flags in [1, 2, u64::MAX] {
        let (code, _) = export(lab, first, 1, flags);
        lab.code(format!("with flags {flags}"), code);
    }
    let kind = CUmemAllocationHandleType(1);
    let code = cu!(
        lab,
        cuMemPoolExportToShareableHandle(null.cast(), first, kind, 0)
    );
    lab.code("into null", code);
    Ok(())
}

/// A pool of both kinds of handle.
pub(crate) fn both_kinds(lab: &Lab) -> Result<()> {
    for kind in [1, 8, 9] {
        lab.alone(&format!("as {kind}"), || {
            let (code, pool) = shared(lab, DESCRIPTOR | FABRIC);
            lab.fine("cuMemPoolCreate", code)?;
            Ok(name(export(lab, pool, kind, 0).0))
        });
    }
    for (types, kind) in [(FABRIC, FABRIC), (FABRIC | DESCRIPTOR, DESCRIPTOR)] {
        for end in ["used", "trimmed", "destroyed"] {
            lab.alone(&format!("{types} as {kind}, then {end}"), || {
                let (code, pool) = shared(lab, types);
                lab.fine("cuMemPoolCreate", code)?;
                let failed = export(lab, pool, kind, 0).0;
                let stream = lab.stream()?;
                let code = match end {
                    "used" => {
                        let block = lab.alloc(pool, MIB, stream)?;
                        lab.fine("write", write(lab, block, 1))?;
                        lab.free(block, stream)?;
                        cu!(lab, cuStreamSynchronize(stream))
                    }
                    "trimmed" => cu!(lab, cuMemPoolTrimTo(pool, 0)),
                    _ => cu!(lab, cuMemPoolDestroy(pool)),
                };
                let healthy = yes(lab.plain(64).is_ok());
                Ok(format!(
                    "{}, {}, healthy {healthy}",
                    name(failed),
                    name(code)
                ))
            });
        }
    }
    lab.alone("as 1, again after a failure", || {
        let (code, pool) = shared(lab, DESCRIPTOR | FABRIC);
        lab.fine("cuMemPoolCreate", code)?;
        let _ = export(lab, pool, 1, 0);
        Ok(name(export(lab, pool, 1, 0).0))
    });
    Ok(())
}

pub(crate) fn descriptors(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    // A first round, for what the driver opens once.
    drop(exported(lab)?);
    let start = open_descriptors() as i64;
    let pool = shared_pool(lab)?;
    let block = lab.alloc(pool, 1000, stream)?;
    let (first_code, first) = export(lab, pool, 1, 0);
    let (second_code, second) = export(lab, pool, 1, 0);
    lab.fine("the first export", first_code)?;
    lab.fine("the second export", second_code)?;
    let (first, second) = (own(first), own(second));
    let two = first.as_raw_fd() != second.as_raw_fd();
    lab.say("two exports are two", yes(two));
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(first.as_raw_fd(), libc::F_GETFD) };
    lab.say("close-on-exec", yes(flags & libc::FD_CLOEXEC != 0));
    drop(second);
    let (code, imported) = import(lab, first.as_raw_fd(), 1, 0);
    lab.code("import here", code);
    lab.say("the import is the pool", yes(imported == pool));
    lab.say("open after the import", yes(is_open(first.as_raw_fd())));
    let (code, again) = import(lab, first.as_raw_fd(), 1, 0);
    lab.code("import again", code);
    lab.say("two imports are two", yes(imported != again));
    drop(first);
    let (token_code, token) = token(lab, block);
    lab.fine("cuMemPoolExportPointer", token_code)?;
    let (code, address) = open(lab, imported, &token);
    lab.code("a pointer with the descriptor closed", code);
    lab.say("at the same address", yes(address == block));
    lab.code("fill it", write(lab, address, 3));
    lab.say("the block reads", read(lab, block));
    lab.code("its free", cu!(lab, cuMemFreeAsync(address, stream)));
    lab.synchronise(stream)?;
    for part in ["destroy", "destroy a second time", "destroy a third time"] {
        lab.code(part, cu!(lab, cuMemPoolDestroy(imported)));
    }
    lab.free(block, stream)?;
    lab.end_pool(pool)?;
    let more = open_descriptors() as i64 - start;
    lab.say("descriptors more at the end", more);
    Ok(())
}

/// How many ends two imports of one pool need.
pub(crate) fn imported_twice(lab: &Lab) -> Result<()> {
    // A first round, for what the driver opens once.
    let warm = exported(lab)?;
    let (_, warm) = import(lab, warm.as_raw_fd(), DESCRIPTOR, 0);
    lab.fine("destroy", cu!(lab, cuMemPoolDestroy(warm)))?;
    let (pool, stream) = (shared_pool(lab)?, lab.stream()?);
    let block = lab.alloc(pool, 1000, stream)?;
    lab.fine("write", write(lab, block, 5))?;
    let (code, descriptor) = export(lab, pool, DESCRIPTOR, 0);
    lab.fine("export", code)?;
    let descriptor = own(descriptor);
    let (code, token) = token(lab, block);
    lab.fine("token", code)?;
    let start = open_descriptors() as i64;
    let (_, first) = import(lab, descriptor.as_raw_fd(), DESCRIPTOR, 0);
    let (_, second) = import(lab, descriptor.as_raw_fd(), DESCRIPTOR, 0);
    lab.code("destroy once", cu!(lab, cuMemPoolDestroy(first)));
    let more = open_descriptors() as i64 - start;
    lab.say("descriptors more then", more);
    let (code, address) = open(lab, second, &token);
    lab.code("import a pointer then", code);
    if code == OK {
        lab.say("read then", read(lab, address));
        let code = cu!(lab, cuMemFreeAsync(address, stream));
        lab.code("free then", code);
    }
    let (code, third) = import(lab, descriptor.as_raw_fd(), DESCRIPTOR, 0);
    lab.code("import again", code);
    let (code, address) = open(lab, third, &token);
    lab.code("import a pointer after that", code);
    lab.say("read after that", read(lab, address));
    Ok(())
}

/// What a driver says to a descriptor, and whether it took or leaked any.
fn verdict(lab: &Lab, descriptor: c_int, kind: u32, flags: u64) -> String {
    let was_open = is_open(descriptor);
    let before = open_descriptors() as i64;
    let (code, _) = import(lab, descriptor, kind, flags);
    let more = open_descriptors() as i64 - before;
    let kept = yes(is_open(descriptor) == was_open);
    let healthy = yes(lab.plain(64).is_ok());
    let code = name(code);
    format!("{code}, descriptor as before {kept}, more {more}, healthy {healthy}")
}

/// What is no pool's handle.
pub(crate) fn bad_imports(lab: &Lab) -> Result<()> {
    let ask = |part: &str, make: &dyn Fn() -> Result<OwnedFd>| {
        lab.alone(part, || {
            Ok(verdict(lab, make()?.into_raw_fd(), DESCRIPTOR, 0))
        });
    };
    for (part, number) in [
        ("-1", -1),
        ("the smallest", c_int::MIN),
        ("a number that is not open", 900),
    ] {
        lab.alone(part, || Ok(verdict(lab, number, DESCRIPTOR, 0)));
    }
    lab.alone("a closed descriptor", || {
        let number = exported(lab)?.into_raw_fd();
        drop(own(number));
        Ok(verdict(lab, number, DESCRIPTOR, 0))
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
    ask("a physical allocation", &|| physical(lab));
    ask("a pool that was destroyed", &|| {
        let pool = shared_pool(lab)?;
        let (code, descriptor) = export(lab, pool, DESCRIPTOR, 0);
        lab.fine("export", code)?;
        lab.end_pool(pool)?;
        Ok(own(descriptor))
    });
    for kind in [0, 2, 4, 9, 16] {
        lab.alone(&format!("a pool as {kind}"), || {
            Ok(verdict(lab, exported(lab)?.into_raw_fd(), kind, 0))
        });
    }
    for flags in [1, u64::MAX] {
        lab.alone(&format!("a pool with flags {flags}"), || {
            let descriptor = exported(lab)?.into_raw_fd();
            Ok(verdict(lab, descriptor, DESCRIPTOR, flags))
        });
    }
    lab.alone("a pool into null", || {
        let descriptor = exported(lab)?.into_raw_fd();
        let handle = std::ptr::without_provenance_mut(descriptor as usize);
        let (out, kind) = (std::ptr::null_mut(), CUmemAllocationHandleType(DESCRIPTOR));
        Ok(name(cu!(
            lab,
            cuMemPoolImportFromShareableHandle(out, handle, kind, 0)
        )))
    });
    Ok(())
}

fn exported(lab: &Lab) -> Result<OwnedFd> {
    let (code, descriptor) = export(lab, shared_pool(lab)?, DESCRIPTOR, 0);
    lab.fine("export", code)?;
    Ok(own(descriptor))
}

/// The descriptor of memory that belongs to no pool.
fn physical(lab: &Lab) -> Result<OwnedFd> {
    let kind = CUmemAllocationHandleType(DESCRIPTOR);
    let prop = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: kind,
        location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
        ..CUmemAllocationProp::default()
    };
    let (mut handle, mut descriptor) = (0, -1_i32);
    let bytes = 2 * MIB as usize;
    let code = cu!(lab, cuMemCreate(&raw mut handle, bytes, &raw const prop, 0));
    lab.fine("cuMemCreate", code)?;
    let place = (&raw mut descriptor).cast::<c_void>();
    let code = cu!(lab, cuMemExportToShareableHandle(place, handle, kind, 0));
    lab.fine("cuMemExportToShareableHandle", code)?;
    Ok(own(descriptor))
}

/// When memory of a shared pool goes back.
pub(crate) fn gives_back(lab: &Lab) -> Result<()> {
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
        let (code, pool) = shared(lab, types);
        if code != OK {
            lab.code(&part, code);
            continue;
        }
        let stream = lab.stream()?;
        lab.set(pool, THRESHOLD, threshold)?;
        let small = lab.alloc(pool, 1, stream)?;
        let grown = lab.reserved(pool)?;
        let block = lab.alloc(pool, 160 * MIB, stream)?;
        let full = lab.reserved(pool)?;
        lab.free(small, stream)?;
        lab.free(block, stream)?;
        let freed = lab.reserved(pool)?;
        lab.synchronise(stream)?;
        let seen = lab.reserved(pool)?;
        lab.trim(pool, 0)?;
        let trimmed = lab.reserved(pool)?;
        lab.say(
            part,
            format!("{grown}, {full}, freed {freed}, seen {seen}, trimmed {trimmed}"),
        );
        lab.end_pool(pool)?;
    }
    Ok(())
}

pub(crate) fn fabric(lab: &Lab) -> Result<()> {
    let (code, pool) = shared(lab, FABRIC);
    lab.code("make", code);
    if code != OK {
        return Ok(());
    }
    let mut handle = CUmemFabricHandle_st::default();
    let kind = CUmemAllocationHandleType(FABRIC);
    let place = (&raw mut handle).cast::<c_void>();
    let code = cu!(lab, cuMemPoolExportToShareableHandle(place, pool, kind, 0));
    lab.code("export", code);
    lab.code("export as a descriptor", export(lab, pool, 1, 0).0);
    let mut imported = std::ptr::null_mut();
    let code = cu!(
        lab,
        cuMemPoolImportFromShareableHandle(&raw mut imported, place, kind, 0)
    );
    lab.code("import here", code);
    Ok(())
}

/// Fabric handles that were never exported.
pub(crate) fn fabric_forged(lab: &Lab) -> Result<()> {
    for (part, byte) in [("zeroes", 0), ("ones", 0xff)] {
        lab.alone(part, || {
            let mut handle = CUmemFabricHandle_st { data: [byte; 64] };
            let place = (&raw mut handle).cast::<c_void>();
            let (mut out, kind) = (std::ptr::null_mut(), CUmemAllocationHandleType(FABRIC));
            let code = cu!(
                lab,
                cuMemPoolImportFromShareableHandle(&raw mut out, place, kind, 0)
            );
            Ok(name(code))
        });
    }
    lab.alone("null", || Ok(name(import(lab, 0, FABRIC, 0).0)));
    Ok(())
}

/// Without a current context.
pub(crate) fn no_context(lab: &Lab) -> Result<()> {
    let (pool, stream) = (shared_pool(lab)?, lab.stream()?);
    let block = lab.alloc(pool, 1000, stream)?;
    lab.synchronise(stream)?;
    lab.no_context()?;
    let (code, handle) = export(lab, pool, 1, 0);
    lab.code("export", code);
    let (code, imported) = import(lab, handle, 1, 0);
    lab.code("import", code);
    let (code, token) = token(lab, block);
    lab.code("export a pointer", code);
    let (code, address) = open(lab, imported, &token);
    lab.code("import a pointer", code);
    lab.code("free it", cu!(lab, cuMemFreeAsync(address, stream)));
    lab.code("destroy the import", cu!(lab, cuMemPoolDestroy(imported)));
    Ok(())
}
