//! Path of the built library.

use std::io;
use std::path::{Path, PathBuf};

use cuda_driver_sys::nccl::NCCL_LIBRARY_VARIABLE;
use cuda_sim_support::find::{built_library, library_beside};

/// Sets the library path explicitly, for programs that cargo did not build beside it.
pub const LIBRARY_VARIABLE: &str = "NCCL_SIM_LIBRARY";

const FILE: &str = "libnccl_sim.so";

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

/// Points programs that look for NCCL to the simulated one if this machine has none. For the examples in documentation,
/// which then run anywhere.
///
/// Does nothing if NCCL can be opened, if `CUDA_DRIVER_SYS_NCCL_LIBRARY` is already set, or if the built library is not
/// found. Otherwise prints one line to standard error.
pub fn use_if_no_nccl() {
    let is_set = std::env::var_os(NCCL_LIBRARY_VARIABLE).is_some_and(|value| !value.is_empty());
    if is_set || has_nccl() {
        return;
    }
    if let Some(path) = library_path() {
        // SAFETY: examples call this first, before other threads exist that could read the environment; the
        // documentation restricts it to them.
        unsafe { std::env::set_var(NCCL_LIBRARY_VARIABLE, path) };
        eprintln!("no NCCL found: using the simulated one");
    }
}

/// Whether the loader finds the real library.
fn has_nccl() -> bool {
    // SAFETY: this is NCCL's own name, and loading it only runs its initialisers.
    let handle = unsafe { libc::dlopen(c"libnccl.so.2".as_ptr(), libc::RTLD_LAZY) };
    !handle.is_null()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_library_says_in_one_line_that_it_is_used() {
        const CHILD: &str = "NCCL_SIM_TEST_CHILD";
        let name = "path::tests::the_library_says_in_one_line_that_it_is_used";
        if std::env::var_os(CHILD).is_some() {
            use_if_no_nccl();
            // The variable is already set.
            use_if_no_nccl();
            let used = std::env::var_os(NCCL_LIBRARY_VARIABLE).is_some();
            println!("used: {used}");
            return;
        }
        let program = std::env::current_exe().expect("this test");
        let output = Command::new(program)
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .env_remove(NCCL_LIBRARY_VARIABLE)
            .output()
            .expect("it starts");
        let out = String::from_utf8_lossy(&output.stdout);
        let expected = if out.contains("used: true") {
            "no NCCL found: using the simulated one\n"
        } else {
            ""
        };
        assert!(out.contains("used: "), "{out}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
    }
}
