//! `--try`: does cuda-driver-sys hold up with bindings made from another header?
//!
//! Only that crate: cuda-mem is written against the newest header, whatever driver it meets.

use std::path::Path;

use anyhow::{Context, Result};

use super::Generated;
use crate::workspace;

/// Copies the crate and those of this workspace that it needs to `scratch`, puts the files in, and
/// runs its tests there.
pub(crate) fn build(files: &[Generated], scratch: &Path) -> Result<()> {
    /// Its folder, and the key of its dependents.
    const CRATE: &str = "cuda-driver-sys";
    const PACKAGE: &str = "cuda-mem-driver-sys";
    let root = workspace::root();
    let trial = scratch.join("trial");
    let mut manifest: toml::Table = toml::from_str(&workspace::read(&root.join("Cargo.toml"))?)?;
    let members = members(&root, &manifest, CRATE)?;
    for member in &members {
        copy(&root.join(member), &trial.join(member))?;
    }
    manifest
        .get_mut("workspace")
        .and_then(toml::Value::as_table_mut)
        .context("Cargo.toml has no [workspace]")?
        .insert("members".to_owned(), members.into());
    workspace::write(&trial.join("Cargo.toml"), &toml::to_string(&manifest)?)?;
    std::fs::copy(root.join("Cargo.lock"), trial.join("Cargo.lock"))?;
    for file in files {
        workspace::write(&trial.join(CRATE).join("src").join(file.name), &file.text)?;
    }
    let mut cargo = workspace::cargo();
    cargo
        .current_dir(&trial)
        .args(["test", "--quiet", "--package", PACKAGE, "--target-dir"])
        // Shared by all trials, so that dependencies are not built again.
        .arg(root.join("target/regen-trial"));
    workspace::run(&mut cargo).context("cuda-driver-sys fails with these bindings")?;
    println!("try: cuda-driver-sys compiles and its tests pass with these bindings");
    Ok(())
}

/// The folders of `package` and of the workspace's crates that it depends on, tests included.
///
/// Those crates depend on none of the workspace themselves: cargo says so if that changes.
fn members(root: &Path, whole: &toml::Table, package: &str) -> Result<Vec<String>> {
    let known = section(whole, "workspace")
        .and_then(|workspace| section(workspace, "dependencies"))
        .context("Cargo.toml has no [workspace.dependencies]")?;
    let manifest: toml::Table =
        toml::from_str(&workspace::read(&root.join(package).join("Cargo.toml"))?)?;
    let needed = ["dependencies", "dev-dependencies"]
        .into_iter()
        .filter_map(|kind| section(&manifest, kind))
        .flat_map(toml::Table::keys)
        .filter_map(|name| known.get(name)?.get("path")?.as_str());
    Ok(std::iter::once(package)
        .chain(needed)
        .map(str::to_owned)
        .collect())
}

fn section<'t>(table: &'t toml::Table, name: &str) -> Option<&'t toml::Table> {
    table.get(name)?.as_table()
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
