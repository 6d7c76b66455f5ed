//! Device identity: the UUID and the place on the PCI bus, in the forms that the driver, NVML and their tools share.

use std::fmt;
use std::str::FromStr;

use super::{Device, Uuid};
use crate::base::error::{Error, ErrorKind, Result};
use crate::driver::Driver;
use crate::driver::raw;

/// The place of a device on the PCI bus. Displayed as NVML writes it: `00000000:3B:00.0`.
///
/// ```
/// use cuda_mem::driver::PciId;
///
/// let short: PciId = "0000:3b:00.0".parse()?; // as the driver and Linux write it
/// assert_eq!(short.to_string(), "00000000:3B:00.0");
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciId {
    /// The domain.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on the bus.
    pub device: u8,
    /// The function of the device; 0 for a GPU.
    pub function: u8,
}

impl fmt::Display for PciId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (domain, bus) = (self.domain, self.bus);
        write!(
            f,
            "{domain:08X}:{bus:02X}:{:02X}.{:X}",
            self.device, self.function
        )
    }
}

/// Parses `00000000:3B:00.0`, `0000:3b:00.0` and `3b:00.0`.
impl FromStr for PciId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (rest, function) = text.split_once('.').unwrap_or((text, "0"));
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            Some(Self {
                domain: hex(domain)?,
                bus: hex(bus)?.try_into().ok()?,
                device: hex(device)?.try_into().ok()?,
                function: hex(function)?.try_into().ok()?,
            })
        };
        parse().ok_or_else(|| {
            Error::invalid(format!("{text:?} is no PCI id such as 00000000:3B:00.0"))
        })
    }
}

/// A number of hexadecimal digits only: the standard library would accept a sign too.
fn hex(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u32::from_str_radix(text, 16).ok().filter(|_| is_plain)
}

/// Parses `GPU-9e8d35e3-…`, and `MIG-…` in the same form, which drivers since 11.4 use for MIG instances. CUDA
/// identifies both by their 16 bytes.
impl FromStr for Uuid {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let groups = ["GPU-", "MIG-"]
                .into_iter()
                .find_map(|kind| text.strip_prefix(kind))?;
            let lengths = groups.split('-').map(str::len);
            let digits = groups.replace('-', "");
            let is_plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !lengths.eq([8, 4, 4, 4, 12]) || !is_plain {
                return None;
            }
            let number = u128::from_str_radix(&digits, 16).ok()?;
            Some(Self(number.to_be_bytes()))
        };
        parse().ok_or_else(|| {
            Error::invalid(format!(
                "{text:?} is no UUID of the form GPU-9e8d35e3-0001-0203-0405-060708090a0b"
            ))
        })
    }
}

impl Device {
    /// The place of the device on the PCI bus. For a MIG instance, the place of its GPU.
    ///
    /// # Errors
    ///
    /// Any driver error.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let device = cuda_mem::Driver::load()?.device(0)?;
    /// println!("/sys/bus/pci/devices has it as {}", device.pci_id()?);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuDeviceGetPCIBusId")]
    pub fn pci_id(&self) -> Result<PciId> {
        // SAFETY: the handle came from this driver.
        unsafe { raw::device::pci_bus_id(self.driver().table(), self.as_raw()) }?.parse()
    }
}

impl Driver {
    /// The visible device that is this GPU or MIG instance, whatever its ordinal is here. Creates no context.
    ///
    /// # Errors
    ///
    /// [`InvalidDevice`](ErrorKind::InvalidDevice) if there is none, or `CUDA_VISIBLE_DEVICES` hides it; the text
    /// lists the visible ones.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let driver = cuda_mem::Driver::load()?;
    /// let uuid = driver.device(0)?.uuid()?;
    /// assert_eq!(driver.device_by_uuid(&uuid)?, driver.device(0)?);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuDeviceGetUuid", "cuDeviceGetUuid_v2"))]
    pub fn device_by_uuid(&self, uuid: &Uuid) -> Result<Device> {
        let mut visible = Vec::new();
        for device in self.devices()? {
            let found = device.uuid()?;
            if found == *uuid {
                return Ok(device);
            }
            visible.push(found.to_string());
        }
        let visible = if visible.is_empty() {
            "none".to_owned()
        } else {
            visible.join(", ")
        };
        let start = self.start_facts();
        let hint = if start.devices.is_some() {
            ": name it there before the program starts"
        } else {
            ", so the driver finds no others"
        };
        let text =
            format!("{uuid} is not visible to this process, which sees {visible}; {start}{hint}");
        Err(Error::new(ErrorKind::InvalidDevice, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_ids_are_read_in_every_usual_form() {
        let expected = PciId {
            domain: 0,
            bus: 0x3b,
            device: 0,
            function: 0,
        };
        for text in ["00000000:3B:00.0", "0000:3b:00.0", "3B:00.0", "3b:00"] {
            let id: PciId = text.parse().expect(text);
            assert_eq!(id, expected, "{text}");
        }
        let far: PciId = "0001FFFF:C1:1F.7".parse().expect("valid");
        assert_eq!(far.to_string(), "0001FFFF:C1:1F.7");
    }

    #[test]
    fn what_is_no_pci_id_is_refused() {
        for text in [
            "",
            "3b",
            "0000:+3:00.0",
            "0000:13B:00.0",
            "x:3b:00.0",
            "0:1:2:3.4",
        ] {
            let error = text.parse::<PciId>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidValue);
        }
    }

    #[test]
    fn a_uuid_comes_back_from_its_text() {
        let uuid = Uuid(*b"0123456789abcdef");
        assert_eq!(uuid.to_string().parse::<Uuid>().expect("own text"), uuid);
        let mig = uuid.to_string().replace("GPU-", "MIG-");
        assert_eq!(mig.parse::<Uuid>().expect("the same bytes"), uuid);
    }

    #[test]
    fn what_is_no_whole_uuid_is_refused() {
        for text in [
            "GPU-9e8d35e3",
            "9e8d35e3-0001-0203-0405-060708090a0b",
            "GPU-9e8d35e3-0001-0203-0405-060708090a0g",
            "GPU-9e8d35e30-001-0203-0405-060708090a0b",
            "MIG-GPU-9e8d35e3-0001-0203-0405-060708090a0b/1/0",
        ] {
            assert!(text.parse::<Uuid>().is_err(), "{text}");
        }
    }
}
