//! What no program should do. Each in a process of its own, for it may crash.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, MIB, OK, cu, name};

/// Says a code, and what a synchronise and a new allocation answer after it.
fn verdict(lab: &Lab, code: CUresult, stream: CUstream) -> String {
    let after = cu!(lab, cuStreamSynchronize(stream));
    let healthy = lab.plain(64).is_ok();
    match (after, healthy) {
        (OK, true) => name(code),
        (after, _) => format!("{}, then {}", name(code), name(after)),
    }
}

pub(crate) fn frees(lab: &Lab) -> Result<()> {
    let free = |part: &str, ask: &dyn Fn(CUdeviceptr, CUstream) -> CUresult| {
        lab.alone(part, || {
            let (pool, stream) = (lab.pool(0)?, lab.stream()?);
            let block = lab.alloc(pool, 1000, stream)?;
            let code = ask(block, stream);
            Ok(verdict(lab, code, stream))
        });
    };
    free("twice", &|block, stream| {
        let _ = cu!(lab, cuMemFreeAsync(block, stream));
        cu!(lab, cuMemFreeAsync(block, stream))
    });
    free("twice, seen in between", &|block, stream| {
        let _ = cu!(lab, cuMemFreeAsync(block, stream));
        let _ = cu!(lab, cuStreamSynchronize(stream));
        cu!(lab, cuMemFreeAsync(block, stream))
    });
    free("the middle of a block", &|block, stream| {
        cu!(lab, cuMemFreeAsync(block + 16, stream))
    });
    free("behind a block", &|block, stream| {
        cu!(lab, cuMemFreeAsync(block + MIB, stream))
    });
    free("an arbitrary address", &|_, stream| {
        cu!(lab, cuMemFreeAsync(4096, stream))
    });
    free("an address of the host", &|block, stream| {
        cu!(
            lab,
            cuMemFreeAsync((&raw const block).expose_provenance() as u64, stream)
        )
    });
    free("pinned memory", &|_, stream| match lab.pinned(64) {
        Ok(pinned) => cu!(
            lab,
            cuMemFreeAsync(pinned.expose_provenance() as u64, stream)
        ),
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    });
    free(
        "the middle of plain memory",
        &|_, stream| match lab.plain(64) {
            Ok(plain) => cu!(lab, cuMemFreeAsync(plain + 16, stream)),
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        },
    );
    free("plain memory twice", &|_, stream| match lab.plain(64) {
        Ok(plain) => {
            let _ = cu!(lab, cuMemFreeAsync(plain, stream));
            cu!(lab, cuMemFreeAsync(plain, stream))
        }
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    });
    Ok(())
}

pub(crate) fn frees_by_the_host(lab: &Lab) -> Result<()> {
    let free = |part: &str, ask: &dyn Fn(CUdeviceptr, CUdeviceptr, CUstream) -> CUresult| {
        lab.alone(part, || {
            let (pool, stream) = (lab.pool(0)?, lab.stream()?);
            let (block, plain) = (lab.alloc(pool, 1000, stream)?, lab.plain(64)?);
            lab.synchronise(stream)?;
            let code = ask(block, plain, stream);
            Ok(verdict(lab, code, stream))
        });
    };
    free("pool memory twice", &|block, _, _| {
        let _ = cu!(lab, cuMemFree_v2(block));
        cu!(lab, cuMemFree_v2(block))
    });
    free(
        "pool memory after its free in a stream",
        &|block, _, stream| {
            let _ = cu!(lab, cuMemFreeAsync(block, stream));
            cu!(lab, cuMemFree_v2(block))
        },
    );
    free("the middle of pool memory", &|block, _, _| {
        cu!(lab, cuMemFree_v2(block + 16))
    });
    free("plain memory twice", &|_, plain, _| {
        let _ = cu!(lab, cuMemFree_v2(plain));
        cu!(lab, cuMemFree_v2(plain))
    });
    free("the middle of plain memory", &|_, plain, _| {
        cu!(lab, cuMemFree_v2(plain + 16))
    });
    free("an arbitrary address", &|_, _, _| {
        cu!(lab, cuMemFree_v2(4096))
    });
    free("an address of the host", &|block, _, _| {
        cu!(
            lab,
            cuMemFree_v2((&raw const block).expose_provenance() as u64)
        )
    });
    free("cuMemFreeHost of foreign memory", &|block, _, _| {
        cu!(lab, cuMemFreeHost((&raw const block).cast_mut().cast()))
    });
    free("cuMemFreeHost twice", &|_, _, _| match lab.pinned(64) {
        Ok(pinned) => {
            let _ = cu!(lab, cuMemFreeHost(pinned));
            cu!(lab, cuMemFreeHost(pinned))
        }
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    });
    Ok(())
}

