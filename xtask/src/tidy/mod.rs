//! `cargo xtask tidy`: the rules of this repository that no compiler checks.
//!
//! Every check is a function from files to findings, with a test that shows it can fail. What
//! other tools see is left to them: clippy demands the SAFETY comments, and
//! `regen-bindings --check` finds hand edits in generated files.

mod aliases;
mod driver_calls;
mod figures;
mod folders;
mod forks;
mod gate;
mod generated;
mod layers;
mod links;
mod lock;
mod markdown;
mod rules;
mod size;
pub(crate) mod source;
mod words;

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};

use crate::workspace;
use source::Tree;

/// Arguments of `tidy`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// One broken rule: where, what is wrong, and what to do.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    what: String,
    remedy: String,
}

impl Finding {
    fn new(
        path: impl Into<String>,
        line: usize,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            line,
            what: what.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: {}; {}",
            self.path, self.line, self.what, self.remedy
        )
    }
}

pub(crate) fn run(_: &Args) -> Result<()> {
    let (files, findings) = check(&workspace::root())?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {files} files, nothing found");
            Ok(())
        }
        1 => bail!("tidy: 1 finding in {files} files"),
        many => bail!("tidy: {many} findings in {files} files"),
    }
}

/// All checks over the repository at `root`: how many files there are, and what was found.
fn check(root: &Path) -> Result<(usize, Vec<Finding>)> {
    let tree = Tree::read(root)?;
    let mut findings = folders::check(&tree.paths);
    for file in &tree.texts {
        findings.extend(generated::check(file));
        findings.extend(words::check(file));
        findings.extend(links::check(file, &tree.paths));
        findings.extend(lock::check(file));
        findings.extend(layers::check_page(file));
    }
    let (rust, unparsed) = source::parse_all(&tree.texts);
    findings.extend(unparsed);
    findings.extend(rules::check(&tree.texts, &rust));
    findings.extend(figures::check(&tree.texts));
    findings.extend(forks::check(&rust));
    for file in &rust {
        findings.extend(aliases::check(file));
        findings.extend(driver_calls::check(file));
        findings.extend(gate::check(file));
        findings.extend(layers::check(file));
        findings.extend(size::check(file));
    }
    findings.sort();
    Ok((tree.paths.len(), findings))
}
