//! Questions about an address. None needs a current context (measured).

use std::ffi::c_void;

use cuda_driver_sys::{CUdeviceptr, CUpointer_attribute};

use super::{Table, call};
use crate::base::error::Result;

/// # Safety
/// `attribute` must be one whose value is 4 bytes wide. The address may be any: one that the driver
/// does not know answers INVALID_VALUE.
pub(crate) unsafe fn narrow(
    table: &Table,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Result<u32> {
    let mut value: u32 = 0;
    let out: *mut c_void = (&raw mut value).cast();
    // SAFETY: `out` is valid for the 4 bytes that the driver writes for these attributes.
    unsafe { call!(table, cuPointerGetAttribute(out, attribute, address)) }?;
    Ok(value)
}

/// # Safety
/// As [`narrow`], for attributes 8 bytes wide.
pub(crate) unsafe fn wide(
    table: &Table,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Result<u64> {
    let mut value: u64 = 0;
    let out: *mut c_void = (&raw mut value).cast();
    // SAFETY: `out` is valid for the 8 bytes that the driver writes for these attributes.
    unsafe { call!(table, cuPointerGetAttribute(out, attribute, address)) }?;
    Ok(value)
}
