//! Memory pools from end to end: on the GPU if there is one, else on the simulated driver.
//!
//! First a tour of a pool, with its statistics after each step; then the allocations of a real
//! training run are served by a pool.

mod backend;
mod replay;
mod show;
mod tour;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use cuda_mem::{Device, Driver, ErrorKind};
use cuda_mem_trace::Trace;

#[derive(Debug, Parser)]
#[command(about = "Memory pools from end to end, and a real training run served by one")]
struct Args {
    /// Ordinal of the device, among those that CUDA_VISIBLE_DEVICES leaves.
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Bytes of each buffer in the tour.
    #[arg(long, default_value_t = 16 << 20, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    bytes: u64,
    /// Allocation log to replay, in RMM's CSV format, also gzipped.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/gpt2-train-varlen.csv.gz"))]
    trace: PathBuf,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

/// What the caller got wrong, as opposed to what went wrong. Ends the program with code 2.
#[derive(Debug)]
struct Misuse(String);

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.is::<Misuse>() { 2 } else { 1 })
        }
    }
}

fn run(args: &Args) -> Result<()> {
    // Read first: a bad log should cost nothing.
    let trace = Trace::read(&args.trace).map_err(|error| Misuse(error.to_string()))?;
    let backend = backend::open()?;
    let device = device(backend.driver, args.device)?;

    let mut show = show::Show::new(args.json);
    show.backend(&backend)?;
    show.device(device)?;

    let tour = tour::run(device, args.bytes, &mut show).context("the tour failed")?;
    let replay = replay::run(device, &trace, args.json).context("the replay failed")?;
    show.replay(&replay, &backend);
    show.finish(&tour, &replay)
}

fn device(driver: Driver, ordinal: usize) -> Result<Device> {
    driver.device(ordinal).map_err(|error| match error.kind() {
        ErrorKind::InvalidDevice => Misuse(format!("--device {ordinal}: {error}")).into(),
        _ => error.into(),
    })
}
