//! Shared parts of the benchmarks.

use anyhow::Result;
use cuda_mem::Driver;

/// The driver of this machine or else the simulated one, and its name.
pub(crate) fn open() -> Result<(Driver, &'static str)> {
    let backend = cuda_mem_console::open()?;
    Ok((backend.driver, backend.name()))
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
