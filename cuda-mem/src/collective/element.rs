//! What ranks can combine, and how.

use bytemuck::{Pod, Zeroable};
use cuda_driver_sys::nccl::{ncclDataType_t, ncclRedOp_t};

/// A type of elements that NCCL can combine. This trait is sealed.
pub trait Element: Pod + sealed::Sealed {
    /// NCCL's name for it.
    const DATA_TYPE: ncclDataType_t;
}

mod sealed {
    pub trait Sealed {}
}

/// A number of 16 bits in IEEE 754's format, as its bits. It has no arithmetic: convert with the crate of your choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F16(pub u16);

/// The upper half of an `f32`, as its bits. It has no arithmetic: convert with the crate of your choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Bf16(pub u16);

// SAFETY: it is one `u16`, for which all of this holds.
unsafe impl Zeroable for F16 {}
// SAFETY: as above.
unsafe impl Pod for F16 {}
// SAFETY: it is one `u16`, for which all of this holds.
unsafe impl Zeroable for Bf16 {}
// SAFETY: as above.
unsafe impl Pod for Bf16 {}

macro_rules! elements {
    ($($element:ty = $name:ident,)*) => {$(
        impl sealed::Sealed for $element {}

        impl Element for $element {
            const DATA_TYPE: ncclDataType_t = ncclDataType_t::$name;
        }
    )*};
}

elements! {
    i8 = ncclInt8,
    u8 = ncclUint8,
    i32 = ncclInt32,
    u32 = ncclUint32,
    i64 = ncclInt64,
    u64 = ncclUint64,
    F16 = ncclFloat16,
    f32 = ncclFloat32,
    f64 = ncclFloat64,
    Bf16 = ncclBfloat16,
}

/// How the elements of all ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their product.
    Product,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The sum, divided by the number of ranks.
    Average,
}

impl ReduceOp {
    pub(super) fn raw(self) -> ncclRedOp_t {
        match self {
            Self::Sum => ncclRedOp_t::ncclSum,
            Self::Product => ncclRedOp_t::ncclProd,
            Self::Max => ncclRedOp_t::ncclMax,
            Self::Min => ncclRedOp_t::ncclMin,
            Self::Average => ncclRedOp_t::ncclAvg,
        }
    }
}
