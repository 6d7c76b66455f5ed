//! The structs of NVML that are used here, with their layouts checked.

use std::ffi::{c_char, c_uint, c_ulonglong};

/// What [`nvmlDevice_t`] points at; only NVML knows.
#[derive(Debug)]
#[repr(C)]
pub struct nvmlDevice_st {
    _opaque: [u8; 0],
}

/// A device of NVML: a GPU, or a MIG instance of one. Valid until the last `nvmlShutdown`.
pub type nvmlDevice_t = *mut nvmlDevice_st;

/// Room for the text of a PCI id.
pub const NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE: usize = 32;
/// Room for the shorter text of an older PCI id.
pub const NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE: usize = 16;
/// Room for the text of any UUID, a MIG instance's too.
pub const NVML_DEVICE_UUID_V2_BUFFER_SIZE: usize = 96;
/// Room for the name of any device.
pub const NVML_DEVICE_NAME_V2_BUFFER_SIZE: usize = 96;
/// Room for the version of the driver.
pub const NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE: usize = 80;

/// A MIG mode that is off.
pub const NVML_DEVICE_MIG_DISABLE: c_uint = 0;
/// A MIG mode that is on.
pub const NVML_DEVICE_MIG_ENABLE: c_uint = 1;

/// Stands for a number of bytes that NVML cannot tell.
pub const NVML_VALUE_NOT_AVAILABLE_ULL: c_ulonglong = c_ulonglong::MAX;

/// The version word of [`nvmlMemory_v2_t`].
pub const NVML_MEMORY_V2: c_uint = size_of::<nvmlMemory_v2_t>() as c_uint | 2 << 24;

/// How many contexts a device admits, and of whom. An integer: a newer mode is data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct nvmlComputeMode_t(pub c_uint);

impl nvmlComputeMode_t {
    /// Any number of contexts.
    pub const NVML_COMPUTEMODE_DEFAULT: Self = Self(0);
    /// One context, of one thread; no driver does this any more.
    pub const NVML_COMPUTEMODE_EXCLUSIVE_THREAD: Self = Self(1);
    /// No context at all.
    pub const NVML_COMPUTEMODE_PROHIBITED: Self = Self(2);
    /// Contexts of one process at a time.
    pub const NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: Self = Self(3);
}

/// Where a device is on the PCI bus.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlPciInfo_t {
    /// `0000:3B:00.0`, for programs that know no longer domain.
    pub busIdLegacy: [c_char; NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE],
    /// The domain.
    pub domain: c_uint,
    /// The bus.
    pub bus: c_uint,
    /// The device on the bus.
    pub device: c_uint,
    /// Vendor and device, 16 bits each.
    pub pciDeviceId: c_uint,
    /// The same of the board's maker.
    pub pciSubSystemId: c_uint,
    /// `00000000:3B:00.0`.
    pub busId: [c_char; NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE],
}

/// Memory of a device, as the first version of the call counts: what is reserved is used.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct nvmlMemory_t {
    /// All of it.
    pub total: c_ulonglong,
    /// What nobody has.
    pub free: c_ulonglong,
    /// What somebody has, the system included.
    pub used: c_ulonglong,
}

/// Memory of a device, as the second version counts: what is reserved is told apart.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvmlMemory_v2_t {
    /// Must be [`NVML_MEMORY_V2`] before the call.
    pub version: c_uint,
    /// All of it.
    pub total: c_ulonglong,
    /// What driver and firmware keep.
    pub reserved: c_ulonglong,
    /// What nobody has.
    pub free: c_ulonglong,
    /// What programs have.
    pub used: c_ulonglong,
}

impl Default for nvmlMemory_v2_t {
    /// With the version word set.
    fn default() -> Self {
        Self {
            version: NVML_MEMORY_V2,
            total: 0,
            reserved: 0,
            free: 0,
            used: 0,
        }
    }
}

/// The window through which host and other devices reach the memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct nvmlBAR1Memory_t {
    /// All of it.
    pub bar1Total: c_ulonglong,
    /// What is not mapped.
    pub bar1Free: c_ulonglong,
    /// What is mapped.
    pub bar1Used: c_ulonglong,
}

/// A process that has a context on a device.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct nvmlProcessInfo_t {
    /// The process, as the host numbers it.
    pub pid: c_uint,
    /// Bytes it has there, or [`NVML_VALUE_NOT_AVAILABLE_ULL`].
    pub usedGpuMemory: c_ulonglong,
    /// With MIG, the GPU instance; else all ones.
    pub gpuInstanceId: c_uint,
    /// With MIG, the compute instance; else all ones.
    pub computeInstanceId: c_uint,
}

// Written down by hand, so checked by hand: sizes and places on 64-bit systems.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;

    assert!(size_of::<nvmlPciInfo_t>() == 68);
    assert!(offset_of!(nvmlPciInfo_t, domain) == 16);
    assert!(offset_of!(nvmlPciInfo_t, bus) == 20);
    assert!(offset_of!(nvmlPciInfo_t, device) == 24);
    assert!(offset_of!(nvmlPciInfo_t, pciDeviceId) == 28);
    assert!(offset_of!(nvmlPciInfo_t, pciSubSystemId) == 32);
    assert!(offset_of!(nvmlPciInfo_t, busId) == 36);

    assert!(size_of::<nvmlMemory_t>() == 24);
    assert!(offset_of!(nvmlMemory_t, free) == 8);
    assert!(offset_of!(nvmlMemory_t, used) == 16);

    assert!(size_of::<nvmlMemory_v2_t>() == 40);
    assert!(offset_of!(nvmlMemory_v2_t, total) == 8);
    assert!(offset_of!(nvmlMemory_v2_t, reserved) == 16);
    assert!(offset_of!(nvmlMemory_v2_t, free) == 24);
    assert!(offset_of!(nvmlMemory_v2_t, used) == 32);
    assert!(NVML_MEMORY_V2 == 0x0200_0028);

    assert!(size_of::<nvmlBAR1Memory_t>() == 24);
    assert!(offset_of!(nvmlBAR1Memory_t, bar1Free) == 8);
    assert!(offset_of!(nvmlBAR1Memory_t, bar1Used) == 16);

    assert!(size_of::<nvmlProcessInfo_t>() == 24);
    assert!(offset_of!(nvmlProcessInfo_t, usedGpuMemory) == 8);
    assert!(offset_of!(nvmlProcessInfo_t, gpuInstanceId) == 16);
    assert!(offset_of!(nvmlProcessInfo_t, computeInstanceId) == 20);
};
