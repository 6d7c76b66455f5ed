//! Shares of the devices' memory, as PyTorch's set_per_process_memory_fraction sets them.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_mem::{Device, Error};

use super::memory::Memory;
use crate::status::invalid;

/// By device.
static FRACTIONS: Mutex<Vec<(c_int, f64)>> = Mutex::new(Vec::new());

fn fractions() -> MutexGuard<'static, Vec<(c_int, f64)>> {
    FRACTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was set for a device, in bytes; `u64::MAX` if nothing was.
pub(super) fn limit_of(number: c_int, device: &Device) -> Result<u64, Error> {
    let set = fractions()
        .iter()
        .find(|(of, _)| *of == number)
        .map(|found| found.1);
    set.map_or(Ok(u64::MAX), |fraction| share(device, fraction))
}

pub(super) fn share(device: &Device, fraction: f64) -> Result<u64, Error> {
    Ok((device.total_memory()? as f64 * fraction) as u64)
}

pub(super) fn set(fraction: f64, device: c_int) -> Result<(), Error> {
    if !(fraction > 0.0 && fraction <= 1.0) {
        return Err(invalid(format!(
            "a fraction of {fraction}; it is more than 0 and at most 1"
        )));
    }
    // A wrong number of a device is an error before anything is noted.
    Memory::if_used(device)?;
    {
        let mut known = fractions();
        known.retain(|(of, _)| *of != device);
        known.push((device, fraction));
    }
    match Memory::if_used(device)? {
        None => Ok(()),
        Some(memory) => memory.limit_to(fraction),
    }
}
