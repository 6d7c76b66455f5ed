//! The types of NCCL that are used here, with their layouts checked.

use std::ffi::{c_char, c_int, c_uint};

/// What [`ncclComm_t`] points at; only NCCL knows.
#[derive(Debug)]
#[repr(C)]
pub struct ncclComm {
    _opaque: [u8; 0],
}

/// A communicator: one rank's end of it.
pub type ncclComm_t = *mut ncclComm;

/// What [`ncclWindow_t`] points at; only NCCL knows.
#[derive(Debug)]
#[repr(C)]
pub struct ncclWindow_vidmem {
    _opaque: [u8; 0],
}

/// Memory that all ranks have registered together.
pub type ncclWindow_t = *mut ncclWindow_vidmem;

/// The length of a [`ncclUniqueId`].
pub const NCCL_UNIQUE_ID_BYTES: usize = 128;

/// What the ranks of a communicator find each other by. Plain bytes, which one rank makes and gives to the others.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ncclUniqueId {
    /// Addresses and a random number.
    pub internal: [c_char; NCCL_UNIQUE_ID_BYTES],
}

/// The version of NCCL with this number, as `ncclGetVersion` writes it: 22809 for 2.28.9. For 2.9 and newer.
#[must_use]
pub const fn NCCL_VERSION(major: u32, minor: u32, patch: u32) -> u32 {
    major * 10_000 + minor * 100 + patch
}

/// Marks a [`ncclConfig_t`] as initialised.
pub const NCCL_API_MAGIC: c_uint = 0xcafe_beef;

/// Stands for a setting that NCCL chooses.
pub const NCCL_CONFIG_UNDEF_INT: c_int = c_int::MIN;

/// The alignment of memory for a window, in bytes.
pub const NCCL_WIN_REQUIRED_ALIGNMENT: usize = 4096;

/// A window without any of the other flags.
pub const NCCL_WIN_DEFAULT: c_int = 0;
/// A window whose parts all ranks use at the same offsets.
pub const NCCL_WIN_COLL_SYMMETRIC: c_int = 1;

/// Settings of a communicator, as of NCCL 2.14, which every later version takes: `version` says which settings follow.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ncclConfig_t {
    /// Bytes of this struct.
    pub size: usize,
    /// [`NCCL_API_MAGIC`].
    pub magic: c_uint,
    /// The version that this struct is of.
    pub version: c_uint,
    /// 0 if calls return at once with `ncclInProgress`.
    pub blocking: c_int,
}

impl ncclConfig_t {
    /// Of NCCL 2.14, with nothing set.
    pub const UNSET: Self = Self {
        size: size_of::<Self>(),
        magic: NCCL_API_MAGIC,
        version: NCCL_VERSION(2, 14, 0),
        blocking: NCCL_CONFIG_UNDEF_INT,
    };
}

const _: () = assert!(size_of::<ncclUniqueId>() == 128);
const _: () = assert!(cfg!(not(target_pointer_width = "64")) || size_of::<ncclConfig_t>() == 24);

/// The type of elements. An integer: a newer type is data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ncclDataType_t(pub u32);

#[allow(non_upper_case_globals, reason = "NCCL's names")]
impl ncclDataType_t {
    /// `i8`.
    pub const ncclInt8: Self = Self(0);
    /// `u8`.
    pub const ncclUint8: Self = Self(1);
    /// `i32`.
    pub const ncclInt32: Self = Self(2);
    /// `u32`.
    pub const ncclUint32: Self = Self(3);
    /// `i64`.
    pub const ncclInt64: Self = Self(4);
    /// `u64`.
    pub const ncclUint64: Self = Self(5);
    /// IEEE 754's format of 16 bits.
    pub const ncclFloat16: Self = Self(6);
    /// `f32`.
    pub const ncclFloat32: Self = Self(7);
    /// `f64`.
    pub const ncclFloat64: Self = Self(8);
    /// The upper half of an `f32`.
    pub const ncclBfloat16: Self = Self(9);
}

/// How elements of several ranks become one. An integer: a newer operation is data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ncclRedOp_t(pub u32);

#[allow(non_upper_case_globals, reason = "NCCL's names")]
impl ncclRedOp_t {
    /// The sum.
    pub const ncclSum: Self = Self(0);
    /// The product.
    pub const ncclProd: Self = Self(1);
    /// The largest.
    pub const ncclMax: Self = Self(2);
    /// The smallest.
    pub const ncclMin: Self = Self(3);
    /// The sum, divided by the number of ranks.
    pub const ncclAvg: Self = Self(4);
}
