//! The calls that share pools and pointers, as the questions about them make them.

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name};

/// Kinds of handle.
pub(crate) const DESCRIPTOR: u32 = 1;
pub(crate) const FABRIC: u32 = 8;

pub(crate) type Token = CUmemPoolPtrExportData;

/// A pool whose memory can be shared.
pub(crate) fn shared(env: &Environment, types: u32) -> (CUresult, CUmemoryPool) {
    env.pool_with(&CUmemPoolProps {
        handleTypes: CUmemAllocationHandleType(types),
        ..Environment::props()
    })
}

pub(crate) fn shared_pool(env: &Environment) -> Result<CUmemoryPool> {
    let (code, pool) = shared(env, DESCRIPTOR);
    env.fine("cuMemPoolCreate", code)?;
    Ok(pool)
}

pub(crate) fn export(
    env: &Environment,
    pool: CUmemoryPool,
    kind: u32,
    flags: u64,
) -> (CUresult, c_int) {
    // As wide as the widest handle.
    let mut handle = [-7_i32; 16];
    let place = handle.as_mut_ptr().cast::<c_void>();
    let kind = CUmemAllocationHandleType(kind);
    let code = cu!(
        env,
        cuMemPoolExportToShareableHandle(place, pool, kind, flags)
    );
    (code, handle[0])
}

pub(crate) fn import(
    env: &Environment,
    fd: c_int,
    kind: u32,
    flags: u64,
) -> (CUresult, CUmemoryPool) {
    let mut pool = std::ptr::null_mut();
    let handle = std::ptr::without_provenance_mut(fd as isize as usize);
    let kind = CUmemAllocationHandleType(kind);
    let code = cu!(
        env,
        cuMemPoolImportFromShareableHandle(&raw mut pool, handle, kind, flags)
    );
    (code, pool)
}

pub(crate) fn token(env: &Environment, address: CUdeviceptr) -> (CUresult, Token) {
    let mut token = Token::default();
    let code = cu!(env, cuMemPoolExportPointer(&raw mut token, address));
    (code, token)
}

pub(crate) fn open(
    env: &Environment,
    pool: CUmemoryPool,
    token: &Token,
) -> (CUresult, CUdeviceptr) {
    let mut address = 0;
    let mut token = *token;
    let code = cu!(
        env,
        cuMemPoolImportPointer(&raw mut address, pool, &raw mut token)
    );
    (code, address)
}

/// Four bytes, seen by the host.
pub(crate) fn read(env: &Environment, address: CUdeviceptr) -> String {
    let mut value = 0_u32;
    let place = (&raw mut value).cast::<c_void>();
    match cu!(env, cuMemcpyDtoH_v2(place, address, 4)) {
        OK => format!("{value}"),
        code => name(code),
    }
}

pub(crate) fn write(env: &Environment, address: CUdeviceptr, value: u32) -> CUresult {
    match cu!(env, cuMemsetD32_v2(address, value, 4)) {
        OK => cu!(env, cuCtxSynchronize()),
        code => code,
    }
}

pub(crate) fn own(descriptor: c_int) -> OwnedFd {
    // SAFETY: the driver has just made it, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

pub(crate) fn is_open(descriptor: c_int) -> bool {
    // SAFETY: no pointers.
    unsafe { libc::fcntl(descriptor, libc::F_GETFD) >= 0 }
}

pub(crate) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
