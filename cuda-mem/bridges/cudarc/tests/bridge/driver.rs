// For the tests, and for the examples of the documentation, which include this file.

/// Starts the program again with the simulated driver where cudarc looks for the driver, if the loader finds none there:
/// it reads the variable when a program begins. `CUDA_MEM_TEST_BACKEND=sim` or `=gpu` decides it instead.
#[cfg(target_os = "linux")]
pub(crate) fn restart_if_no_driver() {
    use std::env;
    use std::os::unix::fs::symlink;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    const RESTARTED: &str = "CUDA_MEM_BRIDGE_RESTARTED";

    let wanted = env::var("CUDA_MEM_TEST_BACKEND").unwrap_or_default();
    if env::var_os(RESTARTED).is_some() || wanted == "gpu" {
        return;
    }
    // SAFETY: opening the driver's library runs its initialisers, which is what a program with cudarc does anyway.
    if wanted != "sim" && unsafe { cudarc::driver::sys::is_culib_present() } {
        return;
    }
    let restart = || -> std::io::Result<()> {
        let library = cuda_sim::library_path().ok_or(std::io::ErrorKind::NotFound)?;
        let folder = library.with_file_name("simulated-driver");
        std::fs::create_dir_all(&folder)?;
        for name in ["libcuda.so", "libcuda.so.1"] {
            // Renamed into place: other programs do the same now.
            let link = folder.join(format!("{name}.{}", std::process::id()));
            symlink(&library, &link)?;
            std::fs::rename(&link, folder.join(name))?;
        }
        let mut path = folder.into_os_string();
        if let Some(more) = env::var_os("LD_LIBRARY_PATH") {
            path.push(":");
            path.push(more);
        }
        let mut again = Command::new(env::current_exe()?);
        again.args(env::args_os().skip(1));
        again.env("LD_LIBRARY_PATH", path).env(RESTARTED, "1");
        if env::var_os("CUDA_SIM_DEVICES").is_none() {
            again.env("CUDA_SIM_DEVICES", "2");
        }
        Err(again.exec())
    };
    if let Err(error) = restart() {
        eprintln!("there is no CUDA driver, and no simulated one either: {error}");
    }
}

/// The simulated driver is for Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn restart_if_no_driver() {}
