//! Draws charts from recorded data, without a GPU.
//!
//! `cargo run -p cuda-mem-chart -- reserved FILE… [--level NAME=BYTES] -o OUT.svg` draws what
//! `replay --curves FILE` has recorded, and `placement FILE -o OUT.svg` a report of the benchmark `placement`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;
use cuda_mem_chart::{Level, placement, reserved::Curves};

#[derive(Debug, Parser)]
#[command(about = "Draws charts from recorded data")]
enum Args {
    /// Memory reserved over a replay.
    Reserved {
        /// What `replay --curves` has recorded. The resources of several files are drawn together.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Draw these resources only, in this order, and with another name after an equals sign. May be given
        /// several times.
        #[arg(long, value_name = "NAME[=LABEL]")]
        resource: Vec<String>,
        /// A horizontal line, such as 'PyTorch peak=19.1GiB'. May be given several times.
        #[arg(long, value_name = "NAME=BYTES")]
        level: Vec<Level>,
        /// Another title.
        #[arg(long)]
        title: Option<String>,
        /// The picture.
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
    /// Memory by kind and size.
    Placement {
        /// What `cargo bench -p cuda-mem --bench placement -- --json` has printed.
        file: PathBuf,
        /// The picture.
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
}

fn main() -> Result<()> {
    match Args::parse() {
        Args::Reserved {
            files,
            resource,
            level,
            title,
            output,
        } => {
            let mut files = files.iter().map(|file| curves(file));
            let mut all = files.next().context("there is no file")??;
            for curves in files {
                all.join(curves?)?;
            }
            if !resource.is_empty() {
                all.select(&resource)?;
            }
            let mut chart = all.chart(level);
            if let Some(title) = title {
                chart.title = title;
            }
            write(&output, &chart.svg()?)
        }
        Args::Placement { file, output } => {
            let report =
                placement::read(&read(&file)?).with_context(|| file.display().to_string())?;
            write(&output, &placement::grid(&report)?.svg()?)
        }
    }
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| file.display().to_string())
}

fn curves(file: &Path) -> Result<Curves> {
    serde_json::from_str(&read(file)?).with_context(|| file.display().to_string())
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| file.display().to_string())
}
