//! Starting the driver: what works before, in which order arguments are looked at, and forks.

use std::ffi::{CStr, c_void};
use std::io::Read as _;
use std::os::fd::FromRawFd as _;

use anyhow::{Result, ensure};
use cuda_driver_sys::*;

use crate::lab::{Lab, MISSING, cu, name, yes};

pub(crate) fn before(lab: &Lab) -> Result<()> {
    let (mut number, mut handle, mut address) = (0, std::ptr::null_mut(), 0);
    let mut text = std::ptr::null();
    let null = std::ptr::null_mut();
    lab.code(
        "cuDriverGetVersion",
        cu!(lab, cuDriverGetVersion(&raw mut number)),
    );
    let code = cu!(lab, cuGetErrorName(CUresult(2), &raw mut text));
    lab.code("cuGetErrorName", code);
    lab.code(
        "cuDeviceGetCount",
        cu!(lab, cuDeviceGetCount(&raw mut number)),
    );
    lab.code("cuDeviceGet 0", cu!(lab, cuDeviceGet(&raw mut number, 0)));
    lab.code("cuDeviceGet -1", cu!(lab, cuDeviceGet(&raw mut number, -1)));
    let code = cu!(lab, cuDeviceGet(std::ptr::null_mut(), 0));
    lab.code("cuDeviceGet into null", code);
    lab.code(
        "cuCtxGetCurrent",
        cu!(lab, cuCtxGetCurrent(&raw mut handle)),
    );
    lab.code("cuCtxSetCurrent null", cu!(lab, cuCtxSetCurrent(null)));
    lab.code("cuCtxSynchronize", cu!(lab, cuCtxSynchronize()));
    let code = cu!(lab, cuDevicePrimaryCtxRetain(&raw mut handle, 0));
    lab.code("cuDevicePrimaryCtxRetain", code);
    let code = cu!(lab, cuMemAlloc_v2(&raw mut address, 1));
    lab.code("cuMemAlloc", code);
    let code = cu!(
        lab,
        cuMemAllocAsync(&raw mut address, 1, std::ptr::null_mut())
    );
    lab.code("cuMemAllocAsync", code);
    lab.code("cuMemFree of null", cu!(lab, cuMemFree_v2(0)));
    let code = cu!(lab, cuStreamSynchronize(std::ptr::null_mut()));
    lab.code("cuStreamSynchronize", code);
    let (code, _) = lab.pool_with(&Lab::props());
    lab.code("cuMemPoolCreate", code);
    Ok(())
}

pub(crate) fn flags(lab: &Lab) -> Result<()> {
    lab.code("1", cu!(lab, cuInit(1)));
    lab.code("all bits", cu!(lab, cuInit(u32::MAX)));
    let mut count = 0;
    let code = cu!(lab, cuDeviceGetCount(&raw mut count));
    lab.code("then cuDeviceGetCount", code);
    lab.code("0", cu!(lab, cuInit(0)));
    lab.code("0 again", cu!(lab, cuInit(0)));
    lab.code("1 after that", cu!(lab, cuInit(1)));
    Ok(())
}

pub(crate) fn devices(lab: &Lab) -> Result<()> {
    lab.fine("cuInit", cu!(lab, cuInit(0)))?;
    let mut number = 7;
    for ordinal in [-2, -1, 99] {
        let code = cu!(lab, cuDeviceGet(&raw mut number, ordinal));
        lab.code(format!("cuDeviceGet {ordinal}"), code);
    }
    lab.say("cuDeviceGet wrote", number);
    let null = std::ptr::null_mut();
    lab.code("cuDeviceGet into null", cu!(lab, cuDeviceGet(null, 0)));
    lab.code("cuDeviceGet 99 into null", cu!(lab, cuDeviceGet(null, 99)));
    lab.code(
        "cuDeviceGetCount into null",
        cu!(lab, cuDeviceGetCount(null)),
    );
    let (mut text, mut bytes) = ([0; 8], 0_usize);
    let code = cu!(lab, cuDeviceGetName(text.as_mut_ptr(), 8, 99));
    lab.code("cuDeviceGetName of 99", code);
    let code = cu!(lab, cuDeviceTotalMem_v2(&raw mut bytes, 99));
    lab.code("cuDeviceTotalMem of 99", code);
    let id = CUdevice_attribute(115);
    let code = cu!(lab, cuDeviceGetAttribute(&raw mut number, id, 99));
    lab.code("cuDeviceGetAttribute of 99", code);
    for (one, other) in [(0, 0), (0, 99), (99, 0)] {
        let code = cu!(lab, cuDeviceCanAccessPeer(&raw mut number, one, other));
        lab.code(format!("cuDeviceCanAccessPeer {one} {other}"), code);
    }
    let mut pool = std::ptr::null_mut();
    for device in [-1, 99] {
        let code = cu!(lab, cuDeviceGetDefaultMemPool(&raw mut pool, device));
        lab.code(format!("cuDeviceGetDefaultMemPool of {device}"), code);
        let code = cu!(lab, cuDeviceGetMemPool(&raw mut pool, device));
        lab.code(format!("cuDeviceGetMemPool of {device}"), code);
    }
    let mut context = std::ptr::null_mut();
    let code = cu!(lab, cuDevicePrimaryCtxRetain(&raw mut context, 99));
    lab.code("cuDevicePrimaryCtxRetain of 99", code);
    let mut name = std::ptr::null();
    let code = cu!(lab, cuGetErrorName(CUresult(31337), &raw mut name));
    lab.code("cuGetErrorName of 31337", code);
    lab.say("cuGetErrorName of 31337 gives null", name.is_null());
    Ok(())
}

