//! Pointers into shared pools: tokens, and what another process may do with them.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::Gate;
use crate::ipc::{Token, export, open, read, shared_pool, token, write};
use crate::lab::{Lab, OK, THRESHOLD, cu, name, yes};
use crate::twin::{Wire, pair};

/// Asks for tokens.
pub(crate) fn exports(lab: &Lab) -> Result<()> {
    let (pool, plain, stream) = (shared_pool(lab)?, lab.pool(0)?, lab.stream()?);
    let block = lab.alloc(pool, 1000, stream)?;
    let before = token(lab, block).0;
    lab.code("a block before its pool was exported", before);
    lab.code("the pool", export(lab, pool, 1, 0).0);
    let (first, one) = token(lab, block);
    let (second, two) = token(lab, block);
    lab.code("a block", first);
    lab.code("the same block", second);
    lab.say("the same bytes", yes(one.reserved == two.reserved));
    lab.code("the middle of a block", token(lab, block + 512).0);
    lab.code("the last byte of a block", token(lab, block + 999).0);
    lab.code("behind a block", token(lab, block + 4096).0);
    lab.code("null", token(lab, 0).0);
    lab.code("an arbitrary address", token(lab, 4096).0);
    lab.code("memory of cuMemAlloc", token(lab, lab.plain(1000)?).0);
    lab.code(
        "a plain pool",
        token(lab, lab.alloc(plain, 1000, stream)?).0,
    );
    let null = std::ptr::null_mut();
    lab.code("into null", cu!(lab, cuMemPoolExportPointer(null, block)));
    lab.free(block, stream)?;
    lab.code("a freed block", token(lab, block).0);
    lab.synchronise(stream)?;
    lab.code("a freed block, seen", token(lab, block).0);
    Ok(())
}

/// Tokens that are wrong, in the process that exports.
pub(crate) fn forged(lab: &Lab) -> Result<()> {
    let ask = |part: &str, change: &dyn Fn(&mut Token)| {
        lab.alone(part, || {
            let (pool, stream) = (shared_pool(lab)?, lab.stream()?);
            let block = lab.alloc(pool, 1000, stream)?;
            lab.synchronise(stream)?;
            let (_, fd) = export(lab, pool, 1, 0);
            let (code, imported) = crate::ipc::import(lab, fd, 1, 0);
            lab.fine("import", code)?;
            let (code, mut token) = token(lab, block);
            lab.fine("token", code)?;
            change(&mut token);
            let (code, _) = open(lab, imported, &token);
            Ok(format!(
                "{}, healthy {}",
                name(code),
                yes(lab.plain(64).is_ok())
            ))
        });
    };
    ask("true", &|_| ());
    ask("zeroes", &|token| token.reserved.fill(0));
    ask("ones", &|token| token.reserved.fill(0xff));
    ask("cut to 8 bytes", &|token| token.reserved[8..].fill(0));
    ask("cut to 16 bytes", &|token| token.reserved[16..].fill(0));
    // Cut to 32 bytes, a token crashed the process of an H200 once and was accepted once.
    ask("without its first half", &|token| {
        token.reserved[..32].fill(0)
    });
    for byte in [0, 8, 16, 24, 32, 40, 48, 56, 63] {
        ask(&format!("byte {byte} turned round"), &|token| {
            token.reserved[byte] ^= 0xff;
        });
    }
    Ok(())
}

