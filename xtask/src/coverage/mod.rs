//! `cargo xtask coverage`: which functions of the driver are wrapped and tested.

mod find;
mod measure;
mod page;
mod rule;

use anyhow::{Result, bail};

use crate::tidy::source::{Tree, parse_all};
use crate::workspace;

/// Arguments of `coverage`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compare with the committed page instead of writing it.
    #[arg(long)]
    check: bool,
}

const PAGE: &str = "docs/src/coverage.md";

pub(crate) fn run(args: &Args) -> Result<()> {
    let root = workspace::root();
    let versions = workspace::read(&root.join("cuda-driver-sys/src/versions.rs"))?;
    let (files, _) = parse_all(&Tree::read(&root)?.texts);
    let (page, wrong) = page::render(&page::Sources {
        functions: &find::functions(&versions)?,
        wrappers: &find::wrappers(&files),
        calls: &measure::run()?,
        reasons: rule::REASONS,
    });
    for line in &wrong {
        println!("{line}");
    }
    if !wrong.is_empty() {
        bail!("correct REASONS or LEFT_OUT in xtask/src/coverage/rule.rs, or write the wrapper");
    }
    let path = root.join(PAGE);
    if !args.check {
        workspace::write(&path, &page)?;
        println!("wrote {PAGE}");
        return Ok(());
    }
    if std::fs::read_to_string(&path).ok().as_deref() == Some(page.as_str()) {
        println!("check: {PAGE} is up to date");
        return Ok(());
    }
    bail!("{PAGE} is not what the sources and tests give; run `cargo xtask coverage` and commit it")
}
