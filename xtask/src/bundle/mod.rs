//! `cargo xtask bundle`: tests, examples and benchmarks in a folder that runs without Rust.

pub(crate) mod artifacts;
mod rivals;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace;
use artifacts::Artifact;

/// Arguments of `bundle`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The folder to write; an earlier bundle in it is replaced.
    #[arg(long, value_name = "DIR", default_value = "bundle")]
    out: PathBuf,

    /// Also take the tests that run on the simulated driver wherever they are, and so say nothing about
    /// the machine that the bundle is carried to.
    #[arg(long)]
    simulated: bool,

    /// Also take what compares the crates with other allocators. Fetches RMM, with pip.
    #[arg(long)]
    rivals: bool,
}

const MIB: u64 = 1 << 20;

/// A bundle has to be easy to carry to another machine.
const LIMIT: u64 = 60 * MIB;

const RUN: &str = include_str!("run.sh");

/// Measurements and traces that tests and examples read.
const DATA: &str = "tests/data";

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut artifacts = artifacts::build()?;
    artifacts.retain(|artifact| args.simulated || !artifact.is_of_the_simulator());
    artifacts.retain(|artifact| args.rivals || !rivals::is_part(artifact));
    if args.rivals {
        artifacts.push(rivals::cudarc()?);
    }
    clear(&args.out)?;
    let bin = args.out.join("bin");
    for artifact in &artifacts {
        add(artifact, &bin)?;
    }
    let data = workspace::root().join(DATA);
    if data.is_dir() {
        copy_folder(&data, &args.out.join("data"))?;
    }
    let script = args.out.join("run.sh");
    workspace::write(&script, RUN)?;
    make_executable(&script)?;
    if args.rivals {
        rivals::add(&args.out)?;
    }

    let size = size_of(&args.out)?;
    println!(
        "bundle: {} files in {}, {}",
        artifacts.len(),
        args.out.display(),
        mebibytes(size)
    );
    if size > LIMIT {
        bail!(
            "the bundle has {} and may have {}; `du -a {}` shows what grew",
            mebibytes(size),
            mebibytes(LIMIT),
            args.out.display()
        );
    }
    Ok(())
}

fn mebibytes(bytes: u64) -> String {
    let tenths = bytes * 10 / MIB;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

/// Removes an earlier bundle, and nothing else: a wrong `--out` must not cost anyone a folder.
fn clear(out: &Path) -> Result<()> {
    if is_bundle(out)? {
        let folders = ["bin", "data", rivals::FOLDER].map(|folder| out.join(folder));
        let mut removed: Vec<_> = folders.iter().map(fs::remove_dir_all).collect();
        removed.push(fs::remove_file(out.join(rivals::SCRIPT)));
        for result in removed {
            match result {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error)
                        .with_context(|| format!("could not empty {}", out.display()));
                }
                _ => {}
            }
        }
    } else if out.is_dir() && fs::read_dir(out)?.next().is_some() {
        bail!(
            "{} is not empty and no bundle; choose another folder with --out",
            out.display()
        );
    }
    let bin = out.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("could not make {}", bin.display()))
}

/// Whether the folder has a script that begins as that of a bundle, of this version or another.
fn is_bundle(out: &Path) -> Result<bool> {
    let script = out.join("run.sh");
    if !script.is_file() {
        return Ok(false);
    }
    let text = fs::read(&script).with_context(|| format!("could not read {}", script.display()))?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().take(2).eq(RUN.lines().take(2)))
}

/// Copies an artifact under its plain name, and packs it; `run.sh` unpacks it. Of what debuggers want only the names of
/// functions stay: a test that hangs or faults says where.
fn add(artifact: &Artifact, bin: &Path) -> Result<()> {
    let target = bin.join(&artifact.name);
    let mut strip = Command::new("strip");
    strip
        .args(["--strip-debug", "-o"])
        .arg(&target)
        .arg(&artifact.file);
    workspace::run(&mut strip).context(
        "strip is part of binutils; install it (Debian and Ubuntu: apt-get install binutils)",
    )?;
    // Without name and time: the same program packs to the same bytes.
    let mut gzip = Command::new("gzip");
    gzip.args(["-n", "-f"]).arg(&target);
    workspace::run(&mut gzip).context("gzip packs the programs; install it")
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("could not make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("could not read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)
                .with_context(|| format!("could not copy {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// What the files below `folder` hold together.
fn size_of(folder: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        size += if entry.file_type()?.is_dir() {
            size_of(&entry.path())?
        } else {
            entry.metadata()?.len()
        };
    }
    Ok(size)
}

#[cfg(unix)]
fn make_executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("could not make {} executable", file.display()))
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_earlier_bundle_is_cleared() -> Result<()> {
        let scratch = tempfile::tempdir()?;
        let out = scratch.path().join("bundle");
        clear(&out)?;
        fs::write(out.join("bin/stale"), "x")?;
        assert!(clear(&out).is_err());
        fs::write(out.join("report.json"), "{}")?;
        fs::write(out.join(rivals::SCRIPT), "")?;
        let stale = || out.join("bin/stale").exists();
        fs::write(out.join("run.sh"), "#!/bin/sh\nexec bin/server\n")?;
        assert!(clear(&out).is_err() && stale(), "another program's folder");
        fs::write(out.join("run.sh"), "")?;
        assert!(clear(&out).is_err() && stale());
        // The rest of the script may be of another version.
        let beginning: String = RUN.split_inclusive('\n').take(4).collect();
        fs::write(out.join("run.sh"), beginning + "exit\n")?;
        clear(&out)?;
        assert!(!out.join("bin/stale").exists());
        assert!(!out.join(rivals::SCRIPT).exists());
        assert!(out.join("report.json").exists());
        Ok(())
    }

    #[test]
    fn sizes_are_shown_in_mebibytes() -> Result<()> {
        let scratch = tempfile::tempdir()?;
        fs::create_dir(scratch.path().join("bin"))?;
        fs::write(scratch.path().join("bin/a"), vec![0; 3 << 19])?;
        assert_eq!(mebibytes(size_of(scratch.path())?), "1.5 MiB");
        Ok(())
    }
}
