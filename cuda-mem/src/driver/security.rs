//! Who may open memory that is shared through handles of Windows: what the driver requires to be told when such memory
//! is made. It is Windows' default, which are processes of the same user.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::driver::device::HandleTypes;

/// `SECURITY_ATTRIBUTES` of Windows.
#[repr(C)]
struct SecurityAttributes {
    bytes: u32,
    descriptor: *mut c_void,
    is_inherited: i32,
}

/// `OBJECT_ATTRIBUTES` of Windows.
#[repr(C)]
struct ObjectAttributes {
    bytes: u32,
    root: *mut c_void,
    name: *mut c_void,
    attributes: u32,
    descriptor: *mut c_void,
    quality_of_service: *mut c_void,
}

// SAFETY: never written, and its pointers are null.
unsafe impl Sync for SecurityAttributes {}
// SAFETY: as above.
unsafe impl Sync for ObjectAttributes {}

static OF_POOLS: SecurityAttributes = SecurityAttributes {
    bytes: size_of::<SecurityAttributes>() as u32,
    descriptor: null_mut(),
    is_inherited: 0,
};

static OF_MEMORY: ObjectAttributes = ObjectAttributes {
    bytes: size_of::<ObjectAttributes>() as u32,
    root: null_mut(),
    name: null_mut(),
    attributes: 0,
    descriptor: null_mut(),
    quality_of_service: null_mut(),
};

/// For `CUmemPoolProps`: null unless the pool is shared so, as the driver requires.
pub(crate) fn of_pools(types: HandleTypes) -> *mut c_void {
    needed(types, &OF_POOLS)
}

/// For `CUmemAllocationProp`.
pub(crate) fn of_memory(types: HandleTypes) -> *mut c_void {
    needed(types, &OF_MEMORY)
}

/// The driver only reads it.
fn needed<T>(types: HandleTypes, attributes: &'static T) -> *mut c_void {
    if cfg!(windows) && types.contains(HandleTypes::WIN32) {
        std::ptr::from_ref(attributes).cast_mut().cast()
    } else {
        null_mut()
    }
}
