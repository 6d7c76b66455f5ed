//! The structs and constants of `gdrapi.h`, with their layouts checked.

use std::ffi::{c_int, c_uint, c_ulong};

/// What [`gdr_t`] points at; only the library knows.
#[derive(Debug)]
#[repr(C)]
pub struct gdr {
    _opaque: [u8; 0],
}

/// The library's state, from `gdr_open`. Not safe for threads: one lock for each, or one for each thread.
pub type gdr_t = *mut gdr;

/// Pinned memory. Handed over by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct gdr_mh_t {
    /// What the library makes of it.
    pub h: c_ulong,
}

/// The size of a GPU page as a power of two.
pub const GPU_PAGE_SHIFT: u32 = 16;
/// The size of a GPU page in bytes: what is pinned begins and ends at multiples of it.
pub const GPU_PAGE_SIZE: u64 = 1 << GPU_PAGE_SHIFT;
/// The bits of an address that lie inside a GPU page.
pub const GPU_PAGE_OFFSET: u64 = GPU_PAGE_SIZE - 1;
/// The bits of an address that name a GPU page.
pub const GPU_PAGE_MASK: u64 = !GPU_PAGE_OFFSET;

/// Pins as the platform does by itself.
pub const GDR_PIN_FLAG_DEFAULT: u32 = 0;
/// Pins for access over PCIe although a coherent link is there. Needs persistent mapping.
pub const GDR_PIN_FLAG_FORCE_PCIE: u32 = 1;

/// Maps as the platform does by itself.
pub const GDR_MAP_FLAG_DEFAULT: c_int = 0;
/// Fails unless the mapping combines writes.
pub const GDR_MAP_FLAG_REQ_WC_MAPPING: c_int = 1;
/// Fails unless the mapping is cached.
pub const GDR_MAP_FLAG_REQ_CACHE_MAPPING: c_int = 2;
/// Fails unless the mapping is as device memory of ARM.
pub const GDR_MAP_FLAG_REQ_DEVICE_MAPPING: c_int = 3;

/// How memory is mapped. An integer: a newer kind is data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct gdr_mapping_type_t(pub c_uint);

impl gdr_mapping_type_t {
    /// Not mapped.
    pub const GDR_MAPPING_TYPE_NONE: Self = Self(0);
    /// Writes are combined and reads are not cached.
    pub const GDR_MAPPING_TYPE_WC: Self = Self(1);
    /// Cached, on platforms whose link to the GPU is coherent.
    pub const GDR_MAPPING_TYPE_CACHING: Self = Self(2);
    /// As device memory of ARM: neither cached nor combined, and always aligned.
    pub const GDR_MAPPING_TYPE_DEVICE: Self = Self(3);
}

/// A fact that `gdr_get_attribute` tells. An integer: a newer fact is data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct gdr_attr_t(pub c_uint);

impl gdr_attr_t {
    /// Whether a mapping outlives the memory that is mapped.
    pub const GDR_ATTR_USE_PERSISTENT_MAPPING: Self = Self(1);
    /// Whether kernel module and driver know [`GDR_PIN_FLAG_FORCE_PCIE`]. The flag may fail all the same.
    pub const GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE: Self = Self(2);
    /// Whether dma-buf is used in place of the kernel module. Since 2.6.
    pub const GDR_ATTR_USING_DMA_BUF_MMAP: Self = Self(3);
}

/// What is pinned, as `gdr_get_info` tells it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct gdr_info_t {
    /// Where what is pinned begins.
    pub va: u64,
    /// Its bytes.
    pub mapped_size: u64,
    /// Bytes of a GPU page.
    pub page_size: u32,
    /// How long pinning took, in cycles of the CPU.
    pub tm_cycles: u64,
    /// Cycles in a millisecond.
    pub cycles_per_ms: u32,
    /// Bit 0: mapped. Bit 1: mapped with combined writes.
    pub bits: c_uint,
}

/// What is pinned, as `gdr_get_info_v2` tells it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct gdr_info_v2_t {
    /// Where what is pinned begins: at or before the address that was asked for.
    pub va: u64,
    /// Its bytes.
    pub mapped_size: u64,
    /// Bytes of a GPU page; through dma-buf, of a page of the host.
    pub page_size: u32,
    /// How long pinning took, in cycles of the CPU. Deprecated; 0 through dma-buf.
    pub tm_cycles: u64,
    /// Cycles in a millisecond. Deprecated; 0 through dma-buf.
    pub cycles_per_ms: u32,
    /// Bit 0: mapped. Bit 1: mapped with combined writes.
    pub bits: c_uint,
    /// How it is mapped.
    pub mapping_type: gdr_mapping_type_t,
}

macro_rules! bits {
    ($($info:ident),*) => {$(
        impl $info {
            /// Whether it is mapped.
            #[must_use]
            pub const fn mapped(&self) -> bool {
                self.bits & 1 != 0
            }

            /// Whether it is mapped with combined writes.
            #[must_use]
            pub const fn wc_mapping(&self) -> bool {
                self.bits & 2 != 0
            }
        }
    )*};
}

bits!(gdr_info_t, gdr_info_v2_t);

// Written down by hand, so checked by hand: sizes and places on 64-bit systems.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;

    assert!(size_of::<gdr_mh_t>() == size_of::<c_ulong>());

    assert!(size_of::<gdr_info_t>() == 40);
    assert!(offset_of!(gdr_info_t, page_size) == 16);
    assert!(offset_of!(gdr_info_t, tm_cycles) == 24);
    assert!(offset_of!(gdr_info_t, cycles_per_ms) == 32);
    assert!(offset_of!(gdr_info_t, bits) == 36);

    assert!(size_of::<gdr_info_v2_t>() == 48);
    assert!(offset_of!(gdr_info_v2_t, mapped_size) == 8);
    assert!(offset_of!(gdr_info_v2_t, page_size) == 16);
    assert!(offset_of!(gdr_info_v2_t, tm_cycles) == 24);
    assert!(offset_of!(gdr_info_v2_t, cycles_per_ms) == 32);
    assert!(offset_of!(gdr_info_v2_t, bits) == 36);
    assert!(offset_of!(gdr_info_v2_t, mapping_type) == 40);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_say_whether_and_how_it_is_mapped() {
        let none = gdr_info_v2_t::default();
        assert!(!none.mapped() && !none.wc_mapping());
        let combined = gdr_info_t {
            bits: 3,
            ..gdr_info_t::default()
        };
        assert!(combined.mapped() && combined.wc_mapping());
    }
}
