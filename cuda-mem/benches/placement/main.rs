//! How fast devices and the host access each kind of memory, by size: the basis for the lines of the placement table.
//!
//! `cargo bench -p cuda-mem --bench placement [-- --json | --markdown] [--svg FILE]`. `--markdown` prints the tables of
//! `docs/src/placement-design.md`, to be inserted unchanged. `--from FILE` draws and shows the JSON output of an
//! earlier run, instead of measuring.

#[path = "../common/mod.rs"]
mod common;

mod kinds;
mod measure;
mod ring;
mod show;

use anyhow::{Context as _, Result};
use cuda_mem_chart::placement;
use serde_json::{Value, json};

use common::{cpu, open};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value_of = |option: &str| {
        let at = arguments.iter().position(|argument| argument == option);
        at.and_then(|at| arguments.get(at + 1)).cloned()
    };
    let report = match value_of("--from") {
        Some(file) => {
            let printed = std::fs::read_to_string(&file).with_context(|| file.clone())?;
            placement::read(&printed).context(file)?
        }
        None => run()?,
    };
    if let Some(file) = value_of("--svg") {
        std::fs::write(&file, placement::grid(&report)?.svg()?).context(file)?;
    }
    if arguments.iter().any(|argument| argument == "--json") {
        println!("{report}");
    } else if arguments.iter().any(|argument| argument == "--markdown") {
        show::markdown(&report);
    } else {
        show::table(&report);
    }
    Ok(())
}

fn run() -> Result<Value> {
    let (driver, backend) = open()?;
    let device = driver.device(0)?;
    let (rows, left_out) = measure::all(&device, backend == "simulated")?;
    Ok(json!({
        "benchmark": "placement",
        "backend": backend,
        "device": device.name()?,
        "driver": driver.version().to_string(),
        "cpu": cpu(),
        "cores": std::thread::available_parallelism()?.get(),
        "method": measure::METHOD,
        "left_out": left_out,
        "rows": rows,
    }))
}
