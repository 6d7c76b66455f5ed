//! The parsers for external text, usable without a driver: for fuzzing in `tests/fuzz` only.

use crate::configuration::Configuration;
use crate::module;
use crate::visible::{self, Gpu};

/// Number of kernels in an image, or the line where it is refused; 0 if it is not text.
///
/// # Errors
///
/// The line number.
pub fn kernels(image: &[u8]) -> Result<usize, usize> {
    module::kernels(image)
}

/// Part of the settings from the environment.
#[derive(Debug)]
pub struct Setup {
    /// Devices of the machine.
    pub devices: usize,
    /// All MIG instances.
    pub instances: usize,
    /// One line for each invalid value.
    pub complaints: Vec<String>,
}

/// Reads the settings through `look_up`.
pub fn configuration(look_up: impl Fn(&str) -> Option<String>) -> Setup {
    let (configuration, complaints) = Configuration::read(look_up);
    Setup {
        devices: configuration.devices,
        instances: configuration.mig.iter().map(|(_, count)| count).sum(),
        complaints,
    }
}

/// The devices that a process with this `CUDA_VISIBLE_DEVICES` sees: the index in the machine, and for a MIG instance
/// its index in the device. The machine is a list of UUIDs, each with those of its instances if MIG is on.
#[must_use]
pub fn visible<'a>(
    value: &str,
    machine: impl Iterator<Item = (&'a str, Option<&'a [&'a str]>)>,
) -> Vec<(usize, Option<usize>)> {
    let machine: Vec<Gpu> = machine
        .map(|(uuid, instances)| Gpu {
            uuid: uuid.to_owned(),
            instances: instances.map(|all| all.iter().map(|uuid| (*uuid).to_owned()).collect()),
        })
        .collect();
    let shown = visible::visible(Some(value), &machine);
    shown
        .iter()
        .map(|shown| (shown.gpu, shown.instance))
        .collect()
}
