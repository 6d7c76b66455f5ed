//! What the simulator reads of texts that others wrote, without a driver: for the fuzzing below
//! `tests/fuzz`. Nothing else is to use it.

use crate::knobs::Knobs;
use crate::module;
use crate::visible::{self, Gpu};

/// How many kernels the bytes of an image have, or the line at which it is refused; 0 if it is no text.
///
/// # Errors
///
/// The line.
pub fn kernels(image: &[u8]) -> Result<usize, usize> {
    module::kernels(image)
}

/// Parts of what the environment sets up.
#[derive(Debug)]
pub struct Setup {
    /// Devices of the machine.
    pub devices: usize,
    /// All MIG instances.
    pub instances: usize,
    /// A line for each value that makes no sense.
    pub complaints: Vec<String>,
}

/// Reads the variables that `look_up` knows.
pub fn knobs(look_up: impl Fn(&str) -> Option<String>) -> Setup {
    let (knobs, complaints) = Knobs::read(look_up);
    Setup {
        devices: knobs.devices,
        instances: knobs.mig.iter().map(|(_, count)| count).sum(),
        complaints,
    }
}

/// The devices that a process with this `CUDA_VISIBLE_DEVICES` sees: places in the machine, and of MIG
/// instances in their device. The machine is UUIDs, each with those of its instances if MIG is on.
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
