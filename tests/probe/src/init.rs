//! Starting the driver: what works before, in which order arguments are looked at, and forks.

use std::ffi::{CStr, c_void};
use std::io::Read as _;
use std::os::fd::FromRawFd as _;

use anyhow::{Result, ensure};
use cuda_driver_sys::*;

use crate::environment::{Environment, MISSING, cu, name, yes};

pub(crate) fn before(env: &Environment) -> Result<()> {
    let (mut number, mut handle, mut address) = (0, std::ptr::null_mut(), 0);
    let mut text = std::ptr::null();
    let null = std::ptr::null_mut();
    env.code(
        "cuDriverGetVersion",
        cu!(env, cuDriverGetVersion(&raw mut number)),
    );
    let code = cu!(env, cuGetErrorName(CUresult(2), &raw mut text));
    env.code("cuGetErrorName", code);
    env.code(
        "cuDeviceGetCount",
        cu!(env, cuDeviceGetCount(&raw mut number)),
    );
    env.code("cuDeviceGet 0", cu!(env, cuDeviceGet(&raw mut number, 0)));
    env.code("cuDeviceGet -1", cu!(env, cuDeviceGet(&raw mut number, -1)));
    let code = cu!(env, cuDeviceGet(std::ptr::null_mut(), 0));
    env.code("cuDeviceGet into null", code);
    env.code(
        "cuCtxGetCurrent",
        cu!(env, cuCtxGetCurrent(&raw mut handle)),
    );
    env.code("cuCtxSetCurrent null", cu!(env, cuCtxSetCurrent(null)));
    env.code("cuCtxSynchronize", cu!(env, cuCtxSynchronize()));
    let code = cu!(env, cuDevicePrimaryCtxRetain(&raw mut handle, 0));
    env.code("cuDevicePrimaryCtxRetain", code);
    let code = cu!(env, cuMemAlloc_v2(&raw mut address, 1));
    env.code("cuMemAlloc", code);
    let code = cu!(
        env,
        cuMemAllocAsync(&raw mut address, 1, std::ptr::null_mut())
    );
    env.code("cuMemAllocAsync", code);
    env.code("cuMemFree of null", cu!(env, cuMemFree_v2(0)));
    let code = cu!(env, cuStreamSynchronize(std::ptr::null_mut()));
    env.code("cuStreamSynchronize", code);
    let (code, _) = env.pool_with(&Environment::props());
    env.code("cuMemPoolCreate", code);
    Ok(())
}

pub(crate) fn flags(env: &Environment) -> Result<()> {
    env.code("1", cu!(env, cuInit(1)));
    env.code("all bits", cu!(env, cuInit(u32::MAX)));
    let mut count = 0;
    let code = cu!(env, cuDeviceGetCount(&raw mut count));
    env.code("then cuDeviceGetCount", code);
    env.code("0", cu!(env, cuInit(0)));
    env.code("0 again", cu!(env, cuInit(0)));
    env.code("1 after that", cu!(env, cuInit(1)));
    Ok(())
}

