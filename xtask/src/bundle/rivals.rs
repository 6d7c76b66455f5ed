//! What the bundle needs to compare the crates with other allocators.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::artifacts::Artifact;
use super::make_executable;
use crate::workspace;

/// The folder in the bundle, and the script beside it.
pub(super) const FOLDER: &str = "rivals";
pub(super) const SCRIPT: &str = "run-rivals.sh";

/// Programs of the comparison begin with this; the report does not run them.
const PREFIX: &str = "rivals-";

const SOURCES: &str = "cuda-mem/benches/rivals";
const CUDARC: &str = "cuda-mem/benches/cudarc/Cargo.toml";

/// Whether it is of no use without the rest of the comparison.
pub(super) fn is_part(artifact: &Artifact) -> bool {
    artifact.name.starts_with(PREFIX)
}

/// Builds the program over cudarc, which is in a workspace of its own.
pub(super) fn cudarc() -> Result<Artifact> {
    let target = workspace::root().join("target/cudarc");
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--release", "--locked", "--manifest-path", CUDARC]);
    cargo.arg("--target-dir").arg(&target);
    workspace::run(&mut cargo)?;
    Ok(Artifact {
        name: format!("{PREFIX}cudarc"),
        file: target.join("release/cuda-mem-cudarc"),
    })
}

/// Adds the sources of the C++ programs, the scripts, the commit, and the packages of others.
pub(super) fn add(out: &Path) -> Result<()> {
    let (from, to) = (workspace::root().join(SOURCES), out.join(FOLDER));
    fs::create_dir_all(&to).with_context(|| format!("could not make {}", to.display()))?;
    for name in [
        "README.md",
        "workloads.hpp",
        "rmm.cpp",
        "torch.cpp",
        "merge.py",
    ] {
        fs::copy(from.join(name), to.join(name))
            .with_context(|| format!("could not copy {SOURCES}/{name}"))?;
    }
    let script = out.join(SCRIPT);
    fs::copy(from.join("run.sh"), &script)
        .with_context(|| format!("could not copy {SOURCES}/run.sh"))?;
    make_executable(&script)?;
    workspace::write(&to.join("commit"), &commit()?)?;
    let mut fetch = Command::new("sh");
    fetch.arg(from.join("fetch.sh")).arg(to.join("wheels"));
    workspace::run(&mut fetch)
        .context("RMM comes with pip; python3, pip and the network are needed")
}

/// What was built, and whether more was changed than is committed.
fn commit() -> Result<String> {
    let mut git = Command::new("git");
    git.current_dir(workspace::root());
    git.args([
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ]);
    workspace::output(&mut git)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_comparison_are_told_from_others() {
        let named = |name: &str| Artifact {
            name: name.to_owned(),
            file: "x".into(),
        };
        assert!(is_part(&named("rivals-cudarc")));
        assert!(!is_part(&named("bench-arena")) && !is_part(&named("test-rivals-draws")));
    }
}
