//! The records of real devices. No context is created.

use cuda_driver_sys::CUdevice_attribute;

use super::topology::{Topology, TopologyDevice};
use crate::base::error::Result;
use crate::driver::capabilities::Capability;
use crate::driver::device::Device;
use crate::driver::location::Location;
use crate::mapped::vmm::PhysicalMemory;

impl Topology {
    /// Queries the driver for the capabilities of these devices. A request then names them by their index in `devices`,
    /// and a placement allocates on them.
    ///
    /// This makes about two dozen queries per device and one per pair, so keep the result. Visible devices that are not
    /// in `devices` are queried for one property only: [whether they let the host access managed
    /// memory](Self::others_concurrent_managed_access).
    ///
    /// No context is created, so [`free`](TopologyDevice::free) is `None`. Set it, for example from
    /// [`Context::memory_info`](crate::Context::memory_info), if a full device should lead to striping.
    /// An attribute unknown to an older driver counts as unsupported.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for devices of several drivers; otherwise any error that the
    /// driver reports.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::placement::{Topology, PlacementRequest};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let machine = Topology::gather(&Driver::load()?.devices()?)?;
    /// let placement = PlacementRequest::bytes(64 << 20).home(0).place(&machine)?;
    /// println!("{placement} on {:?}", placement.home_device());
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuDeviceGetAttribute", "cuMemGetAllocationGranularity"))]
    pub fn gather(devices: &[Device]) -> Result<Self> {
        let mut machine = Self::new([]);
        machine.host_page = crate::base::pages::host_page();
        for device in devices {
            let mut record = TopologyDevice::gather(device)?;
            for (place, other) in devices.iter().enumerate() {
                if device != other && device.can_access_peer(other)? {
                    record.reaches.push(place);
                }
            }
            machine.devices.push(record);
        }
        if let Some(device) = devices.first() {
            let attribute = Capability::ConcurrentManagedAccess.attribute();
            for other in device.driver().devices()? {
                if !devices.contains(&other) && !other.has_attribute(attribute)? {
                    machine.others_concurrent_managed_access = false;
                }
            }
        }
        Ok(machine)
    }
}

impl TopologyDevice {
    fn gather(device: &Device) -> Result<Self> {
        let can = device.capabilities()?;
        let mut record = Self {
            capabilities: can,
            total: device.total_memory()?,
            device: Some(*device),
            ..Self::default()
        };
        // -1 is a host without nodes.
        let node = device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)?;
        record.host_numa_node = node.and_then(|node| u32::try_from(node).ok());
        if can.virtual_memory && device.driver().has("cuMemGetAllocationGranularity") {
            let place = Location::Device(*device);
            [record.granularity, record.recommended_granularity] = granularities(device, place)?;
        }
        let host = match record.host_numa_node {
            Some(node) if can.host_numa_virtual_memory => Some(Location::HostNuma(node)),
            _ => can.host_virtual_memory.then_some(Location::Host),
        };
        if let Some(place) = host {
            [record.host_granularity, record.recommended_host_granularity] =
                granularities(device, place)?;
        }
        Ok(record)
    }
}

/// The minimum and recommended granularity.
fn granularities(device: &Device, place: Location) -> Result<[u64; 2]> {
    let sizes = PhysicalMemory::builder_at(device.driver(), place).granularity()?;
    Ok([sizes.minimum, sizes.recommended])
}
