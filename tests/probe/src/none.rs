//! What works without a current context. Everything is made with one first.

use std::ffi::{c_int, c_void};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, cu};

/// Asks for copies and memsets of a block on a stream.
fn each_copy(env: &Environment, kind: &str, block: CUdeviceptr, stream: CUstream) {
    let mut bytes = [0_u8; 64];
    let host = bytes.as_mut_ptr().cast::<c_void>();
    let from = host.expose_provenance() as u64;
    let say = |part: &str, code| env.code(format!("{part} {kind}"), code);
    say(
        "cuMemcpyHtoDAsync",
        cu!(env, cuMemcpyHtoDAsync_v2(block, host, 64, stream)),
    );
    say(
        "cuMemcpyDtoHAsync",
        cu!(env, cuMemcpyDtoHAsync_v2(host, block, 64, stream)),
    );
    say(
        "cuMemcpyDtoDAsync",
        cu!(env, cuMemcpyDtoDAsync_v2(block + 64, block, 64, stream)),
    );
    say(
        "cuMemcpyAsync",
        cu!(env, cuMemcpyAsync(block, from, 64, stream)),
    );
    say(
        "cuMemcpyAsync DtoD",
        cu!(env, cuMemcpyAsync(block + 64, block, 64, stream)),
    );
    say(
        "cuMemsetD8Async",
        cu!(env, cuMemsetD8Async(block, 1, 64, stream)),
    );
    say(
        "cuMemsetD32Async",
        cu!(env, cuMemsetD32Async(block, 1, 16, stream)),
    );
    // The bytes stay until the stream is done with them.
    let _ = cu!(env, cuStreamSynchronize(stream));
}

pub(crate) fn copies(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    let block = env.alloc(pool, 1 << 20, stream)?;
    env.synchronise(stream)?;
    env.no_context()?;
    each_copy(env, "of pool memory", block, stream);
    each_copy(
        env,
        "of pool memory, null stream",
        block,
        std::ptr::null_mut(),
    );
    each_copy(
        env,
        "of pool memory, per-thread stream",
        block,
        CU_STREAM_PER_THREAD,
    );
    Ok(())
}

pub(crate) fn copies_of_plain_memory(env: &Environment) -> Result<()> {
    let (stream, block) = (env.stream()?, env.plain(1 << 20)?);
    let pinned = env.pinned(1 << 20)?;
    env.no_context()?;
    each_copy(env, "of cuMemAlloc memory", block, stream);
    let code = cu!(env, cuMemcpyHtoDAsync_v2(block, pinned, 64, stream));
    env.code("cuMemcpyHtoDAsync from pinned memory", code);
    let code = cu!(env, cuMemcpyDtoHAsync_v2(pinned, block, 64, stream));
    env.code("cuMemcpyDtoHAsync to pinned memory", code);
    let context = env.context();
    let code = cu!(
        env,
        cuMemcpyPeerAsync(block + 64, context, block, context, 64, stream)
    );
    env.code("cuMemcpyPeerAsync", code);
    Ok(())
}

pub(crate) fn synchronous(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    let block = env.alloc(pool, 1 << 20, stream)?;
    env.synchronise(stream)?;
    env.no_context()?;
    let mut bytes = [0_u8; 64];
    let host = bytes.as_mut_ptr().cast::<c_void>();
    env.code("cuMemcpyHtoD", cu!(env, cuMemcpyHtoD_v2(block, host, 64)));
    env.code("cuMemcpyDtoH", cu!(env, cuMemcpyDtoH_v2(host, block, 64)));
    env.code(
        "cuMemcpyDtoD",
        cu!(env, cuMemcpyDtoD_v2(block, block + 64, 64)),
    );
    env.code("cuMemcpy", cu!(env, cuMemcpy(block, block + 64, 64)));
    env.code("cuMemsetD8", cu!(env, cuMemsetD8_v2(block, 1, 64)));
    env.code(
        "cuMemcpyHtoD of nothing",
        cu!(env, cuMemcpyHtoD_v2(block, host, 0)),
    );
    env.code("cuCtxSynchronize", cu!(env, cuCtxSynchronize()));
    let context = env.context();
    env.code(
        "cuCtxSynchronize_v2",
        cu!(env, cuCtxSynchronize_v2(context)),
    );
    let (mut device, mut flags, mut version): (c_int, _, _) = (0, 0, 0);
    env.code("cuCtxGetDevice", cu!(env, cuCtxGetDevice(&raw mut device)));
    env.code("cuCtxGetFlags", cu!(env, cuCtxGetFlags(&raw mut flags)));
    let code = cu!(
        env,
        cuCtxGetApiVersion(std::ptr::null_mut(), &raw mut version)
    );
    env.code("cuCtxGetApiVersion of null", code);
    let code = cu!(env, cuCtxGetApiVersion(context, &raw mut version));
    env.code("cuCtxGetApiVersion of a context", code);
    let (mut least, mut greatest) = (0, 0);
    let code = cu!(
        env,
        cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)
    );
    env.code("cuCtxGetStreamPriorityRange", code);
    env.code(
        "cuCtxPopCurrent",
        cu!(env, cuCtxPopCurrent_v2(std::ptr::null_mut())),
    );
    Ok(())
}