pub(crate) fn devices(env: &Environment) -> Result<()> {
    env.fine("cuInit", cu!(env, cuInit(0)))?;
    let mut number = 7;
    for ordinal in [-2, -1, 99] {
        let code = cu!(env, cuDeviceGet(&raw mut number, ordinal));
        env.code(format!("cuDeviceGet {ordinal}"), code);
    }
    env.say("cuDeviceGet wrote", number);
    let null = std::ptr::null_mut();
    env.code("cuDeviceGet into null", cu!(env, cuDeviceGet(null, 0)));
    env.code("cuDeviceGet 99 into null", cu!(env, cuDeviceGet(null, 99)));
    env.code(
        "cuDeviceGetCount into null",
        cu!(env, cuDeviceGetCount(null)),
    );
    let (mut text, mut bytes) = ([0; 8], 0_usize);
    let code = cu!(env, cuDeviceGetName(text.as_mut_ptr(), 8, 99));
    env.code("cuDeviceGetName of 99", code);
    let code = cu!(env, cuDeviceTotalMem_v2(&raw mut bytes, 99));
    env.code("cuDeviceTotalMem of 99", code);
    let id = CUdevice_attribute(115);
    let code = cu!(env, cuDeviceGetAttribute(&raw mut number, id, 99));
    env.code("cuDeviceGetAttribute of 99", code);
    for (one, other) in [(0, 0), (0, 99), (99, 0)] {
        let code = cu!(env, cuDeviceCanAccessPeer(&raw mut number, one, other));
        env.code(format!("cuDeviceCanAccessPeer {one} {other}"), code);
    }
    let mut pool = std::ptr::null_mut();
    for device in [-1, 99] {
        let code = cu!(env, cuDeviceGetDefaultMemPool(&raw mut pool, device));
        env.code(format!("cuDeviceGetDefaultMemPool of {device}"), code);
        let code = cu!(env, cuDeviceGetMemPool(&raw mut pool, device));
        env.code(format!("cuDeviceGetMemPool of {device}"), code);
    }
    let mut context = std::ptr::null_mut();
    let code = cu!(env, cuDevicePrimaryCtxRetain(&raw mut context, 99));
    env.code("cuDevicePrimaryCtxRetain of 99", code);
    let mut name = std::ptr::null();
    let code = cu!(env, cuGetErrorName(CUresult(31337), &raw mut name));
    env.code("cuGetErrorName of 31337", code);
    env.say("cuGetErrorName of 31337 gives null", name.is_null());
    Ok(())
}

pub(crate) fn proc_address(env: &Environment) -> Result<()> {
    let ask = |part: &str, symbol: &CStr, version, flags| {
        let mut address = std::ptr::without_provenance_mut::<c_void>(1);
        let mut status = CUdriverProcAddressQueryResult(9);
        let (place, found) = (&raw mut address, &raw mut status);
        let code = cu!(
            env,
            cuGetProcAddress_v2(symbol.as_ptr(), place, version, flags, found)
        );
        let address = match address.addr() {
            0 => "null",
            1 => "untouched",
            _ => "an address",
        };
        let line = format!("{}, status {}, {address}", name(code), status.0);
        env.say(
            format!(
                "{part} {} {version} flags {flags}",
                symbol.to_string_lossy()
            ),
            line,
        );
    };
    ask("before cuInit", c"cuMemAlloc", 12000, 0);
    ask("before cuInit", c"cuTeapot", 12000, 0);
    env.fine("cuInit", cu!(env, cuInit(0)))?;
    ask("found:", c"cuMemAlloc", 12000, 0);
    ask("found:", c"cuMemAlloc", 3020, 0);
    ask("twin:", c"cuMemFreeAsync", 13000, 2);
    ask("twin of a function without one:", c"cuEventQuery", 13000, 2);
    ask("suffix:", c"cuMemAlloc_v2", 13000, 0);
    ask("twin suffix:", c"cuMemFreeAsync_ptsz", 13000, 0);
    ask("unknown:", c"cuTeapot", 13000, 0);
    ask("empty:", c"", 13000, 0);
    ask("too old:", c"cuMemPoolCreate", 11000, 0);
    ask("too old:", c"cuMemAlloc", 2000, 0);
    ask("version 0:", c"cuMemAlloc", 0, 0);
    ask("negative:", c"cuMemAlloc", -1, 0);
    ask("newer than the driver:", c"cuMemAlloc", 99000, 0);
    ask("both flags:", c"cuMemAlloc", 13000, 3);
    ask("unknown flag:", c"cuMemAlloc", 13000, 4);
    let (mut address, null) = (std::ptr::null_mut(), std::ptr::null_mut());
    let symbol = c"cuMemAlloc".as_ptr();
    let code = cu!(
        env,
        cuGetProcAddress_v2(symbol, &raw mut address, 12000, 0, null)
    );
    env.code("no status wanted", code);
    let teapot = c"cuTeapot".as_ptr();
    let code = cu!(
        env,
        cuGetProcAddress_v2(teapot, &raw mut address, 12000, 0, null)
    );
    env.code("no status wanted, unknown", code);
    for (part, symbol, version) in [
        ("found", symbol, 12000),
        ("unknown", teapot, 12000),
        ("too old", c"cuMemPoolCreate".as_ptr(), 11000),
    ] {
        let code = cu!(env, cuGetProcAddress(symbol, &raw mut address, version, 0));
        let null = yes(address.is_null());
        env.say(
            format!("without a status, {part}"),
            format!("{}, null {null}", name(code)),
        );
    }
    Ok(())
}

