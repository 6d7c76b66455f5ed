//! What works without a current context. Everything is made with one first.

use std::ffi::{c_int, c_void};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, cu};

/// Asks for copies and memsets of a block on a stream.
fn each_copy(lab: &Lab, kind: &str, block: CUdeviceptr, stream: CUstream) {
    let mut bytes = [0_u8; 64];
    let host = bytes.as_mut_ptr().cast::<c_void>();
    let from = host.expose_provenance() as u64;
    let say = |part: &str, code| lab.code(format!("{part} {kind}"), code);
    say(
        "cuMemcpyHtoDAsync",
        cu!(lab, cuMemcpyHtoDAsync_v2(block, host, 64, stream)),
    );
    say(
        "cuMemcpyDtoHAsync",
        cu!(lab, cuMemcpyDtoHAsync_v2(host, block, 64, stream)),
    );
    say(
        "cuMemcpyDtoDAsync",
        cu!(lab, cuMemcpyDtoDAsync_v2(block + 64, block, 64, stream)),
    );
    say(
        "cuMemcpyAsync",
        cu!(lab, cuMemcpyAsync(block, from, 64, stream)),
    );
    say(
        "cuMemcpyAsync DtoD",
        cu!(lab, cuMemcpyAsync(block + 64, block, 64, stream)),
    );
    say(
        "cuMemsetD8Async",
        cu!(lab, cuMemsetD8Async(block, 1, 64, stream)),
    );
    say(
        "cuMemsetD32Async",
        cu!(lab, cuMemsetD32Async(block, 1, 16, stream)),
    );
    // The bytes stay until the stream is done with them.
    let _ = cu!(lab, cuStreamSynchronize(stream));
}

pub(crate) fn copies(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let block = lab.alloc(pool, 1 << 20, stream)?;
    lab.synchronise(stream)?;
    lab.no_context()?;
    each_copy(lab, "of pool memory", block, stream);
    each_copy(
        lab,
        "of pool memory, null stream",
        block,
        std::ptr::null_mut(),
    );
    each_copy(
        lab,
        "of pool memory, per-thread stream",
        block,
        CU_STREAM_PER_THREAD,
    );
    Ok(())
}

pub(crate) fn copies_of_plain_memory(lab: &Lab) -> Result<()> {
    let (stream, block) = (lab.stream()?, lab.plain(1 << 20)?);
    let pinned = lab.pinned(1 << 20)?;
    lab.no_context()?;
    each_copy(lab, "of cuMemAlloc memory", block, stream);
    let code = cu!(lab, cuMemcpyHtoDAsync_v2(block, pinned, 64, stream));
    lab.code("cuMemcpyHtoDAsync from pinned memory", code);
    let code = cu!(lab, cuMemcpyDtoHAsync_v2(pinned, block, 64, stream));
    lab.code("cuMemcpyDtoHAsync to pinned memory", code);
    let context = lab.context();
    let code = cu!(
        lab,
        cuMemcpyPeerAsync(block + 64, context, block, context, 64, stream)
    );
    lab.code("cuMemcpyPeerAsync", code);
    Ok(())
}

pub(crate) fn synchronous(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let block = lab.alloc(pool, 1 << 20, stream)?;
    lab.synchronise(stream)?;
    lab.no_context()?;
    let mut bytes = [0_u8; 64];
    let host = bytes.as_mut_ptr().cast::<c_void>();
    lab.code("cuMemcpyHtoD", cu!(lab, cuMemcpyHtoD_v2(block, host, 64)));
    lab.code("cuMemcpyDtoH", cu!(lab, cuMemcpyDtoH_v2(host, block, 64)));
    lab.code(
        "cuMemcpyDtoD",
        cu!(lab, cuMemcpyDtoD_v2(block, block + 64, 64)),
    );
    lab.code("cuMemcpy", cu!(lab, cuMemcpy(block, block + 64, 64)));
    lab.code("cuMemsetD8", cu!(lab, cuMemsetD8_v2(block, 1, 64)));
    lab.code(
        "cuMemcpyHtoD of nothing",
        cu!(lab, cuMemcpyHtoD_v2(block, host, 0)),
    );
    lab.code("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()));
    let context = lab.context();
    lab.code(
        "cuCtxSynchronize_v2",
        cu!(lab, cuCtxSynchronize_v2(context)),
    );
    let (mut device, mut flags, mut version): (c_int, _, _) = (0, 0, 0);
    lab.code("cuCtxGetDevice", cu!(lab, cuCtxGetDevice(&raw mut device)));
    lab.code("cuCtxGetFlags", cu!(lab, cuCtxGetFlags(&raw mut flags)));
    let code = cu!(
        lab,
        cuCtxGetApiVersion(std::ptr::null_mut(), &raw mut version)
    );
    lab.code("cuCtxGetApiVersion of null", code);
    let code = cu!(lab, cuCtxGetApiVersion(context, &raw mut version));
    lab.code("cuCtxGetApiVersion of a context", code);
    let (mut least, mut greatest) = (0, 0);
    let code = cu!(
        lab,
        cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest)
    );
    lab.code("cuCtxGetStreamPriorityRange", code);
    lab.code(
        "cuCtxPopCurrent",
        cu!(lab, cuCtxPopCurrent_v2(std::ptr::null_mut())),
    );
    Ok(())
}

