//! Path of the built library.

use std::path::{Path, PathBuf};

use cuda_driver_sys::CudaVersion;
use cuda_sim_support::find::built_library;
use cuda_sim_support::library::Library;
use cuda_sim_support::library_file;

use crate::configuration::Configuration;
use crate::control::Control;

/// Sets the library path explicitly, for programs that cargo did not build beside it.
pub const LIBRARY_VARIABLE: &str = "CUDA_SIM_LIBRARY";

pub(crate) const FILE: &str = library_file!("cuda_sim");

/// The built simulator: `$CUDA_SIM_LIBRARY`, or beside the running program, or in the target folder where this crate
/// was built.
#[must_use]
pub fn library_path() -> Option<PathBuf> {
    built_library(LIBRARY_VARIABLE, FILE)
}

/// Whether the driver opened as `path` is this simulator: a user may have chosen it as the driver to load.
#[must_use]
pub fn is_simulator(path: Option<&Path>) -> bool {
    path.is_some_and(|path| Control::open(path).is_ok())
}

/// Points programs that look for a driver to the simulator if this machine has no driver. For the examples in
/// documentation, which then run anywhere.
///
/// Does nothing if a driver can be opened, if `CUDA_DRIVER_SYS_LIBRARY` is already set, or if the built simulator is
/// not found. Otherwise prints one line to standard error.
pub fn use_if_no_driver() {
    let variable = cuda_driver_sys::LIBRARY_VARIABLE;
    if std::env::var_os(variable).is_some_and(|value| !value.is_empty()) || has_driver() {
        return;
    }
    if let Some(path) = library_path() {
        // SAFETY: examples call this first, before other threads exist that could read the environment; the
        // documentation restricts it to them.
        unsafe { std::env::set_var(variable, path) };
        // One write, so that other output cannot split the line. `cuda_driver_sys::load` reports what was tried.
        let version = CudaVersion::from_raw(Configuration::version_to_come());
        let line = format!("no GPU driver found: using the simulated driver (CUDA {version})\n");
        eprint!("{line}");
    }
}

/// Whether the loader finds a real driver.
fn has_driver() -> bool {
    const NAME: &str = if cfg!(windows) {
        "nvcuda.dll"
    } else {
        "libcuda.so.1"
    };
    // SAFETY: this is the driver's own name, and loading it only runs its initialisers.
    unsafe { Library::is_installed(NAME) }
}
