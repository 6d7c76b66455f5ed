//! What no program should do. Each in a process of its own, for it may crash.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name};

/// Says a code, and what a synchronise and a new allocation answer after it.
fn verdict(env: &Environment, code: CUresult, stream: CUstream) -> String {
    let after = cu!(env, cuStreamSynchronize(stream));
    let healthy = env.plain(64).is_ok();
    match (after, healthy) {
        (OK, true) => name(code),
        (after, _) => format!("{}, then {}", name(code), name(after)),
    }
}

pub(crate) fn frees(env: &Environment) -> Result<()> {
    let free = |part: &str, ask: &dyn Fn(CUdeviceptr, CUstream) -> CUresult| {
        env.alone(part, || {
            let (pool, stream) = (env.pool(0)?, env.stream()?);
            let block = env.alloc(pool, 1000, stream)?;
            let code = ask(block, stream);
            Ok(verdict(env, code, stream))
        });
    };
    free("twice", &|block, stream| {
        let _ = cu!(env, cuMemFreeAsync(block, stream));
        cu!(env, cuMemFreeAsync(block, stream))
    });
    free("twice, seen in between", &|block, stream| {
        let _ = cu!(env, cuMemFreeAsync(block, stream));
        let _ = cu!(env, cuStreamSynchronize(stream));
        cu!(env, cuMemFreeAsync(block, stream))
    });
    free("the middle of a block", &|block, stream| {
        cu!(env, cuMemFreeAsync(block + 16, stream))
    });
    free("behind a block", &|block, stream| {
        cu!(env, cuMemFreeAsync(block + MIB, stream))
    });
    free("an arbitrary address", &|_, stream| {
        cu!(env, cuMemFreeAsync(4096, stream))
    });
    free("an address of the host", &|block, stream| {
        cu!(
            env,
            cuMemFreeAsync((&raw const block).expose_provenance() as u64, stream)
        )
    });
    free("pinned memory", &|_, stream| match env.pinned(64) {
        Ok(pinned) => cu!(
            env,
            cuMemFreeAsync(pinned.expose_provenance() as u64, stream)
        ),
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    });
    free(
        "the middle of plain memory",
        &|_, stream| match env.plain(64) {
            Ok(plain) => cu!(env, cuMemFreeAsync(plain + 16, stream)),
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        },
    );
    free("plain memory twice", &|_, stream| match env.plain(64) {
        Ok(plain) => {
            let _ = cu!(env, cuMemFreeAsync(plain, stream));
            cu!(env, cuMemFreeAsync(plain, stream))
        }
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    });
    Ok(())
}

pub(crate) fn frees_by_the_host(env: &Environment) -> Result<()> {
    let free = |part: &str, ask: &dyn Fn(CUdeviceptr, CUdeviceptr, CUstream) -> CUresult| {
        env.alone(part, || {
            let (pool, stream) = (env.pool(0)?, env.stream()?);
            let (block, plain) = (env.alloc(pool, 1000, stream)?, env.plain(64)?);
            env.synchronise(stream)?;
            let code = ask(block, plain, stream);
            Ok(verdict(env, code, stream))
        });
    };
    free("pool memory twice", &|block, _, _| {
        let _ = cu!(env, cuMemFree_v2(block));
        cu!(env, cuMemFree_v2(block))
    });
    free(
        "pool memory after its free in a stream",
        &|block, _, stream| {
            let _ = cu!(env, cuMemFreeAsync(block, stream));
            cu!(env, cuMemFree_v2(block))
        },
    );
    free("the middle of pool memory", &|block, _, _| {
        cu!(env, cuMemFree_v2(block + 16))
    });
    free("plain memory twice", &|_, plain, _| {
        let _ = cu!(env, cuMemFree_v2(plain));
        cu!(env, cuMemFree_v2(plain))
    });
    free("the middle of plain memory", &|_, plain, _| {
        cu!(env, cuMemFree_v2(plain + 16))
    });
    free("an arbitrary address", &|_, _, _| {
        cu!(env, cuMemFree_v2(4096))
    });
    free("an address of the host", &|block, _, _| {
        cu!(
            env,
            cuMemFree_v2((&raw const block).expose_provenance() as u64)
        )
    });
    free("cuMemFreeHost of foreign memory", &|block, _, _| {
        cu!(env, cuMemFreeHost((&raw const block).cast_mut().cast()))
    });
    free("cuMemFreeHost twice", &|_, _, _| match env.pinned(64) {
        Ok(pinned) => {
            let _ = cu!(env, cuMemFreeHost(pinned));
            cu!(env, cuMemFreeHost(pinned))
        }
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    });
    Ok(())
}

