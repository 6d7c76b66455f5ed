//! The functions of the library.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::sync::atomic::{Ordering, fence};

use cuda_driver_sys::gdr::{
    GDR_MAP_FLAG_DEFAULT, GDR_MAP_FLAG_REQ_CACHE_MAPPING, GDR_MAP_FLAG_REQ_DEVICE_MAPPING,
    GDR_MAP_FLAG_REQ_WC_MAPPING, GDR_PIN_FLAG_DEFAULT, GdrTable, gdr_attr_t, gdr_info_t,
    gdr_info_v2_t, gdr_mapping_type_t, gdr_mh_t, gdr_t,
};

use crate::configuration::Configuration;
use crate::export::{Answer, exports, write};
use crate::pins;

#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_open() -> gdr_t {
    match pins::open() {
        Ok(owner) => std::ptr::with_exposed_provenance_mut(owner),
        Err(code) => {
            if let Some(code) = code {
                // SAFETY: no preconditions.
                let place = unsafe { libc::__errno_location() };
                // SAFETY: the location belongs to this thread.
                unsafe { place.write(code) };
            }
            std::ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gdr_runtime_get_version(major: *mut c_int, minor: *mut c_int) {
    let (is_major, is_minor) = Configuration::get().version;
    // SAFETY: the caller obeys the library's contract for its pointers; null is not written.
    let _ = unsafe { write(major, is_major) };
    // SAFETY: as above.
    let _ = unsafe { write(minor, is_minor) };
}

const _: fn(&mut GdrTable) = |table| {
    table.gdr_open = Some(gdr_open);
    table.gdr_runtime_get_version = Some(gdr_runtime_get_version);
};

/// Copies bytes.
///
/// # Safety
///
/// Both pointers are valid for `size` bytes.
unsafe fn copy(to: *mut c_void, from: *const c_void, size: usize) {
    // SAFETY: by the contract of this function.
    unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), size) };
    fence(Ordering::SeqCst);
}

fn map(
    owner: gdr_t,
    handle: gdr_mh_t,
    place: *mut *mut c_void,
    size: usize,
    wanted: Option<gdr_mapping_type_t>,
) -> Answer {
    if place.is_null() {
        return Err(libc::EINVAL);
    }
    let base = pins::map(owner.addr(), handle.h, size, wanted)?;
    let base = std::ptr::with_exposed_provenance_mut(base as usize);
    // SAFETY: the caller obeys the library's contract for its pointers.
    unsafe { write(place, base) }
}

fn pin(
    owner: gdr_t,
    asked: (c_ulong, usize),
    tokens: (u64, u32),
    flags: u32,
    place: *mut gdr_mh_t,
) -> Answer {
    if place.is_null() {
        return Err(libc::EINVAL);
    }
    let h = pins::pin(owner.addr(), (asked.0, asked.1 as u64), tokens, flags)?;
    // SAFETY: the caller obeys the library's contract for its pointers.
    unsafe { write(place, gdr_mh_t { h }) }
}

