//! Memory pools. None of these needs a current context (measured).

use std::ffi::{c_int, c_void};

use cuda_driver_sys::{
    CUdevice, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationType, CUmemLocation,
    CUmemPool_attribute, CUmemPoolProps, CUmemoryPool,
};

use super::{Table, call};
use crate::base::error::Result;

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
/// `pool` must be a live pool, and `attribute` one whose value is 4 bytes wide, as that of the reuse
/// flags is.
pub(crate) unsafe fn narrow_attribute(
    table: &Table,
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
) -> Result<c_int> {
    let mut value: c_int = 0;
    let out: *mut c_void = (&raw mut value).cast();
    // SAFETY: `out` is valid for the 4 bytes that the driver writes for these attributes.
    unsafe { call!(table, cuMemPoolGetAttribute(pool, attribute, out)) }?;
    Ok(value)
}

/// # Safety
/// `pool` must be a live pool, and `attribute` one of the reuse flags.
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

/// # Safety
/// `location` must name a place of the same driver; a wrong one answers INVALID_VALUE (R24).
pub(crate) unsafe fn default_at(
    table: &Table,
    mut location: CUmemLocation,
    allocation_type: CUmemAllocationType,
) -> Result<CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    let location = &raw mut location;
    // SAFETY: `pool` is valid for a write, and `location` for reads: the header forgot its `const`.
    unsafe {
        call!(
            table,
            cuMemGetDefaultMemPool(&raw mut pool, location, allocation_type)
        )
    }?;
    Ok(pool)
}

/// # Safety
/// As [`default_at`].
pub(crate) unsafe fn current_at(
    table: &Table,
    mut location: CUmemLocation,
    allocation_type: CUmemAllocationType,
) -> Result<CUmemoryPool> {
    let mut pool = std::ptr::null_mut();
    let location = &raw mut location;
    // SAFETY: as in `default_at`.
    unsafe {
        call!(
            table,
            cuMemGetMemPool(&raw mut pool, location, allocation_type)
        )
    }?;
    Ok(pool)
}

/// # Safety
/// As [`default_at`]; `pool` must be a live pool.
pub(crate) unsafe fn set_current_at(
    table: &Table,
    mut location: CUmemLocation,
    allocation_type: CUmemAllocationType,
    pool: CUmemoryPool,
) -> Result<()> {
    let location = &raw mut location;
    // SAFETY: as in `default_at`.
    unsafe { call!(table, cuMemSetMemPool(location, allocation_type, pool)) }
}

/// # Safety
/// `pool` must be a live pool.
pub(crate) unsafe fn access(
    table: &Table,
    pool: CUmemoryPool,
    mut location: CUmemLocation,
) -> Result<CUmemAccess_flags> {
    let mut flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    let location = &raw mut location;
    // SAFETY: `flags` is valid for a write, and `location` for reads.
    unsafe { call!(table, cuMemPoolGetAccess(&raw mut flags, pool, location)) }?;
    Ok(flags)
}

/// # Safety
/// `pool` must be a live pool. A place that loses access must not be using its memory.
pub(crate) unsafe fn set_access(
    table: &Table,
    pool: CUmemoryPool,
    entries: &[CUmemAccessDesc],
) -> Result<()> {
    // SAFETY: the list is valid for reads of its length.
    unsafe {
        call!(
            table,
            cuMemPoolSetAccess(pool, entries.as_ptr(), entries.len())
        )
    }
}
