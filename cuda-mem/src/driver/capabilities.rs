//! What a device can do: one list for the fields, their names, the driver's attributes and their versions.

use std::fmt;

use cuda_driver_sys::{CUdevice_attribute, CUresult, CudaVersion};

use crate::base::error::Result;
use crate::driver::device::{Device, HandleTypes};

macro_rules! capabilities {
    ($(
        $(#[doc = $doc:literal])+
        $variant:ident, $field:ident: $number:literal, $attribute:ident since $major:literal, $minor:literal;
    )+) => {
        /// A capability of a device, identified by its driver attribute.
        ///
        /// ```
        /// use cuda_mem::driver::Capability;
        ///
        /// let pools = Capability::MemoryPools;
        /// assert_eq!(pools.name(), "CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED");
        /// assert_eq!((pools.attribute().0, pools.since().to_string()), (115, "11.2".to_owned()));
        /// ```
        #[doc(alias = "CUdevice_attribute")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Capability {
            $(
                $(#[doc = $doc])+
                #[doc = ""]
                #[doc = concat!("`", stringify!($attribute), "` (", $number, "), CUDA ", $major, ".", $minor, ".")]
                $variant,
            )+
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

            /// The first CUDA version with the attribute. Older drivers do not know it.
            #[must_use]
            pub fn since(self) -> CudaVersion {
                match self {
                    $(Self::$variant => CudaVersion::new($major, $minor),)+
                }
            }
        }

        /// The capabilities of one device. From [`Device::capabilities`], or written by hand.
        ///
        /// These are plain values. The default is a device without any capability.
        ///
        /// ```
        /// use cuda_mem::driver::{Capabilities, Capability};
        ///
        /// let can = Capabilities::default()
        ///     .with(Capability::MemoryPools)
        ///     .with(Capability::VirtualMemory);
        /// assert!(can.memory_pools);
        /// assert!(!can.has(Capability::DmaBuf));
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Capabilities {
            /// Major and minor version of the architecture: (9, 0) for Hopper.
            pub compute_capability: (u32, u32),
            /// Number of streaming multiprocessors.
            pub multiprocessors: u32,
            /// The kinds of handle with which a pool may be shared. A set bit is no proof: on some systems only
            /// creating such a pool tells; see [`PoolBuilder::support`](crate::PoolBuilder::support). Attribute 119,
            /// CUDA 11.3.
            #[doc(alias = "CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES")]
            pub pool_handle_types: HandleTypes,
            $(
                $(#[doc = $doc])+
                #[doc = concat!("Attribute ", $number, ", CUDA ", $major, ".", $minor, ".")]
                pub $field: bool,
            )+
        }

        impl Capabilities {
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

        /// The numbers that the documentation names.
        #[cfg(test)]
        const NUMBERS: &[u32] = &[$($number),+];
    };
}

capabilities! {
    /// Devices can use memory of the host.
    CanMapHostMemory, can_map_host_memory:
        19, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY since 2, 2;
    /// One address space for host and devices.
    UnifiedAddressing, unified_addressing:
        41, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING since 4, 0;
    /// Managed memory.
    ManagedMemory, managed_memory:
        83, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY since 6, 0;
    /// The link between device and host carries atomic operations.
    HostNativeAtomics, host_native_atomics:
        86, CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED since 8, 0;
    /// The device uses ordinary host memory, such as that of a `Vec`: kernels may be given its address.
    PageableMemoryAccess, pageable_memory_access:
        88, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS since 8, 0;
    /// Host and device may access managed memory at the same time.
    ConcurrentManagedAccess, concurrent_managed_access:
        89, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS since 8, 0;
    /// Registered host memory has one address for host and device.
    HostPointerForRegistered, host_pointer_for_registered:
        91, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM since 8, 0;
    /// The device uses ordinary host memory through the page tables of the host: host and device are coherent in hardware,
    /// as on Grace Hopper.
    HostPageTables, host_page_tables:
        100, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES since 9, 2;
    /// The host accesses managed memory on the device where it is; it need not migrate.
    DirectManagedAccessFromHost, direct_managed_access_from_host:
        101, CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST since 9, 2;
    /// Physical memory and address ranges, managed separately.
    VirtualMemory, virtual_memory:
        102, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED since 10, 2;
    /// Physical memory can be exported as a file descriptor.
    PosixFd, posix_fd:
        103, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED since 10, 2;
    /// Physical memory can be exported as a handle of Windows.
    Win32Handle, win32_handle:
        104, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED since 10, 2;
    /// Network cards and other devices may access physical memory that is created for them.
    GpuDirectVirtualMemory, gpu_direct_virtual_memory:
        110, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED since 11, 0;
    /// Stream-ordered memory pools.
    MemoryPools, memory_pools:
        115, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED since 11, 2;
    /// Network cards and other devices may access device memory directly.
    GpuDirectRdma, gpu_direct_rdma:
        116, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED since 11, 3;
    /// Device memory can be exported as a dma-buf.
    DmaBuf, dma_buf:
        124, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED since 11, 7;
    /// Memory of `cuMemAlloc` can be exported by `cuIpcGetMemHandle`. Drivers that do not know the attribute support it
    /// wherever there is unified addressing.
    LegacyIpc, legacy_ipc:
        125, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED since 12, 0;
    /// Physical memory can be exported by a fabric handle.
    Fabric, fabric:
        128, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED since 12, 3;
    /// Physical memory of a NUMA node of the host.
    HostNumaVirtualMemory, host_numa_virtual_memory:
        141, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED since 12, 9;
    /// Pools of a NUMA node of the host. Drivers from CUDA 12.2 on may have them without knowing the attribute; see
    /// [`PoolBuilder::support`](crate::PoolBuilder::support).
    HostNumaMemoryPools, host_numa_memory_pools:
        142, CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED since 12, 9;
    /// Pools of host memory. For certainty, see [`PoolBuilder::support`](crate::PoolBuilder::support).
    HostMemoryPools, host_memory_pools:
        144, CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED since 13, 0;
    /// Physical memory of the host.
    HostVirtualMemory, host_virtual_memory:
        145, CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED since 13, 0;
}

impl Capabilities {
    /// Returns the capabilities with this one added.
    #[must_use]
    pub fn with(mut self, capability: Capability) -> Self {
        self.set(capability, true);
        self
    }

    /// Returns the capabilities with this one removed.
    #[must_use]
    pub fn without(mut self, capability: Capability) -> Self {
        self.set(capability, false);
        self
    }
}

impl Device {
    /// The capabilities of this device. About two dozen attribute queries and no context; keep the result.
    ///
    /// A capability that is too new for the driver is reported as absent. [`support`](Self::support) says why.
    ///
    /// # Errors
    ///
    /// Any driver error, as for [`support`](Self::support).
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let device = cuda_mem::Driver::load()?.device(0)?;
    /// let can = device.capabilities()?;
    /// println!("memory pools: {}", can.memory_pools);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuDeviceGetAttribute")]
    pub fn capabilities(&self) -> Result<Capabilities> {
        use CUdevice_attribute as A;
        let number = |attribute| self.query(attribute).map(i32::unsigned_abs);
        let handles = self.query_since(
            A::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
            CudaVersion::new(11, 3),
        )?;
        let mut record = Capabilities {
            compute_capability: (
                number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            pool_handle_types: HandleTypes::from_bits_retain(handles.unwrap_or(0).cast_unsigned()),
            ..Capabilities::default()
        };
        for &capability in Capability::ALL {
            record.set(capability, self.support(capability)?.is_yes());
        }
        Ok(record)
    }

    /// Whether the device has this capability, and if not, why. One attribute query and no context.
    ///
    /// # Errors
    ///
    /// Any driver error. An attribute that is too new for the driver is a [`No`](Support::No), not an error. From
    /// [that version](Capability::since) on, a driver that does not know it is an error.
    ///
    /// ```
    /// use cuda_mem::driver::{Capability, Support};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = cuda_mem::Driver::load()?.device(0)?;
    /// match device.support(Capability::HostMemoryPools)? {
    ///     Support::Yes => println!("pools of host memory"),
    ///     Support::No(reason) => println!("no pools of host memory: {reason}"),
    /// }
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuDeviceGetAttribute")]
    pub fn support(&self, capability: Capability) -> Result<Support> {
        let since = capability.since();
        match (capability, self.query_since(capability.attribute(), since)?) {
            (Capability::LegacyIpc, None) => self.support(Capability::UnifiedAddressing),
            (_, None) => Ok(Support::No(Reason::DriverTooOld {
                since,
                found: self.driver().version(),
            })),
            (_, Some(0)) => Ok(Support::No(Reason::Device)),
            (_, Some(_)) => Ok(Support::Yes),
        }
    }
}

/// Whether something is supported, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It is supported.
    Yes,
    /// It is not supported, for this reason.
    No(Reason),
}

/// Why something is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The driver is too old to know it.
    DriverTooOld {
        /// The first CUDA version that knows it.
        since: CudaVersion,
        /// The driver's version.
        found: CudaVersion,
    },
    /// The driver knows it, and reports that this device does not support it.
    Device,
    /// Only an attempt shows whether it is supported, and the driver refused with this code.
    Refused(CUresult),
}

impl Support {
    /// Whether it is [`Yes`](Self::Yes).
    #[must_use]
    pub fn is_yes(self) -> bool {
        self == Self::Yes
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("yes"),
            Self::No(reason) => write!(f, "no ({reason})"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DriverTooOld { since, found } => {
                write!(f, "needs CUDA {since}, the driver has {found}")
            }
            Self::Device => f.write_str("not on this device"),
            Self::Refused(code) => write!(f, "tried, and the driver answered {code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_have_the_drivers_numbers() {
        let numbers: Vec<u32> = Capability::ALL
            .iter()
            .map(|can| can.attribute().0)
            .collect();
        assert_eq!(numbers, NUMBERS);
        assert!(numbers.is_sorted());
    }

    #[test]
    fn a_capability_is_set_alone() {
        for &capability in Capability::ALL {
            let only = Capabilities::default().with(capability);
            for &other in Capability::ALL {
                assert_eq!(only.has(other), other == capability);
            }
            assert_eq!(only.without(capability), Capabilities::default());
        }
    }

    #[test]
    fn reasons_are_said_in_words() {
        let reason = Reason::DriverTooOld {
            since: CudaVersion::new(13, 0),
            found: CudaVersion::new(12, 2),
        };
        assert_eq!(
            Support::No(reason).to_string(),
            "no (needs CUDA 13.0, the driver has 12.2)"
        );
    }
}
