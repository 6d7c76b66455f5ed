//! Tests of two processes: the test program starts itself again for the second one.

#[cfg(unix)]
mod channel;

#[cfg(unix)]
pub use channel::{Other, go, two_processes, wait};

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::case::{self, Test};
use crate::own_process::again_alone;

/// Set in the other process.
const OTHER: &str = "CUDA_MEM_TEST_OTHER";

/// The test whose other process this is.
pub(crate) fn other() -> Option<Test> {
    named(&std::env::var(OTHER).ok()?)
}

fn named(name: &str) -> Option<Test> {
    let mut all = case::all().into_iter();
    all.find(|test| test.short_name() == name)
}

/// Whether this is the other process of the test with this short name.
pub(crate) fn is_other(name: &str) -> bool {
    std::env::var(OTHER).is_ok_and(|other| other == name)
}

/// This program again, as the second process of a test.
pub(crate) fn command(name: &str) -> Result<Command> {
    named(name).with_context(|| format!("no test is called {name}"))?;
    let mut command = again_alone()?;
    command
        .env(OTHER, name)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command)
}
