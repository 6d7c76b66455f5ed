//! Pointers into shared pools: tokens, and what another process may do with them.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, THRESHOLD, cu, name, yes};
use crate::gate::Gate;
use crate::ipc::{Token, export, open, read, shared_pool, token, write};
use crate::twin::{Wire, pair};

/// Asks for tokens.
pub(crate) fn exports(env: &Environment) -> Result<()> {
    let (pool, plain, stream) = (shared_pool(env)?, env.pool(0)?, env.stream()?);
    let block = env.alloc(pool, 1000, stream)?;
    let before = token(env, block).0;
    env.code("a block before its pool was exported", before);
    env.code("the pool", export(env, pool, 1, 0).0);
    let (first, one) = token(env, block);
    let (second, two) = token(env, block);
    env.code("a block", first);
    env.code("the same block", second);
    env.say("the same bytes", yes(one.reserved == two.reserved));
    env.code("the middle of a block", token(env, block + 512).0);
    env.code("the last byte of a block", token(env, block + 999).0);
    env.code("behind a block", token(env, block + 4096).0);
    env.code("null", token(env, 0).0);
    env.code("an arbitrary address", token(env, 4096).0);
    env.code("memory of cuMemAlloc", token(env, env.plain(1000)?).0);
    env.code(
        "a plain pool",
        token(env, env.alloc(plain, 1000, stream)?).0,
    );
    let null = std::ptr::null_mut();
    env.code("into null", cu!(env, cuMemPoolExportPointer(null, block)));
    env.free(block, stream)?;
    env.code("a freed block", token(env, block).0);
    env.synchronise(stream)?;
    env.code("a freed block, seen", token(env, block).0);
    Ok(())
}

