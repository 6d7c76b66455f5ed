//! The kind of memory a resource has, and what can access it.

use std::fmt;

use crate::driver::Driver;
use crate::driver::device::Device;
use crate::driver::pointer::MemoryKind;

/// The kind of memory that a resource hands out, and what can access it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryProperties {
    /// Where the memory is.
    pub kind: MemoryKind,
    /// The device that the memory belongs to, if it belongs to a single device.
    pub device: Option<Device>,
    /// Whether the host can read and write the memory at its address.
    pub host: bool,
    /// The devices that can access the memory.
    pub devices: DeviceSet,
}

impl MemoryProperties {
    /// Memory of one device, accessible only to that device.
    #[must_use]
    pub fn of_device(device: Device) -> Self {
        Self {
            kind: MemoryKind::Device,
            device: Some(device),
            host: false,
            devices: DeviceSet::none(device.driver()).with(device),
        }
    }

    /// Memory that the host and all devices can access.
    #[must_use]
    pub fn of_everybody(kind: MemoryKind, driver: Driver) -> Self {
        Self {
            kind,
            device: None,
            host: true,
            devices: DeviceSet::all(driver),
        }
    }

    /// Whether `device` can access the memory.
    #[must_use]
    pub fn reaches(&self, device: Device) -> bool {
        self.devices.contains(device)
    }
}

/// A set of devices of a driver. Holds ordinals below 64, the most that drivers support.
///
/// ```
/// use cuda_mem::Driver;
/// use cuda_mem::memory::DeviceSet;
///
/// # cuda_sim::use_if_no_driver();
/// let driver = Driver::load()?;
/// let device = driver.device(0)?;
/// let set = DeviceSet::none(driver).with(device);
/// assert!(set.contains(device));
/// assert_eq!(format!("{set}"), "device 0");
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DeviceSet {
    driver: Driver,
    /// A bit for each ordinal.
    bits: u64,
}

impl DeviceSet {
    /// No device.
    #[must_use]
    pub fn none(driver: Driver) -> Self {
        Self { driver, bits: 0 }
    }

    /// All devices.
    #[must_use]
    pub fn all(driver: Driver) -> Self {
        Self {
            driver,
            bits: u64::MAX,
        }
    }

    /// Adds a device to the set. A device of another driver is ignored.
    #[must_use]
    pub fn with(self, device: Device) -> Self {
        if device.driver() != self.driver {
            return self;
        }
        Self {
            bits: self.bits | bit(device),
            ..self
        }
    }

    /// Whether the set contains the device.
    #[inline]
    #[must_use]
    pub fn contains(&self, device: Device) -> bool {
        self.bits & bit(device) != 0 && device.driver() == self.driver
    }
}

fn bit(device: Device) -> u64 {
    1_u64.checked_shl(device.ordinal()).unwrap_or(0)
}

impl fmt::Display for DeviceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bits {
            0 => return f.write_str("no device"),
            u64::MAX => return f.write_str("all devices"),
            _ => {}
        }
        let mut before = "device ";
        for ordinal in (0..u64::BITS).filter(|ordinal| self.bits >> ordinal & 1 == 1) {
            write!(f, "{before}{ordinal}")?;
            before = ", ";
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceSet({self})")
    }
}
