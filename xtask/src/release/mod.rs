//! `cargo xtask release --dry-run`: everything of a release but the upload.
//!
//! Each crate is packed as a registry gets it, and its archive is unpacked into a folder with nothing of the workspace.
//! There `cargo test` has to pass, with the other archives in the place of the registry; with `--untested`, `cargo check`.

mod plan;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;
use plan::{Counts, Metadata, Outcome, Package};

/// Arguments of `release`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Do everything but upload
    #[arg(long)]
    dry_run: bool,
    /// Check that each archive compiles, but leave out its tests
    #[arg(long)]
    untested: bool,
    /// Fail if anything is left to do before an upload, such as a section of the change log
    #[arg(long)]
    ready: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let metadata = metadata()?;
    let packages = metadata.in_order()?;
    let options: String = packages
        .iter()
        .map(|package| format!(" -p {}", package.name))
        .collect();
    if !args.dry_run {
        bail!(
            "this uploads nothing. Go through docs/src/releasing.md, run `cargo xtask release --dry-run \
             --ready`, and then `cargo publish{options}`"
        );
    }
    committed()?;
    // `release` there is the folder of that profile.
    let target = metadata.target_directory.join("archives");
    pack(&packages, &target)?;
    let scratch = tempfile::tempdir()?;
    unpack(&packages, &target.join("package"), scratch.path())?;
    let mut failed = Vec::new();
    for package in &packages {
        let archive = target
            .join("package")
            .join(format!("{}.crate", package.folder()));
        let bytes = std::fs::metadata(&archive)?.len();
        let (outcomes, green) = if args.untested {
            check(package, scratch.path(), &target)?
        } else {
            test(package, scratch.path(), &target)?
        };
        println!("{}", plan::line(package, bytes, &outcomes));
        if !green {
            failed.push(package.name.as_str());
        }
    }
    ensure!(
        failed.is_empty(),
        "these archives do not pass: {}",
        failed.join(", ")
    );
    let changelog = workspace::read(&workspace::root().join("CHANGELOG.md"))?;
    let left = plan::left_to_do(&packages, &changelog);
    for sentence in &left {
        println!("left to do before an upload: {sentence}");
    }
    ensure!(
        left.is_empty() || !args.ready,
        "not ready for an upload: {} left to do",
        left.len()
    );
    Ok(())
}

fn metadata() -> Result<Metadata> {
    let mut cargo = workspace::cargo();
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
    let text = workspace::output(&mut cargo)?;
    serde_json::from_str(&text).context("cargo's metadata has another form")
}

/// An archive says from which commit it is.
fn committed() -> Result<()> {
    let mut git = Command::new("git");
    git.current_dir(workspace::root())
        .args(["status", "--porcelain"]);
    let changes = workspace::output(&mut git)?;
    ensure!(
        changes.is_empty(),
        "commit these first: an archive names its commit\n{}",
        changes.trim_end()
    );
    Ok(())
}

/// All at once: cargo then finds those that others need, though no registry has them.
fn pack(packages: &[&Package], target: &Path) -> Result<()> {
    let mut cargo = workspace::cargo();
    // Building is left to the tests, which build more.
    cargo.args(["package", "--quiet", "--no-verify", "--target-dir"]);
    cargo.arg(target);
    for package in packages {
        cargo.args(["-p", &package.name]);
    }
    // It warns of each example and benchmark that is left out.
    let output = cargo.stdin(Stdio::null()).output()?;
    ensure!(
        output.status.success(),
        "{cargo:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Unpacks the archives beside each other, with a configuration by which cargo takes them in the place of the registry's.
fn unpack(packages: &[&Package], archives: &Path, into: &Path) -> Result<()> {
    let mut config = "[patch.crates-io]\n".to_owned();
    for package in packages {
        let folder = package.folder();
        let mut tar = Command::new("tar");
        tar.arg("xzf")
            .arg(archives.join(format!("{folder}.crate")))
            .arg("-C")
            .arg(into);
        workspace::run(&mut tar)?;
        let path = into.join(&folder);
        config += &format!("{} = {{ path = {:?} }}\n", package.name, path);
    }
    std::fs::create_dir(into.join(".cargo"))?;
    workspace::write(&into.join(".cargo/config.toml"), &config)
}

/// What a command did with an archive, with the features it had, and whether all of it succeeded.
type Outcomes = (Vec<(&'static str, Outcome)>, bool);

/// Whether an archive compiles, with all its features.
fn check(package: &Package, folder: &Path, target: &Path) -> Result<Outcomes> {
    let mut cargo = workspace::cargo();
    cargo
        .args(["check", "--quiet", "--all-features"])
        .current_dir(folder.join(package.folder()))
        .env("CARGO_TARGET_DIR", target);
    let green = cargo.stdin(Stdio::null()).status()?.success();
    let outcome = if green {
        Outcome::Compiles
    } else {
        Outcome::DoesNotCompile
    };
    Ok((vec![("", outcome)], green))
}

/// What the tests of an archive counted, with the features that a user gets without asking and with all.
fn test(package: &Package, folder: &Path, target: &Path) -> Result<Outcomes> {
    let mut runs = vec![("", None)];
    if !package.features.is_empty() {
        runs.push((" with all features", Some("--all-features")));
    }
    let (mut outcomes, mut green) = (Vec::new(), true);
    for (name, option) in runs {
        let mut cargo = workspace::cargo();
        cargo
            .args(["test", "--quiet", "--no-fail-fast"])
            .args(option)
            .current_dir(folder.join(package.folder()))
            .env("CARGO_TARGET_DIR", target);
        // The lines of an archive's code are of no use after the run.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
        let output = cargo.stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            green = false;
            eprint!("{text}{}", String::from_utf8_lossy(&output.stderr));
        }
        let outcome = Counts::of(&text)?.map_or(Outcome::DoesNotCompile, Outcome::Tested);
        outcomes.push((name, outcome));
    }
    Ok((outcomes, green))
}
