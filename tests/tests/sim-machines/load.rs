//! Finding and opening the driver: each case in a process of its own, with its own environment.

use std::path::Path;
use std::process::{Command, Output};
#[cfg(target_os = "linux")]
use std::time::Duration;

#[cfg(target_os = "linux")]
use anyhow::{Context as _, anyhow};
use anyhow::{Result, ensure};
use cuda_mem::sys;
use cuda_mem::{Driver, MemoryPool};
#[cfg(target_os = "linux")]
use cuda_mem::{ErrorKind, placement::Nvml};
use cuda_mem_tests::environment::{Environment, sim_path};

/// In this process the driver is opened and the outcome printed, instead of the tests.
const CHILD: &str = "CUDA_MEM_TEST_LOAD_CHILD";

/// Its other values.
#[cfg(target_os = "linux")]
const FORK_BESIDE_DRIVER: &str = "fork-beside-driver";
#[cfg(target_os = "linux")]
const FORK_BESIDE_NVML: &str = "fork-beside-nvml";

/// Opens the driver of the machine and does a little work.
fn child() -> Result<()> {
    let library = sys::load()?;
    println!("opened {}", library.path().display());
    let again = sys::load()?;
    ensure!(
        std::ptr::eq(library, again),
        "a second call opened a second library"
    );
    let driver = Driver::load()?;
    let device = driver.device(0)?;
    println!("device {}", device.name()?);
    let stream = device.primary_context()?.stream()?;
    let pool = MemoryPool::builder(&device).build()?;
    ensure!(pool.alloc_from(&stream, &[1, 2, 3])?.to_vec()? == [1, 2, 3]);
    println!("worked");
    Ok(())
}

/// A fork while another thread opens a library, which is a pipe here, and one after that has failed.
#[cfg(target_os = "linux")]
fn fork_beside_an_opening<T>(
    variable: &str,
    open: fn() -> cuda_mem::Result<T>,
    missing: ErrorKind,
) -> Result<()> {
    let path = std::env::var_os(variable).context("no library is named")?;
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| open().map(drop).map_err(|error| error.kind()));
        // That thread reads from the pipe as long as it can be written to.
        let writer = writer_of(Path::new(&path))?;
        ends_in_a_fork(open, ErrorKind::Forked)?;
        drop(writer);
        let opened = opening.join().map_err(|_| anyhow!("it panicked"))?;
        ensure!(opened == Err(missing), "{opened:?}");
        ends_in_a_fork(open, missing)
    })
}

/// The end of a pipe, once it is read from.
#[cfg(target_os = "linux")]
fn writer_of(path: &Path) -> Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt as _;

    let mut options = std::fs::OpenOptions::new();
    options.write(true).custom_flags(libc::O_NONBLOCK);
    loop {
        match options.open(path) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return Ok(opened?),
        }
    }
}

/// What opening fails with in a fork, where it must not wait for a thread of the parent.
#[cfg(target_os = "linux")]
fn ends_in_a_fork<T>(open: fn() -> cuda_mem::Result<T>, expected: ErrorKind) -> Result<()> {
    // SAFETY: the child makes this one call, which takes no lock that the other thread may have, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a signal that ends the child.
        unsafe { libc::alarm(10) };
        let is_fine = open().is_err_and(|error| error.kind() == expected);
        // SAFETY: ends the child without the parent's handlers.
        unsafe { libc::_exit(i32::from(!is_fine)) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for a write, and the child is this process's.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ensure!(
        waited == child && status == 0,
        "the fork that was to fail with {expected:?} ended with {status:#x}"
    );
    Ok(())
}

