//! Where the built library lies.

use std::path::{Path, PathBuf};

use cuda_driver_sys::CudaVersion;

use crate::control::Control;
use crate::find::built_library;
use crate::knobs::Knobs;

/// Names the library outright, for programs that cargo did not build beside it.
pub const LIBRARY_VARIABLE: &str = "CUDA_SIM_LIBRARY";

const FILE: &str = "libcuda_sim.so";

/// The built simulator: `$CUDA_SIM_LIBRARY`, or beside the running program, or in the target folder
/// that this crate was built in.
#[must_use]
pub fn library_path() -> Option<PathBuf> {
    built_library(LIBRARY_VARIABLE, FILE)
}

/// Whether the driver that was opened as `path` is this simulator: somebody may have named it as the
/// one to load.
#[must_use]
pub fn is_simulator(path: Option<&Path>) -> bool {
    path.is_some_and(|path| Control::open(path).is_ok())
}

/// Lets programs that look for a driver find the simulator, if this machine has no driver. For the
/// examples in documentation: they then run anywhere.
///
/// Does nothing if a driver opens, if `CUDA_DRIVER_SYS_LIBRARY` is set already, or if the built
/// simulator is not found. Otherwise it says so in one line on standard error.
pub fn use_if_no_driver() {
    let variable = cuda_driver_sys::LIBRARY_VARIABLE;
    if std::env::var_os(variable).is_some_and(|value| !value.is_empty()) || has_driver() {
        return;
    }
    if let Some(path) = library_path() {
        // SAFETY: examples call this first, before there are other threads that could read the
        // environment; the function's documentation says for whom it is.
        unsafe { std::env::set_var(variable, path) };
        // In one piece, whatever others write meanwhile. What was tried is `cuda_driver_sys::load`'s to say.
        let version = CudaVersion::from_raw(Knobs::version_to_come());
        let line = format!("no GPU driver found: using the simulated driver (CUDA {version})\n");
        eprint!("{line}");
    }
}

/// Whether the loader finds a real driver.
fn has_driver() -> bool {
    // SAFETY: this is the driver's own name, and loading it has no effect but its initialisers'.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY) };
    !handle.is_null()
}
