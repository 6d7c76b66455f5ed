//! `cuda-driver-sys/errors.toml`: what each result code means, in our own words.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use crate::workspace;

/// Name of a `CUresult` value → one line about it.
pub(crate) type Words = BTreeMap<String, String>;

pub(crate) fn load(path: &Path) -> Result<Words> {
    toml::from_str(&workspace::read(path)?).with_context(|| path.display().to_string())
}
