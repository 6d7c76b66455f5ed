//! The kinds of CPU mapping, and the reasons against each.

use std::fmt;
use std::sync::Arc;

use crate::base::error::{Bytes, Error};

/// How a mapping accesses the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CpuMappingKind {
    /// The memory is on the host: the processor accesses it directly, and devices access it over the bus.
    HostMapped,
    /// A dma-buf of the device's memory, mapped. CUDA 13.3 or newer with the open kernel modules.
    #[doc(alias = "cuMemGetHandleForAddressRange")]
    DmaBuf,
    /// gdrcopy maps the device's memory. Needs its kernel module and library.
    #[doc(alias("gdrcopy", "gdr_map"))]
    Gdrcopy,
    /// No direct mapping: synchronous copies by the driver through pinned memory. Works everywhere.
    Copies,
}

impl CpuMappingKind {
    /// All kinds, in the order in which they are tried.
    pub const ALL: [Self; 4] = [Self::HostMapped, Self::DmaBuf, Self::Gdrcopy, Self::Copies];

    /// Whether the processor accesses the memory directly, so that a running kernel sees stores.
    #[must_use]
    pub fn is_direct(self) -> bool {
        self != Self::Copies
    }
}

impl fmt::Display for CpuMappingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::HostMapped => "host-mapped",
            Self::DmaBuf => "dma-buf",
            Self::Gdrcopy => "gdrcopy",
            Self::Copies => "copies",
        })
    }
}

/// How the processor treats accesses to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MappingKind {
    /// Stores are combined, loads are not cached.
    WriteCombining,
    /// Cached, and kept coherent with the device.
    Cached,
    /// ARM device memory: every access is separate, in order and aligned.
    Device,
    /// The back end does not report it.
    Unknown,
}

impl fmt::Display for MappingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::WriteCombining => "write-combining",
            Self::Cached => "cached",
            Self::Device => "device",
            Self::Unknown => "not told",
        })
    }
}

/// Why a kind of mapping was not taken.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CpuMappingReason {
    /// The options exclude it.
    Refused,
    /// It is for host memory, and this is device memory.
    MemoryOfDevice,
    /// Host threads have no access to this host memory; an access would end the process.
    NoAccess,
    /// It is for device memory, and this is host memory.
    MemoryOfHost,
    /// Managed memory migrates.
    ManagedMemory,
    /// The driver reports that third parties cannot access this memory (pool memory before CUDA 13.4, and mapped memory
    /// not created for it).
    NotGpuDirect,
    /// The block shares GPU pages (64 KiB) with others, and gdrcopy would lose the mapping when one of them is freed.
    SharedPages,
    /// The device reports that dma-bufs cannot be mapped: attribute 152 of CUDA 13.3 is missing or 0.
    NoDmaBufMapping,
    /// The back end cannot guarantee the requested kind of mapping.
    NoSuchMapping,
    /// BAR1, through which the processor accesses device memory, is full.
    Bar1Full {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// It was tried and failed with this error.
    Failed(Arc<Error>),
    /// An earlier kind was taken.
    NotNeeded,
}

impl fmt::Display for CpuMappingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "not wanted",
            Self::MemoryOfDevice => "the memory is the device's",
            Self::NoAccess => "the host was given no access to it; see `MappedMemory::set_access`",
            Self::MemoryOfHost => "the memory is the host's",
            Self::ManagedMemory => "managed memory moves; take `ManagedBuffer::host`",
            Self::NotGpuDirect => {
                "no other device can access this memory directly (GPUDirect RDMA); use memory from `CpuMappingOptions::alloc`"
            }
            Self::SharedPages => {
                "the block shares its pages with others; use memory from `CpuMappingOptions::alloc`"
            }
            Self::NoDmaBufMapping => {
                "the device's dma-bufs cannot be mapped (attribute 152, CUDA 13.3 and the open kernel modules)"
            }
            Self::NoSuchMapping => "the kind of mapping that is asked for cannot be promised",
            Self::Bar1Full { needed, free } => {
                return write!(
                    f,
                    "it needs {} of BAR1, which has {} free",
                    Bytes(*needed),
                    Bytes(*free)
                );
            }
            Self::Failed(error) => return write!(f, "{error}"),
            Self::NotNeeded => "another one was taken before it",
        })
    }
}
