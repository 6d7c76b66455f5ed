//! Which driver the program runs on.

use anyhow::{Context as _, Result};
use cuda_mem::{Driver, ErrorKind};

/// The driver, and whether it is simulated.
pub(crate) struct Backend {
    pub(crate) driver: Driver,
    pub(crate) simulated: bool,
    /// Why the real driver was not used.
    pub(crate) reason: Option<String>,
}

/// The real driver if there is one with a device, else the simulated one.
pub(crate) fn open() -> Result<Backend> {
    let error = match Driver::load() {
        Ok(driver) => {
            return Ok(Backend {
                simulated: cuda_sim::is_simulator(driver.library_path()),
                driver,
                reason: None,
            });
        }
        Err(error) => error,
    };
    let no_gpu = matches!(
        error.kind(),
        ErrorKind::DriverMissing | ErrorKind::InvalidDevice
    );
    if !no_gpu {
        return Err(error).context("there is a driver, but it does not start");
    }
    let path = cuda_sim::library_path()
        .context("there is no GPU, and libcuda_sim.so was not found beside the program")?;
    // SAFETY: this is the simulated driver of this workspace, which behaves as a CUDA driver does.
    let driver = unsafe { Driver::load_from(path) }?;
    Ok(Backend {
        driver,
        simulated: true,
        reason: Some(error.to_string()),
    })
}
