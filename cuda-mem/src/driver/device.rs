//! Devices. Nothing here creates a context.

mod identity;

pub use identity::PciId;

use std::fmt;

use bitflags::bitflags;
use cuda_driver_sys::{CUdevice, CUdevice_attribute, CudaVersion};

use crate::base::error::{Error, ErrorKind, Result};
use crate::driver::Driver;
use crate::driver::raw;

/// One GPU. A cheap handle; neither making nor querying it creates a context on the GPU.
///
/// ```
/// # cuda_sim::use_if_no_driver();
/// let driver = cuda_mem::Driver::load()?;
/// for device in driver.devices()? {
///     println!("{}: {} {}", device.ordinal(), device.name()?, device.uuid()?);
/// }
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Device {
    driver: Driver,
    raw: CUdevice,
    ordinal: u32,
}

impl Driver {
    /// The device with this ordinal, counted among the visible ones from 0.
    ///
    /// # Errors
    ///
    /// [`InvalidDevice`](ErrorKind::InvalidDevice) if there is none. The text quotes the value of
    /// `CUDA_VISIBLE_DEVICES` at the time the driver was initialised.
    #[doc(alias = "cuDeviceGet")]
    pub fn device(&self, ordinal: usize) -> Result<Device> {
        // An ordinal beyond the driver's int names a device that does not exist.
        let asked = i32::try_from(ordinal).unwrap_or(i32::MAX);
        // SAFETY: the driver is initialised.
        let raw = unsafe { raw::device::get(self.table(), asked) }
            .map_err(|error| self.not_there(ordinal, error))?;
        Ok(Device {
            driver: *self,
            raw,
            ordinal: asked.unsigned_abs(),
        })
    }

    #[cold]
    fn not_there(&self, ordinal: usize, error: Error) -> Error {
        match self.device_count() {
            Ok(count) => error
                .asked(|| format!("device {ordinal} of {count}"))
                .no_device(|| self.start_facts().hint(count)),
            Err(_) => error.asked(|| format!("device {ordinal}")),
        }
    }

    /// All visible devices, in the order of their ordinals.
    ///
    /// # Errors
    ///
    /// Any driver error.
    pub fn devices(&self) -> Result<Vec<Device>> {
        (0..self.device_count()?)
            .map(|ordinal| self.device(ordinal))
            .collect()
    }
}

impl Device {
    /// The driver this device belongs to.
    #[must_use]
    #[inline]
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// The ordinal of this device among the visible ones.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The driver's handle.
    #[must_use]
    pub fn as_raw(&self) -> CUdevice {
        self.raw
    }

    /// The product name, such as `NVIDIA H200`.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuDeviceGetName")]
    pub fn name(&self) -> Result<String> {
        // SAFETY: the handle came from this driver.
        unsafe { raw::device::name(self.driver.table(), self.raw) }
    }

    /// The identity of the GPU, the same in every process and in NVML. With MIG, the identity of the MIG device, from
    /// CUDA 11.4 on.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias("cuDeviceGetUuid", "cuDeviceGetUuid_v2"))]
    pub fn uuid(&self) -> Result<Uuid> {
        // SAFETY: the handle came from this driver.
        unsafe { raw::device::uuid(self.driver.table(), self.raw) }.map(Uuid)
    }

    /// Total memory of the device in bytes, used or not.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuDeviceTotalMem")]
    pub fn total_memory(&self) -> Result<u64> {
        // SAFETY: the handle came from this driver.
        let bytes = unsafe { raw::device::total_memory(self.driver.table(), self.raw) }?;
        Ok(bytes as u64)
    }

    /// The driver's value for an attribute; `None` if this driver does not know it.
    ///
    /// # Errors
    ///
    /// Any driver error except the INVALID_VALUE with which a driver reports that an attribute is too new for it.
    #[doc(alias = "cuDeviceGetAttribute")]
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<Option<i32>> {
        match self.query(attribute) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == ErrorKind::InvalidValue => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a boolean attribute is true; false if the driver does not know it.
    pub(crate) fn has_attribute(&self, attribute: CUdevice_attribute) -> Result<bool> {
        Ok(self.attribute(attribute)?.unwrap_or(0) != 0)
    }

    pub(super) fn query(&self, attribute: CUdevice_attribute) -> Result<i32> {
        // SAFETY: the handle came from this driver.
        unsafe { raw::device::attribute(self.driver.table(), attribute, self.raw) }
    }

    /// An attribute that drivers know since `since`; `None` if this one is older. From that version on, a driver that
    /// does not know it is an error.
    pub(crate) fn query_since(
        &self,
        attribute: CUdevice_attribute,
        since: CudaVersion,
    ) -> Result<Option<i32>> {
        match self.query(attribute) {
            Err(error)
                if error.kind() == ErrorKind::InvalidValue && self.driver.version() < since =>
            {
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }
}

/// `device 0`, by its ordinal.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.ordinal)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.ordinal)
    }
}

bitflags! {
    /// The kinds of handle with which memory is shared between processes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct HandleTypes: u32 {
        /// A file descriptor.
        const POSIX_FILE_DESCRIPTOR = 1;
        /// An NT handle.
        const WIN32 = 2;
        /// A globally shared Windows handle.
        const WIN32_KMT = 4;
        /// A handle that works across machines on one NVLink fabric. CUDA 12.3 or newer.
        const FABRIC = 8;
    }
}

/// `A | B`, or `none`.
pub(crate) fn write_flags<F>(f: &mut fmt::Formatter<'_>, flags: &F) -> fmt::Result
where
    F: bitflags::Flags<Bits: bitflags::parser::WriteHex>,
{
    if flags.is_empty() {
        return f.write_str("none");
    }
    bitflags::parser::to_writer(flags, f)
}

impl fmt::Display for HandleTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_flags(f, self)
    }
}

/// The identity of a GPU. Displayed as the driver and its tools write it: `GPU-` and five groups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 0 | 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_looks_as_the_tools_write_it() {
        let uuid = Uuid([
            0x9e, 0x8d, 0x35, 0xe3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255,
        ]);
        assert_eq!(uuid.to_string(), "GPU-9e8d35e3-0001-0203-0405-060708090aff");
    }

    #[test]
    fn handle_types_are_said_by_name() {
        assert_eq!(
            HandleTypes::from_bits_retain(9).to_string(),
            "POSIX_FILE_DESCRIPTOR | FABRIC"
        );
        assert_eq!(HandleTypes::empty().to_string(), "none");
    }
}
