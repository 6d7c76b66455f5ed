//! Which contract tests call which functions: the tests are run on the simulated driver, each in a
//! process of its own, and write down what they call.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::find::base;
use crate::bundle::artifacts;
use crate::workspace;

/// The file that the test program writes to; the test program knows the variable.
const VARIABLE: &str = "CUDA_MEM_TEST_CALLS";

/// The tests that count are a suite of that program.
const SUITE: &str = "CUDA_MEM_TEST_SUITE";

/// The simulated machine: two devices, so that what is about two is tested.
const DEVICES: &str = "2";
const VERSION: &str = "13000";

/// What is said of it in the page.
pub(super) const MACHINE: &str = "two devices and a driver of CUDA 13.0";

/// The functions that each test calls, by their names in cuda.h.
pub(super) type Calls = BTreeMap<String, BTreeSet<String>>;

pub(super) fn run() -> Result<Calls> {
    let scratch = tempfile::tempdir().context("could not make a scratch folder")?;
    let file = scratch.path().join("calls");
    let mut tests = Command::new(program()?);
    tests.current_dir(workspace::root().join("tests"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CUDA_SIM_") || name.starts_with("CUDA_MEM_TEST_") {
            tests.env_remove(name);
        }
    }
    tests
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("CUDA_MEM_TEST_BACKEND", "sim")
        .env("CUDA_SIM_DEVICES", DEVICES)
        .env("CUDA_SIM_DRIVER_VERSION", VERSION)
        .env(SUITE, "coverage")
        .env(VARIABLE, &file);
    workspace::output(&mut tests).context("the contract tests must pass to be counted")?;
    parse(&workspace::read(&file)?)
}

/// The contract tests as `cargo test --workspace` builds them: alone they would be built with other features of what
/// they depend on, and then again for the workspace.
fn program() -> Result<PathBuf> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--workspace", "--no-run"]);
    cargo.arg("--message-format=json-render-diagnostics");
    let mut built = artifacts::collect(&workspace::output(&mut cargo)?)?;
    let found = built.remove("test-contract");
    found.context("cargo built no contract tests")
}

/// `test: symbol symbol …` a line.
fn parse(text: &str) -> Result<Calls> {
    let mut calls = Calls::new();
    for line in text.lines() {
        let (test, symbols) = line
            .rsplit_once(": ")
            .with_context(|| format!("a line of an unknown form: {line}"))?;
        let functions = symbols.split_whitespace().map(|name| base(name).to_owned());
        calls.insert(test.to_owned(), functions.collect());
    }
    ensure!(!calls.is_empty(), "no test wrote down what it calls");
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_test_and_its_functions() -> Result<()> {
        let calls = parse("pool::a: cuMemAlloc_v2 cuMemAlloc cuInit\n")?;
        let functions: Vec<_> = calls["pool::a"].iter().map(String::as_str).collect();
        assert_eq!(functions, ["cuInit", "cuMemAlloc"]);
        assert!(parse("").is_err() && parse("nothing\n").is_err());
        Ok(())
    }
}