/// A child that finds no driver but what the test gives it.
fn start(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env(CHILD, "1")
        .env_remove(sys::LIBRARY_VARIABLE)
        .env_remove("LD_LIBRARY_PATH");
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

// Links in folders, and a variable with more of them.
#[cfg(unix)]
#[apply(case)]
fn the_usual_name_is_found_first(_: &Environment) -> Result<()> {
    let dir = tempfile::tempdir()?;
    std::os::unix::fs::symlink(sim_path()?, dir.path().join("libcuda.so.1"))?;
    let output = start(&std::env::current_exe()?)
        .env("LD_LIBRARY_PATH", dir.path())
        .output()?;
    let text = text(&output);
    ensure!(output.status.success() && text.contains("worked"), "{text}");
    ensure!(text.contains("opened libcuda.so.1"), "{text}");
    ensure!(text.contains("Simulated"), "{text}");
    Ok(())
}

#[apply(case)]
fn the_variable_names_the_one_library_to_open(_: &Environment) -> Result<()> {
    let output = start(&std::env::current_exe()?)
        .env(sys::LIBRARY_VARIABLE, sim_path()?)
        .output()?;
    let found = text(&output);
    ensure!(
        output.status.success() && found.contains("cuda_sim"),
        "{found}"
    );
    let output = start(&std::env::current_exe()?)
        .env(sys::LIBRARY_VARIABLE, "/nowhere/libcuda.so")
        .output()?;
    let missing = text(&output);
    ensure!(!output.status.success(), "{missing}");
    ensure!(missing.contains("/nowhere/libcuda.so"), "{missing}");
    ensure!(
        !missing.contains("libcuda.so.1"),
        "nothing else is tried: {missing}"
    );
    Ok(())
}

#[apply(case)]
fn the_stub_is_named(_: &Environment) -> Result<()> {
    let output = start(&std::env::current_exe()?)
        .env(sys::LIBRARY_VARIABLE, sim_path()?)
        .env("CUDA_SIM_STUB", "1")
        .output()?;
    let text = text(&output);
    ensure!(!output.status.success(), "{text}");
    ensure!(text.contains("stub"), "{text}");
    Ok(())
}

#[apply(case)]
fn a_driver_without_a_device_says_so(_: &Environment) -> Result<()> {
    let output = start(&std::env::current_exe()?)
        .env(sys::LIBRARY_VARIABLE, sim_path()?)
        .env("CUDA_SIM_INIT_ERROR", "100")
        .output()?;
    let text = text(&output);
    ensure!(!output.status.success(), "{text}");
    ensure!(text.contains("CUDA_ERROR_NO_DEVICE (100)"), "{text}");
    Ok(())
}

/// A fork has only the thread that forked, and no other finishes what was being opened.
#[cfg(target_os = "linux")]
#[apply(case)]
fn a_fork_does_not_wait_for_a_thread_that_opens_a_library(_: &Environment) -> Result<()> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt as _;

    let dir = tempfile::tempdir()?;
    let pipe = dir.path().join("library.so");
    let name = CString::new(pipe.as_os_str().as_bytes())?;
    // SAFETY: the name ends in a zero.
    ensure!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) } == 0);
    for (scenario, variable) in [
        (FORK_BESIDE_DRIVER, sys::LIBRARY_VARIABLE),
        (FORK_BESIDE_NVML, sys::nvml::NVML_LIBRARY_VARIABLE),
    ] {
        let output = start(&std::env::current_exe()?)
            .env(CHILD, scenario)
            .env(variable, &pipe)
            .output()?;
        ensure!(output.status.success(), "{scenario}: {}", text(&output));
    }
    Ok(())
}

/// A program with the rights of another user must not open what its caller names.
#[cfg(unix)]
#[apply(case)]
fn a_set_user_id_process_ignores_the_variable(_: &Environment) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;

    use anyhow::Context as _;
    use cuda_mem_tests::environment::Skip;

    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Skip("only root can make such a program".to_owned()).into());
    }
    // Beside this program, because /tmp is often mounted without set-user-id.
    let here = std::env::current_exe()?;
    let folder = here.parent().context("the program lies nowhere")?;
    let dir = tempfile::tempdir_in(folder)?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
    let program = dir.path().join("set-user-id");
    std::fs::copy(&here, &program)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755))?;
    let nobody = 65_534;
    let output = start(&program)
        .env(sys::LIBRARY_VARIABLE, "/nowhere/chosen-by-the-caller.so")
        .uid(nobody)
        .gid(nobody)
        .current_dir("/")
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            let reason = format!("user {nobody} cannot start programs here: {error}");
            return Err(Skip(reason).into());
        }
    };
    let text = text(&output);
    ensure!(
        !text.contains("chosen-by-the-caller"),
        "the variable was obeyed: {text}"
    );
    ensure!(
        text.contains("libcuda.so.1"),
        "the usual names are tried: {text}"
    );
    Ok(())
}

/// Plays the part that another process has for this one, if it has one.
pub(crate) fn as_child() -> Option<Result<()>> {
    let scenario = std::env::var_os(CHILD)?;
    #[cfg(target_os = "linux")]
    match scenario.to_str() {
        Some(FORK_BESIDE_DRIVER) => {
            let missing = ErrorKind::DriverMissing;
            return Some(fork_beside_an_opening(
                sys::LIBRARY_VARIABLE,
                Driver::load,
                missing,
            ));
        }
        Some(FORK_BESIDE_NVML) => {
            let (variable, missing) = (sys::nvml::NVML_LIBRARY_VARIABLE, ErrorKind::NvmlMissing);
            return Some(fork_beside_an_opening(variable, Nvml::load, missing));
        }
        _ => {}
    }
    let _ = scenario;
    Some(child())
}
