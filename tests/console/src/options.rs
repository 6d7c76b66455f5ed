//! Options and values that several examples take.

use std::fmt;

use anyhow::Result;
use cuda_mem::{Device, Driver, ErrorKind};
use parse_size::{ByteSuffix, Config};

use crate::Misuse;
use crate::backend::Backend;

/// `--device N`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct DeviceOption {
    /// Number of the device, among those that CUDA_VISIBLE_DEVICES leaves
    #[arg(
        long = "device",
        value_name = "N",
        default_value_t = 0,
        global = true,
        help_heading = None
    )]
    ordinal: usize,
}

impl DeviceOption {
    /// The device that was asked for.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if there is no such device.
    pub fn of(&self, backend: &Backend) -> Result<Device> {
        found(backend.driver, self.ordinal)
    }
}

fn found(driver: Driver, ordinal: usize) -> Result<Device> {
    driver.device(ordinal).map_err(|error| match error.kind() {
        ErrorKind::InvalidDevice => Misuse(format!("--device {ordinal}: {error}")).into(),
        _ => error.into(),
    })
}

/// `--device N` of an example that shows all devices otherwise.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct OneDeviceOption {
    /// Only this device, by its number among those that CUDA_VISIBLE_DEVICES leaves
    #[arg(long = "device", value_name = "N")]
    ordinal: Option<usize>,
}

impl OneDeviceOption {
    /// The device that was asked for, or all.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if there is no such device.
    pub fn of(&self, driver: Driver) -> Result<Vec<Device>> {
        match self.ordinal {
            Some(ordinal) => Ok(vec![found(driver, ordinal)?]),
            None => Ok(driver.devices()?),
        }
    }

    /// Whether the device with this number is asked for.
    #[must_use]
    pub fn has(&self, ordinal: u32) -> bool {
        self.ordinal.is_none_or(|asked| asked == ordinal as usize)
    }
}

impl fmt::Display for OneDeviceOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ordinal {
            Some(ordinal) => write!(f, "{ordinal}"),
            None => f.write_str("any"),
        }
    }
}

/// Parses a size in bytes: `4096`, `64K`, `16M`, `16 MiB`, `1.5GiB`. Every unit is a power of 1024.
///
/// # Errors
///
/// A text for the terminal, with examples.
pub fn size(text: &str) -> Result<u64, String> {
    let config = Config::new()
        .with_binary()
        .with_byte_suffix(ByteSuffix::Allow);
    config.parse_size(text).map_err(|_| {
        format!("{text:?} is not a number of bytes, such as 4096, 64K, 16M or 1GiB, below 16 EiB")
    })
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_binary_with_or_without_the_letters() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 64 << 10),
            ("16M", 16 << 20),
            ("16MB", 16 << 20),
            ("16 MiB", 16 << 20),
            ("1GiB", 1 << 30),
            ("1.5g", 3 << 29),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_quoted_with_examples() {
        for text in ["", "many", "-1", "12Q", "0x10", "99999999T"] {
            let error = size(text).expect_err(text);
            assert!(error.contains(&format!("{text:?}")), "{error}");
            assert!(error.contains("16M"), "{error}");
        }
    }
}
