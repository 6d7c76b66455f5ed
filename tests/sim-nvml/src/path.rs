//! Where the built library lies.

use std::path::PathBuf;

use cuda_driver_sys::nvml::NVML_LIBRARY_VARIABLE;

use crate::find::built_library;

/// Names the library outright, for programs that cargo did not build beside it.
pub const LIBRARY_VARIABLE: &str = "NVML_SIM_LIBRARY";

const FILE: &str = "libnvidia_ml_sim.so";

/// The built library: `$NVML_SIM_LIBRARY`, or beside the running program, or in the target folder that
/// this crate was built in.
#[must_use]
pub fn library_path() -> Option<PathBuf> {
    built_library(LIBRARY_VARIABLE, FILE)
}

/// Lets programs that look for NVML find the simulated one, if this machine has none. For the examples
/// in documentation: they then run anywhere.
///
/// Does nothing if NVML opens, if `CUDA_DRIVER_SYS_NVML_LIBRARY` is set already, or if the built
/// library is not found.
pub fn use_if_no_nvml() {
    let is_set = std::env::var_os(NVML_LIBRARY_VARIABLE).is_some_and(|value| !value.is_empty());
    if is_set || has_nvml() {
        return;
    }
    if let Some(path) = library_path() {
        // SAFETY: examples call this first, before there are other threads that could read the
        // environment; the function's documentation says for whom it is.
        unsafe { std::env::set_var(NVML_LIBRARY_VARIABLE, path) };
    }
}

/// Whether the loader finds the real library.
fn has_nvml() -> bool {
    // SAFETY: this is NVML's own name, and loading it has no effect but its initialisers'.
    let handle = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY) };
    !handle.is_null()
}
