//! A program in C that uses the interface, linked with either library, for the system that this test is built for.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// A folder with the programs, `shared.exe` and `static.exe`, where this test cannot start a compiler, as under Wine.
const PROGRAMS: &str = "CUDA_MEM_TEST_C_PROGRAMS";

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo puts the libraries that this test was built with: beside this program.
fn libraries() -> Result<PathBuf> {
    let program = env::current_exe()?;
    let folder = program.parent();
    Ok(folder.context("a folder of programs")?.to_owned())
}

/// The C compiler, by the variables that the crate `cc` has for it.
fn compiler() -> OsString {
    let chosen = env::var_os("TARGET_CC").or_else(|| env::var_os("CC"));
    let usual = if cfg!(windows) { "gcc" } else { "cc" };
    chosen.unwrap_or_else(|| usual.into())
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let shown = [&output.stdout[..], &output.stderr].concat();
    let shown = String::from_utf8_lossy(&shown).into_owned();
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{shown}",
        output.status
    );
    Ok(shown)
}

/// Builds the program with options that say where the library is.
fn compile(program: &Path, library: &[OsString]) -> Result<()> {
    let sources = package().join("tests/c");
    let options_of = |file: &str| {
        let mut option = OsString::from("@");
        option.push(sources.join(file));
        option
    };
    let mut command = Command::new(compiler());
    command.arg(options_of("options"));
    command.arg("-I").arg(package().join("include"));
    command.arg(sources.join("interface.c")).args(library);
    // What the static library needs of the system.
    command.arg(options_of(&format!("libraries-{}", env::consts::FAMILY)));
    run(command.arg("-o").arg(program)).map(drop)
}

fn builds_and_runs(name: &str, library: &[OsString]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = match env::var_os(PROGRAMS) {
        Some(programs) => Path::new(&programs).join(name),
        None => {
            let program = folder.path().join(name);
            compile(&program, library)?;
            program
        }
    };
    let searched = match cfg!(windows) {
        true => "PATH",
        false => "LD_LIBRARY_PATH",
    };
    let mut command = Command::new(&program);
    command.arg(folder.path()).env(searched, libraries()?);
    if cuda_mem::Driver::load().is_err() {
        let driver = cuda_sim::library_path().context("the simulated driver")?;
        command.env("CUDA_DRIVER_SYS_LIBRARY", driver);
    }
    let shown = run(&mut command)?;
    ensure!(shown.trim_end() == "done", "{shown}");
    Ok(())
}

#[test]
#[cfg_attr(target_env = "msvc", ignore = "the options are those of gcc")]
fn a_program_in_c_uses_all_of_it() -> Result<()> {
    let folder = libraries()?.into_os_string();
    builds_and_runs("shared.exe", &["-L".into(), folder, "-lcudamem".into()])
}

#[test]
#[cfg_attr(target_env = "msvc", ignore = "the options are those of gcc")]
fn the_static_library_has_all_of_it() -> Result<()> {
    let library = libraries()?.join("libcudamem.a");
    builds_and_runs("static.exe", &[library.into_os_string()])
}