/// Tokens that are wrong, in the process that exports.
pub(crate) fn forged(env: &Environment) -> Result<()> {
    let ask = |part: &str, change: &dyn Fn(&mut Token)| {
        env.alone(part, || {
            let (pool, stream) = (shared_pool(env)?, env.stream()?);
            let block = env.alloc(pool, 1000, stream)?;
            env.synchronise(stream)?;
            let (_, fd) = export(env, pool, 1, 0);
            let (code, imported) = crate::ipc::import(env, fd, 1, 0);
            env.fine("import", code)?;
            let (code, mut token) = token(env, block);
            env.fine("token", code)?;
            change(&mut token);
            let (code, _) = open(env, imported, &token);
            Ok(format!(
                "{}, healthy {}",
                name(code),
                yes(env.plain(64).is_ok())
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
pub(crate) fn misplaced(env: &Environment) -> Result<()> {
    let exported = || -> Result<(CUmemoryPool, Token)> {
        let (pool, stream) = (shared_pool(env)?, env.stream()?);
        env.fine("export", export(env, pool, 1, 0).0)?;
        let (code, token) = token(env, env.alloc(pool, 1000, stream)?);
        env.fine("token", code)?;
        Ok((pool, token))
    };
    env.alone("the pool that exports", || {
        let (pool, token) = exported()?;
        Ok(name(open(env, pool, &token).0))
    });
    env.alone("a plain pool", || {
        let (_, token) = exported()?;
        Ok(name(open(env, env.pool(0)?, &token).0))
    });
    env.alone("null", || {
        let (_, token) = exported()?;
        Ok(name(open(env, std::ptr::null_mut(), &token).0))
    });
    let ask = |part: &str, prepare: &dyn Fn(CUmemoryPool, CUdeviceptr, CUstream) -> Result<()>| {
        pair(
            env,
            part,
            |other| {
                let pool = other.wire.take_pool(env)?;
                let token = other.wire.take_token()?;
                other.wire.wait()?;
                let (code, address) = open(env, pool, &token);
                env.code(part, code);
                if code == OK {
                    env.say(format!("{part}, read"), read(env, address));
                }
                Ok(())
            },
            |wire| {
                let (pool, stream) = (shared_pool(env)?, env.stream()?);
                env.set(pool, THRESHOLD, u64::MAX)?;
                let block = env.alloc(pool, 1000, stream)?;
                env.fine("write", write(env, block, 7))?;
                wire.send_pool(env, pool)?;
                wire.send_pointer(env, block)?;
                prepare(pool, block, stream)?;
                wire.go()?;
                wire.wait().or(Ok(()))
            },
        );
    };
    ask("freed before the import", &|_, block, stream| {
        env.free(block, stream)
    });
    ask("freed and seen before the import", &|_, block, stream| {
        env.free(block, stream)?;
        env.synchronise(stream)
    });
    ask(
        "freed, seen and trimmed before the import",
        &|pool, block, stream| {
            env.free(block, stream)?;
            env.synchronise(stream)?;
            env.trim(pool, 0)
        },
    );
    ask("of a pool that was destroyed", &|pool, _, _| {
        env.fine("destroy", cu!(env, cuMemPoolDestroy(pool)))
    });
    let other_pool = "of another pool";
    pair(
        env,
        other_pool,
        |other| {
            let pool = other.wire.take_pool(env)?;
            let token = other.wire.take_token()?;
            let (code, address) = open(env, pool, &token);
            env.code(other_pool, code);
            if code == OK {
                env.say("of another pool, read", read(env, address));
            }
            Ok(())
        },
        |wire| {
            let (pool, second, stream) = (shared_pool(env)?, shared_pool(env)?, env.stream()?);
            let block = env.alloc(second, 1000, stream)?;
            let own = env.alloc(pool, 1000, stream)?;
            env.fine("write", write(env, block, 8))?;
            env.fine("write", write(env, own, 9))?;
            env.fine("export", export(env, second, 1, 0).0)?;
            wire.send_pool(env, pool)?;
            wire.send_pointer(env, block)?;
            wire.wait().or(Ok(()))
        },
    );
    Ok(())
}

/// A process with a pool and a block of 1000 bytes that begins with sevens; it hands out both,
/// and then does what it is told.
fn exporter(
    env: &Environment,
    wire: &Wire,
    then: impl FnOnce(CUmemoryPool, CUdeviceptr) -> Result<()>,
) -> Result<()> {
    let (pool, stream) = (shared_pool(env)?, env.stream()?);
    let block = env.alloc(pool, 1000, stream)?;
    env.fine("write", write(env, block, 7))?;
    wire.send_pool(env, pool)?;
    wire.send_pointer(env, block)?;
    then(pool, block)?;
    wire.wait().or(Ok(()))
}

/// What an imported pool does.
pub(crate) fn pools(env: &Environment) -> Result<()> {
    pair(
        env,
        "",
        |other| {
            let (pool, stream) = (other.wire.take_pool(env)?, env.stream()?);
            env.code("allocate", env.try_alloc(pool, 1000, stream).0);
            env.code("set current", cu!(env, cuDeviceSetMemPool(0, pool)));
            env.code("trim", cu!(env, cuMemPoolTrimTo(pool, 0)));
            env.code("export", export(env, pool, 1, 0).0);
            for attribute in 0..=9 {
                let mut value = [0xa5a5_a5a5_u32; 2];
                let place = value.as_mut_ptr().cast::<c_void>();
                let id = CUmemPool_attribute(attribute);
                let answer = match cu!(env, cuMemPoolGetAttribute(pool, id, place)) {
                    OK => format!("{}", value[0]),
                    code => name(code),
                };
                env.say(format!("attribute {attribute}"), answer);
                let values = if attribute > 5 { [0, 1] } else { [1, 0] };
                for value in values {
                    let code = env.try_set(pool, attribute, value);
                    env.code(format!("set attribute {attribute} to {value}"), code);
                }
            }
            access(env, pool);
            let address = other.wire.take_pointer(env, pool)?;
            env.say("read", read(env, address));
            for attribute in 5..=8 {
                let mut value = 0_u64;
                let place = (&raw mut value).cast::<c_void>();
                let id = CUmemPool_attribute(attribute);
                let code = cu!(env, cuMemPoolGetAttribute(pool, id, place));
                env.code(format!("attribute {attribute} with a pointer"), code);
            }
            env.code("export the pointer", token(env, address).0);
            env.code(
                "fill one byte more",
                cu!(env, cuMemsetD8_v2(address, 1, 1001)),
            );
            env.code("fill a granule", cu!(env, cuMemsetD8_v2(address, 1, 1024)));
            pointer(env, pool, address);
            env.code("destroy with a pointer", cu!(env, cuMemPoolDestroy(pool)));
            env.say("read then", read(env, address));
            env.code("free then", cu!(env, cuMemFreeAsync(address, stream)));
            env.code("free again", cu!(env, cuMemFreeAsync(address, stream)));
            env.code("synchronise then", cu!(env, cuStreamSynchronize(stream)));
            env.code("destroy then", cu!(env, cuMemPoolDestroy(pool)));
            env.code("destroy again", cu!(env, cuMemPoolDestroy(pool)));
            Ok(())
        },
        |wire| exporter(env, wire, |_, _| Ok(())),
    );
    Ok(())
}

/// What becomes of an imported pool whose last pointer is freed and not seen freed.
pub(crate) fn pending_free(env: &Environment) -> Result<()> {
    for (part, held) in [("on an idle stream", false), ("on a held stream", true)] {
        pair(
            env,
            part,
            |other| {
                let (pool, stream) = (other.wire.take_pool(env)?, env.stream()?);
                let token = other.wire.take_token()?;
                let (code, address) = open(env, pool, &token);
                env.fine("cuMemPoolImportPointer", code)?;
                let gate = held.then(|| Gate::hold(env, stream)).transpose()?;
                let code = cu!(env, cuMemFreeAsync(address, stream));
                env.code(format!("{part}, free"), code);
                let code = cu!(env, cuMemsetD8Async(address, 1, 4, stream));
                env.code(format!("{part}, fill behind it"), code);
                let (code, again) = open(env, pool, &token);
                env.code(format!("{part}, import behind it"), code);
                if code == OK {
                    env.say(format!("{part}, same address"), yes(again == address));
                    let code = cu!(env, cuMemFreeAsync(again, stream));
                    env.code(format!("{part}, free that"), code);
                }
                let code = cu!(env, cuMemPoolDestroy(pool));
                env.code(format!("{part}, destroy"), code);
                drop(gate);
                let code = cu!(env, cuStreamSynchronize(stream));
                env.code(format!("{part}, synchronise"), code);
                let code = cu!(env, cuMemPoolDestroy(pool));
                env.code(format!("{part}, destroy after it"), code);
                Ok(())
            },
            |wire| exporter(env, wire, |_, _| Ok(())),
        );
    }
    Ok(())
}

fn access(env: &Environment, pool: CUmemoryPool) {
    for (kind, id) in [(1, 0), (1, 99), (2, 0), (3, 0)] {
        let mut flags = CUmemAccess_flags(77);
        let mut place = location(CUmemLocationType(kind), id);
        let code = cu!(
            env,
            cuMemPoolGetAccess(&raw mut flags, pool, &raw mut place)
        );
        let answer = match code {
            OK => format!("{}", flags.0),
            code => name(code),
        };
        env.say(format!("access of {kind} {id}"), answer);
    }
    for flags in [0, 1, 3] {
        let wish = CUmemAccessDesc {
            location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
            flags: CUmemAccess_flags(flags),
        };
        let code = cu!(env, cuMemPoolSetAccess(pool, &raw const wish, 1));
        env.code(format!("set access {flags}"), code);
    }
}

/// Attributes of an imported pointer.
fn pointer(env: &Environment, pool: CUmemoryPool, address: CUdeviceptr) {
    for id in 1..=20 {
        let mut value = 0xa5a5_u64;
        let place = (&raw mut value).cast::<c_void>();
        let attribute = CUpointer_attribute(id);
        let code = cu!(env, cuPointerGetAttribute(place, attribute, address));
        let answer = match (code, id) {
            (OK, 1) => yes(value == env.context().addr() as u64).into(),
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
        env.say(format!("pointer attribute {id}"), answer);
    }
    let (mut start, mut bytes) = (0, 0);
    let code = cu!(
        env,
        cuMemGetAddressRange_v2(&raw mut start, &raw mut bytes, address + 10)
    );
    let same = yes(start == address);
    env.say(
        "range",
        format!("{}, its start {same}, {bytes} B", name(code)),
    );
}

/// One pointer twice in one process.
pub(crate) fn twice(env: &Environment) -> Result<()> {
    for (part, two_pools) in [("through one pool", false), ("through two imports", true)] {
        pair(
            env,
            part,
            |other| {
                use std::os::fd::AsRawFd;
                let stream = env.stream()?;
                let descriptor = other.wire.take_descriptor()?;
                let import = || -> Result<CUmemoryPool> {
                    let (code, pool) = crate::ipc::import(env, descriptor.as_raw_fd(), 1, 0);
                    env.fine("import", code)?;
                    Ok(pool)
                };
                let pool = import()?;
                let second = if two_pools { import()? } else { pool };
                env.say(format!("{part}, one handle"), yes(pool == second));
                let token = other.wire.take_token()?;
                let (code, one) = open(env, pool, &token);
                env.code(format!("{part}, first"), code);
                let (code, two) = open(env, second, &token);
                env.code(format!("{part}, second"), code);
                env.say(format!("{part}, one address"), yes(one == two));
                let code = cu!(env, cuMemFreeAsync(one, stream));
                env.code(format!("{part}, first free"), code);
                env.synchronise(stream)?;
                let code = cu!(env, cuMemsetD8_v2(two, 1, 4));
                env.code(format!("{part}, a fill after the first free"), code);
                let code = cu!(env, cuMemFreeAsync(two, stream));
                env.code(format!("{part}, second free"), code);
                let (code, three) = open(env, pool, &token);
                env.code(format!("{part}, import after all frees"), code);
                if code == OK {
                    env.say(format!("{part}, the same address"), yes(one == three));
                    env.say(format!("{part}, read"), read(env, three));
                }
                Ok(())
            },
            |wire| exporter(env, wire, |_, _| Ok(())),
        );
    }
    Ok(())
}
