//! Path of the built library.

use std::io;
use std::path::{Path, PathBuf};

use cuda_sim_support::find::{built_library, library_beside};

/// Sets the library path explicitly, for programs that cargo did not build beside it.
pub const LIBRARY_VARIABLE: &str = "CUDA_SIM_GDR_LIBRARY";

const FILE: &str = "libgdrapi_sim.so";

/// The built library: `$CUDA_SIM_GDR_LIBRARY`, or beside the running program, or in the target folder where this crate
/// was built.
#[must_use]
pub fn library_path() -> Option<PathBuf> {
    built_library(LIBRARY_VARIABLE, FILE)
}

/// A copy of the library for a machine in this process, named by its driver: `cuda_sim::Simulator::path`. It has the
/// machine's settings, and maps memory of no other driver.
///
/// # Errors
///
/// If the library was not built, or the machine's folder is gone.
pub fn library_for(driver: &Path) -> io::Result<PathBuf> {
    library_beside(driver, LIBRARY_VARIABLE, FILE)
}