/// Tokens in the wrong place or too late.
pub(crate) fn misplaced(lab: &Lab) -> Result<()> {
    let exported = || -> Result<(CUmemoryPool, Token)> {
        let (pool, stream) = (shared_pool(lab)?, lab.stream()?);
        lab.fine("export", export(lab, pool, 1, 0).0)?;
        let (code, token) = token(lab, lab.alloc(pool, 1000, stream)?);
        lab.fine("token", code)?;
        Ok((pool, token))
    };
    lab.alone("the pool that exports", || {
        let (pool, token) = exported()?;
        Ok(name(open(lab, pool, &token).0))
    });
    lab.alone("a plain pool", || {
        let (_, token) = exported()?;
        Ok(name(open(lab, lab.pool(0)?, &token).0))
    });
    lab.alone("null", || {
        let (_, token) = exported()?;
        Ok(name(open(lab, std::ptr::null_mut(), &token).0))
    });
    let ask = |part: &str, prepare: &dyn Fn(CUmemoryPool, CUdeviceptr, CUstream) -> Result<()>| {
        pair(
            lab,
            part,
            |other| {
                let pool = other.wire.take_pool(lab)?;
                let token = other.wire.take_token()?;
                other.wire.wait()?;
                let (code, address) = open(lab, pool, &token);
                lab.code(part, code);
                if code == OK {
                    lab.say(format!("{part}, read"), read(lab, address));
                }
                Ok(())
            },
            |wire| {
                let (pool, stream) = (shared_pool(lab)?, lab.stream()?);
                lab.set(pool, THRESHOLD, u64::MAX)?;
                let block = lab.alloc(pool, 1000, stream)?;
                lab.fine("write", write(lab, block, 7))?;
                wire.send_pool(lab, pool)?;
                wire.send_pointer(lab, block)?;
                prepare(pool, block, stream)?;
                wire.go()?;
                wire.wait().or(Ok(()))
            },
        );
    };
    ask("freed before the import", &|_, block, stream| {
        lab.free(block, stream)
    });
    ask("freed and seen before the import", &|_, block, stream| {
        lab.free(block, stream)?;
        lab.synchronise(stream)
    });
    ask(
        "freed, seen and trimmed before the import",
        &|pool, block, stream| {
            lab.free(block, stream)?;
            lab.synchronise(stream)?;
            lab.trim(pool, 0)
        },
    );
    ask("of a pool that was destroyed", &|pool, _, _| {
        lab.fine("destroy", cu!(lab, cuMemPoolDestroy(pool)))
    });
    let other_pool = "of another pool";
    pair(
        lab,
        other_pool,
        |other| {
            let pool = other.wire.take_pool(lab)?;
            let token = other.wire.take_token()?;
            let (code, address) = open(lab, pool, &token);
            lab.code(other_pool, code);
            if code == OK {
                lab.say("of another pool, read", read(lab, address));
            }
            Ok(())
        },
        |wire| {
            let (pool, second, stream) = (shared_pool(lab)?, shared_pool(lab)?, lab.stream()?);
            let block = lab.alloc(second, 1000, stream)?;
            let own = lab.alloc(pool, 1000, stream)?;
            lab.fine("write", write(lab, block, 8))?;
            lab.fine("write", write(lab, own, 9))?;
            lab.fine("export", export(lab, second, 1, 0).0)?;
            wire.send_pool(lab, pool)?;
            wire.send_pointer(lab, block)?;
            wire.wait().or(Ok(()))
        },
    );
    Ok(())
}

/// A process with a pool and a block of 1000 bytes that begins with sevens; it hands out both,
/// and then does what it is told.
fn exporter(
    lab: &Lab,
    wire: &Wire,
    then: impl FnOnce(CUmemoryPool, CUdeviceptr) -> Result<()>,
) -> Result<()> {
    let (pool, stream) = (shared_pool(lab)?, lab.stream()?);
    let block = lab.alloc(pool, 1000, stream)?;
    lab.fine("write", write(lab, block, 7))?;
    wire.send_pool(lab, pool)?;
    wire.send_pointer(lab, block)?;
    then(pool, block)?;
    wire.wait().or(Ok(()))
}