pub(crate) fn streams(lab: &Lab) -> Result<()> {
    unsafe extern "C" fn nothing(_: *mut c_void) {}
    let (stream, event, timed) = (lab.stream()?, lab.event()?, lab.event()?);
    lab.record(event, stream)?;
    lab.no_context()?;
    let (mut made, mut number, mut flags) = (std::ptr::null_mut(), 0, 0);
    lab.code("cuStreamCreate", cu!(lab, cuStreamCreate(&raw mut made, 1)));
    lab.code("cuStreamQuery", cu!(lab, cuStreamQuery(stream)));
    lab.code("cuStreamSynchronize", cu!(lab, cuStreamSynchronize(stream)));
    let null = std::ptr::null_mut();
    let code = cu!(lab, cuLaunchHostFunc(stream, Some(nothing), null));
    lab.code("cuLaunchHostFunc", code);
    lab.code(
        "cuStreamGetFlags",
        cu!(lab, cuStreamGetFlags(stream, &raw mut flags)),
    );
    lab.code(
        "cuStreamGetPriority",
        cu!(lab, cuStreamGetPriority(stream, &raw mut number)),
    );
    let mut context = std::ptr::null_mut();
    lab.code(
        "cuStreamGetCtx",
        cu!(lab, cuStreamGetCtx(stream, &raw mut context)),
    );
    let mut id = 0;
    lab.code(
        "cuStreamGetId",
        cu!(lab, cuStreamGetId(stream, &raw mut id)),
    );
    let mut made = std::ptr::null_mut();
    lab.code("cuEventCreate", cu!(lab, cuEventCreate(&raw mut made, 2)));
    lab.code("cuEventRecord", cu!(lab, cuEventRecord(event, stream)));
    lab.let_it_finish();
    lab.code("cuEventQuery", cu!(lab, cuEventQuery(event)));
    lab.code("cuEventSynchronize", cu!(lab, cuEventSynchronize(event)));
    let mut time = 0.0;
    let code = cu!(lab, cuEventElapsedTime(&raw mut time, event, timed));
    lab.code("cuEventElapsedTime without timing", code);
    lab.code(
        "cuStreamWaitEvent",
        cu!(lab, cuStreamWaitEvent(stream, event, 0)),
    );
    lab.code("cuEventDestroy", cu!(lab, cuEventDestroy_v2(event)));
    lab.code("cuStreamDestroy", cu!(lab, cuStreamDestroy_v2(stream)));
    Ok(())
}

pub(crate) fn default_streams(lab: &Lab) -> Result<()> {
    let (pool, stream, event) = (lab.pool(0)?, lab.stream()?, lab.event()?);
    let block = lab.alloc(pool, 1000, stream)?;
    lab.synchronise(stream)?;
    lab.no_context()?;
    let null = std::ptr::null_mut();
    for (kind, default) in [
        ("null", null),
        ("legacy", CU_STREAM_LEGACY),
        ("per-thread", CU_STREAM_PER_THREAD),
    ] {
        let mut address = 0;
        let say = |part: &str, code| lab.code(format!("{kind}: {part}"), code);
        say(
            "cuMemAllocAsync",
            cu!(lab, cuMemAllocAsync(&raw mut address, 1, default)),
        );
        say(
            "cuMemAllocAsync of nothing",
            cu!(lab, cuMemAllocAsync(&raw mut address, 0, default)),
        );
        say("cuMemAllocFromPoolAsync", lab.try_alloc(pool, 1, default).0);
        say("cuMemFreeAsync", cu!(lab, cuMemFreeAsync(block, default)));
        say(
            "cuMemFreeAsync of null",
            cu!(lab, cuMemFreeAsync(0, default)),
        );
        say(
            "cuStreamSynchronize",
            cu!(lab, cuStreamSynchronize(default)),
        );
        say("cuStreamQuery", cu!(lab, cuStreamQuery(default)));
        say("cuEventRecord", cu!(lab, cuEventRecord(event, default)));
        say(
            "cuStreamWaitEvent",
            cu!(lab, cuStreamWaitEvent(default, event, 0)),
        );
    }
    Ok(())
}