pub(crate) fn memsets(lab: &Lab) -> Result<()> {
    let set = |part: &str, ask: &dyn Fn(CUdeviceptr, CUdeviceptr, CUstream) -> CUresult| {
        lab.alone(part, || {
            let (pool, stream) = (lab.pool(0)?, lab.stream()?);
            let (block, plain) = (lab.alloc(pool, 1000, stream)?, lab.plain(1000)?);
            let code = ask(block, plain, stream);
            Ok(verdict(lab, code, stream))
        });
    };
    for by in [1, 2] {
        set(
            &format!("D32 of plain memory, {by} B off"),
            &|_, plain, _| cu!(lab, cuMemsetD32_v2(plain + by, 0, 4)),
        );
        set(
            &format!("D32 of pool memory, {by} B off"),
            &|block, _, stream| cu!(lab, cuMemsetD32Async(block + by, 0, 4, stream)),
        );
    }
    set("D16 of plain memory, 1 B off", &|_, plain, _| {
        cu!(lab, cuMemsetD16_v2(plain + 1, 0, 4))
    });
    set("D32 of a low address", &|_, _, stream| {
        cu!(lab, cuMemsetD32Async(4096, 0, 4, stream))
    });
    set("D8 of null", &|_, _, stream| {
        cu!(lab, cuMemsetD8Async(0, 0, 4, stream))
    });
    set("D8 past the end of plain memory", &|_, plain, stream| {
        cu!(lab, cuMemsetD8Async(plain, 0, 1001, stream))
    });
    set("D8 past 2 MiB of plain memory", &|_, plain, stream| {
        cu!(lab, cuMemsetD8Async(plain, 0, 3 << 20, stream))
    });
    set(
        "D8 past the reserved memory of a pool",
        &|block, _, stream| cu!(lab, cuMemsetD8Async(block, 0, 33 << 20, stream)),
    );
    set("D8 of the host", &|block, _, stream| {
        let host = (&raw const block).expose_provenance() as u64;
        cu!(lab, cuMemsetD8Async(host, 0, 1, stream))
    });
    set(
        "D32, so many that the length overflows",
        &|_, plain, stream| cu!(lab, cuMemsetD32Async(plain, 0, usize::MAX / 2, stream)),
    );
    set("HtoD to an arbitrary address", &|block, _, stream| {
        cu!(
            lab,
            cuMemcpyHtoDAsync_v2(4096, (&raw const block).cast(), 4, stream)
        )
    });
    set("DtoH from null", &|_, _, stream| {
        let mut bytes = [0_u8; 4];
        cu!(
            lab,
            cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), 0, 4, stream)
        )
    });
    set("DtoH to null", &|block, _, stream| {
        cu!(
            lab,
            cuMemcpyDtoHAsync_v2(std::ptr::null_mut(), block, 4, stream)
        )
    });
    set("pool memory after its free", &|block, _, stream| {
        let _ = cu!(lab, cuMemFreeAsync(block, stream));
        cu!(lab, cuMemsetD8Async(block, 0, 4, stream))
    });
    set("plain memory after its free", &|_, plain, stream| {
        let _ = cu!(lab, cuMemFreeAsync(plain, stream));
        cu!(lab, cuMemsetD8Async(plain, 0, 4, stream))
    });
    set(
        "pool memory on a stream without order",
        &|block, _, _| match lab.stream() {
            Ok(other) => cu!(lab, cuMemsetD8Async(block, 0, 4, other)),
            Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
        },
    );
    set("DtoH of pool memory after its free", &|block, _, stream| {
        let mut bytes = [0_u8; 4];
        let _ = cu!(lab, cuMemFreeAsync(block, stream));
        cu!(
            lab,
            cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), block, 4, stream)
        )
    });
    set(
        "memory of a pool that was given back",
        &|block, _, stream| {
            let _ = cu!(lab, cuMemFreeAsync(block, stream));
            let _ = cu!(lab, cuStreamSynchronize(stream));
            cu!(lab, cuMemsetD8Async(block, 0, 4, stream))
        },
    );
    Ok(())
}

