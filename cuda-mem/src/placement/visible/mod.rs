//! `CUDA_VISIBLE_DEVICES`: which devices a process sees, what the driver read, and why.
//!
//! `number`, `parse`, `outcome` and `identity` know neither a driver nor the environment: they say what
//! a value does to a list of devices. `process` holds that against a driver, `set` writes the variable.

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

/// What the environment says of the devices that a process is to see: `CUDA_VISIBLE_DEVICES`, and
/// `CUDA_DEVICE_ORDER`, which its numbers follow.
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
    /// What the environment says now. A driver that is initialised does not look at it again: see
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

    /// What a driver makes of this value, `None` being no variable, on this machine. Asks nobody.
    ///
    /// `machine` is all devices, in the order in which a process without the variable counts them. That
    /// is the order of `CUDA_DEVICE_ORDER`; with `FASTEST_FIRST`, the default, it is not the order of
    /// NVML and `nvidia-smi`.
    #[must_use]
    pub fn parse(value: Option<&str>, machine: &[Identity]) -> Visible {
        parse::parse(value, machine)
    }

    /// What a driver that reads this sees of a machine; as [`parse`](Self::parse).
    #[must_use]
    pub fn on(&self, machine: &[Identity]) -> Visible {
        Self::parse(self.text().as_deref(), machine)
    }

    /// How many devices this leaves at most, whatever the machine has; `None` without the variable.
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

    /// What is no UTF-8 is no part of a number or a name, and neither is what replaces it.
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

/// `NAME=value`, or that it is not set.
fn said(f: &mut fmt::Formatter<'_>, name: &str, value: Option<&OsStr>) -> fmt::Result {
    match value {
        Some(value) if value.is_empty() => write!(f, "{name} is empty"),
        Some(value) => write!(f, "{name}={}", value.display()),
        None => write!(f, "{name} is not set"),
    }
}
