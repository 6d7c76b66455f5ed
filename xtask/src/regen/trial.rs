//! `--try`: does the workspace still compile with bindings made from another header?

use std::path::Path;

use anyhow::{Context, Result};

use super::Generated;
use crate::workspace;

/// Copies the two crates to `scratch`, puts the files in, and builds them there.
pub(crate) fn build(files: &[Generated], scratch: &Path) -> Result<()> {
    let root = workspace::root();
    let trial = scratch.join("trial");
    std::fs::create_dir_all(&trial)?;
    for name in ["cuda-driver-sys", "cuda-mem"] {
        copy(&root.join(name), &trial.join(name))?;
    }
    std::fs::copy(root.join("Cargo.lock"), trial.join("Cargo.lock"))?;
    workspace::write(&trial.join("Cargo.toml"), &manifest(&root)?)?;
    without_dev_dependencies(&trial.join("cuda-mem/Cargo.toml"))?;
    for file in files {
        workspace::write(
            &trial.join("cuda-driver-sys/src").join(file.name),
            &file.text,
        )?;
    }
    let mut cargo = workspace::cargo();
    cargo
        .current_dir(&trial)
        .args([
            "check",
            "--package",
            "cuda-mem",
            "--package",
            "cuda-driver-sys",
        ])
        // Shared with the workspace, so that dependencies are not built again.
        .arg("--target-dir")
        .arg(root.join("target/regen-trial"));
    workspace::run(&mut cargo).context("the workspace does not compile with these bindings")?;
    println!("try: cuda-driver-sys and cuda-mem compile with these bindings");
    Ok(())
}

/// The workspace's manifest with only the two crates as members.
fn manifest(root: &Path) -> Result<String> {
    let mut manifest: toml::Table = toml::from_str(&workspace::read(&root.join("Cargo.toml"))?)?;
    let workspace = manifest
        .get_mut("workspace")
        .and_then(toml::Value::as_table_mut)
        .context("Cargo.toml has no [workspace]")?;
    workspace.insert(
        "members".to_owned(),
        vec!["cuda-driver-sys".to_owned(), "cuda-mem".to_owned()].into(),
    );
    Ok(toml::to_string(&manifest)?)
}

/// Examples and tests are not built here, and what they need is not copied.
fn without_dev_dependencies(path: &Path) -> Result<()> {
    let mut manifest: toml::Table = toml::from_str(&workspace::read(path)?)?;
    manifest.remove("dev-dependencies");
    workspace::write(path, &toml::to_string(&manifest)?)
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
