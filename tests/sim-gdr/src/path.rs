//! Path of the built library.

use std::path::PathBuf;

use crate::find::built_library;

/// Sets the library path explicitly, for programs that cargo did not build beside it.
pub const LIBRARY_VARIABLE: &str = "CUDA_SIM_GDR_LIBRARY";

/// The built library: `$CUDA_SIM_GDR_LIBRARY`, or beside the running program, or in the target folder where this crate
/// was built.
#[must_use]
pub fn library_path() -> Option<PathBuf> {
    built_library(LIBRARY_VARIABLE, "libgdrapi_sim.so")
}
