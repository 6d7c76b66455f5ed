//! Finding `cuda.h`: a file, a toolkit, or the PyPI package that carries it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::text::{self, Version};
use crate::workspace;

/// A header that was found, with what identifies it.
pub(crate) struct Header {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// `cudaTypedefs.h`, whose names carry the driver version of every ABI of every function.
    pub(crate) typedefs: String,
    /// As in `CUDA_VERSION`: 13050 is shown as 13.5.
    pub(crate) version: Version,
    pub(crate) sha256: String,
    pub(crate) origin: String,
    /// The command that would take this header again.
    pub(crate) command: String,
}

pub(crate) fn from_file(path: &Path, origin: &str) -> Result<Header> {
    let command = format!("cargo xtask regen-bindings --header {}", path.display());
    load(path, origin.to_owned(), command)
}

/// Downloads the wheel with pip, which knows how this machine reaches PyPI.
pub(crate) fn from_wheel(version: &str, scratch: &Path) -> Result<Header> {
    let package = package_of(version)?;
    let requirement = format!("{package}=={version}");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps"])
        .args(["--disable-pip-version-check", "--only-binary=:all:"])
        // The header is the same for every platform; naming one makes this work on any host.
        .args(["--platform", "manylinux2014_x86_64"])
        .args(["--platform", "manylinux_2_17_x86_64"])
        .args(["--platform", "manylinux1_x86_64"])
        .arg("--dest")
        .arg(scratch)
        .arg(&requirement);
    workspace::output(&mut pip).with_context(|| {
        format!("could not download {requirement}; this needs python3 with pip, or name a header with --header FILE")
    })?;
    let wheel = std::fs::read_dir(scratch)?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .context("pip reported success but left no wheel")?;
    let mut archive = zip::ZipArchive::new(std::fs::File::open(&wheel)?)
        .with_context(|| format!("{} is not a wheel", wheel.display()))?;
    for name in ["cuda.h", "cudaTypedefs.h"] {
        let entry = archive
            .file_names()
            .filter_map(Result::ok)
            .find(|file| file.ends_with(&format!("include/{name}")))
            .map(|file| file.into_owned())
            .with_context(|| format!("{requirement} has no {name}"))?;
        let mut out = std::fs::File::create(scratch.join(name))?;
        std::io::copy(&mut archive.by_name(&entry)?, &mut out)?;
    }
    load(
        &scratch.join("cuda.h"),
        requirement,
        format!("cargo xtask regen-bindings --wheel {version}"),
    )
}

/// NVIDIA renamed the package with each major release up to 12.
fn package_of(version: &str) -> Result<&'static str> {
    let major: u32 = version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok())
        .with_context(|| format!("--wheel takes a version such as 13.5.37, not {version:?}"))?;
    Ok(match major {
        ..=10 => bail!("no package carries a cuda.h older than 11.7"),
        11 => "nvidia-cuda-runtime-cu11",
        12 => "nvidia-cuda-runtime-cu12",
        _ => "nvidia-cuda-runtime",
    })
}

fn load(path: &Path, origin: String, command: String) -> Result<Header> {
    let text = workspace::read(path)?;
    let version = text::version(&text)
        .with_context(|| format!("{} defines no CUDA_VERSION: not a cuda.h", path.display()))?;
    let typedefs = workspace::read(&path.with_file_name("cudaTypedefs.h"))
        .context("the first CUDA version of every function comes from it")?;
    let sha256 = Sha256::digest(text.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(Header {
        path: path.to_path_buf(),
        text,
        typedefs,
        version,
        sha256,
        origin,
        command,
    })
}
