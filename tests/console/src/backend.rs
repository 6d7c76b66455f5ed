//! The driver that an example runs on.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use cuda_mem::{Driver, Error, ErrorKind};

/// A driver that started.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// The driver.
    pub driver: Driver,
    /// Whether it is the simulated one.
    pub simulated: bool,
}

impl Backend {
    /// `gpu` or `simulated`, as in tables and in JSON.
    #[must_use]
    pub fn name(&self) -> &'static str {
        if self.simulated { "simulated" } else { "gpu" }
    }

    /// The file of the simulated driver, if this is it.
    #[must_use]
    pub fn simulator(&self) -> Option<&Path> {
        self.driver.library_path().filter(|_| self.simulated)
    }
}

/// Opens the driver of this machine. Where there is none, opens the simulated driver and prints a
/// line about that to standard error.
///
/// # Errors
///
/// There is a driver and it does not start, or `CUDA_VISIBLE_DEVICES` leaves no device; or the
/// simulated driver was not found.
pub fn open() -> Result<Backend> {
    match Driver::load() {
        Ok(driver) => Ok(Backend {
            simulated: cuda_sim::is_simulator(driver.library_path()),
            driver,
        }),
        Err(error) if is_no_gpu(&error) => simulated(),
        Err(error) => Err(error.into()),
    }
}

/// Whether this machine has no GPU, as opposed to one that is hidden or broken.
fn is_no_gpu(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::DriverMissing => std::env::var_os(cuda_mem::sys::LIBRARY_VARIABLE)
            .is_none_or(|library| library.is_empty()),
        ErrorKind::InvalidDevice => std::env::var_os("CUDA_VISIBLE_DEVICES").is_none(),
        _ => false,
    }
}

fn simulated() -> Result<Backend> {
    let path = cuda_sim::library_path()
        .context("there is no GPU, and libcuda_sim.so was not found beside the program")?;
    // SAFETY: this is the simulated driver of this workspace, which behaves as a CUDA driver does.
    let driver = unsafe { Driver::load_from(path) }?;
    // On standard error, where it stays beside figures that are piped elsewhere.
    let version = driver.version();
    // A notice that cannot be written is no reason to stop.
    let _ = writeln!(
        std::io::stderr(),
        "no GPU driver found: using the simulated driver (CUDA {version})"
    );
    Ok(Backend {
        driver,
        simulated: true,
    })
}
