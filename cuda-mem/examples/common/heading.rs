//! Where and how something was measured.

use std::fmt;

use anyhow::Result;
use cuda_mem::collective::Nccl;
use cuda_mem_console::Backend;
use serde_json::{Map, Value, json};

/// The lines above a table, and the first members of a JSON object.
pub(crate) struct Heading {
    backend: &'static str,
    device: String,
    driver: String,
    nccl: String,
    ranks: usize,
    method: String,
}

impl Heading {
    pub(crate) fn new(backend: &Backend, nccl: Nccl, ranks: usize, method: String) -> Result<Self> {
        Ok(Self {
            backend: backend.name(),
            device: backend.driver.device(0)?.name()?,
            driver: backend.driver.version().to_string(),
            nccl: nccl.version()?.to_string(),
            ranks,
            method,
        })
    }

    pub(crate) fn json(&self) -> Map<String, Value> {
        [
            ("ranks", json!(self.ranks)),
            ("backend", json!(self.backend)),
            ("device", json!(self.device)),
            ("driver", json!(self.driver)),
            ("nccl", json!(self.nccl)),
            ("method", json!(self.method)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
    }
}

impl fmt::Display for Heading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.ranks == 1 { "" } else { "s" };
        writeln!(
            f,
            "{} rank{plural}, {} {}, CUDA {}, NCCL {}",
            self.ranks, self.backend, self.device, self.driver, self.nccl
        )?;
        f.write_str(&self.method)
    }
}
