//! Weights that rank 0 loads, and all other ranks receive into registered memory of an arena.
//!
//! ```sh
//! cargo run --release --example broadcast_weights                           # a thread for each GPU of this machine
//! cargo run --release --example broadcast_weights -- --file model.bin --processes
//! cargo run --release --example broadcast_weights -- --ranks 2 --rank 0 --at 10.0.0.1:5000   # on one machine …
//! cargo run --release --example broadcast_weights -- --ranks 2 --rank 1 --at 10.0.0.1:5000   # … and on another
//! CUDA_SIM_DEVICES=2 cargo run --example broadcast_weights                  # without GPUs, over a simulated NCCL
//! ```

#[path = "../common/mod.rs"]
mod common;
mod numbers;
mod rank;
mod show;
mod weights;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use cuda_mem_console::{EXIT_CODES, say};

use common::{Heading, RankOptions, open_nccl};

/// Broadcasts weights from rank 0 to all GPUs, and compares their checksums
#[derive(Clone, Debug, Parser)]
#[command(name = "broadcast_weights", after_help = EXIT_CODES)]
struct Args {
    #[command(flatten)]
    ranks: RankOptions,
    /// Weights as raw bytes, which only rank 0 reads; generated ones, if not given
    #[arg(long, value_name = "FILE", conflicts_with_all = ["layers", "width"])]
    file: Option<PathBuf>,
    /// Layers of the generated transformer
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    layers: u64,
    /// Elements of its hidden state
    #[arg(long, value_name = "W", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=16384))]
    width: u64,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    cuda_mem_console::main(run)
}

fn run(args: &Args) -> Result<()> {
    // First, so that a bad file fails before any rank waits for this one.
    let weights = load(args)?;
    let backend = cuda_mem_console::open()?;
    let nccl = open_nccl(&backend)?;
    let work = |communicator: &_| rank::rank(communicator, &weights);
    let Some(report) = args.ranks.run(nccl, backend.driver, work)? else {
        return Ok(());
    };
    let heading = Heading::new(&backend, nccl, report.rows.len(), method(args))?;
    if args.json {
        say!("{}", show::json(&heading, &report))
    } else {
        say!("{}", show::table(&heading, &report))
    }
}

/// Nothing for ranks that only receive.
fn load(args: &Args) -> Result<Vec<Vec<u8>>> {
    if !args.ranks.has_first() {
        return Ok(Vec::new());
    }
    match &args.file {
        Some(path) => Ok(weights::read(path)?),
        None => Ok(weights::generate(&weights::sizes(args.layers, args.width))),
    }
}

fn method(args: &Args) -> String {
    let what = match &args.file {
        Some(path) => path.display().to_string(),
        None => format!("{} layers of width {}", args.layers, args.width),
    };
    let blocking = if args.ranks.is_blocking() { "" } else { "non-" };
    format!("{what}; one broadcast of each tensor, timed once; a {blocking}blocking communicator")
}
