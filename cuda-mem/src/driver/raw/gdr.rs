//! gdrcopy's library, like the other files here for the driver. It is not thread-safe: each call is made by the
//! exclusive holder of the handle.

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::io;
use std::ptr;

use cuda_driver_sys::CUdeviceptr;
use cuda_driver_sys::gdr::{
    GdrTable, gdr_attr_t, gdr_info_t, gdr_info_v2_t, gdr_mapping_type_t, gdr_mh_t, gdr_t,
};

use crate::base::error::{Error, Result};

/// Calls a function of the table by its symbol; a missing one is an error, and so is any call in a fork, where
/// what the parent mapped is not there.
macro_rules! ask {
    ($table:expr, $symbol:ident($($argument:expr),* $(,)?)) => {
        match $table.$symbol {
            _ if $crate::base::report::is_forked() => Err($crate::base::error::Error::forked()),
            Some(function) => check(stringify!($symbol), function($($argument),*)),
            None => Err($crate::base::error::Error::gdr_lacks(stringify!($symbol))),
        }
    };
}

fn check(function: &'static str, errno: c_int) -> Result<()> {
    match errno {
        0 => Ok(()),
        errno => Err(Error::errno(function, errno.saturating_abs())),
    }
}

/// # Safety
/// The table's functions must be those of gdrcopy's library.
pub(crate) unsafe fn open(table: &GdrTable) -> Result<gdr_t> {
    let Some(open) = table.gdr_open else {
        return Err(Error::gdr_lacks("gdr_open"));
    };
    // A library that finds the module too old sets no number.
    clear_errno();
    // SAFETY: it takes nothing.
    let handle = unsafe { open() };
    if handle.is_null() {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        return Err(Error::gdr_closed(errno));
    }
    Ok(handle)
}

#[cfg(target_os = "linux")]
fn clear_errno() {
    // SAFETY: it takes nothing.
    let number = unsafe { libc::__errno_location() };
    // SAFETY: this thread's own number, which is there as long as the thread.
    unsafe { number.write(0) };
}

#[cfg(not(target_os = "linux"))]
fn clear_errno() {}

/// # Safety
/// The table's functions must be those of gdrcopy's library.
pub(crate) unsafe fn runtime_version(table: &GdrTable) -> Result<(c_int, c_int)> {
    let (mut major, mut minor) = (0, 0);
    let Some(ask) = table.gdr_runtime_get_version else {
        return Err(Error::gdr_lacks("gdr_runtime_get_version"));
    };
    // SAFETY: both are valid for a write of one int.
    unsafe { ask(&raw mut major, &raw mut minor) };
    Ok((major, minor))
}

/// # Safety
/// `gdr` must be open, and no other thread in a call with it.
pub(crate) unsafe fn driver_version(table: &GdrTable, gdr: gdr_t) -> Result<(c_int, c_int)> {
    let (mut major, mut minor) = (0, 0);
    let (at_major, at_minor) = (&raw mut major, &raw mut minor);
    // SAFETY: both are valid for a write of one int; the rest is the caller's.
    unsafe { ask!(table, gdr_driver_get_version(gdr, at_major, at_minor)) }?;
    Ok((major, minor))
}

/// # Safety
/// As [`driver_version`].
pub(crate) unsafe fn attribute(
    table: &GdrTable,
    gdr: gdr_t,
    attribute: gdr_attr_t,
) -> Result<c_int> {
    let mut value = 0;
    // SAFETY: `value` is valid for a write of one int; the rest is the caller's.
    unsafe { ask!(table, gdr_get_attribute(gdr, attribute, &raw mut value)) }?;
    Ok(value)
}

/// Libraries before 2.5 have only the older call, which knows no flags.
///
/// # Safety
/// As [`driver_version`], and the memory stays until it is unpinned.
pub(crate) unsafe fn pin(
    table: &GdrTable,
    gdr: gdr_t,
    (address, bytes): (CUdeviceptr, usize),
    flags: u32,
) -> Result<gdr_mh_t> {
    let mut handle = gdr_mh_t::default();
    let out = &raw mut handle;
    let address = address as c_ulong;
    if table.gdr_pin_buffer_v2.is_some() || flags != 0 {
        // SAFETY: `handle` is valid for a write; the rest is the caller's.
        unsafe { ask!(table, gdr_pin_buffer_v2(gdr, address, bytes, flags, out)) }?;
    } else {
        // SAFETY: as above; token and space are 0, as the library wants them.
        unsafe { ask!(table, gdr_pin_buffer(gdr, address, bytes, 0, 0, out)) }?;
    }
    Ok(handle)
}