pub(crate) fn memory(lab: &Lab) -> Result<()> {
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let block = lab.alloc(pool, 1000, stream)?;
    let other = lab.alloc(pool, 1000, stream)?;
    let (plain, pinned) = (lab.plain(1000)?, lab.pinned(1000)?);
    let later = lab.plain(1000)?;
    lab.synchronise(stream)?;
    lab.no_context()?;
    let (mut free, mut total, mut address) = (0, 0, 0);
    let code = cu!(lab, cuMemGetInfo_v2(&raw mut free, &raw mut total));
    lab.code("cuMemGetInfo", code);
    lab.code("cuMemAlloc", cu!(lab, cuMemAlloc_v2(&raw mut address, 1)));
    let mut host = std::ptr::null_mut();
    lab.code(
        "cuMemHostAlloc",
        cu!(lab, cuMemHostAlloc(&raw mut host, 1, 0)),
    );
    for (kind, address) in [("pool", block), ("plain", plain)] {
        let mut value = 0_u64;
        let place = (&raw mut value).cast::<c_void>();
        let code = cu!(
            lab,
            cuPointerGetAttribute(place, CUpointer_attribute(2), address)
        );
        lab.code(format!("cuPointerGetAttribute of {kind} memory"), code);
        let (mut base, mut size) = (0, 0);
        let code = cu!(
            lab,
            cuMemGetAddressRange_v2(&raw mut base, &raw mut size, address)
        );
        lab.code(format!("cuMemGetAddressRange of {kind} memory"), code);
    }
    lab.code(
        "cuMemFreeAsync of plain memory",
        cu!(lab, cuMemFreeAsync(later, stream)),
    );
    lab.code(
        "cuMemFreeAsync of pool memory",
        cu!(lab, cuMemFreeAsync(other, stream)),
    );
    lab.code("cuMemFree of null", cu!(lab, cuMemFree_v2(0)));
    lab.code("cuMemFree of pool memory", cu!(lab, cuMemFree_v2(block)));
    lab.code("cuMemFree of plain memory", cu!(lab, cuMemFree_v2(plain)));
    lab.code("cuMemFreeHost", cu!(lab, cuMemFreeHost(pinned)));
    Ok(())
}

pub(crate) fn pools(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    lab.no_context()?;
    let (code, pool) = lab.pool_with(&Lab::props());
    lab.code("cuMemPoolCreate", code);
    let (code, block) = lab.try_alloc(pool, 1000, stream);
    lab.code("cuMemAllocFromPoolAsync", code);
    let mut plain = 0;
    lab.code(
        "cuMemAllocAsync",
        cu!(lab, cuMemAllocAsync(&raw mut plain, 1000, stream)),
    );
    lab.code("cuMemFreeAsync", cu!(lab, cuMemFreeAsync(plain, stream)));
    lab.code(
        "cuMemFreeAsync of the other",
        cu!(lab, cuMemFreeAsync(block, stream)),
    );
    lab.code("cuMemPoolSetAttribute", lab.try_set(pool, 4, 0));
    let mut value = 0_u64;
    let place = (&raw mut value).cast::<c_void>();
    let code = cu!(
        lab,
        cuMemPoolGetAttribute(pool, CUmemPool_attribute(5), place)
    );
    lab.code("cuMemPoolGetAttribute", code);
    lab.code("cuMemPoolTrimTo", cu!(lab, cuMemPoolTrimTo(pool, 0)));
    let mut default = std::ptr::null_mut();
    let code = cu!(lab, cuDeviceGetDefaultMemPool(&raw mut default, 0));
    lab.code("cuDeviceGetDefaultMemPool", code);
    lab.code(
        "cuDeviceSetMemPool",
        cu!(lab, cuDeviceSetMemPool(0, default)),
    );
    lab.code("cuMemPoolDestroy", cu!(lab, cuMemPoolDestroy(pool)));
    Ok(())
}