/// Null where something is wanted.
pub(crate) fn nulls(lab: &Lab) -> Result<()> {
    let null = std::ptr::null_mut::<std::ffi::c_void>();
    lab.alone("cuMemPoolSetAttribute", || {
        let (pool, id) = (lab.pool(0)?, CUmemPool_attribute(4));
        Ok(name(cu!(lab, cuMemPoolSetAttribute(pool, id, null))))
    });
    lab.alone("cuGetProcAddress into null", || {
        let (symbol, out) = (c"cuMemAlloc".as_ptr(), std::ptr::null_mut());
        Ok(name(cu!(
            lab,
            cuGetProcAddress_v2(symbol, out, 12000, 0, null.cast())
        )))
    });
    lab.alone("cuGetProcAddress of null", || {
        let (symbol, mut out) = (std::ptr::null(), std::ptr::null_mut());
        Ok(name(cu!(
            lab,
            cuGetProcAddress_v2(symbol, &raw mut out, 12000, 0, null.cast())
        )))
    });
    lab.alone("cuDeviceGetAttribute", || {
        let id = CUdevice_attribute(115);
        Ok(name(cu!(lab, cuDeviceGetAttribute(null.cast(), id, 0))))
    });
    lab.alone("cuDeviceGetName", || {
        Ok(name(cu!(lab, cuDeviceGetName(null.cast(), 8, 0))))
    });
    lab.alone("cuGetErrorName", || {
        Ok(name(cu!(lab, cuGetErrorName(CUresult(2), null.cast()))))
    });
    for len in [0, 1, 4] {
        lab.alone(&format!("cuDeviceGetName of length {len}"), || {
            let mut text = [7; 8];
            let code = cu!(lab, cuDeviceGetName(text.as_mut_ptr(), len, 0));
            let zero = text.iter().position(|byte| *byte == 0);
            Ok(format!("{}, the first zero at {zero:?}", name(code)))
        });
    }
    Ok(())
}

type Use = fn(&Lab, CUstream, CUevent, CUstream) -> CUresult;