exports! {
    fn gdr_close(owner: gdr_t) {
        pins::close(owner.addr())
    }

    fn gdr_pin_buffer(
        owner: gdr_t, address: c_ulong, size: usize, token: u64, space: u32, place: *mut gdr_mh_t
    ) {
        pin(owner, (address, size), (token, space), GDR_PIN_FLAG_DEFAULT, place)
    }

    fn gdr_pin_buffer_v2(
        owner: gdr_t, address: c_ulong, size: usize, flags: u32, place: *mut gdr_mh_t
    ) {
        pin(owner, (address, size), (0, 0), flags, place)
    }

    fn gdr_unpin_buffer(owner: gdr_t, handle: gdr_mh_t) {
        pins::unpin(owner.addr(), handle.h)
    }

    fn gdr_get_callback_flag(owner: gdr_t, handle: gdr_mh_t, place: *mut c_int) {
        let flag = pins::callback_flag(owner.addr(), handle.h)?;
        // SAFETY: the caller obeys the library's contract for its pointers.
        unsafe { write(place, flag.into()) }
    }

    fn gdr_get_info(owner: gdr_t, handle: gdr_mh_t, place: *mut gdr_info_t) {
        if pins::uses_dma_buf(owner.addr())? {
            return Err(libc::EBADF);
        }
        let info = pins::info(owner.addr(), handle.h)?;
        let info = gdr_info_t {
            va: info.va,
            mapped_size: info.mapped_size,
            page_size: info.page_size,
            tm_cycles: info.tm_cycles,
            cycles_per_ms: info.cycles_per_ms,
            bits: info.bits,
        };
        // SAFETY: the caller obeys the library's contract for its pointers.
        unsafe { write(place, info) }
    }

    fn gdr_get_info_v2(owner: gdr_t, handle: gdr_mh_t, place: *mut gdr_info_v2_t) {
        let info = pins::info(owner.addr(), handle.h)?;
        // SAFETY: the caller obeys the library's contract for its pointers.
        unsafe { write(place, info) }
    }

    fn gdr_map(owner: gdr_t, handle: gdr_mh_t, place: *mut *mut c_void, size: usize) {
        map(owner, handle, place, size, None)
    }

    fn gdr_map_v2(
        owner: gdr_t, handle: gdr_mh_t, place: *mut *mut c_void, size: usize, flags: c_int
    ) {
        let wanted = match flags {
            GDR_MAP_FLAG_DEFAULT => None,
            GDR_MAP_FLAG_REQ_WC_MAPPING => Some(gdr_mapping_type_t::GDR_MAPPING_TYPE_WC),
            GDR_MAP_FLAG_REQ_CACHE_MAPPING => Some(gdr_mapping_type_t::GDR_MAPPING_TYPE_CACHING),
            GDR_MAP_FLAG_REQ_DEVICE_MAPPING => Some(gdr_mapping_type_t::GDR_MAPPING_TYPE_DEVICE),
            // An existing mapping is checked for first.
            _ if pins::check_mapped(handle.h).is_ok() => return Err(libc::EAGAIN),
            _ => return Err(libc::EINVAL),
        };
        map(owner, handle, place, size, wanted)
    }

    fn gdr_unmap(owner: gdr_t, handle: gdr_mh_t, base: *mut c_void, size: usize) {
        pins::unmap(owner.addr(), handle.h, base.addr() as u64, size)
    }

    fn gdr_copy_to_mapping(
        handle: gdr_mh_t, to: *mut c_void, from: *const c_void, size: usize
    ) {
        pins::check_mapped(handle.h)?;
        // SAFETY: the caller obeys the library's contract for its pointers.
        unsafe { copy(to, from, size) };
        Ok(())
    }

    fn gdr_copy_from_mapping(
        handle: gdr_mh_t, to: *mut c_void, from: *const c_void, size: usize
    ) {
        pins::check_mapped(handle.h)?;
        // SAFETY: the caller obeys the library's contract for its pointers.
        unsafe { copy(to, from, size) };
        Ok(())
    }

    fn gdr_copy_to_bar(to: *mut c_void, from: *const c_void, size: usize) {
        // SAFETY: the caller obeys the library's contract for its pointers.
        unsafe { copy(to, from, size) };
        Ok(())
    }

    fn gdr_copy_from_bar(to: *mut c_void, from: *const c_void, size: usize) {
        // SAFETY: the caller obeys the library's contract for its pointers.
        unsafe { copy(to, from, size) };
        Ok(())
    }

    fn gdr_driver_get_version(owner: gdr_t, major: *mut c_int, minor: *mut c_int) {
        if pins::uses_dma_buf(owner.addr())? {
            return Err(libc::EBADF);
        }
        let (is_major, is_minor) = Configuration::get().driver_version;
        // SAFETY: the caller obeys the library's contract for its pointers.
        unsafe { write(major, is_major) }?;
        // SAFETY: as above.
        unsafe { write(minor, is_minor) }
    }

    fn gdr_get_attribute(owner: gdr_t, attribute: gdr_attr_t, place: *mut c_int) {
        // SAFETY: the caller obeys the library's contract for its pointers.
        unsafe { write(place, 0) }?;
        let configuration = Configuration::get();
        let is_dma_buf = pins::uses_dma_buf(owner.addr())?;
        let is_asked = is_dma_buf || configuration.driver_version >= (2, 5);
        let value = match attribute {
            gdr_attr_t::GDR_ATTR_USE_PERSISTENT_MAPPING => {
                is_asked && (is_dma_buf || configuration.is_persistent)
            }
            gdr_attr_t::GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE => is_asked,
            gdr_attr_t::GDR_ATTR_USING_DMA_BUF_MMAP if configuration.knows_dma_buf() => is_dma_buf,
            _ => return Err(libc::EINVAL),
        };
        // SAFETY: as above.
        unsafe { write(place, value.into()) }
    }

    fn gdr_get_mapping_type_string(kind: gdr_mapping_type_t, place: *mut *const c_char) {
        let name = match kind {
            gdr_mapping_type_t::GDR_MAPPING_TYPE_NONE => c"None",
            gdr_mapping_type_t::GDR_MAPPING_TYPE_WC => c"Write Combining",
            gdr_mapping_type_t::GDR_MAPPING_TYPE_CACHING => c"Caching",
            gdr_mapping_type_t::GDR_MAPPING_TYPE_DEVICE => c"Device",
            _ => return Err(libc::EINVAL),
        };
        // SAFETY: as above.
        unsafe { write(place, name.as_ptr()) }
    }
}
