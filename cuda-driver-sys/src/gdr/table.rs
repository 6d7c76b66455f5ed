//! The functions of gdrcopy's library, each an `Option`, with the version that brought it.

use std::ffi::{c_char, c_int, c_ulong, c_void};

use super::{gdr_attr_t, gdr_info_t, gdr_info_v2_t, gdr_mapping_type_t, gdr_mh_t, gdr_t};
use crate::functions::functions;

functions! {
    table GdrTable, symbols GDR_SYMBOLS, header "`gdrapi.h`";

    /// Opens `/dev/gdrdrv`, or from 2.6 on turns to dma-buf. Null is a failure, and `errno` says which.
    gdr_open, PFN_gdr_open: () -> gdr_t;
    /// Ends what `gdr_open` began, and unpins what is still pinned.
    gdr_close, PFN_gdr_close: (gdr_t) -> c_int;
    /// Pins device memory: its address and size, a token and an address space (both 0 today), and a place
    /// for the handle. What is pinned begins and ends at whole GPU pages.
    gdr_pin_buffer, PFN_gdr_pin_buffer: (gdr_t, c_ulong, usize, u64, u32, *mut gdr_mh_t) -> c_int;
    /// Pins device memory: its address and size, `GDR_PIN_FLAG_…`, and a place for the handle. Since 2.5.
    gdr_pin_buffer_v2, PFN_gdr_pin_buffer_v2: (gdr_t, c_ulong, usize, u32, *mut gdr_mh_t) -> c_int;
    /// Unpins memory, which should be unmapped before.
    gdr_unpin_buffer, PFN_gdr_unpin_buffer: (gdr_t, gdr_mh_t) -> c_int;
    /// Whether the driver took pinned memory back, as when it is freed.
    gdr_get_callback_flag, PFN_gdr_get_callback_flag: (gdr_t, gdr_mh_t, *mut c_int) -> c_int;
    /// What was pinned, and how it is mapped, by the struct of old. Not through dma-buf.
    gdr_get_info, PFN_gdr_get_info: (gdr_t, gdr_mh_t, *mut gdr_info_t) -> c_int;
    /// What was pinned, and how it is mapped. Since 2.4, from when on C programs get it
    /// where they write `gdr_get_info`.
    gdr_get_info_v2, PFN_gdr_get_info_v2: (gdr_t, gdr_mh_t, *mut gdr_info_v2_t) -> c_int;
    /// Maps pinned memory: a place for the address, and the size.
    gdr_map, PFN_gdr_map: (gdr_t, gdr_mh_t, *mut *mut c_void, usize) -> c_int;
    /// Maps pinned memory: a place for the address, the size, and `GDR_MAP_FLAG_…`. Since 2.5.
    gdr_map_v2, PFN_gdr_map_v2: (gdr_t, gdr_mh_t, *mut *mut c_void, usize, c_int) -> c_int;
    /// Ends a mapping, whose address and size are given.
    gdr_unmap, PFN_gdr_unmap: (gdr_t, gdr_mh_t, *mut c_void, usize) -> c_int;
    /// Writes to a mapping: where, from where, and the size. Since 2.0.
    gdr_copy_to_mapping, PFN_gdr_copy_to_mapping:
        (gdr_mh_t, *mut c_void, *const c_void, usize) -> c_int;
    /// Reads from a mapping: to where, from where, and the size. Since 2.0.
    gdr_copy_from_mapping, PFN_gdr_copy_from_mapping:
        (gdr_mh_t, *mut c_void, *const c_void, usize) -> c_int;
    /// As `gdr_copy_to_mapping`, without a handle. Before 2.0.
    gdr_copy_to_bar, PFN_gdr_copy_to_bar: (*mut c_void, *const c_void, usize) -> c_int;
    /// As `gdr_copy_from_mapping`, without a handle. Before 2.0.
    gdr_copy_from_bar, PFN_gdr_copy_from_bar: (*mut c_void, *const c_void, usize) -> c_int;
    /// The library's own version, major and minor. Since 2.0.
    gdr_runtime_get_version, PFN_gdr_runtime_get_version: (*mut c_int, *mut c_int);
    /// The kernel module's version, major and minor. Since 2.0.
    gdr_driver_get_version, PFN_gdr_driver_get_version: (gdr_t, *mut c_int, *mut c_int) -> c_int;
    /// A fact about the whole system. Since 2.5.
    gdr_get_attribute, PFN_gdr_get_attribute: (gdr_t, gdr_attr_t, *mut c_int) -> c_int;
    /// A name for a kind of mapping, in memory of the library. Since 2.5.
    gdr_get_mapping_type_string, PFN_gdr_get_mapping_type_string:
        (gdr_mapping_type_t, *mut *const c_char) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn map(
        _: gdr_t,
        handle: gdr_mh_t,
        place: *mut *mut c_void,
        size: usize,
        flags: c_int,
    ) -> c_int {
        // SAFETY: the only caller is the test below, which hands in a place.
        unsafe { place.write(std::ptr::without_provenance_mut(size)) };
        handle.h as c_int + flags
    }

    #[test]
    fn every_field_gets_the_address_of_its_own_symbol() {
        let mut asked = Vec::new();
        // SAFETY: only gdr_map_v2 gets an address, and `map` has its signature.
        let table = unsafe {
            GdrTable::fill(|name| {
                asked.push(name);
                let map: PFN_gdr_map_v2 = map;
                if name == c"gdr_map_v2" {
                    map as *const c_void
                } else {
                    std::ptr::null()
                }
            })
        };
        assert_eq!(asked, GDR_SYMBOLS);
        assert!(
            GDR_SYMBOLS
                .iter()
                .all(|name| name.to_bytes().starts_with(b"gdr_"))
        );
        assert_eq!(table.count(), 1);
        let call = table.gdr_map_v2.expect("it was supplied");
        let mut place = std::ptr::null_mut();
        let handle = gdr_mh_t { h: 40 };
        // SAFETY: it is `map` above, and the place is good for a write.
        let answer = unsafe { call(std::ptr::null_mut(), handle, &raw mut place, 7, 2) };
        assert_eq!((answer, place.addr()), (42, 7));
        assert_eq!(
            format!("{table:?}"),
            format!("GdrTable(1 of {} functions)", asked.len())
        );
    }
}
