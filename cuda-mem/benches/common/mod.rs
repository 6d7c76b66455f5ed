//! What the benchmarks share.

use anyhow::{Context as _, Result};
use cuda_mem::Driver;

/// The driver of this machine, or else the simulated one, and what to call it.
pub(crate) fn open() -> Result<(Driver, &'static str)> {
    match Driver::load() {
        Ok(driver) if cuda_sim::is_simulator(driver.library_path()) => Ok((driver, "simulated")),
        Ok(driver) => Ok((driver, "gpu")),
        Err(error) => {
            eprintln!(
                "no GPU driver ({error}); the simulated driver's figures say nothing about a GPU"
            );
            let path = cuda_sim::library_path().context("no simulated driver either")?;
            // SAFETY: the simulated driver behaves as a CUDA driver does.
            Ok((unsafe { Driver::load_from(path) }?, "simulated"))
        }
    }
}

/// The median.
pub(crate) fn middle(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The name of this machine's processor.
pub(crate) fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or_else(|| "unknown CPU".to_owned(), |(_, name)| name.to_owned())
}
