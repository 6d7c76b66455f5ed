//! `cargo xtask c-header`: the header of the C interface, from its Rust source.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cbindgen::{Builder, Config};

use crate::workspace;

/// The package, and its header.
const PACKAGE: &str = "cuda-mem/capi";
const HEADER: &str = "cuda-mem/capi/include/cudamem.h";

/// Write the header of the C interface.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only say whether the header is up to date.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root();
    let path = root.join(HEADER);
    let now = header(&root.join(PACKAGE))?;
    if !args.check {
        workspace::write(&path, &now)?;
        println!("{HEADER} is written");
        return Ok(());
    }
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    ensure!(
        before == now,
        "{HEADER} is not what the source says; run `cargo xtask c-header`"
    );
    println!("{HEADER} is up to date");
    Ok(())
}

fn header(package: &Path) -> Result<String> {
    let config = package.join("cbindgen.toml");
    let config = Config::from_file(&config).map_err(|error| anyhow::anyhow!("{error}"))?;
    let bindings = Builder::new()
        .with_crate(package)
        .with_config(config)
        .generate();
    let bindings = bindings.context("the source of the C interface")?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    let text = String::from_utf8(text)?;
    Ok(in_c_style(&text))
}

/// What rustdoc and Rust's style want, as C programmers write it: no marks around names, comments of one line on one
/// line, and what the caller guarantees without a heading.
fn in_c_style(text: &str) -> String {
    let text = text
        .replace('`', "")
        .replace(" # Safety\n\n ", " The caller guarantees: ");
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let mut all = String::new();
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        let indent = &line[..line.len() - line.trim_start().len()];
        match lines.get(at..at + 3) {
            Some([open, inner, close]) if open.trim() == "/*" && close.trim() == "*/" => {
                all.push_str(&format!("{indent}/* {} */\n", inner.trim()));
                at += 3;
            }
            _ => {
                all.push_str(line);
                all.push('\n');
                at += 1;
            }
        }
    }
    all
}
