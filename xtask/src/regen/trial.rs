//! `--try`: does cuda-driver-sys hold up with bindings made from another header?
//!
//! Only that crate: cuda-mem is written against the newest header, whatever driver it meets.

use std::path::Path;

use anyhow::{Context, Result};

use super::Generated;
use crate::workspace;

/// Copies the crate to `scratch`, puts the files in, and runs its tests there.
pub(crate) fn build(files: &[Generated], scratch: &Path) -> Result<()> {
    const CRATE: &str = "cuda-driver-sys";
    let root = workspace::root();
    let trial = scratch.join("trial");
    copy(&root.join(CRATE), &trial.join(CRATE))?;
    std::fs::copy(root.join("Cargo.lock"), trial.join("Cargo.lock"))?;
    workspace::write(&trial.join("Cargo.toml"), &manifest(&root, CRATE)?)?;
    for file in files {
        workspace::write(&trial.join(CRATE).join("src").join(file.name), &file.text)?;
    }
    let mut cargo = workspace::cargo();
    cargo
        .current_dir(&trial)
        .args(["test", "--quiet", "--package", CRATE, "--target-dir"])
        // Shared by all trials, so that dependencies are not built again.
        .arg(root.join("target/regen-trial"));
    workspace::run(&mut cargo).context("cuda-driver-sys fails with these bindings")?;
    println!("try: cuda-driver-sys compiles and its tests pass with these bindings");
    Ok(())
}

/// The workspace's manifest with only this crate as a member.
fn manifest(root: &Path, member: &str) -> Result<String> {
    let mut manifest: toml::Table = toml::from_str(&workspace::read(&root.join("Cargo.toml"))?)?;
    let workspace = manifest
        .get_mut("workspace")
        .and_then(toml::Value::as_table_mut)
        .context("Cargo.toml has no [workspace]")?;
    workspace.insert("members".to_owned(), vec![member.to_owned()].into());
    Ok(toml::to_string(&manifest)?)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
