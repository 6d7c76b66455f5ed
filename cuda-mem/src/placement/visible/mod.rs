//! `CUDA_VISIBLE_DEVICES`: which devices a process sees, what the driver read, and why.
//!
//! `number`, `parse`, `outcome` and `identity` use neither a driver nor the environment: they compute the effect of a
//! value on a list of devices. `process` compares that with a driver, `set` writes the variable.

mod identity;
mod number;
mod outcome;
mod parse;
mod process;
mod set;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fmt;

pub use identity::{Identity, MigIdentity, VisibleDevice};
pub use outcome::{EndReason, Ended, Repeated, Visible};
pub use process::{DriverVisibility, VisibilityChanged, VisibilityMismatch};
pub use set::Selector;

use crate::driver::load::start::{DEVICE_ORDER, VISIBLE_DEVICES};

/// The environment variables that determine a process's visible devices: `CUDA_VISIBLE_DEVICES`, and
/// `CUDA_DEVICE_ORDER`, which determines the device numbers.
///
/// ```
/// use cuda_mem::placement::{Identity, Visibility, VisibleDevice};
///
/// let machine: Vec<Identity> = (0..8)
///     .map(|n| Identity::new(format!("GPU-{n}0000000-0000-0000-0000-000000000000")))
///     .collect();
/// let visible = Visibility::parse(Some("3,9,1"), &machine);
/// assert_eq!(visible.devices(), [VisibleDevice::Gpu(3)]);
/// assert!(visible.to_string().starts_with(
///     "CUDA_VISIBLE_DEVICES=3,9,1: device 3 is visible. \
///      The list ends at item 2, \"9\": the machine has 8 devices."
/// ));
/// ```
#[doc(alias("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"))]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Visibility {
    devices: Option<OsString>,
    order: Option<OsString>,
}

impl Visibility {
    /// Reads the environment now. An initialised driver does not read it again: see
    /// [`Driver::visibility`](crate::Driver::visibility).
    ///
    /// ```
    /// println!("{}", cuda_mem::placement::Visibility::current());
    /// ```
    #[must_use]
    pub fn current() -> Self {
        Self {
            devices: std::env::var_os(VISIBLE_DEVICES),
            order: std::env::var_os(DEVICE_ORDER),
        }
    }

    /// How a driver interprets this value on this machine; `None` means that the variable is not set. Makes no driver
    /// call.
    ///
    /// `machine` lists all devices, in the order in which a process without the variable numbers them. That
    /// is the order of `CUDA_DEVICE_ORDER`; with `FASTEST_FIRST`, the default, it is not the order of NVML
    /// and `nvidia-smi`.
    #[must_use]
    pub fn parse(value: Option<&str>, machine: &[Identity]) -> Visible {
        parse::parse(value, machine)
    }

    /// The devices of a machine that a driver with this environment shows; as [`parse`](Self::parse).
    #[must_use]
    pub fn on(&self, machine: &[Identity]) -> Visible {
        Self::parse(self.text().as_deref(), machine)
    }

    /// The maximum number of devices that this leaves visible on any machine; `None` without the variable.
    #[must_use]
    pub fn at_most(&self) -> Option<usize> {
        parse::at_most(self.text().as_deref())
    }

    /// `CUDA_VISIBLE_DEVICES`, if it is set.
    #[must_use]
    pub fn devices(&self) -> Option<&OsStr> {
        self.devices.as_deref()
    }

    /// `CUDA_DEVICE_ORDER`, if it is set.
    #[must_use]
    pub fn order(&self) -> Option<&OsStr> {
        self.order.as_deref()
    }

    /// The value, with invalid UTF-8 replaced: neither the invalid bytes nor the replacement can be part of a number or
    /// name.
    fn text(&self) -> Option<std::borrow::Cow<'_, str>> {
        self.devices().map(OsStr::to_string_lossy)
    }
}

impl fmt::Display for Visibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        said(f, VISIBLE_DEVICES, self.devices())?;
        if self.order.is_some() {
            f.write_str(", ")?;
            said(f, DEVICE_ORDER, self.order())?;
        }
        Ok(())
    }
}

/// Writes `NAME=value`, or that the variable is not set.
fn said(f: &mut fmt::Formatter<'_>, name: &str, value: Option<&OsStr>) -> fmt::Result {
    match value {
        Some(value) if value.is_empty() => write!(f, "{name} is empty"),
        Some(value) => write!(f, "{name}={}", value.display()),
        None => write!(f, "{name} is not set"),
    }
}
