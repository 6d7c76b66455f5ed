//! Programs in C that use the interface, built with the C compiler of the machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo puts the library that this test was built with: beside this program.
fn libraries() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent();
    Ok(folder.context("a folder of programs")?.to_owned())
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

#[test]
fn a_program_in_c_uses_all_of_it() -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let program = scratch.path().join("interface");
    let libraries = libraries()?;
    let mut compiler = Command::new("cc");
    compiler
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Wconversion",
            "-Werror",
            "-O1",
            "-I",
        ])
        .arg(package().join("include"))
        .arg(package().join("tests/c/interface.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&libraries)
        .args(["-lcudamem", "-lpthread", "-ldl"]);
    run(&mut compiler)?;
    let mut command = Command::new(&program);
    command.env("LD_LIBRARY_PATH", &libraries);
    if cuda_mem::Driver::load().is_err() {
        let driver = cuda_sim::library_path().context("the simulated driver")?;
        command.env("CUDA_DRIVER_SYS_LIBRARY", driver);
    }
    let shown = run(&mut command)?;
    ensure!(shown == "done\n", "{shown}");
    Ok(())
}