pub(crate) fn streams(env: &Environment) -> Result<()> {
    unsafe extern "C" fn nothing(_: *mut c_void) {}
    let (stream, event, timed) = (env.stream()?, env.event()?, env.event()?);
    env.record(event, stream)?;
    env.no_context()?;
    let (mut made, mut number, mut flags) = (std::ptr::null_mut(), 0, 0);
    env.code("cuStreamCreate", cu!(env, cuStreamCreate(&raw mut made, 1)));
    env.code("cuStreamQuery", cu!(env, cuStreamQuery(stream)));
    env.code("cuStreamSynchronize", cu!(env, cuStreamSynchronize(stream)));
    let null = std::ptr::null_mut();
    let code = cu!(env, cuLaunchHostFunc(stream, Some(nothing), null));
    env.code("cuLaunchHostFunc", code);
    env.code(
        "cuStreamGetFlags",
        cu!(env, cuStreamGetFlags(stream, &raw mut flags)),
    );
    env.code(
        "cuStreamGetPriority",
        cu!(env, cuStreamGetPriority(stream, &raw mut number)),
    );
    let mut context = std::ptr::null_mut();
    env.code(
        "cuStreamGetCtx",
        cu!(env, cuStreamGetCtx(stream, &raw mut context)),
    );
    let mut id = 0;
    env.code(
        "cuStreamGetId",
        cu!(env, cuStreamGetId(stream, &raw mut id)),
    );
    let mut made = std::ptr::null_mut();
    env.code("cuEventCreate", cu!(env, cuEventCreate(&raw mut made, 2)));
    env.code("cuEventRecord", cu!(env, cuEventRecord(event, stream)));
    env.let_it_finish();
    env.code("cuEventQuery", cu!(env, cuEventQuery(event)));
    env.code("cuEventSynchronize", cu!(env, cuEventSynchronize(event)));
    let mut time = 0.0;
    let code = cu!(env, cuEventElapsedTime(&raw mut time, event, timed));
    env.code("cuEventElapsedTime without timing", code);
    env.code(
        "cuStreamWaitEvent",
        cu!(env, cuStreamWaitEvent(stream, event, 0)),
    );
    env.code("cuEventDestroy", cu!(env, cuEventDestroy_v2(event)));
    env.code("cuStreamDestroy", cu!(env, cuStreamDestroy_v2(stream)));
    Ok(())
}

pub(crate) fn default_streams(env: &Environment) -> Result<()> {
    let (pool, stream, event) = (env.pool(0)?, env.stream()?, env.event()?);
    let block = env.alloc(pool, 1000, stream)?;
    env.synchronise(stream)?;
    env.no_context()?;
    let null = std::ptr::null_mut();
    for (kind, default) in [
        ("null", null),
        ("legacy", CU_STREAM_LEGACY),
        ("per-thread", CU_STREAM_PER_THREAD),
    ] {
        let mut address = 0;
        let say = |part: &str, code| env.code(format!("{kind}: {part}"), code);
        say(
            "cuMemAllocAsync",
            cu!(env, cuMemAllocAsync(&raw mut address, 1, default)),
        );
        say(
            "cuMemAllocAsync of nothing",
            cu!(env, cuMemAllocAsync(&raw mut address, 0, default)),
        );
        say("cuMemAllocFromPoolAsync", env.try_alloc(pool, 1, default).0);
        say("cuMemFreeAsync", cu!(env, cuMemFreeAsync(block, default)));
        say(
            "cuMemFreeAsync of null",
            cu!(env, cuMemFreeAsync(0, default)),
        );
        say(
            "cuStreamSynchronize",
            cu!(env, cuStreamSynchronize(default)),
        );
        say("cuStreamQuery", cu!(env, cuStreamQuery(default)));
        say("cuEventRecord", cu!(env, cuEventRecord(event, default)));
        say(
            "cuStreamWaitEvent",
            cu!(env, cuStreamWaitEvent(default, event, 0)),
        );
    }
    Ok(())
}

