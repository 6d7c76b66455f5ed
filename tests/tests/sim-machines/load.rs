//! Finding and opening the driver: each case in a process of its own, with its own environment.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use cuda_mem::sys;
use cuda_mem::{Driver, MemoryPool};
use cuda_mem_tests::environment::{Environment, sim_path};

/// In this process the driver is opened and the outcome printed, instead of the tests.
const CHILD: &str = "CUDA_MEM_TEST_LOAD_CHILD";

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
    std::env::var_os(CHILD)?;
    Some(child())
}
