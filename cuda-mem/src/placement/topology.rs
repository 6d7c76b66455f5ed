//! What the policy knows about a machine: records that are filled by hand or by querying the driver.

#![forbid(unsafe_code)]

use super::pages::{PageClass, TWO_MIB};
use crate::driver::capabilities::{Capabilities, Capability};
use crate::driver::device::Device;

/// One device of a [`Topology`]: its capabilities, its memory, and what it reaches.
///
/// These are plain values: they come from [`Topology::gather`], or from anywhere else, such as a test or a file that
/// describes another machine. The default is a device without memory or any capability. A gathered record also knows
/// its [device](Self::device), which [`Placement::allocate`](super::Placement::allocate) needs.
///
/// ```
/// use cuda_mem::driver::Capability;
/// use cuda_mem::placement::TopologyDevice;
///
/// let device = TopologyDevice::new(80 << 30)
///     .with(Capability::MemoryPools)
///     .with(Capability::VirtualMemory);
/// assert!(device.capabilities.memory_pools);
/// assert!(!device.has(Capability::DmaBuf));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopologyDevice {
    /// What the device can do. Not all of it affects placement.
    pub capabilities: Capabilities,
    /// The minimum granularity of physical memory of the device, in bytes; a power of two of at least 4 KiB. Any other
    /// value means unknown, and counts as 2 MiB.
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
    /// The NUMA node of the host that is nearest to the device; `None` if it has none. Attribute 134, CUDA 12.2.
    pub host_numa_node: Option<u32>,
    /// The devices whose memory this one can use, by their index in the topology.
    pub reaches: Vec<usize>,
    /// `None` if written by hand.
    pub(super) device: Option<Device>,
}

impl TopologyDevice {
    /// A device with `total` bytes of memory, and no capability.
    #[must_use]
    pub fn new(total: u64) -> Self {
        Self {
            total,
            ..Self::default()
        }
    }

    /// Whether the device has this capability.
    #[must_use]
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.has(capability)
    }

    /// Sets whether the device has this capability.
    pub fn set(&mut self, capability: Capability, can: bool) {
        self.capabilities.set(capability, can);
    }

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

    /// The device that this record was gathered from; `None` if it was written by hand.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::placement::{Topology, TopologyDevice};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let devices = Driver::load()?.devices()?;
    /// let machine = Topology::gather(&devices)?;
    /// assert_eq!(machine.devices[0].device(), Some(devices[0]));
    /// assert_eq!(TopologyDevice::new(80 << 30).device(), None);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[must_use]
    pub fn device(&self) -> Option<Device> {
        self.device
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
/// between two devices is in [`TopologyDevice::reaches`], separately for each direction.
///
/// ```
/// use cuda_mem::driver::Capability;
/// use cuda_mem::placement::{Topology, TopologyDevice};
///
/// let device = TopologyDevice::new(80 << 30).with(Capability::MemoryPools);
/// let mut machine = Topology::new([device.clone(), device]);
/// machine.devices[1].reaches = vec![0];
/// assert!(machine.reaches(1, 0));
/// assert!(!machine.reaches(0, 1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topology {
    /// The devices; a request names them by their index here, from 0.
    pub devices: Vec<TopologyDevice>,
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
    pub fn new(devices: impl IntoIterator<Item = TopologyDevice>) -> Self {
        Self {
            devices: devices.into_iter().collect(),
            host_page: 4096,
            others_concurrent_managed_access: true,
        }
    }

    /// The devices behind these indices, as far as they were gathered.
    pub(super) fn handles(&self, indices: &[usize]) -> Handles {
        let handle = |index: &usize| Some((*index, self.devices.get(*index)?.device?));
        Handles(indices.iter().filter_map(handle).collect())
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

/// The devices behind the indices of a placement. They do not affect its comparison: the same decision is equal,
/// whether it was made for gathered devices or for records written by hand.
#[derive(Clone, Debug)]
pub(super) struct Handles(Vec<(usize, Device)>);

impl Handles {
    pub(super) fn get(&self, index: usize) -> Option<Device> {
        let found = self.0.iter().find(|(known, _)| *known == index);
        found.map(|(_, device)| *device)
    }
}

impl PartialEq for Handles {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Handles {}
