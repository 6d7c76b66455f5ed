//! The driver's log of errors.

use std::ffi::c_uint;

use super::{Table, call};
use crate::base::error::Result;

/// Documented: the log has no more bytes; and a zero behind them.
const MOST: usize = 25_600 + 1;

/// Documented: must be 0.
const FLAGS: c_uint = 0;

/// All lines that the driver keeps, the oldest first. Needs CUDA 12.9.
///
/// # Safety
/// There must be an initialised driver behind the table.
pub(crate) unsafe fn lines(table: &Table) -> Result<String> {
    let mut text = vec![0_u8; MOST];
    let (all, buffer) = (std::ptr::null_mut(), text.as_mut_ptr().cast());
    let mut size = MOST;
    // SAFETY: the buffer has as many bytes as `size` says, which is valid for a write; without an iterator all is
    // written.
    unsafe { call!(table, cuLogsDumpToMemory(all, buffer, &raw mut size, FLAGS)) }?;
    text.truncate(size);
    Ok(String::from_utf8_lossy(&text).into_owned())
}
