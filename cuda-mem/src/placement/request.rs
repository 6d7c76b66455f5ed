//! A program's description of the memory that it needs.

#![forbid(unsafe_code)]

use super::error::PlaceError;
use super::{Placement, Topology, policy};

/// Who accesses the memory, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AccessPattern {
    /// Devices only.
    GpuOnly,
    /// Devices; the host occasionally copies in or out.
    #[default]
    GpuMostly,
    /// The host writes it and devices read it repeatedly: parameters, tables.
    CpuWritesGpuReads,
    /// Devices write it, the host reads it: results, flags.
    GpuWritesCpuReads,
    /// Host and devices read and write it at the same time, or alternate quickly: flags, queues, small tables.
    Shared,
    /// Host and devices read and write it in long turns: a device passes over all of it a dozen times or more before
    /// the host needs it again. The memory migrates to the side whose turn it is.
    SharedInTurns,
    /// Streamed data: filled by one side, used once by the other, then refilled. For example a ring of batches between
    /// a disk and a GPU.
    Streaming,
}

/// The lifetime of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lifetime {
    /// Allocated and freed often, for example for one step of a computation.
    Short,
    /// Long-lived, such as weights or a cache.
    #[default]
    Long,
}

/// How the memory is exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Export {
    /// Not at all.
    #[default]
    None,
    /// To other processes on Linux, as a file descriptor.
    PosixFd,
    /// To other processes on Windows, as a handle.
    Win32,
    /// To other processes, including those of other machines on one NVLink fabric.
    Fabric,
    /// To drivers of other devices, as a dma-buf. The placement ensures that the memory can be exported.
    DmaBuf,
    /// To libraries for communication, such as NCCL, UCX and NIXL: as
    /// [`MappedMemory::collective`](crate::mapped::MappedMemory::collective) makes it. All of it is one physical piece, as long as it does
    /// not grow.
    Collective,
}

/// A request for memory in the program's terms: how much, who accesses it, and its lifetime.
///
/// ```
/// use cuda_mem::driver::Capability;
/// use cuda_mem::placement::{
///     AccessPattern, Lifetime, PlacementKind, PlacementRequest, Topology, TopologyDevice,
/// };
///
/// let device = TopologyDevice::new(80 << 30)
///     .with(Capability::MemoryPools)
///     .with(Capability::VirtualMemory);
/// let machine = Topology::new([device]);
///
/// let weights = PlacementRequest::bytes(64 << 20)
///     .home(0)
///     .access(AccessPattern::GpuMostly)
///     .lifetime(Lifetime::Long);
/// let placement = weights.place(&machine)?;
/// assert_eq!(placement.kind, PlacementKind::Pool);
/// println!("{placement}");
/// // What grows and stays where it is wants addresses of its own.
/// assert_eq!(weights.growable().place(&machine)?.kind, PlacementKind::Vmm);
/// # Ok::<(), cuda_mem::placement::PlaceError>(())
/// ```
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRequest {
    pub(super) bytes: u64,
    pub(super) home: usize,
    pub(super) peers: Vec<usize>,
    pub(super) access: AccessPattern,
    pub(super) lifetime: Lifetime,
    pub(super) growable: bool,
    pub(super) write_combining: bool,
    pub(super) zeroed: bool,
    pub(super) export: Export,
    pub(super) page_size: Option<u64>,
}

impl PlacementRequest {
    /// A request for `bytes` bytes for device 0: long-lived, mostly used by that device, not exported.
    pub fn bytes(bytes: u64) -> Self {
        Self {
            bytes,
            home: 0,
            peers: Vec::new(),
            access: AccessPattern::default(),
            lifetime: Lifetime::default(),
            growable: false,
            write_combining: false,
            zeroed: false,
            export: Export::default(),
            page_size: None,
        }
    }

    /// A request for `len` elements, with [`allocate`](Placement::allocate) of the same type in mind.
    ///
    /// ```
    /// use cuda_mem::placement::PlacementRequest;
    ///
    /// assert_eq!(PlacementRequest::elements::<f32>(1000), PlacementRequest::bytes(4000));
    /// ```
    pub fn elements<T>(len: usize) -> Self {
        // What overflows exceeds any address space, and is refused for that.
        Self::bytes((len as u64).saturating_mul(size_of::<T>() as u64))
    }

    /// The device that uses it most, by its index in the [`Topology`].
    pub fn home(mut self, device: usize) -> Self {
        self.home = device;
        self
    }

    /// Other devices that read and write it. Naming one twice, or the home, changes nothing.
    pub fn peers(mut self, devices: impl IntoIterator<Item = usize>) -> Self {
        self.peers = devices.into_iter().collect();
        self
    }

    /// Who accesses it.
    pub fn access(mut self, access: AccessPattern) -> Self {
        self.access = access;
        self
    }

    /// How long it lives.
    pub fn lifetime(mut self, lifetime: Lifetime) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// The memory can grow or its bytes can move later, while its address stays the same. See
    /// [`GrowableBuffer`](crate::mapped::GrowableBuffer).
    pub fn growable(mut self) -> Self {
        self.growable = true;
        self
    }

    /// Write-combining memory, which bypasses the caches of the host. For
    /// [`CpuWritesGpuReads`](AccessPattern::CpuWritesGpuReads) memory that the host writes sequentially and never
    /// reads: host reads of such memory are very slow. Measure whether it is faster: on some systems it is slower to
    /// copy from, and it takes longer to allocate.
    pub fn write_combining(mut self) -> Self {
        self.write_combining = true;
        self
    }

    /// The memory is zero-initialised. The driver guarantees that for no kind of memory, so
    /// [`allocate`](Placement::allocate) fills it in the order of the stream. Whole pages are filled completely.
    pub fn zeroed(mut self) -> Self {
        self.zeroed = true;
        self
    }

    /// How it is exported.
    pub fn export(mut self, export: Export) -> Self {
        self.export = export;
        self
    }

    /// Memory for collective operations of the home and these peers: a shorter way to write both.
    ///
    /// ```
    /// use cuda_mem::driver::Capability;
    /// use cuda_mem::placement::{Export, PlacementKind, PlacementRequest, Topology, TopologyDevice};
    ///
    /// let device = TopologyDevice::new(80 << 30)
    ///     .with(Capability::VirtualMemory)
    ///     .with(Capability::UnifiedAddressing);
    /// let mut machine = Topology::new([device.clone(), device]);
    /// machine.devices[1].reaches = vec![0];
    /// let placement = PlacementRequest::bytes(1 << 20).collective([1]).place(&machine)?;
    /// assert_eq!((placement.kind, placement.export), (PlacementKind::Vmm, Export::Collective));
    /// # Ok::<(), cuda_mem::placement::PlaceError>(())
    /// ```
    #[doc(alias = "ncclMemAlloc")]
    pub fn collective(self, peers: impl IntoIterator<Item = usize>) -> Self {
        self.peers(peers).export(Export::Collective)
    }

    /// The page size in bytes. It is honoured, or the request fails with an error that lists the available sizes.
    pub fn page_size(mut self, bytes: u64) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// Decides where the memory should be. Queries and allocates nothing: the same request and topology always give the
    /// same result.
    ///
    /// # Errors
    ///
    /// A [`PlaceError`] that names what is missing, on which device, and what to change. No requested property is
    /// silently ignored.
    pub fn place(&self, machine: &Topology) -> Result<Placement, PlaceError> {
        policy::place(self, machine)
    }
}
