//! Memory pools. None of these needs a current context (measured).

use std::ffi::{c_int, c_void};

use cuda_driver_sys::{CUdevice, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool};

use super::{Table, call};
use crate::error::Result;

/// # Safety
/// Every byte of `props` that the driver's version does not know must be zero.
pub(crate) unsafe fn create(table: &Table, props: &CUmemPoolProps) -> Result<CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    // SAFETY: `pool` is valid for a write of one handle, `props` for the read of the struct.
    unsafe { call!(table, cuMemPoolCreate(&raw mut pool, props)) }?;
    Ok(pool)
}

/// # Safety
/// `pool` must be a live pool that is not used afterwards. Allocations from it stay valid.
pub(crate) unsafe fn destroy(table: &Table, pool: CUmemoryPool) -> Result<()> {
    // SAFETY: the caller gives up the handle.
    unsafe { call!(table, cuMemPoolDestroy(pool)) }
}

/// # Safety
/// `pool` must be a live pool.
pub(crate) unsafe fn trim(table: &Table, pool: CUmemoryPool, keep: usize) -> Result<()> {
    // SAFETY: the caller vouches for the handle; the call never waits for a stream.
    unsafe { call!(table, cuMemPoolTrimTo(pool, keep)) }
}

/// # Safety
/// `pool` must be a live pool, and `attribute` one whose value is 8 bytes wide.
pub(crate) unsafe fn wide_attribute(
    table: &Table,
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
) -> Result<u64> {
    let mut value: u64 = 0;
    let out: *mut c_void = (&raw mut value).cast();
    // SAFETY: `out` is valid for the 8 bytes that the driver writes for these attributes.
    unsafe { call!(table, cuMemPoolGetAttribute(pool, attribute, out)) }?;
    Ok(value)
}

/// # Safety
/// As [`wide_attribute`].
pub(crate) unsafe fn set_wide_attribute(
    table: &Table,
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    mut value: u64,
) -> Result<()> {
    let input: *mut c_void = (&raw mut value).cast();
    // SAFETY: `input` is valid for the 8 bytes that the driver reads for these attributes.
    unsafe { call!(table, cuMemPoolSetAttribute(pool, attribute, input)) }
}

/// # Safety
/// `pool` must be a live pool, and `attribute` one of the reuse flags: they are 4 bytes wide.
pub(crate) unsafe fn flag(
    table: &Table,
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
) -> Result<bool> {
    let mut value: c_int = 0;
    let out: *mut c_void = (&raw mut value).cast();
    // SAFETY: `out` is valid for the 4 bytes that the driver writes for a flag.
    unsafe { call!(table, cuMemPoolGetAttribute(pool, attribute, out)) }?;
    Ok(value != 0)
}

/// # Safety
/// As [`flag`].
pub(crate) unsafe fn set_flag(
    table: &Table,
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: bool,
) -> Result<()> {
    let mut value = c_int::from(value);
    let input: *mut c_void = (&raw mut value).cast();
    // SAFETY: `input` is valid for the 4 bytes that the driver reads for a flag.
    unsafe { call!(table, cuMemPoolSetAttribute(pool, attribute, input)) }
}

/// # Safety
/// `device` must be a device of the same driver.
pub(crate) unsafe fn default(table: &Table, device: CUdevice) -> Result<CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    // SAFETY: `pool` is valid for a write of one handle; the call creates no context.
    unsafe { call!(table, cuDeviceGetDefaultMemPool(&raw mut pool, device)) }?;
    Ok(pool)
}

/// # Safety
/// `device` must be a device of the same driver.
pub(crate) unsafe fn current(table: &Table, device: CUdevice) -> Result<CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    // SAFETY: `pool` is valid for a write of one handle.
    unsafe { call!(table, cuDeviceGetMemPool(&raw mut pool, device)) }?;
    Ok(pool)
}

/// # Safety
/// Both must be live handles of one driver.
pub(crate) unsafe fn set_current(
    table: &Table,
    device: CUdevice,
    pool: CUmemoryPool,
) -> Result<()> {
    // SAFETY: the caller vouches for the handles.
    unsafe { call!(table, cuDeviceSetMemPool(device, pool)) }
}