pub(crate) fn memsets(env: &Environment) -> Result<()> {
    let set = |part: &str, ask: &dyn Fn(CUdeviceptr, CUdeviceptr, CUstream) -> CUresult| {
        env.alone(part, || {
            let (pool, stream) = (env.pool(0)?, env.stream()?);
            let (block, plain) = (env.alloc(pool, 1000, stream)?, env.plain(1000)?);
            let code = ask(block, plain, stream);
            Ok(verdict(env, code, stream))
        });
    };
    for by in [1, 2] {
        set(
            &format!("D32 of plain memory, {by} B off"),
            &|_, plain, _| cu!(env, cuMemsetD32_v2(plain + by, 0, 4)),
        );
        set(
            &format!("D32 of pool memory, {by} B off"),
            &|block, _, stream| cu!(env, cuMemsetD32Async(block + by, 0, 4, stream)),
        );
    }
    set("D16 of plain memory, 1 B off", &|_, plain, _| {
        cu!(env, cuMemsetD16_v2(plain + 1, 0, 4))
    });
    set("D32 of a low address", &|_, _, stream| {
        cu!(env, cuMemsetD32Async(4096, 0, 4, stream))
    });
    set("D8 of null", &|_, _, stream| {
        cu!(env, cuMemsetD8Async(0, 0, 4, stream))
    });
    set("D8 past the end of plain memory", &|_, plain, stream| {
        cu!(env, cuMemsetD8Async(plain, 0, 1001, stream))
    });
    set("D8 past 2 MiB of plain memory", &|_, plain, stream| {
        cu!(env, cuMemsetD8Async(plain, 0, 3 << 20, stream))
    });
    set(
        "D8 past the reserved memory of a pool",
        &|block, _, stream| cu!(env, cuMemsetD8Async(block, 0, 33 << 20, stream)),
    );
    set("D8 of the host", &|block, _, stream| {
        let host = (&raw const block).expose_provenance() as u64;
        cu!(env, cuMemsetD8Async(host, 0, 1, stream))
    });
    set(
        "D32, so many that the length overflows",
        &|_, plain, stream| cu!(env, cuMemsetD32Async(plain, 0, usize::MAX / 2, stream)),
    );
    set("HtoD to an arbitrary address", &|block, _, stream| {
        cu!(
            env,
            cuMemcpyHtoDAsync_v2(4096, (&raw const block).cast(), 4, stream)
        )
    });
    set("DtoH from null", &|_, _, stream| {
        let mut bytes = [0_u8; 4];
        cu!(
            env,
            cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), 0, 4, stream)
        )
    });
    set("DtoH to null", &|block, _, stream| {
        cu!(
            env,
            cuMemcpyDtoHAsync_v2(std::ptr::null_mut(), block, 4, stream)
        )
    });
    set("pool memory after its free", &|block, _, stream| {
        let _ = cu!(env, cuMemFreeAsync(block, stream));
        cu!(env, cuMemsetD8Async(block, 0, 4, stream))
    });
    set("plain memory after its free", &|_, plain, stream| {
        let _ = cu!(env, cuMemFreeAsync(plain, stream));
        cu!(env, cuMemsetD8Async(plain, 0, 4, stream))
    });
    set(
        "pool memory on a stream without order",
        &|block, _, _| match env.stream() {
            Ok(other) => cu!(env, cuMemsetD8Async(block, 0, 4, other)),
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        },
    );
    set("DtoH of pool memory after its free", &|block, _, stream| {
        let mut bytes = [0_u8; 4];
        let _ = cu!(env, cuMemFreeAsync(block, stream));
        cu!(
            env,
            cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), block, 4, stream)
        )
    });
    set(
        "memory of a pool that was given back",
        &|block, _, stream| {
            let _ = cu!(env, cuMemFreeAsync(block, stream));
            let _ = cu!(env, cuStreamSynchronize(stream));
            cu!(env, cuMemsetD8Async(block, 0, 4, stream))
        },
    );
    Ok(())
}

/// Null where something is wanted.
pub(crate) fn nulls(env: &Environment) -> Result<()> {
    let null = std::ptr::null_mut::<std::ffi::c_void>();
    env.alone("cuMemPoolSetAttribute", || {
        let (pool, id) = (env.pool(0)?, CUmemPool_attribute(4));
        Ok(name(cu!(env, cuMemPoolSetAttribute(pool, id, null))))
    });
    env.alone("cuGetProcAddress into null", || {
        let (symbol, out) = (c"cuMemAlloc".as_ptr(), std::ptr::null_mut());
        Ok(name(cu!(
            env,
            cuGetProcAddress_v2(symbol, out, 12000, 0, null.cast())
        )))
    });
    env.alone("cuGetProcAddress of null", || {
        let (symbol, mut out) = (std::ptr::null(), std::ptr::null_mut());
        Ok(name(cu!(
            env,
            cuGetProcAddress_v2(symbol, &raw mut out, 12000, 0, null.cast())
        )))
    });
    env.alone("cuDeviceGetAttribute", || {
        let id = CUdevice_attribute(115);
        Ok(name(cu!(env, cuDeviceGetAttribute(null.cast(), id, 0))))
    });
    env.alone("cuDeviceGetName", || {
        Ok(name(cu!(env, cuDeviceGetName(null.cast(), 8, 0))))
    });
    env.alone("cuGetErrorName", || {
        Ok(name(cu!(env, cuGetErrorName(CUresult(2), null.cast()))))
    });
    for len in [0, 1, 4] {
        env.alone(&format!("cuDeviceGetName of length {len}"), || {
            let mut text = [7; 8];
            let code = cu!(env, cuDeviceGetName(text.as_mut_ptr(), len, 0));
            let zero = text.iter().position(|byte| *byte == 0);
            Ok(format!("{}, the first zero at {zero:?}", name(code)))
        });
    }
    Ok(())
}

