//! What a machine with these settings has.

use super::{Configuration, DriverModel};

/// The first version whose dma-bufs the host can map.
const DMA_BUF_MMAP_SINCE: u32 = 13030;

/// Kinds of handle that no driver of Windows has: descriptors, and those of fabrics.
const OF_LINUX: u32 = 1 | 8;

impl Configuration {
    /// Whether this device of the machine reports memory pools.
    pub(crate) fn claims_pools(&self, index: usize) -> bool {
        self.pools && self.may_have_pools() && !self.no_pools.contains(&index)
    }

    /// Whether any device could have pools: not with TCC, and not with a virtual GPU.
    pub(super) fn may_have_pools(&self) -> bool {
        self.model != DriverModel::Tcc && !self.vgpu
    }

    /// Whether its pools work.
    pub(crate) fn has_pools(&self, index: usize) -> bool {
        self.claims_pools(index) && !self.broken_pools
    }

    /// Whether there is managed memory.
    pub(crate) fn has_managed_memory(&self) -> bool {
        !self.vgpu
    }

    /// Whether host and device may use managed memory at the same time: never on Windows. Without it there are no
    /// managed pools and no prefetches.
    pub(crate) fn has_concurrent_managed_access(&self) -> bool {
        self.has_managed_memory() && self.managed_pools && self.model == DriverModel::Linux
    }

    /// Whether devices use the memory of the program through the page tables of the host.
    pub(crate) fn is_coherent(&self) -> bool {
        self.coherent && self.has_concurrent_managed_access() && cfg!(target_os = "linux")
    }

    /// Whether the driver knows NUMA nodes of the host: not on Windows.
    pub(crate) fn has_nodes(&self) -> bool {
        self.model == DriverModel::Linux
    }

    /// Whether memory is shared through the handles of this system. On Linux these are descriptors, which no driver of
    /// Windows knows; its own cannot be made there. On Windows they serve for every model.
    pub(crate) fn has_shared_handles(&self) -> bool {
        cfg!(windows) || self.model == DriverModel::Linux
    }

    /// The kinds of handle for sharing pools and physical memory.
    pub(crate) fn shared_handle_types(&self) -> u32 {
        match self.model {
            DriverModel::Linux => self.handle_types,
            DriverModel::Tcc | DriverModel::Wddm => self.handle_types & !OF_LINUX,
        }
    }

    /// Whether devices say that third parties reach their memory, over PCIe or as a fabric: not on Windows.
    pub(crate) fn has_rdma(&self) -> bool {
        !cfg!(windows) && self.model == DriverModel::Linux
    }

    /// Whether device memory can be exported as dma-bufs: not on Windows.
    pub(crate) fn has_dma_buf(&self) -> bool {
        self.dma_buf && self.model == DriverModel::Linux
    }

    /// Whether there are pools on a NUMA node of the host.
    pub(crate) fn has_numa_pools(&self) -> bool {
        self.numa_pools && self.has_nodes()
    }

    /// Whether virtual memory management is available, Windows included.
    pub(crate) fn has_vmm(&self) -> bool {
        self.vmm && !self.vgpu
    }

    /// Whether a device reports that the host can map its dma-bufs.
    pub(crate) fn claims_dma_buf_mmap(&self) -> bool {
        self.has_dma_buf() && self.dma_buf_mmap && self.version >= DMA_BUF_MMAP_SINCE
    }

    /// Whether events and memory can be shared without pools.
    pub(crate) fn has_legacy_sharing(&self) -> bool {
        !self.vgpu
    }
}
