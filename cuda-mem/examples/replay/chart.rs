//! Reserved bytes over the operations: as data, and as a picture.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cuda_mem::Device;
use cuda_mem_chart::Level;
use cuda_mem_chart::reserved::{Curve, Curves, thinned};

use crate::adaptors::Adaptor;
use crate::backend::Backend;
use crate::plan::Plan;

/// The options.
#[derive(Debug, clap::Args)]
pub(crate) struct Output {
    /// Draw the bytes asked for and reserved over the operations. Takes a pass of its own on a new resource.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw a horizontal line, such as 'PyTorch peak=19.1GiB'. May be given several times.
    #[arg(long, value_name = "NAME=BYTES", requires = "svg")]
    level: Vec<Level>,
    /// Write what --svg draws as JSON. `cargo run -p cuda-mem-chart -- reserved FILE` draws it without a GPU.
    #[arg(long, value_name = "FILE")]
    curves: Option<PathBuf>,
}

impl Output {
    /// Whether there is anything to draw or to write.
    pub(crate) fn is_wanted(&self) -> bool {
        self.svg.is_some() || self.curves.is_some()
    }

    /// Nothing if nothing was replayed.
    pub(crate) fn write(&self, curves: &Curves) -> Result<()> {
        if curves.resources.is_empty() {
            return Ok(());
        }
        if let Some(file) = &self.curves {
            write(file, &serde_json::to_string(curves)?)?;
        }
        match &self.svg {
            Some(file) => write(file, &curves.chart(self.level.clone()).svg()?),
            None => Ok(()),
        }
    }
}

/// Without any resource yet.
pub(crate) fn curves(plan: &Plan, log: &Path, backend: &Backend, device: Device) -> Result<Curves> {
    let place = if backend.simulated {
        "simulated driver".to_owned()
    } else {
        device.name()?
    };
    let name = log.file_name().unwrap_or(log.as_os_str());
    Ok(Curves {
        trace: name.to_string_lossy().into_owned(),
        device: format!("{place}, CUDA {}", backend.driver.version()),
        operations: u64::try_from(plan.steps.len())?,
        asked: thinned(plan.asked.iter().copied()),
        resources: Vec::new(),
    })
}

/// `reserved` has a value for each operation.
pub(crate) fn curve(name: &str, adaptors: &[Adaptor], reserved: Option<Vec<u64>>) -> Curve {
    let adaptors = adaptors.iter().map(|adaptor| format!(" + {adaptor}"));
    Curve {
        name: name.to_owned() + &adaptors.collect::<String>(),
        reserved: reserved.map(|reserved| thinned(reserved.into_iter())),
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| file.display().to_string())
}