pub(crate) fn proc_address(lab: &Lab) -> Result<()> {
    let ask = |part: &str, symbol: &CStr, version, flags| {
        let mut address = std::ptr::without_provenance_mut::<c_void>(1);
        let mut status = CUdriverProcAddressQueryResult(9);
        let (place, found) = (&raw mut address, &raw mut status);
        let code = cu!(
            lab,
            cuGetProcAddress_v2(symbol.as_ptr(), place, version, flags, found)
        );
        let address = match address.addr() {
            0 => "null",
            1 => "untouched",
            _ => "an address",
        };
        let line = format!("{}, status {}, {address}", name(code), status.0);
        lab.say(
            format!(
                "{part} {} {version} flags {flags}",
                symbol.to_string_lossy()
            ),
            line,
        );
    };
    ask("before cuInit", c"cuMemAlloc", 12000, 0);
    ask("before cuInit", c"cuTeapot", 12000, 0);
    lab.fine("cuInit", cu!(lab, cuInit(0)))?;
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
        lab,
        cuGetProcAddress_v2(symbol, &raw mut address, 12000, 0, null)
    );
    lab.code("no status wanted", code);
    let teapot = c"cuTeapot".as_ptr();
    let code = cu!(
        lab,
        cuGetProcAddress_v2(teapot, &raw mut address, 12000, 0, null)
    );
    lab.code("no status wanted, unknown", code);
    for (part, symbol, version) in [
        ("found", symbol, 12000),
        ("unknown", teapot, 12000),
        ("too old", c"cuMemPoolCreate".as_ptr(), 11000),
    ] {
        let code = cu!(lab, cuGetProcAddress(symbol, &raw mut address, version, 0));
        let null = yes(address.is_null());
        lab.say(
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

fn fork(lab: &Lab, pool: CUmemoryPool, stream: CUstream, block: CUdeviceptr) -> Result<()> {
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
        tell(cu!(lab, cuInit(0)));
        tell(cu!(lab, cuDeviceGetCount(&raw mut number)));
        tell(cu!(lab, cuDriverGetVersion(&raw mut number)));
        tell(cu!(lab, cuCtxGetCurrent(&raw mut context)));
        tell(lab.pool_with(&Lab::props()).0);
        tell(cu!(lab, cuStreamSynchronize(stream)));
        tell(cu!(
            lab,
            cuMemAllocFromPoolAsync(&raw mut address, 1, pool, stream)
        ));
        tell(cu!(lab, cuMemFreeAsync(block, stream)));
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
            Ok(()) => lab.code(part, CUresult(u32::from_ne_bytes(bytes))),
            Err(_) => lab.say(part, "no answer"),
        }
    }
    // SAFETY: the child is this process's, and `status` is valid for a write.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    lab.say(
        "the child ends",
        if status == 0 { "well" } else { "by a signal" },
    );
    Ok(())
}

pub(crate) fn fork_after(lab: &Lab) -> Result<()> {
    lab.start()?;
    let (pool, stream) = (lab.pool(0)?, lab.stream()?);
    let block = lab.alloc(pool, 1000, stream)?;
    fork(lab, pool, stream, block)?;
    let (code, other) = lab.try_alloc(pool, 1000, stream);
    lab.code("then the parent allocates", code);
    lab.free(block, stream)?;
    lab.free(other, stream)?;
    lab.synchronise(stream)
}

/// Calls that need no handles, in a child of a process that has loaded the driver only.
pub(crate) fn fork_before(lab: &Lab) -> Result<()> {
    lab.alone("then all works in the child", || {
        let (pool, stream) = (lab.pool(0)?, lab.stream()?);
        let (code, _) = lab.try_alloc(pool, 1000, stream);
        Ok(name(if lab.table.cuInit.is_some() {
            code
        } else {
            MISSING
        }))
    });
    Ok(())
}