/// # Safety
/// As [`driver_version`]; `handle` must be pinned and is not used again.
pub(crate) unsafe fn unpin(table: &GdrTable, gdr: gdr_t, handle: gdr_mh_t) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { ask!(table, gdr_unpin_buffer(gdr, handle)) }
}

/// As [`pin`] of versions.
///
/// # Safety
/// As [`driver_version`]; `handle` must be pinned.
pub(crate) unsafe fn map(
    table: &GdrTable,
    gdr: gdr_t,
    handle: gdr_mh_t,
    bytes: usize,
    flags: c_int,
) -> Result<*mut c_void> {
    let mut at = ptr::null_mut();
    let out = &raw mut at;
    if table.gdr_map_v2.is_some() || flags != 0 {
        // SAFETY: `at` is valid for a write; the rest is the caller's.
        unsafe { ask!(table, gdr_map_v2(gdr, handle, out, bytes, flags)) }?;
    } else {
        // SAFETY: as above.
        unsafe { ask!(table, gdr_map(gdr, handle, out, bytes)) }?;
    }
    Ok(at)
}

/// # Safety
/// As [`driver_version`]; the mapping is the handle's, and is no longer used.
pub(crate) unsafe fn unmap(
    table: &GdrTable,
    gdr: gdr_t,
    handle: gdr_mh_t,
    at: *mut c_void,
    bytes: usize,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { ask!(table, gdr_unmap(gdr, handle, at, bytes)) }
}

/// Libraries before 2.4 do not tell the kind of mapping in its own field.
///
/// # Safety
/// As [`driver_version`]; `handle` must be pinned.
pub(crate) unsafe fn info(table: &GdrTable, gdr: gdr_t, handle: gdr_mh_t) -> Result<gdr_info_v2_t> {
    if table.gdr_get_info_v2.is_some() {
        let mut info = gdr_info_v2_t::default();
        // SAFETY: `info` is valid for a write; the rest is the caller's.
        unsafe { ask!(table, gdr_get_info_v2(gdr, handle, &raw mut info)) }?;
        return Ok(info);
    }
    let mut old = gdr_info_t::default();
    // SAFETY: as above.
    unsafe { ask!(table, gdr_get_info(gdr, handle, &raw mut old)) }?;
    let kind = match (old.mapped(), old.wc_mapping()) {
        (false, _) => gdr_mapping_type_t::GDR_MAPPING_TYPE_NONE,
        (true, true) => gdr_mapping_type_t::GDR_MAPPING_TYPE_WC,
        (true, false) => gdr_mapping_type_t::GDR_MAPPING_TYPE_CACHING,
    };
    Ok(gdr_info_v2_t {
        va: old.va,
        mapped_size: old.mapped_size,
        page_size: old.page_size,
        tm_cycles: old.tm_cycles,
        cycles_per_ms: old.cycles_per_ms,
        bits: old.bits,
        mapping_type: kind,
    })
}

/// Whether the driver took the memory back.
///
/// # Safety
/// As [`info`].
pub(crate) unsafe fn callback_flag(table: &GdrTable, gdr: gdr_t, handle: gdr_mh_t) -> Result<bool> {
    let mut flag = 0;
    // SAFETY: `flag` is valid for a write of one int; the rest is the caller's.
    unsafe { ask!(table, gdr_get_callback_flag(gdr, handle, &raw mut flag)) }?;
    Ok(flag != 0)
}

/// The library's name for a kind of mapping.
///
/// # Safety
/// The table's functions must be those of gdrcopy's library.
pub(crate) unsafe fn mapping_name(table: &GdrTable, kind: gdr_mapping_type_t) -> Result<String> {
    let mut text = ptr::null();
    // SAFETY: `text` is valid for a write of one pointer.
    unsafe { ask!(table, gdr_get_mapping_type_string(kind, &raw mut text)) }?;
    if text.is_null() {
        return Ok(String::new());
    }
    // SAFETY: the library answers with a text of its own that ends in zero and stays.
    Ok(unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned())
}