/// What an imported pool does.
pub(crate) fn pools(lab: &Lab) -> Result<()> {
    pair(
        lab,
        "",
        |other| {
            let (pool, stream) = (other.wire.take_pool(lab)?, lab.stream()?);
            lab.code("allocate", lab.try_alloc(pool, 1000, stream).0);
            lab.code("set current", cu!(lab, cuDeviceSetMemPool(0, pool)));
            lab.code("trim", cu!(lab, cuMemPoolTrimTo(pool, 0)));
            lab.code("export", export(lab, pool, 1, 0).0);
            for attribute in 0..=9 {
                let mut value = [0xa5a5_a5a5_u32; 2];
                let place = value.as_mut_ptr().cast::<c_void>();
                let id = CUmemPool_attribute(attribute);
                let answer = match cu!(lab, cuMemPoolGetAttribute(pool, id, place)) {
                    OK => format!("{}", value[0]),
                    code => name(code),
                };
                lab.say(format!("attribute {attribute}"), answer);
                let values = if attribute > 5 { [0, 1] } else { [1, 0] };
                for value in values {
                    let code = lab.try_set(pool, attribute, value);
                    lab.code(format!("set attribute {attribute} to {value}"), code);
                }
            }
            access(lab, pool);
            let address = other.wire.take_pointer(lab, pool)?;
            lab.say("read", read(lab, address));
            for attribute in 5..=8 {
                let mut value = 0_u64;
                let place = (&raw mut value).cast::<c_void>();
                let id = CUmemPool_attribute(attribute);
                let code = cu!(lab, cuMemPoolGetAttribute(pool, id, place));
                lab.code(format!("attribute {attribute} with a pointer"), code);
            }
            lab.code("export the pointer", token(lab, address).0);
            lab.code(
                "fill one byte more",
                cu!(lab, cuMemsetD8_v2(address, 1, 1001)),
            );
            lab.code("fill a granule", cu!(lab, cuMemsetD8_v2(address, 1, 1024)));
            pointer(lab, pool, address);
            lab.code("destroy with a pointer", cu!(lab, cuMemPoolDestroy(pool)));
            lab.say("read then", read(lab, address));
            lab.code("free then", cu!(lab, cuMemFreeAsync(address, stream)));
            lab.code("free again", cu!(lab, cuMemFreeAsync(address, stream)));
            lab.code("synchronise then", cu!(lab, cuStreamSynchronize(stream)));
            lab.code("destroy then", cu!(lab, cuMemPoolDestroy(pool)));
            lab.code("destroy again", cu!(lab, cuMemPoolDestroy(pool)));
            Ok(())
        },
        |wire| exporter(lab, wire, |_, _| Ok(())),
    );
    Ok(())
}

/// What becomes of an imported pool whose last pointer is freed and not seen freed.
pub(crate) fn pending_free(lab: &Lab) -> Result<()> {
    for (part, held) in [("on an idle stream", false), ("on a held stream", true)] {
        pair(
            lab,
            part,
            |other| {
                let (pool, stream) = (other.wire.take_pool(lab)?, lab.stream()?);
                let token = other.wire.take_token()?;
                let (code, address) = open(lab, pool, &token);
                lab.fine("cuMemPoolImportPointer", code)?;
                let gate = held.then(|| Gate::hold(lab, stream)).transpose()?;
                let code = cu!(lab, cuMemFreeAsync(address, stream));
                lab.code(format!("{part}, free"), code);
                let code = cu!(lab, cuMemsetD8Async(address, 1, 4, stream));
                lab.code(format!("{part}, fill behind it"), code);
                let (code, again) = open(lab, pool, &token);
                lab.code(format!("{part}, import behind it"), code);
                if code == OK {
                    lab.say(format!("{part}, same address"), yes(again == address));
                    let code = cu!(lab, cuMemFreeAsync(again, stream));
                    lab.code(format!("{part}, free that"), code);
                }
                let code = cu!(lab, cuMemPoolDestroy(pool));
                lab.code(format!("{part}, destroy"), code);
                drop(gate);
                let code = cu!(lab, cuStreamSynchronize(stream));
                lab.code(format!("{part}, synchronise"), code);
                let code = cu!(lab, cuMemPoolDestroy(pool));
                lab.code(format!("{part}, destroy after it"), code);
                Ok(())
            },
            |wire| exporter(lab, wire, |_, _| Ok(())),
        );
    }
    Ok(())
}

