//! `cuInit` and the driver's version.

use super::{Table, call};
use crate::base::error::Result;

/// # Safety
/// The table's functions must be a CUDA driver's.
pub(crate) unsafe fn init(table: &Table) -> Result<()> {
    // SAFETY: cuInit takes flags, which must be 0, and may be called any number of times.
    unsafe { call!(table, cuInit(0)) }
}

/// Where the function that initialises is: which driver this is, however often it was opened.
pub(crate) fn address(table: &Table) -> usize {
    table.cuInit.map_or(0, |function| function as usize)
}

/// # Safety
/// As [`init`].
pub(crate) unsafe fn version(table: &Table) -> Result<i32> {
    let mut version = 0;
    // SAFETY: `version` is valid for a write of one int.
    unsafe { call!(table, cuDriverGetVersion(&raw mut version)) }?;
    Ok(version)
}
