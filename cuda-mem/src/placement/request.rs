//! What a program says of memory that it needs.

#![forbid(unsafe_code)]

use super::error::PlaceError;
use super::{Placement, Topology, policy};

/// Who touches the memory, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AccessPattern {
    /// Devices only.
    GpuOnly,
    /// Devices; the host copies in or out now and then.
    #[default]
    GpuMostly,
    /// The host writes it, devices read it, again and again: parameters, tables.
    CpuWritesGpuReads,
    /// Devices write it, the host reads it: results, flags.
    GpuWritesCpuReads,
    /// Host and devices read and write it at the same time, or in quick turns: flags, queues, small tables.
    Shared,
    /// Host and devices read and write it in long turns: before the host wants it again, a device goes over all
    /// of it a dozen times or more. The memory moves to the side whose turn it is.
    SharedInTurns,
    /// Data that runs through: filled by one side, used once by the other, then filled anew. A ring of
    /// batches between a disk and a GPU.
    Streaming,
}

/// How long the memory stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lifetime {
    /// It comes and goes often, such as for one step of a computation.
    Short,
    /// It stays, such as weights or a cache.
    #[default]
    Long,
}

/// How the memory is handed to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Export {
    /// Not at all.
    #[default]
    None,
    /// To other processes, as a file descriptor.
    PosixFd,
    /// To other processes, also of other machines on one NVLink fabric.
    Fabric,
    /// To drivers of other devices, as a dma-buf. It is placed so that it can be exported.
    DmaBuf,
}

/// A need for memory, in words of the program: how much, who touches it, how long it stays.
///
/// ```
/// use cuda_mem::placement::{AccessPattern, Capability, DeviceCapabilities, Lifetime, Topology, PlacementKind};
/// use cuda_mem::placement::PlacementRequest;
///
/// let mut device = DeviceCapabilities::default()
///     .with(Capability::MemoryPools)
///     .with(Capability::VirtualMemory);
/// device.total = 80 << 30;
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
    /// So many bytes for device 0: long-lived, mostly used by it, not exported.
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

    /// The device that uses it most, by its place in the [`Topology`].
    pub fn home(mut self, device: usize) -> Self {
        self.home = device;
        self
    }

    /// Other devices that read and write it. Naming one twice, or the home, changes nothing.
    pub fn peers(mut self, devices: impl IntoIterator<Item = usize>) -> Self {
        self.peers = devices.into_iter().collect();
        self
    }

    /// Who touches it.
    pub fn access(mut self, access: AccessPattern) -> Self {
        self.access = access;
        self
    }

    /// How long it stays.
    pub fn lifetime(mut self, lifetime: Lifetime) -> Self {
        self.lifetime = lifetime;
        self
    }

    /// It gets larger later, or its bytes move to another place, and its address stays. See
    /// [`GrowableBuffer`](crate::mapped::GrowableBuffer).
    pub fn growable(mut self) -> Self {
        self.growable = true;
        self
    }

    /// Memory past the caches of the host, for [`CpuWritesGpuReads`](AccessPattern::CpuWritesGpuReads) that the
    /// host writes from front to back and never reads: it reads such memory very slowly. Where that is faster is
    /// for the program to measure: on some systems it is slower to copy from, and it takes longer to make.
    pub fn write_combining(mut self) -> Self {
        self.write_combining = true;
        self
    }

    /// It is zero at first. The driver does not promise that of any kind of memory, so
    /// [`allocate`](Placement::allocate) fills it, in the order of the stream; whole pages with all that is in them.
    pub fn zeroed(mut self) -> Self {
        self.zeroed = true;
        self
    }

    /// How it is handed to others.
    pub fn export(mut self, export: Export) -> Self {
        self.export = export;
        self
    }

    /// The size of its pages, in bytes. It is kept, or the request is refused with the sizes that there
    /// are.
    pub fn page_size(mut self, bytes: u64) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// Decides where the memory should be. Nothing is asked or allocated: the same request and machine
    /// always give the same answer.
    ///
    /// # Errors
    ///
    /// A [`PlaceError`] that names what is missing, on which device, and what to change. Nothing that
    /// was asked for is left out silently.
    pub fn place(&self, machine: &Topology) -> Result<Placement, PlaceError> {
        policy::place(self, machine)
    }
}