type Use = fn(&Environment, CUstream, CUevent, CUstream) -> CUresult;

/// Uses of a destroyed stream and a destroyed event; the last argument is a stream that lives.
const DEAD: [(&str, Use); 14] = [
    ("cuStreamDestroy", |env, s, _, _| {
        cu!(env, cuStreamDestroy_v2(s))
    }),
    ("cuStreamQuery", |env, s, _, _| cu!(env, cuStreamQuery(s))),
    ("cuStreamSynchronize", |env, s, _, _| {
        cu!(env, cuStreamSynchronize(s))
    }),
    ("cuStreamGetFlags", |env, s, _, _| {
        let mut flags = 0;
        cu!(env, cuStreamGetFlags(s, &raw mut flags))
    }),
    ("cuMemAllocAsync", |env, s, _, _| {
        let mut out = 0;
        cu!(env, cuMemAllocAsync(&raw mut out, 64, s))
    }),
    ("cuMemFreeAsync", |env, s, _, alive| {
        let mut out = 0;
        let _ = cu!(env, cuMemAllocAsync(&raw mut out, 64, alive));
        cu!(env, cuMemFreeAsync(out, s))
    }),
    ("cuLaunchHostFunc", |env, s, _, _| {
        unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}
        cu!(
            env,
            cuLaunchHostFunc(s, Some(nothing), std::ptr::null_mut())
        )
    }),
    ("cuMemsetD8Async", |env, s, _, _| {
        env.plain(64).map_or(CUresult(999), |plain| {
            cu!(env, cuMemsetD8Async(plain, 0, 4, s))
        })
    }),
    ("cuEventDestroy", |env, _, e, _| {
        cu!(env, cuEventDestroy_v2(e))
    }),
    ("cuEventQuery", |env, _, e, _| cu!(env, cuEventQuery(e))),
    ("cuEventSynchronize", |env, _, e, _| {
        cu!(env, cuEventSynchronize(e))
    }),
    ("cuEventRecord", |env, _, e, alive| {
        cu!(env, cuEventRecord(e, alive))
    }),
    ("cuStreamWaitEvent", |env, _, e, alive| {
        cu!(env, cuStreamWaitEvent(alive, e, 0))
    }),
    ("cuEventRecord in a destroyed stream", |env, s, _, _| {
        env.event()
            .map_or(CUresult(999), |event| cu!(env, cuEventRecord(event, s)))
    }),
];

pub(crate) fn handles(env: &Environment) -> Result<()> {
    for (part, ask) in DEAD {
        env.alone(part, || {
            let (stream, event, alive) = (env.stream()?, env.event()?, env.stream()?);
            env.record(event, stream)?;
            env.synchronise(stream)?;
            env.fine("cuEventDestroy", cu!(env, cuEventDestroy_v2(event)))?;
            env.fine("cuStreamDestroy", cu!(env, cuStreamDestroy_v2(stream)))?;
            Ok(name(ask(env, stream, event, alive)))
        });
    }
    Ok(())
}

type UsePool = fn(&Environment, CUmemoryPool, CUstream) -> CUresult;

const DEAD_POOL: [(&str, UsePool); 6] = [
    ("cuMemPoolDestroy", |env, pool, _| {
        cu!(env, cuMemPoolDestroy(pool))
    }),
    ("cuMemPoolTrimTo", |env, pool, _| {
        cu!(env, cuMemPoolTrimTo(pool, 0))
    }),
    ("cuMemPoolGetAttribute", |env, pool, _| {
        let mut value = 0_u64;
        let place = (&raw mut value).cast();
        cu!(
            env,
            cuMemPoolGetAttribute(pool, CUmemPool_attribute(5), place)
        )
    }),
    ("cuMemPoolSetAttribute", |env, pool, _| {
        env.try_set(pool, 4, 0)
    }),
    ("cuMemAllocFromPoolAsync", |env, pool, stream| {
        env.try_alloc(pool, 64, stream).0
    }),
    ("cuDeviceSetMemPool", |env, pool, _| {
        cu!(env, cuDeviceSetMemPool(0, pool))
    }),
];

pub(crate) fn pools(env: &Environment) -> Result<()> {
    for (part, ask) in DEAD_POOL {
        for (with, live) in [("empty", false), ("with a live block", true)] {
            env.alone(&format!("{part}, {with}"), || {
                let (pool, stream) = (env.pool(0)?, env.stream()?);
                let block = env.alloc(pool, 64, stream)?;
                if !live {
                    env.free(block, stream)?;
                }
                env.synchronise(stream)?;
                env.fine("cuMemPoolDestroy", cu!(env, cuMemPoolDestroy(pool)))?;
                Ok(name(ask(env, pool, stream)))
            });
        }
    }
    Ok(())
}
