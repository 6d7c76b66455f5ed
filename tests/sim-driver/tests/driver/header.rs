//! The header for C: a program that uses it, and whether it has every function.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_sim::library_path;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The names that follow `before` in a text.
fn names<'a>(text: &'a str, before: &str) -> BTreeSet<&'a str> {
    let pieces = text.split(before).skip(1);
    let names = pieces.filter_map(|piece| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = piece.find(|c| !is_part(c))?;
        // A function, not a type.
        piece[end..].starts_with('(').then_some(&piece[..end])
    });
    names.filter(|name| !name.is_empty()).collect()
}

#[test]
fn the_header_has_every_function() {
    let read = |path: &str| std::fs::read_to_string(folder().join(path)).expect("a text");
    let files = ["src/simcuda.rs", "src/direct/files.rs", "src/direct/mod.rs"];
    let sources: String = files.map(read).concat();
    let header = read("include/simcuda.h");
    let exported = names(&sources, "extern \"C\" fn simcuda_");
    assert!(exported.len() > 20);
    assert_eq!(names(&header, "simcuda_"), exported);
}

/// Where third parties cannot map the simulated memory, the library has the same functions.
#[test]
fn every_system_has_every_function() {
    let [there, elsewhere] = ["files", "none"].map(|file| {
        let path = folder().join(format!("src/direct/{file}.rs"));
        std::fs::read_to_string(path).expect("a text")
    });
    let exported = "extern \"C\" fn simcuda_";
    assert_eq!(names(&elsewhere, exported), names(&there, exported));
}

/// Builds a program of C, linked with the simulator.
fn build(source: &Path, program: &Path) {
    let output = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-I",
        ])
        .arg(folder().join("include"))
        .arg(source)
        .arg("-o")
        .arg(program)
        .arg(library_path().expect("cargo has built the simulator"))
        .output()
        .expect("cc is there: Rust links with it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

#[test]
fn a_program_of_c_has_its_own_kernel() {
    let program = std::env::temp_dir().join(format!("cuda-sim-c-{}", std::process::id()));
    build(&folder().join("tests/c/vector_add.c"), &program);
    let output = Command::new(&program).output();
    std::fs::remove_file(&program).expect("built");
    let output = output.expect("started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(output.stdout, b"done\n");
    assert!(errors.contains("simcuda_kernel"), "{errors}");
}
