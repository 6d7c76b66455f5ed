//! The kinds of windows, and why one is not taken.

use std::fmt;
use std::sync::Arc;

use crate::base::error::{Bytes, Error};

/// How a window reaches the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CpuMappingKind {
    /// The memory is the host's own: the processor loads and stores it, and devices reach it over the bus.
    HostMapped,
    /// A dma-buf of the device's memory, mapped. CUDA 13.3 or newer with the open kernel modules.
    #[doc(alias = "cuMemGetHandleForAddressRange")]
    DmaBuf,
    /// gdrcopy maps the device's memory. Its kernel module and library must be there.
    #[doc(alias("gdrcopy", "gdr_map"))]
    Gdrcopy,
    /// No window into the memory: copies by the driver through pinned memory, each waited for. Works everywhere.
    Copies,
}

impl CpuMappingKind {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Self; 4] = [Self::HostMapped, Self::DmaBuf, Self::Gdrcopy, Self::Copies];

    /// Whether the processor reaches the memory itself, so that a running kernel sees what is stored.
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

/// What the processor does with its accesses to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MappingKind {
    /// Stores are combined, loads are not cached.
    WriteCombining,
    /// Cached, and kept coherent with the device.
    Cached,
    /// As device memory of ARM: every access by itself, in order and aligned.
    Device,
    /// The back end does not tell.
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

/// Why a kind of window was not taken.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CpuMappingReason {
    /// The caller does not want it.
    Refused,
    /// It is for memory of the host, and this is a device's.
    MemoryOfDevice,
    /// Threads of the host have no access to this memory of the host; a touch would end the process.
    NoAccess,
    /// It is for memory of a device, and this is the host's.
    MemoryOfHost,
    /// Managed memory moves about.
    ManagedMemory,
    /// The driver says that others cannot reach this memory (pool memory before CUDA 13.4, and mapped memory that was
    /// not made for it).
    NotGpuDirect,
    /// The block shares pages of the GPU (64 KiB) with others, and gdrcopy would lose the mapping when one of them is
    /// freed.
    SharedPages,
    /// The devices say that dma-bufs cannot be mapped: attribute 152 of CUDA 13.3 is not there or 0.
    NoDmaBufMapping,
    /// A kind of mapping was asked for that the back end cannot promise.
    NoSuchMapping,
    /// The window through which the processor reaches the device's memory is full.
    Bar1Full {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// It was tried, and this was the answer.
    Failed(Arc<Error>),
    /// One that comes before it was taken.
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
                "the driver lets nobody else reach this memory; take memory of `WindowOptions::alloc`"
            }
            Self::SharedPages => {
                "the block shares its pages with others; take memory of `WindowOptions::alloc`"
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
