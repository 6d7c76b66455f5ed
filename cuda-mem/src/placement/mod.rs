//! Memory placement: a pure policy that chooses among CUDA's kinds of memory.

mod allocate;
mod error;
mod exports;
mod gather;
pub(crate) mod nvml;
mod on_host;
mod pages;
mod placed_buffer;
mod policy;
mod pools;
mod reason;
mod remedies;
mod request;
#[cfg(test)]
mod tests;
mod topology;
pub(crate) mod visible;

pub use error::PlaceError;
pub use nvml::{
    Bar1Memory, ComputeMode, DeviceChoice, MigMode, Nvml, NvmlDevice, NvmlMemory, NvmlProcess,
};
pub use pages::PageClass;
pub use placed_buffer::PlacedBuffer;
pub use reason::PlacementStep;
pub use request::{AccessPattern, Export, Lifetime, PlacementRequest};
pub use topology::{Topology, TopologyDevice};
pub use visible::{
    DriverVisibility, EndReason, Ended, Identity, MigIdentity, Repeated, Selector, Visibility,
    VisibilityChanged, VisibilityMismatch, Visible, VisibleDevice,
};

use crate::driver::device::Device;
use topology::Handles;

/// A kind of memory, by the driver calls that allocate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PlacementKind {
    /// From a memory pool of the home device, in the order of a stream.
    /// See [`MemoryPool`](crate::MemoryPool).
    #[doc(alias = "cuMemAllocFromPoolAsync")]
    Pool,
    /// Plain memory of the home device. See [`DirectResource`](crate::memory::DirectResource).
    #[doc(alias = "cuMemAlloc")]
    Device,
    /// Physical memory of the home device, mapped into a range of addresses.
    #[doc(alias = "cuMemCreate")]
    Vmm,
    /// Like `Vmm`, but in equal parts from several devices; see [`Placement::stripes`].
    VmmStriped,
    /// Pinned host memory. See [`PinnedResource`](crate::memory::PinnedResource).
    #[doc(alias = "cuMemHostAlloc")]
    PinnedHost {
        /// Whether it is write-combining: faster for devices to read, very slow for the host to read.
        write_combining: bool,
    },
    /// Memory of the NUMA node of the host that is nearest to the home device.
    HostNuma {
        /// The node.
        node: u32,
        /// Whether it comes from a pool. Otherwise it is physical memory, mapped into a range of addresses.
        pool: bool,
    },
    /// Physical memory of the host, on no node in particular, mapped into a range of addresses. CUDA 13.0.
    HostVmm,
    /// From a pool of the host, in the order of a stream. CUDA 13.0.
    HostPool,
    /// Managed memory, which migrates to the processor that accesses it. See
    /// [`ManagedResource`](crate::memory::ManagedResource).
    #[doc(alias = "cuMemAllocManaged")]
    Managed,
}

/// Something that can read and write the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Accessor {
    /// The threads of the host.
    Host,
    /// A device, by its index in the [`Topology`].
    Device(usize),
}

/// Where memory should be, and why. From [`PlacementRequest::place`].
///
/// Displays as one sentence that includes the reason. A placement by itself allocates nothing. Two placements are equal
/// if all public fields are.
///
/// ```
/// use cuda_mem::placement::{PlacementRequest, Topology, TopologyDevice};
///
/// let machine = Topology::new([TopologyDevice::new(8 << 30)]);
/// let placement = PlacementRequest::bytes(100).place(&machine)?;
/// assert_eq!(
///     placement.to_string(),
///     "plain memory of device 0: 4.0 KiB, pages as the driver likes, used by device 0 (step 4d: \
///      memory of a device that stays, and there are no pools)"
/// );
/// # Ok::<(), cuda_mem::placement::PlaceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// The kind of memory.
    pub kind: PlacementKind,
    /// The requested bytes.
    pub bytes: u64,
    /// Bytes to allocate: the requested bytes, rounded up to whole pages.
    pub size: u64,
    /// The page size in bytes.
    pub page_size: u64,
    /// The class of the page size.
    pub page_class: PageClass,
    /// Whether this page size is guaranteed. Otherwise the driver chooses the page size, and this is the expected one.
    pub page_size_is_fixed: bool,
    /// The home device, by its index in the topology.
    pub home: usize,
    /// All accessors, the host first and then the devices in order. All can read and write.
    pub grants: Vec<Accessor>,
    /// The devices that each hold a part, in address order, if the memory is [striped](PlacementKind::VmmStriped);
    /// otherwise empty. A part is `size` divided by their number.
    pub stripes: Vec<usize>,
    /// How the memory can be exported.
    pub export: Export,
    /// Whether physical memory has to be created for use by other devices on the bus.
    #[doc(alias = "gpuDirectRDMACapable")]
    pub gpu_direct: bool,
    /// Whether the memory can grow in place. Mapped memory can, if [allocating](Self::allocate) reserves addresses for
    /// it.
    pub growable: bool,
    /// Whether [allocating](Self::allocate) fills the memory with zeros.
    pub zeroed: bool,
    /// The row of the decision table that decided.
    pub step: PlacementStep,
    handles: Handles,
}

impl Placement {
    /// Whether host threads can read and write the memory in place, by [`PlacedBuffer::host`] and
    /// [`PlacedBuffer::host_mut`]. Otherwise they must copy.
    #[must_use]
    pub fn is_host_accessible(&self) -> bool {
        self.grants.contains(&Accessor::Host)
    }

    /// The home device, on whose streams the memory is [allocated](Self::allocate); `None` if the topology was written
    /// by hand.
    #[must_use]
    pub fn home_device(&self) -> Option<Device> {
        self.handles.get(self.home)
    }

    /// The devices that can use the memory, in order, by their index in the topology.
    pub fn devices(&self) -> impl Iterator<Item = usize> + '_ {
        self.grants.iter().filter_map(|grant| match grant {
            Accessor::Host => None,
            Accessor::Device(device) => Some(*device),
        })
    }
}
