//! What the policy knows about a machine: records that are filled by hand or by querying the driver.

#![forbid(unsafe_code)]

use cuda_driver_sys::CUdevice_attribute;

use super::pages::{PageClass, TWO_MIB};
use crate::driver::device::HandleTypes;

/// One list for the fields of the record, their names and the driver's attributes.
macro_rules! capabilities {
    ($($(#[doc = $doc:literal])+ $variant:ident, $field:ident, $attribute:ident;)+) => {
        /// A capability of a device, identified by its driver attribute.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Capability {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Capability {
            /// All capabilities, in the order of the driver's attribute numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The driver attribute.
            #[must_use]
            pub fn attribute(self) -> CUdevice_attribute {
                match self {
                    $(Self::$variant => CUdevice_attribute::$attribute,)+
                }
            }

            /// The driver's name of the attribute.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($attribute),)+
                }
            }
        }

        /// The capabilities of one device that affect placement.
        ///
        /// Plain values: they come from [`Topology::gather`], or from anywhere else, such as a test or
        /// a file that describes another machine. The default is a device without any capability.
        ///
        /// ```
        /// use cuda_mem::placement::{Capability, DeviceCapabilities};
        ///
        /// let device = DeviceCapabilities::default()
        ///     .with(Capability::MemoryPools)
        ///     .with(Capability::VirtualMemory);
        /// assert!(device.memory_pools);
        /// assert!(!device.has(Capability::DmaBuf));
        /// ```
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct DeviceCapabilities {
            $($(#[doc = $doc])+ pub $field: bool,)+
            /// The kinds of handle by which a pool may be shared. Attribute 119, CUDA 11.3.
            pub pool_handle_types: HandleTypes,
            /// The minimum granularity of physical memory of the device, in bytes; a power of two of at least 4 KiB.
            /// Any other value means unknown, and counts as 2 MiB.
            pub granularity: u64,
            /// The granularity that the driver recommends.
            pub recommended_granularity: u64,
            /// The minimum granularity of physical memory of the host, as above.
            pub host_granularity: u64,
            /// The granularity that the driver recommends.
            pub recommended_host_granularity: u64,
            /// Bytes of memory on the device.
            pub total: u64,
            /// Bytes that are free now; `None` if not queried, since the query needs a context.
            pub free: Option<u64>,
            /// The NUMA node of the host that is nearest to the device; `None` if it has none.
            /// Attribute 134, CUDA 12.2.
            pub host_numa_node: Option<u32>,
            /// The devices whose memory this one can use, by their index in the topology.
            pub reaches: Vec<usize>,
        }

        impl DeviceCapabilities {
            /// Whether the device has this capability.
            #[must_use]
            pub fn has(&self, capability: Capability) -> bool {
                match capability {
                    $(Capability::$variant => self.$field,)+
                }
            }

            /// Sets whether the device has this capability.
            pub fn set(&mut self, capability: Capability, can: bool) {
                match capability {
                    $(Capability::$variant => self.$field = can,)+
                }
            }
        }
    };
}

capabilities! {
    /// Devices can use memory of the host. Attribute 19.
    CanMapHostMemory, can_map_host_memory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY;
    /// One address space for host and devices. Attribute 41.
    UnifiedAddressing, unified_addressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
    /// Managed memory. Attribute 83.
    ManagedMemory, managed_memory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY;
    /// Host and device may touch managed memory at the same time. Attribute 89.
    ConcurrentManagedAccess, concurrent_managed_access, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
    /// Host memory that is registered has one address for host and device. Attribute 91. The policy does not use it.
    HostPointerForRegistered, host_pointer_for_registered,
        CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
    /// The device reads ordinary host memory through the tables of the host. Attribute 100. The policy does not use it.
    HostPageTables, host_page_tables,
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
    /// Physical memory and address ranges handled apart. Attribute 102.
    VirtualMemory, virtual_memory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    /// Physical memory can be exported as a file descriptor. Attribute 103.
    PosixFd, posix_fd, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    /// Other devices of the bus may use physical memory of this one. Attribute 110, CUDA 11.0.
    GpuDirectVirtualMemory, gpu_direct_virtual_memory,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    /// Stream-ordered memory pools. Attribute 115, CUDA 11.2.
    MemoryPools, memory_pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
    /// Memory can be exported as a dma-buf. Attribute 124, CUDA 11.7.
    DmaBuf, dma_buf, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
    /// Memory of `cuMemAlloc` can be exported by `cuIpcGetMemHandle`. Attribute 125, CUDA 12.0; with older drivers this
    /// follows from unified addressing. The policy does not use it.
    LegacyIpc, legacy_ipc, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED;
    /// Physical memory can be exported by a fabric handle. Attribute 128, CUDA 12.3.
    Fabric, fabric, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
    /// Physical memory of a NUMA node of the host. Attribute 141, CUDA 12.9.
    HostNumaVirtualMemory, host_numa_virtual_memory,
        CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    /// Pools of a NUMA node of the host. Attribute 142, CUDA 12.9.
    HostNumaPools, host_numa_pools, CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED;
    /// Pools of the host. Attribute 144, CUDA 13.0.
    HostPools, host_pools, CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED;
    /// Physical memory of the host. Attribute 145, CUDA 13.0.
    HostVirtualMemory, host_virtual_memory,
        CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
}

impl DeviceCapabilities {
    /// Returns the device with this capability added.
    #[must_use]
    pub fn with(mut self, capability: Capability) -> Self {
        self.set(capability, true);
        self
    }

    /// Returns the device with this capability removed.
    #[must_use]
    pub fn without(mut self, capability: Capability) -> Self {
        self.set(capability, false);
        self
    }

    /// The page sizes available for its own memory: minimum and recommended.
    pub(super) fn device_pages(&self) -> [u64; 2] {
        pages(self.granularity, self.recommended_granularity)
    }

    /// The same for memory of the host.
    pub(super) fn host_pages(&self) -> [u64; 2] {
        pages(self.host_granularity, self.recommended_host_granularity)
    }

    /// Bytes in whole pages, of the total memory and of the memory that is free now.
    pub(super) fn capacity(&self) -> (u64, u64) {
        let [least, recommended] = self.device_pages();
        let page = least.max(recommended).max(TWO_MIB);
        let whole = |bytes: u64| bytes - bytes % page;
        let total = whole(self.total);
        (total, self.free.map_or(total, whole).min(total))
    }
}

/// An invalid page size counts as 2 MiB, the size with all drivers so far.
fn pages(least: u64, recommended: u64) -> [u64; 2] {
    let usual = PageClass::Small.bytes()..=1 << 40;
    let sane = |page: u64| (page.is_power_of_two() && usual.contains(&page)).then_some(page);
    let least = sane(least).unwrap_or(TWO_MIB);
    [least, sane(recommended).unwrap_or(least).max(least)]
}

/// The devices of a machine, and the properties of its host that the policy needs.
///
/// A [`PlacementRequest`](super::PlacementRequest) names devices by their index in [`devices`](Self::devices). Access
/// between two devices is in [`DeviceCapabilities::reaches`], separately for each direction.
///
/// ```
/// use cuda_mem::placement::{DeviceCapabilities, Topology};
///
/// let mut device = DeviceCapabilities::default();
/// device.memory_pools = true;
/// device.total = 80 << 30;
/// let mut machine = Topology::new([device.clone(), device]);
/// machine.devices[1].reaches = vec![0];
/// assert!(machine.reaches(1, 0));
/// assert!(!machine.reaches(0, 1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topology {
    /// The devices; a request names them by their index here, from 0.
    pub devices: Vec<DeviceCapabilities>,
    /// The page size of the host in bytes; a power of two. 4 KiB unless set.
    pub host_page: u64,
    /// Whether all visible devices that are not among [`devices`](Self::devices) have [concurrent managed
    /// access](Capability::ConcurrentManagedAccess), too: if a single one lacks it, the host may not access managed
    /// memory while that device is working. True unless set.
    pub others_concurrent_managed_access: bool,
}

impl Topology {
    /// A machine with these devices, and a host with pages of 4 KiB.
    #[must_use]
    pub fn new(devices: impl IntoIterator<Item = DeviceCapabilities>) -> Self {
        Self {
            devices: devices.into_iter().collect(),
            host_page: 4096,
            others_concurrent_managed_access: true,
        }
    }

    /// Whether the host may access managed memory while any device works, including devices that do not use it.
    pub(super) fn shares_managed_memory(&self) -> bool {
        let can = Capability::ConcurrentManagedAccess;
        self.others_concurrent_managed_access && self.devices.iter().all(|device| device.has(can))
    }

    /// Whether device `from` can use memory of device `to`. A device reaches itself.
    #[must_use]
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        let known = self.devices.get(from);
        known.is_some_and(|device| from == to || device.reaches.contains(&to))
    }
}
