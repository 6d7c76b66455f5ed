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
                // Somebody may have named the simulated driver as the one to load.
                simulated: is_simulated(driver),
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

fn is_simulated(driver: Driver) -> bool {
    driver
        .library_path()
        .is_some_and(|path| cuda_sim::control::Control::open(path).is_ok())
}
