//! Where memory should be: a pure policy that chooses among the kinds of memory that CUDA has.

mod allocate;
mod capabilities;
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
pub(crate) mod visible;

pub use capabilities::{Capability, DeviceCapabilities, Topology};
pub use error::PlaceError;
pub use nvml::{
    Bar1Memory, ComputeMode, DeviceChoice, MigMode, Nvml, NvmlDevice, NvmlMemory, NvmlProcess,
};
pub use pages::PageClass;
pub use placed_buffer::PlacedBuffer;
pub use reason::PlacementStep;
pub use request::{AccessPattern, Export, Lifetime, PlacementRequest};
pub use visible::{
    DriverVisibility, EndReason, Ended, Identity, MigIdentity, Repeated, Selector, Visibility,
    VisibilityChanged, VisibilityMismatch, Visible, VisibleDevice,
};

/// A kind of memory, by the calls of the driver that make it.
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
    /// The same from several devices side by side, in equal parts; see [`Placement::stripes`].
    VmmStriped,
    /// Memory of the host that stays where it is. See [`PinnedResource`](crate::memory::PinnedResource).
    #[doc(alias = "cuMemHostAlloc")]
    PinnedHost {
        /// Whether it is write-combining: faster for a device to read, very slow for the host to.
        write_combining: bool,
    },
    /// Memory of the NUMA node of the host that is nearest to the home device.
    HostNuma {
        /// The node.
        node: u32,
        /// Whether it comes from a pool, or else is physical memory, mapped into a range of addresses.
        pool: bool,
    },
    /// Physical memory of the host, on no node in particular, mapped into a range of addresses. CUDA 13.0.
    HostVmm,
    /// From a pool of the host, in the order of a stream. CUDA 13.0.
    HostPool,
    /// Managed memory, which moves to who touches it. See [`ManagedResource`](crate::memory::ManagedResource).
    #[doc(alias = "cuMemAllocManaged")]
    Managed,
}

/// Somebody who can read and write the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Accessor {
    /// The threads of the host.
    Host,
    /// A device, by its place in the [`Topology`].
    Device(usize),
}

/// Where memory should be, and why. From [`PlacementRequest::place`].
///
/// Shown, it is one sentence with the reason in it. Nothing is allocated by it.
///
/// ```
/// use cuda_mem::placement::{DeviceCapabilities, Topology, PlacementRequest};
///
/// let mut device = DeviceCapabilities::default();
/// device.total = 8 << 30;
/// let placement = PlacementRequest::bytes(100).place(&Topology::new([device]))?;
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
    /// Bytes to ask for: those of the request in whole pages.
    pub size: u64,
    /// Bytes of a page.
    pub page_size: u64,
    /// The class of that size.
    pub page_class: PageClass,
    /// Whether the driver keeps to this size of a page, or chooses pages by itself and this is what to
    /// expect.
    pub page_size_is_fixed: bool,
    /// The home device, by its place in the machine.
    pub home: usize,
    /// Everybody who can use it, the host first and then the devices in order. All read and write.
    pub grants: Vec<Accessor>,
    /// The devices that hold a part each, in the order of the addresses, if the memory is
    /// [striped](PlacementKind::VmmStriped); else empty. A part is `size` by their number.
    pub stripes: Vec<usize>,
    /// How it can be handed to others.
    pub export: Export,
    /// Whether physical memory has to be created for use by other devices of the bus.
    #[doc(alias = "gpuDirectRDMACapable")]
    pub gpu_direct: bool,
    /// Whether it is to grow in its place. Mapped memory does, if [allocating](Self::allocate) keeps addresses for it.
    pub growable: bool,
    /// Whether [allocating](Self::allocate) fills it with zeros.
    pub zeroed: bool,
    /// The line of the decision table that decided.
    pub step: PlacementStep,
}

impl Placement {
    /// Whether threads of the host can read and write it in its place, by [`PlacedBuffer::host`] and
    /// [`PlacedBuffer::host_mut`]. Where they cannot, they copy.
    #[must_use]
    pub fn is_host_accessible(&self) -> bool {
        self.grants.contains(&Accessor::Host)
    }

    /// The devices that can use it, in order.
    pub fn devices(&self) -> impl Iterator<Item = usize> + '_ {
        self.grants.iter().filter_map(|grant| match grant {
            Accessor::Host => None,
            Accessor::Device(device) => Some(*device),
        })
    }
}
