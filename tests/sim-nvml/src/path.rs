//! Path of the built library.

use std::io;
use std::path::{Path, PathBuf};

use cuda_driver_sys::nvml::NVML_LIBRARY_VARIABLE;
use cuda_sim_support::find::{built_library, library_beside};
use cuda_sim_support::library::Library;
use cuda_sim_support::library_file;

/// Sets the library path explicitly, for programs that cargo did not build beside it.
pub const LIBRARY_VARIABLE: &str = "NVML_SIM_LIBRARY";

const FILE: &str = library_file!("nvidia_ml_sim");

/// The built library: `$NVML_SIM_LIBRARY`, or beside the running program, or in the target folder where this crate was
/// built.
#[must_use]
pub fn library_path() -> Option<PathBuf> {
    built_library(LIBRARY_VARIABLE, FILE)
}

/// A copy of the library for a machine in this process, named by its driver: `cuda_sim::Simulator::path`. It describes the
/// same devices, and counts memory of no other driver.
///
/// ```
/// let simulator = cuda_sim::Machine::new().devices(2).start()?;
/// let path = nvidia_ml_sim::library_for(simulator.path())?;
/// // SAFETY: the file is the simulated NVML.
/// let library = unsafe { cuda_driver_sys::nvml::load_from(path) }?;
/// let (init, count) = (library.table().nvmlInit_v2, library.table().nvmlDeviceGetCount_v2);
///
/// let mut devices = 0;
/// // SAFETY: both have the signatures of NVML, and `devices` outlives the call.
/// unsafe {
///     init.expect("exported")();
///     count.expect("exported")(&raw mut devices);
/// }
/// assert_eq!(devices, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If the library was not built, or the machine's folder is gone.
pub fn library_for(driver: &Path) -> io::Result<PathBuf> {
    library_beside(driver, LIBRARY_VARIABLE, FILE)
}

/// Points programs that look for NVML to the simulated one if this machine has none. For the examples in documentation,
/// which then run anywhere.
///
/// Does nothing if NVML can be opened, if `CUDA_DRIVER_SYS_NVML_LIBRARY` is already set, or if the built library is not
/// found. Otherwise prints one line to standard error.
pub fn use_if_no_nvml() {
    let is_set = std::env::var_os(NVML_LIBRARY_VARIABLE).is_some_and(|value| !value.is_empty());
    if is_set || has_nvml() {
        return;
    }
    if let Some(path) = library_path() {
        // SAFETY: examples call this first, before other threads exist that could read the environment; the
        // documentation restricts it to them.
        unsafe { std::env::set_var(NVML_LIBRARY_VARIABLE, path) };
        eprintln!("no NVML found: using the simulated one");
    }
}

/// Whether the loader finds the real library.
fn has_nvml() -> bool {
    const NAME: &str = if cfg!(windows) {
        "nvml.dll"
    } else {
        "libnvidia-ml.so.1"
    };
    // SAFETY: this is NVML's own name, and loading it only runs its initialisers.
    unsafe { Library::is_installed(NAME) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_library_says_in_one_line_that_it_is_used() {
        const CHILD: &str = "NVML_SIM_TEST_CHILD";
        let name = "path::tests::the_library_says_in_one_line_that_it_is_used";
        if std::env::var_os(CHILD).is_some() {
            use_if_no_nvml();
            // The variable is already set.
            use_if_no_nvml();
            let used = std::env::var_os(NVML_LIBRARY_VARIABLE).is_some();
            println!("used: {used}");
            return;
        }
        let program = std::env::current_exe().expect("this test");
        let output = Command::new(program)
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .env_remove(NVML_LIBRARY_VARIABLE)
            .output()
            .expect("it starts");
        let out = String::from_utf8_lossy(&output.stdout);
        let expected = if out.contains("used: true") {
            "no NVML found: using the simulated one\n"
        } else {
            ""
        };
        assert!(out.contains("used: "), "{out}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
    }
}
