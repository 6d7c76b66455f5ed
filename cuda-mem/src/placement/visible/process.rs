//! What a driver read when it was initialised, and what has changed since.

use std::fmt;

use crate::base::error::Result;
use crate::driver::Driver;
use crate::driver::device::Uuid;

use super::identity::Identity;
use super::{Visibility, Visible};

impl Driver {
    /// Which devices the environment asked for when this driver was initialised.
    ///
    /// The driver reads `CUDA_VISIBLE_DEVICES` once, in `cuInit`. This crate records the value just before it calls
    /// `cuInit`. If other code in this process called it earlier, the driver may have read a different value: see
    /// [`was_initialised_before_us`](DriverVisibility::was_initialised_before_us) and
    /// [`check`](DriverVisibility::check).
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let visibility = cuda_mem::Driver::load()?.visibility();
    /// println!("{}", visibility.at_start());
    /// if let Some(changed) = visibility.changed() {
    ///     eprintln!("warning: {changed}");
    /// }
    /// assert!(visibility.check()?.is_none());
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"))]
    #[must_use]
    pub fn visibility(&self) -> DriverVisibility {
        let start = self.start_facts();
        DriverVisibility {
            driver: *self,
            at_start: Visibility {
                devices: start.devices.clone(),
                order: start.order.clone(),
            },
            was_initialised: start.was_initialised,
        }
    }
}

/// What a driver read, what the environment says now, and whether the devices fit. From
/// [`Driver::visibility`].
#[derive(Clone, Debug)]
pub struct DriverVisibility {
    driver: Driver,
    at_start: Visibility,
    was_initialised: Option<bool>,
}

impl DriverVisibility {
    /// The environment just before this crate initialised the driver.
    #[must_use]
    pub fn at_start(&self) -> &Visibility {
        &self.at_start
    }

    /// The environment now.
    #[must_use]
    pub fn now(&self) -> Visibility {
        Visibility::current()
    }

    /// A warning if the environment has changed since initialisation. The driver does not notice such a change.
    #[must_use]
    pub fn changed(&self) -> Option<VisibilityChanged> {
        let now = self.now();
        (now != self.at_start).then(|| VisibilityChanged {
            at_start: self.at_start.clone(),
            now,
        })
    }

    /// Whether other code in this process initialised the driver before this crate did, in which case the driver may
    /// not have read [`at_start`](Self::at_start). `None` if the driver did not say.
    ///
    /// Determined by a device count just before initialisation, which an uninitialised driver refuses.
    #[doc(alias = "cuDeviceGetCount")]
    #[must_use]
    pub fn was_initialised_before_us(&self) -> Option<bool> {
        self.was_initialised
    }

    /// Compares the number of devices with the maximum that the variable allows. Without the variable there is nothing
    /// to compare.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuDeviceGetCount")]
    pub fn check(&self) -> Result<Option<VisibilityMismatch>> {
        let found = self.driver.device_count()?;
        let most = self.at_start.at_most().filter(|most| found > *most);
        Ok(most.map(|most| VisibilityMismatch {
            at_start: self.at_start.clone(),
            expected: Expected::AtMost(most),
            found,
        }))
    }

    /// Compares the devices with those that the variable leaves visible on this machine: their number, and the UUID of
    /// each. A MIG instance with an unknown UUID is counted but not compared.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias("cuDeviceGetCount", "cuDeviceGetUuid"))]
    pub fn check_against(&self, machine: &[Identity]) -> Result<Option<VisibilityMismatch>> {
        let visible = self.at_start.on(machine);
        let devices = self.driver.devices()?;
        let mut is_same = devices.len() == visible.devices().len();
        for (device, expected) in devices.iter().zip(visible.devices()) {
            if let Some(uuid) = expected.uuid(machine) {
                is_same &= is_uuid(uuid, device.uuid()?);
            }
        }
        Ok((!is_same).then(|| VisibilityMismatch {
            at_start: self.at_start.clone(),
            expected: Expected::Exactly(visible),
            found: devices.len(),
        }))
    }
}

/// Whether a text names this device. The driver reports the 16 bytes, but not whether they belong to a GPU or an
/// instance.
fn is_uuid(text: &str, uuid: Uuid) -> bool {
    let own = uuid.to_string();
    let (Some((kind, digits)), Some((_, own))) = (text.split_once('-'), own.split_once('-')) else {
        return false;
    };
    // Case does not count (R158).
    let is_kind = ["MIG", "GPU"]
        .iter()
        .any(|known| kind.eq_ignore_ascii_case(known));
    is_kind && digits.eq_ignore_ascii_case(own)
}

/// A warning: the environment has changed after the driver had read it. From
/// [`DriverVisibility::changed`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VisibilityChanged {
    /// The environment when the driver was initialised.
    pub at_start: Visibility,
    /// The environment now.
    pub now: Visibility,
}

impl fmt::Display for VisibilityChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "when the driver was initialised, {}; now {}. The driver reads this once, so the devices of \
             this process stay as they are; set it before the process starts, or before the first use of \
             CUDA",
            self.at_start, self.now
        )
    }
}

/// The devices are not those that the variable leaves visible. From [`DriverVisibility::check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibilityMismatch {
    at_start: Visibility,
    expected: Expected,
    found: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    AtMost(usize),
    Exactly(Visible),
}

impl VisibilityMismatch {
    /// The number of devices that the driver reports.
    #[must_use]
    pub fn found(&self) -> usize {
        self.found
    }

    /// What the variable leaves visible on the machine, if one was compared.
    #[must_use]
    pub fn expected(&self) -> Option<&Visible> {
        match &self.expected {
            Expected::AtMost(_) => None,
            Expected::Exactly(visible) => Some(visible),
        }
    }
}

impl fmt::Display for VisibilityMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.expected {
            Expected::AtMost(most) => write!(
                f,
                "the driver shows {} devices, and {} leaves at most {most}",
                self.found, self.at_start
            )?,
            Expected::Exactly(visible) => write!(
                f,
                "the devices that the driver shows, {}, are others than expected: {visible}",
                self.found
            )?,
        }
        f.write_str(
            ". Something else may have initialised CUDA when the variable was another one; set it before \
             the process starts",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_without_regard_to_case() {
        let uuid = Uuid([0xab; 16]);
        let text = uuid.to_string();
        for named in [
            text.clone(),
            text.to_uppercase(),
            text.replace("GPU-", "mig-"),
        ] {
            assert!(is_uuid(&named, uuid), "{named}");
        }
        for other in ["", "GPU-", &text[4..], &text.replace('a', "c")] {
            assert!(!is_uuid(other, uuid), "{other}");
        }
    }
}