/// Uses of a destroyed stream and a destroyed event; the last argument is a stream that lives.
const DEAD: [(&str, Use); 14] = [
    ("cuStreamDestroy", |lab, s, _, _| {
        cu!(lab, cuStreamDestroy_v2(s))
    }),
    ("cuStreamQuery", |lab, s, _, _| cu!(lab, cuStreamQuery(s))),
    ("cuStreamSynchronize", |lab, s, _, _| {
        cu!(lab, cuStreamSynchronize(s))
    }),
    ("cuStreamGetFlags", |lab, s, _, _| {
        let mut flags = 0;
        cu!(lab, cuStreamGetFlags(s, &raw mut flags))
    }),
    ("cuMemAllocAsync", |lab, s, _, _| {
        let mut out = 0;
        cu!(lab, cuMemAllocAsync(&raw mut out, 64, s))
    }),
    ("cuMemFreeAsync", |lab, s, _, alive| {
        let mut out = 0;
        let _ = cu!(lab, cuMemAllocAsync(&raw mut out, 64, alive));
        cu!(lab, cuMemFreeAsync(out, s))
    }),
    ("cuLaunchHostFunc", |lab, s, _, _| {
        unsafe extern "C" fn nothing(_: *mut std::ffi::c_void) {}
        cu!(
            lab,
            cuLaunchHostFunc(s, Some(nothing), std::ptr::null_mut())
        )
    }),
    ("cuMemsetD8Async", |lab, s, _, _| {
        lab.plain(64).map_or(CUresult(999), |plain| {
            cu!(lab, cuMemsetD8Async(plain, 0, 4, s))
        })
    }),
    ("cuEventDestroy", |lab, _, e, _| {
        cu!(lab, cuEventDestroy_v2(e))
    }),
    ("cuEventQuery", |lab, _, e, _| cu!(lab, cuEventQuery(e))),
    ("cuEventSynchronize", |lab, _, e, _| {
        cu!(lab, cuEventSynchronize(e))
    }),
    ("cuEventRecord", |lab, _, e, alive| {
        cu!(lab, cuEventRecord(e, alive))
    }),
    ("cuStreamWaitEvent", |lab, _, e, alive| {
        cu!(lab, cuStreamWaitEvent(alive, e, 0))
    }),
    ("cuEventRecord in a destroyed stream", |lab, s, _, _| {
        lab.event()
            .map_or(CUresult(999), |event| cu!(lab, cuEventRecord(event, s)))
    }),
];

pub(crate) fn handles(lab: &Lab) -> Result<()> {
    for (part, ask) in DEAD {
        lab.alone(part, || {
            let (stream, event, alive) = (lab.stream()?, lab.event()?, lab.stream()?);
            lab.record(event, stream)?;
            lab.synchronise(stream)?;
            lab.fine("cuEventDestroy", cu!(lab, cuEventDestroy_v2(event)))?;
            lab.fine("cuStreamDestroy", cu!(lab, cuStreamDestroy_v2(stream)))?;
            Ok(name(ask(lab, stream, event, alive)))
        });
    }
    Ok(())
}

type UsePool = fn(&Lab, CUmemoryPool, CUstream) -> CUresult;

const DEAD_POOL: [(&str, UsePool); 6] = [
    ("cuMemPoolDestroy", |lab, pool, _| {
        cu!(lab, cuMemPoolDestroy(pool))
    }),
    ("cuMemPoolTrimTo", |lab, pool, _| {
        cu!(lab, cuMemPoolTrimTo(pool, 0))
    }),
    ("cuMemPoolGetAttribute", |lab, pool, _| {
        let mut value = 0_u64;
        let place = (&raw mut value).cast();
        cu!(
            lab,
            cuMemPoolGetAttribute(pool, CUmemPool_attribute(5), place)
        )
    }),
    ("cuMemPoolSetAttribute", |lab, pool, _| {
        lab.try_set(pool, 4, 0)
    }),
    ("cuMemAllocFromPoolAsync", |lab, pool, stream| {
        lab.try_alloc(pool, 64, stream).0
    }),
    ("cuDeviceSetMemPool", |lab, pool, _| {
        cu!(lab, cuDeviceSetMemPool(0, pool))
    }),
];

pub(crate) fn pools(lab: &Lab) -> Result<()> {
    for (part, ask) in DEAD_POOL {
        for (with, live) in [("empty", false), ("with a live block", true)] {
            lab.alone(&format!("{part}, {with}"), || {
                let (pool, stream) = (lab.pool(0)?, lab.stream()?);
                let block = lab.alloc(pool, 64, stream)?;
                if !live {
                    lab.free(block, stream)?;
                }
                lab.synchronise(stream)?;
                lab.fine("cuMemPoolDestroy", cu!(lab, cuMemPoolDestroy(pool)))?;
                Ok(name(ask(lab, pool, stream)))
            });
        }
    }
    Ok(())
}