/// The calls of a forked child, in order.
const FORKED: [&str; 8] = [
    "cuInit",
    "cuDeviceGetCount",
    "cuDriverGetVersion",
    "cuCtxGetCurrent",
    "cuMemPoolCreate",
    "cuStreamSynchronize",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
];

fn fork(env: &Environment, pool: CUmemoryPool, stream: CUstream, block: CUdeviceptr) -> Result<()> {
    let mut ends = [0; 2];
    // SAFETY: `ends` is valid for two writes.
    ensure!(unsafe { libc::pipe(ends.as_mut_ptr()) } == 0, "no pipe");
    // SAFETY: the child calls the driver, which is the question, writes to a pipe, and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: no preconditions; whoever hangs is ended by the signal.
        unsafe { libc::alarm(5) };
        let tell = |code: CUresult| {
            let bytes = code.0.to_ne_bytes();
            // SAFETY: `bytes` is four bytes long, and the pipe is open.
            unsafe { libc::write(ends[1], bytes.as_ptr().cast(), bytes.len()) };
        };
        let (mut number, mut context, mut address) = (0, std::ptr::null_mut(), 0);
        tell(cu!(env, cuInit(0)));
        tell(cu!(env, cuDeviceGetCount(&raw mut number)));
        tell(cu!(env, cuDriverGetVersion(&raw mut number)));
        tell(cu!(env, cuCtxGetCurrent(&raw mut context)));
        tell(env.pool_with(&Environment::props()).0);
        tell(cu!(env, cuStreamSynchronize(stream)));
        tell(cu!(
            env,
            cuMemAllocFromPoolAsync(&raw mut address, 1, pool, stream)
        ));
        tell(cu!(env, cuMemFreeAsync(block, stream)));
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: the write end is this process's, and not used any more.
    unsafe { libc::close(ends[1]) };
    // SAFETY: the read end is this process's, and nobody else's.
    let mut pipe = unsafe { std::fs::File::from_raw_fd(ends[0]) };
    let mut status = 0;
    for part in FORKED {
        let mut bytes = [0; 4];
        match pipe.read_exact(&mut bytes) {
            Ok(()) => env.code(part, CUresult(u32::from_ne_bytes(bytes))),
            Err(_) => env.say(part, "no answer"),
        }
    }
    // SAFETY: the child is this process's, and `status` is valid for a write.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    env.say(
        "the child ends",
        if status == 0 { "well" } else { "by a signal" },
    );
    Ok(())
}

pub(crate) fn fork_after(env: &Environment) -> Result<()> {
    env.start()?;
    let (pool, stream) = (env.pool(0)?, env.stream()?);
    let block = env.alloc(pool, 1000, stream)?;
    fork(env, pool, stream, block)?;
    let (code, other) = env.try_alloc(pool, 1000, stream);
    env.code("then the parent allocates", code);
    env.free(block, stream)?;
    env.free(other, stream)?;
    env.synchronise(stream)
}

/// Calls that need no handles, in a child of a process that has loaded the driver only.
pub(crate) fn fork_before(env: &Environment) -> Result<()> {
    env.alone("then all works in the child", || {
        let (pool, stream) = (env.pool(0)?, env.stream()?);
        let (code, _) = env.try_alloc(pool, 1000, stream);
        Ok(name(if env.table.cuInit.is_some() {
            code
        } else {
            MISSING
        }))
    });
    Ok(())
}
