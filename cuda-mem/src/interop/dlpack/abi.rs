//! The C structs. Their fields have the names that DLPack gives them.

#![forbid(unsafe_code)]

use std::ffi::c_void;
use std::fmt;

use bitflags::bitflags;

use super::data_type::DLDataType;

/// The version of DLPack that a tensor follows.
///
/// Another major version means other structs; a new minor version adds values, such as types of devices.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLPackVersion {
    /// Only 1 is understood here.
    pub major: u32,
    /// Not looked at.
    pub minor: u32,
}

impl DLPackVersion {
    /// What this crate writes. Newer minor versions demand strides of every tensor, and those are always written.
    pub const CURRENT: Self = Self { major: 1, minor: 1 };
}

/// Where the memory of a tensor is. Any number may come from elsewhere, so this is no enum.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDeviceType(pub i32);

impl DLDeviceType {
    /// Pageable memory of the host.
    #[doc(alias = "kDLCPU")]
    pub const CPU: Self = Self(1);
    /// Memory of a CUDA device.
    #[doc(alias = "kDLCUDA")]
    pub const CUDA: Self = Self(2);
    /// Pinned memory of the host.
    #[doc(alias = "kDLCUDAHost")]
    pub const CUDA_HOST: Self = Self(3);
    /// Managed memory, which moves between host and devices.
    #[doc(alias = "kDLCUDAManaged")]
    pub const CUDA_MANAGED: Self = Self(13);
}

/// A short name, or the number.
impl fmt::Display for DLDeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CPU => f.pad("cpu"),
            Self::CUDA => f.pad("cuda"),
            Self::CUDA_HOST => f.pad("pinned host"),
            Self::CUDA_MANAGED => f.pad("managed"),
            Self(other) => write!(f, "type {other}"),
        }
    }
}

/// The place of a tensor's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DLDevice {
    /// The type of the place.
    pub device_type: DLDeviceType,
    /// For memory of a device its ordinal, as [`Device::ordinal`](crate::Device::ordinal) has it; otherwise 0.
    pub device_id: i32,
}

/// Type and ordinal, such as `cuda:0`.
impl fmt::Display for DLDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device_type, self.device_id)
    }
}

/// A tensor, without an owner.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// The memory; null if the tensor has no elements.
    pub data: *mut c_void,
    /// Where the memory is.
    pub device: DLDevice,
    /// Number of dimensions; 0 for a single element.
    pub ndim: i32,
    /// The type of the elements.
    pub dtype: DLDataType,
    /// The length of each dimension: `ndim` numbers. May be null if `ndim` is 0.
    pub shape: *mut i64,
    /// The distance of neighbours in each dimension, in elements: `ndim` numbers. Null means row-major in tensors of
    /// older producers.
    pub strides: *mut i64,
    /// Where the first element is, in bytes after `data`.
    pub byte_offset: u64,
}

/// A tensor with an owner, in the form before DLPack 1.0. It cannot say that it is read-only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// For the producer.
    pub manager_ctx: *mut c_void,
    /// Gives everything back to the producer, this struct too. `None` if there is nothing to give back.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// A tensor with an owner.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLManagedTensorVersioned {
    /// The version whose structs these are. Of another major version, only the fields before `dl_tensor` may be used.
    pub version: DLPackVersion,
    /// For the producer.
    pub manager_ctx: *mut c_void,
    /// Gives everything back to the producer, this struct too. `None` if there is nothing to give back.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// More about the tensor.
    pub flags: TensorFlags,
    /// The tensor.
    pub dl_tensor: DLTensor,
}

bitflags! {
    /// What else there is to know about a tensor.
    #[repr(transparent)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TensorFlags: u64 {
        /// The consumer must not write to it.
        #[doc(alias = "DLPACK_FLAG_BITMASK_READ_ONLY")]
        const READ_ONLY = 1;
        /// The producer made it for the consumer, and does not use it itself.
        #[doc(alias = "DLPACK_FLAG_BITMASK_IS_COPIED")]
        const IS_COPIED = 2;
        /// Elements of less than a byte have a byte each.
        #[doc(alias = "DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED")]
        const IS_SUBBYTE_TYPE_PADDED = 4;
        const _ = !0;
    }
}

// As a C compiler lays them out where pointers have 64 bits.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::{align_of, offset_of, size_of};

    assert!(size_of::<DLPackVersion>() == 8 && align_of::<DLPackVersion>() == 4);
    assert!(offset_of!(DLPackVersion, minor) == 4);
    assert!(size_of::<DLDevice>() == 8 && offset_of!(DLDevice, device_id) == 4);
    assert!(size_of::<TensorFlags>() == 8 && align_of::<TensorFlags>() == 8);

    assert!(size_of::<DLTensor>() == 48 && align_of::<DLTensor>() == 8);
    assert!(offset_of!(DLTensor, data) == 0);
    assert!(offset_of!(DLTensor, device) == 8);
    assert!(offset_of!(DLTensor, ndim) == 16);
    assert!(offset_of!(DLTensor, dtype) == 20);
    assert!(offset_of!(DLTensor, shape) == 24);
    assert!(offset_of!(DLTensor, strides) == 32);
    assert!(offset_of!(DLTensor, byte_offset) == 40);

    assert!(size_of::<DLManagedTensor>() == 64);
    assert!(offset_of!(DLManagedTensor, dl_tensor) == 0);
    assert!(offset_of!(DLManagedTensor, manager_ctx) == 48);
    assert!(offset_of!(DLManagedTensor, deleter) == 56);

    assert!(size_of::<DLManagedTensorVersioned>() == 80);
    assert!(offset_of!(DLManagedTensorVersioned, version) == 0);
    assert!(offset_of!(DLManagedTensorVersioned, manager_ctx) == 8);
    assert!(offset_of!(DLManagedTensorVersioned, deleter) == 16);
    assert!(offset_of!(DLManagedTensorVersioned, flags) == 24);
    assert!(offset_of!(DLManagedTensorVersioned, dl_tensor) == 32);
};