pub(crate) fn memory(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    let block = env.alloc(pool, 1000, stream)?;
    let other = env.alloc(pool, 1000, stream)?;
    let (plain, pinned) = (env.plain(1000)?, env.pinned(1000)?);
    let later = env.plain(1000)?;
    env.synchronise(stream)?;
    env.no_context()?;
    let (mut free, mut total, mut address) = (0, 0, 0);
    let code = cu!(env, cuMemGetInfo_v2(&raw mut free, &raw mut total));
    env.code("cuMemGetInfo", code);
    env.code("cuMemAlloc", cu!(env, cuMemAlloc_v2(&raw mut address, 1)));
    let mut host = std::ptr::null_mut();
    env.code(
        "cuMemHostAlloc",
        cu!(env, cuMemHostAlloc(&raw mut host, 1, 0)),
    );
    for (kind, address) in [("pool", block), ("plain", plain)] {
        let mut value = 0_u64;
        let place = (&raw mut value).cast::<c_void>();
        let code = cu!(
            env,
            cuPointerGetAttribute(place, CUpointer_attribute(2), address)
        );
        env.code(format!("cuPointerGetAttribute of {kind} memory"), code);
        let (mut base, mut size) = (0, 0);
        let code = cu!(
            env,
            cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address)
        );
        env.code(format!("cuMemGetAddressRange of {kind} memory"), code);
    }
    env.code(
        "cuMemFreeAsync of plain memory",
        cu!(env, cuMemFreeAsync(later, stream)),
    );
    env.code(
        "cuMemFreeAsync of pool memory",
        cu!(env, cuMemFreeAsync(other, stream)),
    );
    env.code("cuMemFree of null", cu!(env, cuMemFree_v2(0)));
    env.code("cuMemFree of pool memory", cu!(env, cuMemFree_v2(block)));
    env.code("cuMemFree of plain memory", cu!(env, cuMemFree_v2(plain)));
    env.code("cuMemFreeHost", cu!(env, cuMemFreeHost(pinned)));
    Ok(())
}

pub(crate) fn pools(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    env.no_context()?;
    let (code, pool) = env.pool_with(&Environment::props());
    env.code("cuMemPoolCreate", code);
    let (code, block) = env.try_alloc(pool, 1000, stream);
    env.code("cuMemAllocFromPoolAsync", code);
    let mut plain = 0;
    env.code(
        "cuMemAllocAsync",
        cu!(env, cuMemAllocAsync(&raw mut plain, 1000, stream)),
    );
    env.code("cuMemFreeAsync", cu!(env, cuMemFreeAsync(plain, stream)));
    env.code(
        "cuMemFreeAsync of the other",
        cu!(env, cuMemFreeAsync(block, stream)),
    );
    env.code("cuMemPoolSetAttribute", env.try_set(pool, 4, 0));
    let mut value = 0_u64;
    let place = (&raw mut value).cast::<c_void>();
    let code = cu!(
        env,
        cuMemPoolGetAttribute(pool, CUmemPool_attribute(5), place)
    );
    env.code("cuMemPoolGetAttribute", code);
    env.code("cuMemPoolTrimTo", cu!(env, cuMemPoolTrimTo(pool, 0)));
    let mut default = std::ptr::null_mut();
    let code = cu!(env, cuDeviceGetDefaultMemPool(&raw mut default, 0));
    env.code("cuDeviceGetDefaultMemPool", code);
    env.code(
        "cuDeviceSetMemPool",
        cu!(env, cuDeviceSetMemPool(0, default)),
    );
    env.code("cuMemPoolDestroy", cu!(env, cuMemPoolDestroy(pool)));
    Ok(())
}
