//! The recorded training run.

use std::path::Path;

use anyhow::{Context as _, Result};
use cuda_mem_trace::Trace;

/// The log of the bundle that this program lies in, or else that of the repository.
pub(crate) fn read() -> Result<Trace> {
    let name = "gpt2-train-varlen.csv.gz";
    let program = std::env::current_exe()?;
    let bundled = program
        .parent()
        .map(|bin| bin.join("../data").join(name))
        .filter(|path| path.exists());
    // Both this crate and the one over cudarc lie below the root of the repository.
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("tests/data").join(name))
        .find(|path| path.exists());
    let path = bundled
        .or(source)
        .context("the recorded trace is missing")?;
    Ok(Trace::read(&path)?)
}
