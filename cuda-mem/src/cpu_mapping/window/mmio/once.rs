//! Typed values in a mapping, each in one access.

use bytemuck::{AnyBitPattern, NoUninit};

/// Stores `value` with one volatile store of its size. Only 1, 2, 4 or 8 bytes compile.
///
/// # Safety
///
/// `to` is a multiple of the size, not only of the alignment, and can be written.
#[inline(always)]
pub(in crate::cpu_mapping::window) unsafe fn store_once<T: NoUninit>(to: *mut T, value: T) {
    let store = const {
        match size_of::<T>() {
            1 => store_as::<T, u8>,
            2 => store_as::<T, u16>,
            4 => store_as::<T, u32>,
            8 => store_as::<T, u64>,
            _ => panic!("one store moves 1, 2, 4 or 8 bytes"),
        }
    };
    // SAFETY: the caller's promises; the integer has the size of `T`.
    unsafe { store(to, value) }
}

/// Loads a value with one volatile load of its size. Only 1, 2, 4 or 8 bytes compile.
///
/// # Safety
///
/// `from` is a multiple of the size, not only of the alignment, and can be read.
#[inline(always)]
pub(in crate::cpu_mapping::window) unsafe fn load_once<T: AnyBitPattern>(from: *const T) -> T {
    let load = const {
        match size_of::<T>() {
            1 => load_as::<T, u8>,
            2 => load_as::<T, u16>,
            4 => load_as::<T, u32>,
            8 => load_as::<T, u64>,
            _ => panic!("one load moves 1, 2, 4 or 8 bytes"),
        }
    };
    // SAFETY: as in `store_once`.
    unsafe { load(from) }
}

/// Stores as integer `W`, because a struct might be stored field by field.
///
/// # Safety
///
/// `W` has the size of `T`, `to` is a multiple of it and can be written.
#[inline(always)]
unsafe fn store_as<T: NoUninit, W: AnyBitPattern>(to: *mut T, value: T) {
    // SAFETY: the caller's promises.
    unsafe { to.cast::<W>().write_volatile(bytemuck::cast(value)) }
}

/// # Safety
///
/// `W` has the size of `T`, `from` is a multiple of it and can be read.
#[inline(always)]
unsafe fn load_as<T: AnyBitPattern, W: NoUninit>(from: *const T) -> T {
    // SAFETY: the caller's promises.
    bytemuck::cast(unsafe { from.cast::<W>().read_volatile() })
}
