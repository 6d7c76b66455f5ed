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

fn noted(known: &[(c_int, f64)], device: c_int) -> Option<f64> {
    let found = known.iter().find(|(of, _)| *of == device);
    found.map(|found| found.1)
}

/// What was set for a device.
pub(super) fn of(device: c_int) -> Option<f64> {
    noted(&fractions(), device)
}

/// Applies what was set while the memory was made, when there was nothing to apply it to.
pub(super) fn catch_up(memory: &Memory) -> Result<(), Error> {
    let known = fractions();
    match noted(&known, memory.number) {
        Some(fraction) if memory.fraction != Some(fraction) => memory.limit_to(fraction),
        _ => Ok(()),
    }
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
    // Kept until it is applied, so that the last one stays.
    let mut known = fractions();
    known.retain(|(of, _)| *of != device);
    known.push((device, fraction));
    match Memory::if_used(device)? {
        None => Ok(()),
        Some(memory) => memory.limit_to(fraction),
    }
}
