//! Memory pools from end to end: on the GPU if there is one, otherwise on the simulated driver.
//!
//! First a tour of a pool, with its statistics after each step; then the allocations of a real training run, served by
//! a pool and by an arena. A device without memory pools has no tour, and `cuMemAlloc` serves the run there.
//!
//! ```sh
//! cargo run --release --example quickstart
//! cargo run --release --example quickstart -- --bytes 1GiB
//! ```

mod replay;
mod show;
mod tour;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser;
use cuda_mem::memory::Strategy;
use cuda_mem_console::{DeviceOption, EXIT_CODES, Misuse, size};
use cuda_mem_trace::Trace;

/// Shows a memory pool at work, and serves the allocations of a real training run from one and from an arena
#[derive(Debug, Parser)]
#[command(name = "quickstart", after_help = EXIT_CODES)]
struct Args {
    #[command(flatten)]
    device: DeviceOption,
    /// Size of each buffer in the tour, such as 16M or 1GiB
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = tour_size)]
    bytes: u64,
    /// Allocation log to replay, in RMM's CSV format, plain or packed with gzip or zstd
    #[arg(long, value_name = "FILE", default_value_os_t = cuda_mem_trace::recorded(), hide_default_value = true)]
    trace: PathBuf,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

fn tour_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes @ 1..=0x100_0000_0000 => Ok(bytes),
        _ => Err("the tour needs 1 byte to 1 TiB".to_owned()),
    }
}

fn main() -> ExitCode {
    cuda_mem_console::main(run)
}

fn run(args: &Args) -> Result<()> {
    // Read first, so that a bad log fails early.
    let trace = Trace::read(&args.trace).map_err(|error| Misuse(error.to_string()))?;
    let backend = cuda_mem_console::open()?;
    let device = args.device.of(&backend)?;

    let mut show = show::Show::new(args.json);
    show.backend(&backend)?;
    show.device(device)?;

    let strategy = device.strategy()?;
    let mut tour = None;
    if strategy == Strategy::Pool {
        tour = Some(tour::run(device, args.bytes, &mut show).context("the tour failed")?);
    } else {
        show.no_tour(&strategy)?;
    }
    let replay = replay::run(device, &strategy, &trace, args.json).context("the replay failed")?;
    show.replay(&replay, &backend)?;
    show.finish(tour.as_ref(), &replay)
}
