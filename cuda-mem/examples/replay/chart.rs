//! Reserved bytes by operation: as data, and as a picture.

use std::path::{Path, PathBuf};

use anyhow::Result;
use cuda_mem::Device;
use cuda_mem_chart::Level;
use cuda_mem_chart::reserved::{Curve, Curves, thinned};
use cuda_mem_console::{Backend, OutputFile};

use crate::adaptors::Adaptor;
use crate::plan::Plan;

/// The output options.
#[derive(Debug, clap::Args)]
pub(crate) struct Output {
    /// Draw the bytes asked for and reserved over the operations, in a pass of its own on a new resource
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw a horizontal line, such as 'PyTorch peak=19.1GiB'; may be given several times
    #[arg(long, value_name = "NAME=SIZE", requires = "svg")]
    level: Vec<Level>,
    /// Write what --svg draws as JSON, for `cargo run -p cuda-mem-chart -- reserved FILE`
    #[arg(long, value_name = "FILE")]
    curves: Option<PathBuf>,
}

/// The output files. They are opened before the work, so that an unwritable one fails early.
pub(crate) struct Files {
    svg: Option<OutputFile>,
    curves: Option<OutputFile>,
    level: Vec<Level>,
}

impl Output {
    /// Whether there is anything to draw or to write.
    pub(crate) fn is_wanted(&self) -> bool {
        self.svg.is_some() || self.curves.is_some()
    }

    pub(crate) fn open(&self) -> Result<Files> {
        let open = |path: &Option<PathBuf>| path.as_deref().map(OutputFile::open).transpose();
        Ok(Files {
            svg: open(&self.svg)?,
            curves: open(&self.curves)?,
            level: self.level.clone(),
        })
    }
}

impl Files {
    /// Writes nothing if nothing was replayed.
    pub(crate) fn write(self, curves: &Curves) -> Result<()> {
        if curves.resources.is_empty() {
            return Ok(());
        }
        if let Some(file) = self.curves {
            file.write(serde_json::to_string(curves)?.as_bytes())?;
        }
        if let Some(file) = self.svg {
            file.write(curves.chart(self.level).svg()?.as_bytes())?;
        }
        Ok(())
    }
}

/// The curves without any resource yet.
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

/// `reserved` has one value per operation.
pub(crate) fn curve(name: &str, adaptors: &[Adaptor], reserved: Option<Vec<u64>>) -> Curve {
    let adaptors = adaptors.iter().map(|adaptor| format!(" + {adaptor}"));
    Curve {
        name: name.to_owned() + &adaptors.collect::<String>(),
        reserved: reserved.map(|reserved| thinned(reserved.into_iter())),
    }
}
