//! Path of the built library.

use std::io;
use std::path::{Path, PathBuf};

use cuda_driver_sys::nccl::NCCL_LIBRARY_VARIABLE;
use cuda_sim_support::find::{built_library, library_beside};
use cuda_sim_support::library::Library;
use cuda_sim_support::library_file;

/// Sets the library path explicitly, for programs that cargo did not build beside it.
pub const LIBRARY_VARIABLE: &str = "NCCL_SIM_LIBRARY";

const FILE: &str = library_file!("nccl_sim");

/// The built library: `$NCCL_SIM_LIBRARY`, or beside the running program, or in the target folder where this crate was
/// built.
#[must_use]
pub fn library_path() -> Option<PathBuf> {
    built_library(LIBRARY_VARIABLE, FILE)
}

/// A copy of the library for a machine in this process, named by its driver: `cuda_sim::Simulator::path`. It serves that
/// machine's devices and no others.
///
/// ```
/// let simulator = cuda_sim::Machine::new().devices(2).start()?;
/// let path = nccl_sim::library_for(simulator.path())?;
/// let control = nccl_sim::Control::open(&path)?;
/// // SAFETY: the file is the simulated NCCL.
/// let nccl = unsafe { cuda_driver_sys::nccl::load_from(&path) }?.table();
/// let mut version = 0;
/// let call = nccl.ncclGetVersion.expect("every NCCL has it");
/// // SAFETY: the place is valid for a write.
/// unsafe { call(&raw mut version) };
/// assert_eq!(version, 22809);
/// assert_eq!(control.calls("ncclGetVersion"), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If the library was not built, or the machine's folder is gone.
pub fn library_for(driver: &Path) -> io::Result<PathBuf> {
    library_beside(driver, LIBRARY_VARIABLE, FILE)
}

/// Points programs that look for NCCL to the simulated one if this machine has none, or if `CUDA_DRIVER_SYS_LIBRARY` names the
/// simulated driver, on which a real NCCL cannot work. For the examples in documentation, which then run anywhere: call it after
/// `cuda_sim::use_if_no_driver`.
///
/// Does nothing if `CUDA_DRIVER_SYS_NCCL_LIBRARY` is already set, if the built library is not found, or if NCCL can be opened
/// and the driver is not simulated. Otherwise prints one line to standard error.
pub fn use_if_no_nccl() {
    if chosen(NCCL_LIBRARY_VARIABLE).is_some() {
        return;
    }
    let driver = chosen(cuda_driver_sys::LIBRARY_VARIABLE);
    let why = match (driver.is_some_and(|path| is_simulated(&path)), has_nccl()) {
        (_, false) => "no NCCL found",
        (true, true) => "the driver is simulated, and so must NCCL be",
        (false, true) => return,
    };
    if let Some(path) = library_path() {
        // SAFETY: examples call this first, before other threads exist that could read the environment; the
        // documentation restricts it to them.
        unsafe { std::env::set_var(NCCL_LIBRARY_VARIABLE, path) };
        eprintln!("{why}: using the simulated one");
    }
}

/// The library that a variable names.
fn chosen(variable: &str) -> Option<PathBuf> {
    let value = std::env::var_os(variable).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// Whether the driver at `path` is the simulated one.
fn is_simulated(path: &Path) -> bool {
    // SAFETY: the user has chosen this file as the driver, and loading it only runs its initialisers.
    let library = unsafe { Library::open(path) };
    library.is_ok_and(|library| !library.address(c"simcuda_identify").is_null())
}

/// Whether the loader finds the real library.
fn has_nccl() -> bool {
    // SAFETY: this is NCCL's own name, and loading it only runs its initialisers.
    unsafe { Library::is_installed("libnccl.so.2") }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const CHILD: &str = "NCCL_SIM_TEST_CHILD";
    const NAME: &str = "path::tests::the_library_says_in_one_line_that_it_is_used";

    /// What a process prints to both outputs that calls the function in this environment.
    fn said(environment: &[(&str, &Path)]) -> (String, String) {
        let program = std::env::current_exe().expect("this test");
        let output = Command::new(program)
            .args(["--exact", NAME, "--nocapture"])
            .env_remove(NCCL_LIBRARY_VARIABLE)
            .env_remove(cuda_driver_sys::LIBRARY_VARIABLE)
            .env(CHILD, "1")
            .envs(environment.iter().copied())
            .output()
            .expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = (text(&output.stdout), text(&output.stderr));
        assert!(said.0.contains("used: "), "{said:?}");
        said
    }

    #[test]
    fn the_library_says_in_one_line_that_it_is_used() {
        if std::env::var_os(CHILD).is_some() {
            use_if_no_nccl();
            // The variable is already set.
            use_if_no_nccl();
            let used = std::env::var_os(NCCL_LIBRARY_VARIABLE).is_some();
            println!("used: {used}");
            return;
        }
        let (out, errors) = said(&[]);
        let expected = if out.contains("used: true") {
            "no NCCL found: using the simulated one\n"
        } else {
            ""
        };
        assert_eq!(errors, expected);
    }

    /// The loader finds a `libnccl.so.2`, which is the simulated one under that name.
    #[cfg(unix)]
    #[test]
    fn a_real_nccl_is_not_used_on_the_simulated_driver() {
        let folder = tempfile::tempdir().expect("a folder");
        let library = library_path().expect("it is built");
        std::os::unix::fs::symlink(library, folder.path().join("libnccl.so.2")).expect("a link");
        let found = ("LD_LIBRARY_PATH", folder.path());
        assert!(said(&[found]).0.contains("used: false"));
        let driver = cuda_sim::library_path().expect("it is built");
        let (out, errors) = said(&[found, (cuda_driver_sys::LIBRARY_VARIABLE, &driver)]);
        assert!(out.contains("used: true"), "{out}");
        assert!(errors.contains("driver is simulated"), "{errors}");
    }
}
