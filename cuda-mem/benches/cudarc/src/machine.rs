//! The machine of the measurement.

use std::fmt;
use std::sync::Arc;

use anyhow::{Result, ensure};
use cudarc::driver::{CudaContext, sys};
use serde_json::{Value, json};

pub(crate) struct Machine {
    cpu: String,
    gpu: String,
    /// The newest CUDA that the driver supports.
    cuda: String,
    /// Version of the driver's kernel module, if available.
    driver: String,
}

/// Checks for a driver first, because cudarc panics without one.
pub(crate) fn require_driver() -> Result<()> {
    // SAFETY: opening the driver's library runs its initialisers, which is what this program is for.
    let present = unsafe { sys::is_culib_present() };
    ensure!(
        present,
        "there is no CUDA driver: libcuda.so.1 cannot be opened"
    );
    Ok(())
}

impl Machine {
    pub(crate) fn of(context: &Arc<CudaContext>) -> Result<Self> {
        let mut version = 0;
        // SAFETY: the number is written before the call returns.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
        Ok(Self {
            cpu: cpu(),
            gpu: context.name()?,
            cuda: format!("{}.{}", version / 1000, version % 1000 / 10),
            driver: kernel_driver(),
        })
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "cpu": self.cpu, "gpu": self.gpu, "cuda": self.cuda, "driver": self.driver })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "machine: {}, {}, CUDA {}, driver {}",
            self.cpu, self.gpu, self.cuda, self.driver
        )
    }
}

fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or_else(|| "unknown CPU".to_owned(), |(_, name)| name.to_owned())
}

/// The first word that is a version: `… Kernel Module  580.65.06  Release Build …`.
fn kernel_driver() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let is_version = |word: &&str| {
        word.contains('.')
            && word
                .chars()
                .all(|digit| digit.is_ascii_digit() || digit == '.')
    };
    let words = text.lines().next().unwrap_or_default().split_whitespace();
    words
        .into_iter()
        .find(is_version)
        .unwrap_or("unknown")
        .to_owned()
}
