//! `cargo xtask regen-bindings`: from `cuda.h` to the generated files of `cuda-driver-sys`.
//!
//! The header is NVIDIA's and is never committed; nothing of its comments reaches the output.
//! What is written depends on the header alone, not on where it was found, so that `--check`
//! can compare to the letter.

mod changes;
mod errors;
mod header;
mod parse;
mod render;
mod text;
mod trial;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::workspace;

/// Arguments of `regen-bindings`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Take this cuda.h (cudaTypedefs.h must lie beside it).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["cuda_home", "wheel"])]
    header: Option<PathBuf>,
    /// Take include/cuda.h of this toolkit folder.
    #[arg(long, value_name = "DIR", conflicts_with = "wheel")]
    cuda_home: Option<PathBuf>,
    /// Take the header from the PyPI package of this version, for example 13.5.37.
    #[arg(long, value_name = "VERSION")]
    wheel: Option<String>,
    /// Compare with the committed files instead of writing them.
    #[arg(long, conflicts_with = "try_build")]
    check: bool,
    /// Build and test cuda-driver-sys with the result in a scratch folder; write nothing here.
    #[arg(long = "try")]
    try_build: bool,
}

/// `cuda-driver-sys/bindings.toml`.
#[derive(Debug, Deserialize)]
struct Config {
    wheel: String,
    bitfields: Vec<String>,
}

/// The generated files, below `cuda-driver-sys/src`.
pub(crate) const FILES: [&str; 4] = ["types.rs", "table.rs", "names.rs", "versions.rs"];

/// One generated file: its name below `cuda-driver-sys/src` and its text.
pub(crate) struct Generated {
    pub(crate) name: &'static str,
    pub(crate) text: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let sys = workspace::root().join("cuda-driver-sys");
    let config: Config = toml::from_str(&workspace::read(&sys.join("bindings.toml"))?)
        .context("cuda-driver-sys/bindings.toml")?;
    let scratch = tempfile::tempdir().context("could not make a scratch folder")?;
    let header = find_header(args, &config, scratch.path())?;
    println!(
        "header: CUDA {} ({}), {}",
        header.version,
        header.origin,
        header.path.display()
    );

    let api = parse::parse(&header, &config.bitfields)?;
    print_counts(&api);
    let words = errors::load(&sys.join("errors.toml"))?;
    let files = render::render(&header, &api, &words)?;

    let source = sys.join("src");
    changes::print(&source, &files)?;
    if args.try_build {
        return trial::build(&files, scratch.path());
    }
    if args.check {
        return check(&source, &files, &header);
    }
    for file in &files {
        workspace::write(&source.join(file.name), &file.text)?;
    }
    println!("wrote {} files to {}", files.len(), source.display());
    Ok(())
}

/// `--header`, `--cuda-home`, `--wheel`, then the environment, then the recorded wheel.
/// A check is about the recorded header, so it does not look at the environment.
fn find_header(args: &Args, config: &Config, scratch: &Path) -> Result<header::Header> {
    if let Some(file) = &args.header {
        return header::from_file(file, "--header");
    }
    if let Some(home) = &args.cuda_home {
        return header::from_file(&home.join("include/cuda.h"), "--cuda-home");
    }
    if let Some(version) = &args.wheel {
        return header::from_wheel(version, scratch);
    }
    if !args.check {
        for variable in ["CUDA_HOME", "CUDA_PATH"] {
            if let Some(home) = std::env::var_os(variable) {
                return header::from_file(&Path::new(&home).join("include/cuda.h"), variable);
            }
        }
    }
    header::from_wheel(&config.wheel, scratch)
}

fn print_counts(api: &parse::Api) {
    let public = api.functions.iter().filter(|f| f.public).count();
    println!(
        "functions: {} symbols = {public} public + {} older ABI variants and per-thread-stream twins",
        api.functions.len(),
        api.functions.len() - public,
    );
    println!("types and constants: {} items", api.items.len());
    if api.left_out.is_empty() {
        println!("left out: nothing");
    }
    for (name, reason) in &api.left_out {
        println!("left out: {name} ({reason})");
    }
}

fn check(source: &Path, files: &[Generated], header: &header::Header) -> Result<()> {
    let mut stale = Vec::new();
    for file in files {
        let path = source.join(file.name);
        if std::fs::read_to_string(&path).ok().as_deref() != Some(file.text.as_str()) {
            stale.push(file.name);
        }
    }
    if stale.is_empty() {
        println!("check: {} files are up to date", files.len());
        return Ok(());
    }
    bail!(
        "{} differ from what cuda.h of CUDA {} gives; run `{}` and commit the result",
        stale.join(", "),
        header.version,
        header.command,
    );
}