fn access(lab: &Lab, pool: CUmemoryPool) {
    for (kind, id) in [(1, 0), (1, 99), (2, 0), (3, 0)] {
        let mut flags = CUmemAccess_flags(77);
        let mut place = location(CUmemLocationType(kind), id);
        let code = cu!(
            lab,
            cuMemPoolGetAccess(&raw mut flags, pool, &raw mut place)
        );
        let answer = match code {
            OK => format!("{}", flags.0),
            code => name(code),
        };
        lab.say(format!("access of {kind} {id}"), answer);
    }
    for flags in [0, 1, 3] {
        let wish = CUmemAccessDesc {
            location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
            flags: CUmemAccess_flags(flags),
        };
        let code = cu!(lab, cuMemPoolSetAccess(pool, &raw const wish, 1));
        lab.code(format!("set access {flags}"), code);
    }
}

/// Attributes of an imported pointer.
fn pointer(lab: &Lab, pool: CUmemoryPool, address: CUdeviceptr) {
    for id in 1..=20 {
        let mut value = 0xa5a5_u64;
        let place = (&raw mut value).cast::<c_void>();
        let attribute = CUpointer_attribute(id);
        let code = cu!(lab, cuPointerGetAttribute(place, attribute, address));
        let answer = match (code, id) {
            (OK, 1) => yes(value == lab.context().addr() as u64).into(),
            (OK, 3 | 11) => yes(value == address).into(),
            (OK, 17) => match value {
                0 => "0".into(),
                value => yes(value == pool.addr() as u64).into(),
            },
            (OK, 5 | 7 | 20) => "SUCCESS".into(),
            (OK, 12) => format!("{value}"),
            (OK, _) => format!("{}", value as u32 & if id == 2 { u32::MAX } else { 0xff }),
            (code, _) => name(code),
        };
        lab.say(format!("pointer attribute {id}"), answer);
    }
    let (mut start, mut bytes) = (0, 0);
    let code = cu!(
        lab,
        cuMemGetAddressRange_v2(&raw mut start, &raw mut bytes, address + 10)
    );
    let same = yes(start == address);
    lab.say(
        "range",
        format!("{}, its start {same}, {bytes} B", name(code)),
    );
}

/// One pointer twice in one process.
pub(crate) fn twice(lab: &Lab) -> Result<()> {
    for (part, two_pools) in [("through one pool", false), ("through two imports", true)] {
        pair(
            lab,
            part,
            |other| {
                use std::os::fd::AsRawFd;
                let stream = lab.stream()?;
                let descriptor = other.wire.take_descriptor()?;
                let import = || -> Result<CUmemoryPool> {
                    let (code, pool) = crate::ipc::import(lab, descriptor.as_raw_fd(), 1, 0);
                    lab.fine("import", code)?;
                    Ok(pool)
                };
                let pool = import()?;
                let second = if two_pools { import()? } else { pool };
                lab.say(format!("{part}, one handle"), yes(pool == second));
                let token = other.wire.take_token()?;
                let (code, one) = open(lab, pool, &token);
                lab.code(format!("{part}, first"), code);
                let (code, two) = open(lab, second, &token);
                lab.code(format!("{part}, second"), code);
                lab.say(format!("{part}, one address"), yes(one == two));
                let code = cu!(lab, cuMemFreeAsync(one, stream));
                lab.code(format!("{part}, first free"), code);
                lab.synchronise(stream)?;
                let code = cu!(lab, cuMemsetD8_v2(two, 1, 4));
                lab.code(format!("{part}, a fill after the first free"), code);
                let code = cu!(lab, cuMemFreeAsync(two, stream));
                lab.code(format!("{part}, second free"), code);
                let (code, three) = open(lab, pool, &token);
                lab.code(format!("{part}, import after all frees"), code);
                if code == OK {
                    lab.say(format!("{part}, the same address"), yes(one == three));
                    lab.say(format!("{part}, read"), read(lab, three));
                }
                Ok(())
            },
            |wire| exporter(lab, wire, |_, _| Ok(())),
        );
    }
    Ok(())
}
